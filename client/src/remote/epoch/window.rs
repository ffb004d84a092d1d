//! The two groups in memory: the current group, and the next group in fetching.
//!
//! Must hold: there are at most two groups. A file is delivered as soon as its chunk is present.
//! Chunks in the memory of the node are not fetched.
//! Every wait for a chunk is a wait for a fetch with an end. After a failure of all servers,
//! fetching stops until the next request for a file.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dl_runtime::locked;

use crate::error::Error;
use crate::order::{ChunkPlan, Cursor};
use crate::remote::epoch::group::{Content, Group, State};

/// The share of the next group, as an inverse, after whose delivery the previous group is dropped.
/// Until then slow threads may still want files of the previous group.
const BEHIND: usize = 4;

/// The result of a request for a file.
#[derive(Debug)]
pub(crate) enum Taken {
    /// The bytes or the error of the file.
    File(Result<Bytes, Error>),
    /// Not kept here: the file must be read separately.
    Separate,
    Unreachable(Error),
}

#[derive(Debug)]
pub(super) struct Fetch {
    place: (u64, usize),
    /// The wanted files of the chunk, ascending.
    pub(super) numbers: Vec<u32>,
}

/// Starts a fetcher, which calls [`Window::next_fetch`] until no chunk is left.
pub(super) type StartFetcher = Box<dyn Fn() + Send + Sync>;

/// Whether another source has a chunk of the snapshot, by its number.
pub(crate) type IsElsewhere = Box<dyn Fn(u32) -> bool + Send + Sync>;

/// The groups in memory, with their waiting threads.
pub(super) struct Window {
    inner: Mutex<Inner>,
    changed: Condvar,
    start: StartFetcher,
    fetchers_max: usize,
    is_elsewhere: IsElsewhere,
}

struct Inner {
    /// The source of the later groups; none after [`Window::end_ahead`].
    cursor: Option<Cursor>,
    /// At most two groups, in order.
    groups: VecDeque<Group>,
    number: u64,
    /// Chunks to fetch, by the numbers of the group and of the chunk.
    queue: VecDeque<(u64, usize)>,
    fetchers: usize,
    /// Whether no server answered the last fetch.
    is_stalled: bool,
    /// The end of the positions requested in order; none if all requests were by number.
    asked: Option<u64>,
}

impl Window {
    /// The groups of a cursor. `start` is called for each fetcher, with at most `fetchers_max` at a
    /// time. Files of chunks that `is_elsewhere` names are left to their other source.
    pub(super) fn new(
        cursor: Cursor,
        start: StartFetcher,
        fetchers_max: usize,
        is_elsewhere: IsElsewhere,
    ) -> Self {
        let mut inner = Inner {
            cursor: Some(cursor),
            groups: VecDeque::new(),
            number: 0,
            queue: VecDeque::new(),
            fetchers: 0,
            is_stalled: false,
            asked: None,
        };
        inner.plan();
        Self {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            start,
            fetchers_max,
            is_elsewhere,
        }
    }

    /// Plans no further group. Returns the position behind the planned groups.
    pub(super) fn end_ahead(&self) -> Option<u64> {
        let mut inner = self.lock();
        inner.cursor = None;
        inner.end()
    }

    /// Whether a position lies behind the planned groups.
    pub(super) fn is_behind(&self, position: u64) -> bool {
        self.lock().end().is_none_or(|end| end <= position)
    }

    /// The file at a position of the order, after a wait for its chunk. None if the group of the
    /// file is not planned yet, because the two groups before are still in use.
    pub(super) fn take_at(&self, position: u64, number: u32) -> Option<Taken> {
        let mut inner = self.lock();
        let is_planned = inner.groups.iter().any(|group| position < group.plan.positions().end);
        // With fewer than two groups, all remaining groups are planned.
        if !is_planned && inner.groups.len() == 2 {
            return None;
        }
        inner.asked = inner.asked.max(Some(position + 1));
        Some(self.take_from(inner, number))
    }

    /// Plans the groups from a position on, if the position lies behind two planned groups.
    pub(super) fn skip(&self, position: u64) {
        let mut inner = self.lock();
        let is_behind = inner.groups.len() == 2 && inner.end().is_some_and(|end| end <= position);
        let Some(cursor) = inner.cursor.as_mut().filter(|_| is_behind) else { return };
        cursor.seek(position);
        let skipped = std::mem::take(&mut inner.groups);
        inner.number += skipped.len() as u64;
        inner.queue.clear();
        inner.plan();
        drop(inner);
        // Threads may wait for files of the skipped groups, by number.
        self.changed.notify_all();
    }

    /// The file with a number, after a wait for its chunk.
    pub(super) fn take(&self, number: u32) -> Taken {
        self.take_from(self.lock(), number)
    }

    fn take_from(&self, mut inner: MutexGuard<'_, Inner>, number: u32) -> Taken {
        let mut waited = None;
        loop {
            let Some((index, piece, place)) = inner.find(number) else { return Taken::Separate };
            let of = (inner.number + index as u64, piece);
            let Some(group) = inner.groups.get_mut(index) else { return Taken::Separate };
            match group.pieces.get(piece).map(|piece| &piece.state) {
                Some(State::Ready(contents)) => {
                    let content = contents.get(place).cloned().unwrap_or(Content::Separate);
                    group.take(piece, place);
                    let read = inner.drop_read();
                    self.start_fetchers(&mut inner);
                    drop(inner);
                    if !read.is_empty() {
                        self.changed.notify_all();
                    }
                    return match content {
                        Content::Bytes(bytes) => Taken::File(Ok(bytes)),
                        Content::Failed(error) => Taken::File(Err(*error)),
                        Content::Separate => Taken::Separate,
                    };
                }
                Some(State::Failed(error)) if waited == Some(of) => {
                    return Taken::Unreachable(error.clone());
                }
                _ => {}
            }
            waited = Some(of);
            inner.want(of);
            self.start_fetchers(&mut inner);
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next chunk for a fetcher; none if the fetcher may end.
    pub(super) fn next_fetch(&self) -> Option<Fetch> {
        let mut inner = self.lock();
        while let Some(place) = inner.queue.pop_front() {
            let Some(group) = inner.group(place.0) else { continue };
            let Some(piece) = group.pieces.get_mut(place.1) else { continue };
            if !matches!(piece.state, State::Waiting) {
                continue;
            }
            if group.plan.number_of(place.1).is_some_and(|chunk| (self.is_elsewhere)(chunk)) {
                group.pass_over(place.1);
                self.changed.notify_all();
                continue;
            }
            piece.state = State::Fetching;
            return Some(Fetch { place, numbers: group.plan.files_of(place.1).to_vec() });
        }
        inner.fetchers -= 1;
        None
    }

    /// Records the result of a fetch: the content of each file, or the error of the servers.
    pub(super) fn record(&self, fetch: &Fetch, result: Result<Vec<Content>, Error>) {
        let mut inner = self.lock();
        let is_stalled = result.is_err();
        let was_stalled = std::mem::replace(&mut inner.is_stalled, is_stalled);
        match result {
            Ok(contents) => inner.set(fetch.place, State::Ready(contents)),
            Err(error) => {
                inner.set(fetch.place, State::Failed(error.clone()));
                inner.stall(&error);
            }
        }
        if was_stalled && !is_stalled {
            inner.queue_all();
            self.start_fetchers(&mut inner);
        }
        drop(inner);
        self.changed.notify_all();
    }

    /// Records the loss of a fetcher in the middle of a fetch.
    pub(super) fn lose(&self, fetch: &Fetch, why: Error) {
        self.record(fetch, Err(why));
        self.lock().fetchers -= 1;
    }

    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.groups.clear();
        inner.queue.clear();
    }

    fn start_fetchers(&self, inner: &mut Inner) {
        for _ in 0..inner.queue.len() {
            if inner.fetchers >= self.fetchers_max {
                return;
            }
            inner.fetchers += 1;
            (self.start)();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        locked(&self.inner)
    }
}

impl Inner {
    /// Plans groups up to two.
    fn plan(&mut self) {
        while self.groups.len() < 2 {
            let Some(plan) = self.cursor.as_mut().and_then(ChunkPlan::next_of) else { return };
            let number = self.number + self.groups.len() as u64;
            if !self.is_stalled {
                self.queue.extend(plan.by_need().iter().map(|piece| (number, *piece)));
            }
            self.groups.push_back(Group::new(plan));
        }
    }

    /// The position behind the planned groups.
    fn end(&self) -> Option<u64> {
        self.groups.back().map(|group| group.plan.positions().end)
    }

    /// Drops finished groups, and plans the next groups.
    fn drop_read(&mut self) -> Vec<Group> {
        let mut read = Vec::new();
        while let Some(first) = self.groups.front() {
            let (taken, files) = first.progress();
            let is_behind = self.groups.get(1).is_some_and(|next| {
                let (taken, files) = next.progress();
                taken > 0 && taken * BEHIND >= files
            });
            let is_to_ask = self.asked.is_some_and(|asked| asked < first.plan.positions().end);
            if is_to_ask || taken < files && !is_behind {
                break;
            }
            read.extend(self.groups.pop_front());
            self.number += 1;
            self.plan();
        }
        read
    }

    fn group(&mut self, number: u64) -> Option<&mut Group> {
        let index = number.checked_sub(self.number)?;
        self.groups.get_mut(usize::try_from(index).ok()?)
    }

    /// The position of a file. A padded order may have the file in both groups.
    fn find(&self, number: u32) -> Option<(usize, usize, usize)> {
        let mut found = self.groups.iter().enumerate().filter_map(|(index, group)| {
            let (piece, place) = group.plan.find(number)?;
            Some((index, piece, place, group.is_taken(piece, place)))
        });
        let (index, piece, place, is_taken) = found.next()?;
        let other = found.next().filter(|(.., other_is_taken)| is_taken && !other_is_taken);
        Some(other.map_or((index, piece, place), |(index, piece, place, _)| (index, piece, place)))
    }

    fn set(&mut self, (number, piece): (u64, usize), state: State) {
        let group = self.group(number);
        if let Some(piece) = group.and_then(|group| group.pieces.get_mut(piece)) {
            piece.state = state;
            piece.is_wanted = false;
        }
    }

    /// Moves a chunk to the front, for a waiting thread.
    fn want(&mut self, of: (u64, usize)) {
        let group = self.group(of.0);
        let Some(piece) = group.and_then(|group| group.pieces.get_mut(of.1)) else { return };
        if matches!(piece.state, State::Failed(_)) {
            piece.state = State::Waiting;
        }
        let is_first = matches!(piece.state, State::Waiting) && !piece.is_wanted;
        piece.is_wanted = true;
        if is_first {
            self.queue.push_front(of);
        }
    }

    /// Stops all fetches after a failure of the servers; the other waiting threads fail too.
    fn stall(&mut self, error: &Error) {
        self.queue.clear();
        for piece in self.groups.iter_mut().flat_map(|group| &mut group.pieces) {
            if piece.is_wanted && matches!(piece.state, State::Waiting) {
                piece.state = State::Failed(error.clone());
                piece.is_wanted = false;
            }
        }
    }

    fn queue_all(&mut self) {
        self.queue.clear();
        for (number, group) in (self.number..).zip(&mut self.groups) {
            for piece in &mut group.pieces {
                if matches!(piece.state, State::Failed(_)) {
                    piece.state = State::Waiting;
                }
            }
            self.queue.extend(group.plan.by_need().iter().map(|piece| (number, *piece)));
        }
    }
}

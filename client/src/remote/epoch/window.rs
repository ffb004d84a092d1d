//! The two groups that are in memory: the one that is read, and the one that is fetched meanwhile.
//!
//! Must hold: never more than two groups; a file is handed over as soon as its chunk is there; who
//! waits for a chunk waits for a fetch of it that ends. When no server can be asked, nothing more is
//! fetched until somebody asks again.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::error::Error;
use crate::order::{ChunkPlan, Cursor};
use crate::remote::epoch::group::{Content, Group, State};

/// The group before is let go of once one file in so many of the next one was handed over: whoever
/// reads by several threads, or leaves files out, may still want some of it before that.
const BEHIND: usize = 4;

/// What became of asking for a file.
#[derive(Debug)]
pub(super) enum Taken {
    /// Its bytes, or why it can't be had.
    File(Result<Bytes, Error>),
    /// It is not kept here: it is to be read by itself.
    Apart,
    /// No server could be asked.
    Unreachable(Error),
}

/// A chunk to be fetched.
#[derive(Debug)]
pub(super) struct Fetch {
    place: (u64, usize),
    /// The files that are wanted of it, ascending.
    pub(super) numbers: Vec<u32>,
}

/// Starts one more of those who fetch: it calls [`Window::next_fetch`] until nothing is left.
pub(super) type StartFetcher = Box<dyn Fn() + Send + Sync>;

/// The groups in memory, and who waits for them.
pub(super) struct Window {
    inside: Mutex<Inside>,
    changed: Condvar,
    start: StartFetcher,
    fetchers_max: usize,
}

struct Inside {
    /// Gives the groups after those that are here.
    cursor: Cursor,
    /// At most two, in order, the first one of this number.
    groups: VecDeque<Group>,
    number: u64,
    /// Chunks to fetch, each by its group's number and its own.
    queue: VecDeque<(u64, usize)>,
    fetchers: usize,
    /// Whether no server could be asked the last time.
    is_stalled: bool,
    /// Positions below this one were asked for in the order; none when files are only asked for by
    /// their numbers.
    asked: Option<u64>,
}

impl Window {
    /// Of what a cursor still gives. `start` is called whenever one more is to fetch, at most
    /// `fetchers_max` at a time.
    pub(super) fn new(cursor: Cursor, start: StartFetcher, fetchers_max: usize) -> Self {
        let mut inside = Inside {
            cursor,
            groups: VecDeque::new(),
            number: 0,
            queue: VecDeque::new(),
            fetchers: 0,
            is_stalled: false,
            asked: None,
        };
        inside.plan();
        Self { inside: Mutex::new(inside), changed: Condvar::new(), start, fetchers_max }
    }

    /// The file of this number at a position of the order; waits until its chunk is there. None when
    /// its group is not planned yet, because others still read files of the two groups before it.
    pub(super) fn take_at(&self, position: u64, number: u32) -> Option<Taken> {
        let mut inside = self.lock();
        let is_planned = inside.groups.iter().any(|group| position < group.plan.positions().end);
        // With fewer groups than two, all that are left are planned.
        if !is_planned && inside.groups.len() == 2 {
            return None;
        }
        inside.asked = inside.asked.max(Some(position + 1));
        Some(self.take_from(inside, number))
    }

    /// The file of this number; waits until its chunk is there.
    pub(super) fn take(&self, number: u32) -> Taken {
        self.take_from(self.lock(), number)
    }

    fn take_from(&self, mut inside: MutexGuard<'_, Inside>, number: u32) -> Taken {
        let mut waited = None;
        loop {
            let Some((index, piece, place)) = inside.find(number) else { return Taken::Apart };
            let of = (inside.number + index as u64, piece);
            let Some(group) = inside.groups.get_mut(index) else { return Taken::Apart };
            match group.pieces.get(piece).map(|piece| &piece.state) {
                Some(State::Ready(contents)) => {
                    let content = contents.get(place).cloned().unwrap_or(Content::Apart);
                    group.take(piece, place);
                    let read = inside.let_go();
                    self.start_fetchers(&mut inside);
                    drop(inside);
                    if !read.is_empty() {
                        self.changed.notify_all();
                    }
                    return match content {
                        Content::Bytes(bytes) => Taken::File(Ok(bytes)),
                        Content::Failed(error) => Taken::File(Err(*error)),
                        Content::Apart => Taken::Apart,
                    };
                }
                Some(State::Failed(error)) if waited == Some(of) => {
                    return Taken::Unreachable(error.clone());
                }
                _ => {}
            }
            waited = Some(of);
            inside.want(of);
            self.start_fetchers(&mut inside);
            inside = self.changed.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next chunk to fetch, for one who was started; none when it may end.
    pub(super) fn next_fetch(&self) -> Option<Fetch> {
        let mut inside = self.lock();
        while let Some(place) = inside.queue.pop_front() {
            let Some(group) = inside.group(place.0) else { continue };
            let Some(piece) = group.pieces.get_mut(place.1) else { continue };
            if matches!(piece.state, State::Waiting) {
                piece.state = State::Fetching;
                return Some(Fetch { place, numbers: group.plan.files_of(place.1).to_vec() });
            }
        }
        inside.fetchers -= 1;
        None
    }

    /// What came of a fetch: something for each file, or why no server could be asked.
    pub(super) fn settle(&self, fetch: &Fetch, became: Result<Vec<Content>, Error>) {
        let mut inside = self.lock();
        let is_stalled = became.is_err();
        let was_stalled = std::mem::replace(&mut inside.is_stalled, is_stalled);
        match became {
            Ok(contents) => inside.set(fetch.place, State::Ready(contents)),
            Err(error) => {
                inside.set(fetch.place, State::Failed(error.clone()));
                inside.stall(&error);
            }
        }
        if was_stalled && !is_stalled {
            inside.queue_all();
            self.start_fetchers(&mut inside);
        }
        drop(inside);
        self.changed.notify_all();
    }

    /// One who fetches ended in the middle of it.
    pub(super) fn lose(&self, fetch: &Fetch, why: Error) {
        self.settle(fetch, Err(why));
        self.lock().fetchers -= 1;
    }

    /// Lets go of everything.
    pub(super) fn close(&self) {
        let mut inside = self.lock();
        inside.groups.clear();
        inside.queue.clear();
    }

    fn start_fetchers(&self, inside: &mut Inside) {
        for _ in 0..inside.queue.len() {
            if inside.fetchers >= self.fetchers_max {
                return;
            }
            inside.fetchers += 1;
            (self.start)();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    /// Makes the groups two, as long as there are more.
    fn plan(&mut self) {
        while self.groups.len() < 2 {
            let Some(plan) = ChunkPlan::next_of(&mut self.cursor) else { return };
            let number = self.number + self.groups.len() as u64;
            if !self.is_stalled {
                self.queue.extend(plan.by_need().iter().map(|piece| (number, *piece)));
            }
            self.groups.push_back(Group::new(plan));
        }
    }

    /// Lets go of groups that are read, and plans those that follow.
    fn let_go(&mut self) -> Vec<Group> {
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

    /// Where a file is; who pads may read one in both groups.
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

    /// Somebody waits for a chunk: it comes before others.
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

    /// Servers that could not be asked for one chunk are not waited for by those behind it.
    fn stall(&mut self, error: &Error) {
        self.queue.clear();
        for piece in self.groups.iter_mut().flat_map(|group| &mut group.pieces) {
            if piece.is_wanted && matches!(piece.state, State::Waiting) {
                piece.state = State::Failed(error.clone());
                piece.is_wanted = false;
            }
        }
    }

    /// Everything that is not here is fetched again.
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

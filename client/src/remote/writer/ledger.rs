//! What was put and became of it.
//!
//! Must hold: a chunk has a token from its first file until it is acknowledged or has failed, so
//! that a flush knows what to wait for; nobody waits here for what nobody works on. A failure is told
//! by every flush that waited for its chunk. Once no server answers, all that is under way is given up
//! at the same time, until a flush has told so.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use dl_format::FilePath;
use tokio::sync::watch;

use crate::error::Error;
use crate::remote::writer::Open;

/// What became of the files put since the last flush. Of flushes that go on at the same time each
/// tells every failure among the files that were put before it, and one of them counts the others.
#[derive(Debug, Default)]
#[must_use = "some files may have failed"]
pub struct Flushed {
    /// Files acknowledged: all put since the last flush but those that failed.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// What was not acknowledged. It may have been written all the same, or be written within the next
    /// 15 minutes by a server that was silent, and hide what was put since: put it again then.
    pub failed: Vec<FailedWrite>,
}

/// Files that were put and not acknowledged.
#[derive(Debug, Clone)]
pub struct FailedWrite {
    /// Where they were put.
    pub paths: Vec<FilePath>,
    /// Why they were not acknowledged.
    pub error: Error,
}

impl Flushed {
    /// Everything was acknowledged, or the first failure.
    ///
    /// # Errors
    /// That of the first write that failed.
    pub fn check(mut self) -> Result<Self, Error> {
        if self.failed.is_empty() { Ok(self) } else { Err(self.failed.swap_remove(0).error) }
    }
}

/// The hash of a path, kept in its stead. Two paths of one hash are taken for one, so that the
/// second one may wait for a chunk that does not concern it.
type Place = u64;

/// Names a chunk while it is packed and sent. Ascending.
pub(crate) type Token = u64;

/// Leave to send an object, which counts as under way until this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Ledger>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.state().in_flight -= 1;
        self.0.changed.notify_all();
    }
}

/// The account of one writer.
#[derive(Debug)]
pub(crate) struct Ledger {
    state: Mutex<State>,
    changed: Condvar,
    /// Why nothing is sent any more: no server took an object for as long as one is tried.
    given_up: watch::Sender<Option<Error>>,
    in_flight_max: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Chunks that take files and that no thread holds.
    open: Vec<Open>,
    next: Token,
    /// Chunks that are open, held by a thread, or under way.
    unsettled: BTreeSet<Token>,
    /// Large files whose source is being read: no flush waits for those.
    reading: BTreeSet<Token>,
    /// The unsettled chunk that each path was put into last.
    places: HashMap<Place, Token>,
    /// Places of each unsettled chunk.
    within: HashMap<Token, Vec<Place>>,
    hasher: RandomState,
    /// Chunks before this one are sent when the thread that holds one lets go of it.
    send_before: Token,
    in_flight: usize,
    /// What became of chunks that no flush has waited for yet.
    done: Flushed,
    /// Flushes under way, in the order in which they began, which is that of their horizons.
    flushes: BTreeMap<u64, Flush>,
    next_flush: u64,
    /// Chunks that failed, until a flush has told so.
    broken: BTreeMap<Token, Error>,
}

/// A flush under way.
#[derive(Debug)]
struct Flush {
    /// It waits for the chunks before this one.
    horizon: Token,
    /// What became of them.
    done: Flushed,
}

impl Ledger {
    pub(crate) fn new(in_flight: usize) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            given_up: watch::Sender::default(),
            in_flight_max: in_flight.max(1),
        }
    }

    /// Whether an object may be sent now, without a wait for one under way.
    pub(crate) fn has_room(&self) -> bool {
        self.state().in_flight < self.in_flight_max
    }

    /// An open chunk for the calling thread alone, or the token of a fresh one. Waits for a chunk
    /// under way that holds the same path: of two puts one after the other, the second one holds.
    ///
    /// # Errors
    /// That of a chunk that failed and that no flush has reported yet.
    pub(crate) fn take(&self, path: &FilePath) -> Result<Result<Open, Token>, Error> {
        let mut state = self.state();
        loop {
            state.refuse_broken()?;
            let Some(place) = state.place_of(path) else {
                return Ok(state.open.pop().ok_or_else(|| state.begin()));
            };
            if let Some(open) = state.take_open(place) {
                return Ok(Ok(open));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until no chunk under way holds the path; gives one that is open and must be sent.
    pub(crate) fn await_path(&self, path: &FilePath) -> Option<Open> {
        let mut state = self.state();
        loop {
            let place = state.place_of(path)?;
            if let Some(open) = state.take_open(place) {
                return Some(open);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The token of a large file while its source is read, which may take any time.
    ///
    /// # Errors
    /// As [`Ledger::take`].
    pub(crate) fn begin_reading(&self, path: &FilePath) -> Result<Token, Error> {
        let mut state = self.state();
        state.refuse_broken()?;
        let token = state.next;
        state.next += 1;
        state.reading.insert(token);
        state.place(path, token);
        Ok(token)
    }

    /// The source was read: gives the token of the chunk that publishes the file, for which flushes
    /// wait that begin from now on.
    pub(crate) fn end_reading(&self, token: Token) -> Token {
        let mut state = self.state();
        state.reading.remove(&token);
        let chunk = state.begin();
        let places = state.within.remove(&token).unwrap_or_default();
        for place in &places {
            if state.places.get(place) == Some(&token) {
                state.places.insert(*place, chunk);
            }
        }
        state.within.insert(chunk, places);
        chunk
    }

    /// Lets other threads use the chunk, to which `added` was added; gives it back when a flush
    /// waits for it.
    pub(crate) fn give_back(&self, open: Open, added: Option<&FilePath>) -> Option<Open> {
        let mut state = self.state();
        if let Some(path) = added {
            state.place(path, open.token);
        }
        if open.token < state.send_before {
            return Some(open);
        }
        state.open.push(open);
        // Somebody may wait for this very chunk.
        self.changed.notify_all();
        None
    }

    /// Waits until one more object may be under way.
    ///
    /// # Errors
    /// Why everything is given up.
    pub(crate) fn take_off(self: &Arc<Self>) -> Result<UnderWay, Error> {
        let mut state = self.state();
        loop {
            if let Some(error) = &*self.given_up.borrow() {
                return Err(error.clone());
            }
            if state.in_flight < self.in_flight_max {
                state.in_flight += 1;
                return Ok(UnderWay(Arc::clone(self)));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives up what is under way and what would be.
    pub(crate) fn give_up(&self, error: &Error) {
        let _state = self.state();
        self.given_up.send_if_modified(|given_up| {
            let is_first = given_up.is_none();
            given_up.get_or_insert_with(|| error.clone());
            is_first
        });
        self.changed.notify_all();
    }

    /// Waits until everything is given up.
    pub(crate) async fn given_up(&self) -> Error {
        let mut given_up = self.given_up.subscribe();
        loop {
            if let Some(error) = &*given_up.borrow_and_update() {
                return error.clone();
            }
            if given_up.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// A chunk was acknowledged with so many files and bytes, or has failed.
    pub(crate) fn settle(&self, token: Token, became: Result<(u64, u64), FailedWrite>) {
        let mut state = self.state();
        state.tell(token, became);
        state.unsettled.remove(&token);
        state.reading.remove(&token);
        for place in state.within.remove(&token).unwrap_or_default() {
            if state.places.get(&place) == Some(&token) {
                state.places.remove(&place);
            }
        }
        self.changed.notify_all();
    }

    /// From here on chunks are sent when threads let go of them; gives the number of the flush, and
    /// those that nobody holds.
    pub(crate) fn start_flush(&self) -> (u64, Vec<Open>) {
        let mut state = self.state();
        let (number, horizon) = (state.next_flush, state.next);
        state.next_flush += 1;
        state.send_before = horizon;
        let mut done = std::mem::take(&mut state.done);
        // What failed and is not told yet was put before this one, too: the last one has all of it.
        if let Some((_, last)) = state.flushes.last_key_value() {
            done.failed.extend_from_slice(&last.done.failed);
        }
        state.flushes.insert(number, Flush { horizon, done });
        (number, std::mem::take(&mut state.open))
    }

    /// Waits for all chunks that were begun before the flush was.
    pub(crate) fn finish_flush(&self, number: u64) -> Flushed {
        let mut state = self.state();
        let horizon = state.flushes.get(&number).map_or(0, |flush| flush.horizon);
        while state.unsettled.first().is_some_and(|token| *token < horizon) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.broken = state.broken.split_off(&horizon);
        if state.broken.is_empty() {
            self.given_up.send_replace(None);
        }
        state.flushes.remove(&number).map(|flush| flush.done).unwrap_or_default()
    }

    /// Files in chunks that were not sent.
    pub(crate) fn open_files(&self) -> u64 {
        self.state().open.iter().map(|open| u64::from(open.chunk.count())).sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn begin(&mut self) -> Token {
        let token = self.next;
        self.next += 1;
        self.unsettled.insert(token);
        token
    }

    /// Fails while a chunk has failed and no flush has told so.
    fn refuse_broken(&self) -> Result<(), Error> {
        self.broken.first_key_value().map_or(Ok(()), |(_, error)| Err(error.clone()))
    }

    /// Tells the flushes that wait for a chunk what became of it, or the next flush.
    fn tell(&mut self, token: Token, became: Result<(u64, u64), FailedWrite>) {
        let waiting = self.flushes.values_mut().filter(|flush| token < flush.horizon);
        let mut waiting = waiting.map(|flush| &mut flush.done);
        let first = waiting.next().unwrap_or(&mut self.done);
        match became {
            Ok((files, bytes)) => {
                first.files += files;
                first.bytes += bytes;
            }
            Err(failed) => {
                self.broken.insert(token, failed.error.clone());
                waiting.for_each(|other| other.failed.push(failed.clone()));
                first.failed.push(failed);
            }
        }
    }

    /// The unsettled chunk that the path was put into last.
    fn place_of(&self, path: &FilePath) -> Option<Token> {
        self.places.get(&self.hasher.hash_one(path)).copied()
    }

    fn take_open(&mut self, token: Token) -> Option<Open> {
        let index = self.open.iter().position(|open| open.token == token)?;
        Some(self.open.swap_remove(index))
    }

    fn place(&mut self, path: &FilePath, token: Token) {
        if self.unsettled.contains(&token) || self.reading.contains(&token) {
            let place = self.hasher.hash_one(path);
            self.places.insert(place, token);
            self.within.entry(token).or_default().push(place);
        }
    }
}

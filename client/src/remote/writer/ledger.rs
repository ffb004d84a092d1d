//! The state of all puts of a writer.
//!
//! Must hold: a chunk has a token from its first file until its acknowledgement or failure, so a
//! flush knows which chunks to wait for. No thread waits here for work without a worker. Every
//! flush that waited for a chunk reports its failure. After a time without any server, all chunks
//! in flight are given up together, until a flush has reported the failure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use dl_format::FilePath;
use dl_runtime::locked;
use tokio::sync::watch;

use crate::error::Error;
use crate::remote::writer::Open;

/// The result of all puts since the last flush. Concurrent flushes each report every failure among
/// earlier puts; a single flush counts the files.
#[derive(Debug, Default)]
#[must_use = "files may have failed"]
pub struct Flushed {
    /// Acknowledged files: all puts since the last flush without the failed files.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Files without an acknowledgement. A silent server may still write them within 15 minutes,
    /// and hide later puts of the same paths: repeat such puts.
    pub failed: Vec<FailedWrite>,
}

/// Failed puts of a chunk.
#[derive(Debug, Clone)]
pub struct FailedWrite {
    /// The paths of the files.
    pub paths: Vec<FilePath>,
    /// The cause of the failure.
    pub error: Error,
}

impl Flushed {
    /// The first failure, if any.
    ///
    /// # Errors
    /// The error of the first failed write.
    pub fn check(mut self) -> Result<Self, Error> {
        if self.failed.is_empty() { Ok(self) } else { Err(self.failed.swap_remove(0).error) }
    }
}

/// The hash of a path. A collision of two paths only delays the second put.
type PathHash = u64;

/// The number of a chunk in packing or sending, in ascending order.
pub(crate) type Token = u64;

/// Permission to send an object. The object counts as in flight until the drop.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Ledger>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.state().in_flight -= 1;
        self.0.changed.notify_all();
    }
}

/// The state of a writer.
#[derive(Debug)]
pub(crate) struct Ledger {
    state: Mutex<State>,
    changed: Condvar,
    /// The error that stops all sending: no server took an object for the time of a request.
    given_up: watch::Sender<Option<Error>>,
    in_flight_max: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Chunks with room, held by no thread.
    open: Vec<Open>,
    next: Token,
    /// Chunks that are open, held by a thread, or in flight.
    unreported: BTreeSet<Token>,
    /// Large files with a source in reading: no flush waits for them.
    reading: BTreeSet<Token>,
    /// The unreported chunk with the last put of each path.
    last_chunks: HashMap<PathHash, Token>,
    /// The paths of each unreported chunk.
    paths: HashMap<Token, Vec<PathHash>>,
    hasher: RandomState,
    /// Chunks before this token are sent as soon as their thread gives them back.
    send_before: Token,
    in_flight: usize,
    /// The results of chunks not covered by a flush yet.
    done: Flushed,
    /// Flushes in progress, in the order of their begin and of their horizons.
    flushes: BTreeMap<u64, Flush>,
    next_flush: u64,
    /// Failed chunks not reported by a flush yet.
    broken: BTreeMap<Token, Error>,
}

#[derive(Debug)]
struct Flush {
    /// The first token after the chunks of the flush.
    horizon: Token,
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

    /// Whether an object may be sent now, without waiting.
    pub(crate) fn has_room(&self) -> bool {
        self.state().in_flight < self.in_flight_max
    }

    /// An open chunk for the calling thread alone, or the token of a new chunk. Waits for a chunk
    /// in flight with the same path, so the later of two puts wins.
    ///
    /// # Errors
    /// The error of a failed chunk not reported by a flush yet.
    pub(crate) fn take(&self, path: &FilePath) -> Result<Result<Open, Token>, Error> {
        let mut state = self.state();
        loop {
            state.refuse_broken()?;
            let Some(place) = state.chunk_of(path) else {
                return Ok(state.open.pop().ok_or_else(|| state.begin()));
            };
            if let Some(open) = state.take_open(place) {
                return Ok(Ok(open));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until no chunk in flight holds the path; gives an open chunk with the path, which the
    /// caller must send.
    pub(crate) fn await_path(&self, path: &FilePath) -> Option<Open> {
        let mut state = self.state();
        loop {
            let place = state.chunk_of(path)?;
            if let Some(open) = state.take_open(place) {
                return Some(open);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The token of a large file while its source is read, for any time.
    pub(crate) fn begin_reading(&self, path: &FilePath) -> Result<Token, Error> {
        let mut state = self.state();
        state.refuse_broken()?;
        let token = state.next;
        state.next += 1;
        state.reading.insert(token);
        state.add_path(path, token);
        Ok(token)
    }

    /// Ends the reading of a source: gives the token of the chunk that publishes the file. Later
    /// flushes wait for the chunk.
    pub(crate) fn end_reading(&self, token: Token) -> Token {
        let mut state = self.state();
        state.reading.remove(&token);
        let chunk = state.begin();
        let last_chunks = state.paths.remove(&token).unwrap_or_default();
        for place in &last_chunks {
            if state.last_chunks.get(place) == Some(&token) {
                state.last_chunks.insert(*place, chunk);
            }
        }
        state.paths.insert(chunk, last_chunks);
        chunk
    }

    /// Lets other threads use the chunk, after a put of `added`; gives the chunk back if a flush
    /// waits for it.
    pub(crate) fn give_back(&self, open: Open, added: Option<&FilePath>) -> Option<Open> {
        let mut state = self.state();
        if let Some(path) = added {
            state.add_path(path, open.token);
        }
        if open.token < state.send_before {
            return Some(open);
        }
        state.open.push(open);
        // A thread may wait for the chunk.
        self.changed.notify_all();
        None
    }

    /// Waits until one more object may be in flight.
    ///
    /// # Errors
    /// The error that stops all sending.
    pub(crate) fn begin_sending(self: &Arc<Self>) -> Result<InFlight, Error> {
        let mut state = self.state();
        loop {
            if let Some(error) = &*self.given_up.borrow() {
                return Err(error.clone());
            }
            if state.in_flight < self.in_flight_max {
                state.in_flight += 1;
                return Ok(InFlight(Arc::clone(self)));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives up all objects, in flight or not sent yet.
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

    /// Records the end of a chunk: the numbers of acknowledged files and bytes, or the failure.
    pub(crate) fn record(&self, token: Token, outcome: Result<(u64, u64), FailedWrite>) {
        let mut state = self.state();
        state.report(token, outcome);
        state.unreported.remove(&token);
        state.reading.remove(&token);
        for place in state.paths.remove(&token).unwrap_or_default() {
            if state.last_chunks.get(&place) == Some(&token) {
                state.last_chunks.remove(&place);
            }
        }
        self.changed.notify_all();
    }

    /// Begins a flush: from now on threads send chunks instead of giving them back. Gives the
    /// number of the flush, and the open chunks.
    pub(crate) fn start_flush(&self) -> (u64, Vec<Open>) {
        let mut state = self.state();
        let (number, horizon) = (state.next_flush, state.next);
        state.next_flush += 1;
        state.send_before = horizon;
        let mut done = std::mem::take(&mut state.done);
        // Unreported failures belong to puts before the new flush too; the last flush has all of
        // them.
        if let Some((_, last)) = state.flushes.last_key_value() {
            done.failed.extend_from_slice(&last.done.failed);
        }
        state.flushes.insert(number, Flush { horizon, done });
        (number, std::mem::take(&mut state.open))
    }

    /// Waits for all chunks begun before the flush.
    pub(crate) fn finish_flush(&self, number: u64) -> Flushed {
        let mut state = self.state();
        let horizon = state.flushes.get(&number).map_or(0, |flush| flush.horizon);
        while state.unreported.first().is_some_and(|token| *token < horizon) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.broken = state.broken.split_off(&horizon);
        if state.broken.is_empty() {
            self.given_up.send_replace(None);
        }
        state.flushes.remove(&number).map(|flush| flush.done).unwrap_or_default()
    }

    /// The number of files in open chunks.
    pub(crate) fn open_files(&self) -> u64 {
        self.state().open.iter().map(|open| u64::from(open.chunk.count())).sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl State {
    fn begin(&mut self) -> Token {
        let token = self.next;
        self.next += 1;
        self.unreported.insert(token);
        token
    }

    /// Fails while a failed chunk is unreported.
    fn refuse_broken(&self) -> Result<(), Error> {
        self.broken.first_key_value().map_or(Ok(()), |(_, error)| Err(error.clone()))
    }

    /// Adds the result of a chunk to the flushes that wait for the chunk, else to the next flush.
    fn report(&mut self, token: Token, outcome: Result<(u64, u64), FailedWrite>) {
        let waiting = self.flushes.values_mut().filter(|flush| token < flush.horizon);
        let mut waiting = waiting.map(|flush| &mut flush.done);
        let first = waiting.next().unwrap_or(&mut self.done);
        match outcome {
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

    /// The unreported chunk with the last put of the path.
    fn chunk_of(&self, path: &FilePath) -> Option<Token> {
        self.last_chunks.get(&self.hasher.hash_one(path)).copied()
    }

    fn take_open(&mut self, token: Token) -> Option<Open> {
        let index = self.open.iter().position(|open| open.token == token)?;
        Some(self.open.swap_remove(index))
    }

    fn add_path(&mut self, path: &FilePath, token: Token) {
        if self.unreported.contains(&token) || self.reading.contains(&token) {
            let place = self.hasher.hash_one(path);
            self.last_chunks.insert(place, token);
            self.paths.entry(token).or_default().push(place);
        }
    }
}

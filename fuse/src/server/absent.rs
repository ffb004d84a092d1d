//! Reads of bytes that are not in the memory of the node: each waits in a thread of its own.
//!
//! Must hold: a read ends by its deadline. Reads of present bytes never wait for absent bytes. The
//! threads are bounded, and end when nothing waits.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use dl_runtime::{locked, since_boot};
use rustix::io::Errno;

use super::{Served, Version, errno};
use crate::channel::Channel;

/// Threads that wait, at most.
const THREADS_MAX: usize = 16;

/// How long a thread waits for more.
const IDLE: Duration = Duration::from_secs(10);

/// How long a failure answers for a file: the kernel repeats a failed read at once.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Remembered failures, at most.
const FAILURES_MAX: usize = 1_024;

/// A read of absent bytes.
#[derive(Debug)]
pub(super) struct AbsentRead {
    pub(super) version: Arc<Version>,
    pub(super) channel: Arc<Channel>,
    pub(super) unique: u64,
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) length: usize,
    /// Since boot.
    pub(super) until: Duration,
}

/// A file: its generation, and its number there.
type FileKey = (u32, u32);

impl AbsentRead {
    fn key(&self) -> FileKey {
        (self.version.tree.numbers().generation, self.file)
    }
}

/// The reads that wait, and their threads.
#[derive(Debug, Default)]
pub(super) struct AbsentReads {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<AbsentRead>,
    threads: usize,
    idle: usize,
    /// The failures of files, with the end of their memory.
    failures: HashMap<FileKey, (Errno, Duration)>,
}

impl AbsentReads {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// The number of reads that wait for a thread.
    pub(super) fn queued(&self) -> usize {
        self.state().queue.len()
    }

    /// The failure of a file a moment ago.
    fn failure(&self, file: FileKey) -> Option<Errno> {
        let (why, until) = *self.state().failures.get(&file)?;
        (since_boot() < until).then_some(why)
    }

    fn remember(&self, file: FileKey, why: Errno) {
        let mut state = self.state();
        let now = since_boot();
        if state.failures.len() >= FAILURES_MAX {
            state.failures.retain(|_, (_, until)| *until > now);
        }
        if state.failures.len() < FAILURES_MAX {
            state.failures.insert(file, (why, now.saturating_add(REMEMBERED)));
        }
    }
}

impl Served {
    /// Answers a read in another thread.
    pub(super) fn read_absent(self: &Arc<Self>, read: AbsentRead) {
        if let Some(why) = self.absent.failure(read.key()) {
            return self.refuse(&read, why);
        }
        let mut state = self.absent.state();
        state.queue.push_back(read);
        // A thread that was just woken still counts as idle.
        if state.queue.len() > state.idle && state.threads < THREADS_MAX {
            state.threads += 1;
            let served = Arc::clone(self);
            let started = thread::Builder::new().name("read".to_owned());
            if let Err(why) = started.spawn(move || served.read_all()) {
                state.threads -= 1;
                tracing::warn!(%why, "start a thread for reads");
                let is_last = state.threads == 0;
                let read = if is_last { state.queue.pop_back() } else { None };
                drop(state);
                if let Some(read) = read {
                    self.refuse(&read, Errno::AGAIN);
                }
                return;
            }
        }
        drop(state);
        self.absent.more.notify_one();
    }

    /// Reads until nothing waits for a while.
    fn read_all(&self) {
        let mut buffer = Vec::new();
        while let Some(read) = self.next_read() {
            self.read_now(&read, &mut buffer);
        }
    }

    fn next_read(&self) -> Option<AbsentRead> {
        let mut state = self.absent.state();
        state.idle += 1;
        let none = |state: &mut State| state.queue.is_empty();
        let waited = self.absent.more.wait_timeout_while(state, IDLE, none);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.idle -= 1;
        let read = state.queue.pop_front();
        if read.is_none() {
            state.threads -= 1;
        }
        read
    }

    fn read_now(&self, read: &AbsentRead, buffer: &mut Vec<u8>) {
        let failure = self.absent.failure(read.key());
        if let Some(why) = failure {
            return self.refuse(read, why);
        }
        if since_boot() >= read.until {
            self.absent.remember(read.key(), Errno::TIMEDOUT);
            return self.refuse(read, Errno::TIMEDOUT);
        }
        buffer.resize(read.length, 0);
        match read.version.dataset.read_range(read.file, read.offset, buffer) {
            Ok(length) if length == read.length => self.answer(&read.channel, read.unique, buffer),
            // The snapshot gives the length, so the answer is never short.
            Ok(_) => self.refuse(read, Errno::IO),
            Err(error) => {
                let why = errno::of(error.kind());
                self.absent.remember(read.key(), why);
                self.log_failure(&read.version, read.file, &error);
                self.refuse(read, why);
            }
        }
    }

    fn refuse(&self, read: &AbsentRead, why: Errno) {
        self.counts.add_failed();
        if let Err(why) = read.channel.refuse(read.unique, why) {
            tracing::debug!(%why, "answer a read");
        }
    }
}

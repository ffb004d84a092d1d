//! Which thread reads which file of an epoch.
//!
//! Must hold: each file is given to a single thread, and given again only after the thread gave the
//! file back; a thread waits for other threads only while they read.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use dl_runtime::locked;

use crate::order::Cursor;

/// Gives the files of an order to the threads of one process.
#[derive(Debug)]
pub(crate) struct Turns {
    inner: Mutex<Inner>,
    ended: Condvar,
}

#[derive(Debug)]
struct Inner {
    cursor: Cursor,
    /// Files that were given back, by position.
    returned: BTreeMap<u64, u32>,
    /// The number of threads with a file in reading.
    reading: usize,
    /// Reads that have ended.
    ends: u64,
    /// Threads in [`Turns::wait`]; without any, a read ends without a signal.
    waiting: usize,
}

/// A file for the thread to read: [`Turns::end`], [`Turns::give_back`] or [`Turns::wait`] ends its turn.
#[derive(Debug)]
#[must_use = "the turn has to end"]
pub(crate) struct Turn {
    pub(crate) position: u64,
    pub(crate) number: u32,
    /// Reads that had ended before.
    ends: u64,
}

impl Turns {
    /// The files left in a cursor.
    pub(crate) fn new(cursor: Cursor) -> Self {
        let inner = Inner { cursor, returned: BTreeMap::new(), reading: 0, ends: 0, waiting: 0 };
        Self { inner: Mutex::new(inner), ended: Condvar::new() }
    }

    /// The first file without a thread; none when all were given.
    pub(crate) fn give(&self) -> Option<Turn> {
        let mut inner = self.lock();
        let (position, number) = inner.next()?;
        inner.reading += 1;
        Some(Turn { position, number, ends: inner.ends })
    }

    /// The file was handed over.
    pub(crate) fn end(&self, _: Turn) {
        self.finish(self.lock());
    }

    /// The file could not be read, and is given again.
    pub(crate) fn give_back(&self, turn: Turn) {
        let mut inner = self.lock();
        inner.returned.insert(turn.position, turn.number);
        self.finish(inner);
    }

    fn finish(&self, mut inner: MutexGuard<'_, Inner>) {
        inner.reading -= 1;
        inner.ends += 1;
        let is_awaited = inner.waiting > 0;
        drop(inner);
        if is_awaited {
            self.ended.notify_all();
        }
    }

    /// The file can't be read before reads of other threads end: gives the file back, and waits until
    /// such a read has ended, or none is left. Returns whether such a read has ended.
    pub(crate) fn wait(&self, turn: Turn) -> bool {
        let mut inner = self.lock();
        inner.returned.insert(turn.position, turn.number);
        inner.reading -= 1;
        if inner.reading == 0 {
            self.ended.notify_all();
        }
        inner.waiting += 1;
        while inner.ends == turn.ends && inner.reading > 0 {
            inner = self.ended.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.waiting -= 1;
        inner.ends != turn.ends
    }

    /// Files before the first file to give.
    pub(crate) fn position(&self) -> u64 {
        let inner = self.lock();
        let next = inner.cursor.position();
        inner.returned.keys().next().map_or(next, |first| next.min(*first))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        locked(&self.inner)
    }
}

impl Inner {
    fn next(&mut self) -> Option<(u64, u32)> {
        let position = self.cursor.position();
        self.returned.pop_first().or_else(|| Some((position, self.cursor.next()?)))
    }
}

//! Which thread reads which file of an epoch.
//!
//! Must hold: each file is given to a single thread, and given again only after the thread gave the
//! file back; a thread waits for other threads only while they read.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::order::Cursor;

/// Gives the files of an order to the threads of one process.
#[derive(Debug)]
pub(crate) struct Turns {
    inside: Mutex<Inside>,
    /// A read has ended.
    ended: Condvar,
}

#[derive(Debug)]
struct Inside {
    cursor: Cursor,
    /// Files that were given back, by position.
    returned: BTreeMap<u64, u32>,
    /// Given to threads that still read them.
    under_way: usize,
    /// Reads that have ended.
    ends: u64,
    /// Threads in [`Turns::wait`]: without any, nobody is woken.
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
        let inside =
            Inside { cursor, returned: BTreeMap::new(), under_way: 0, ends: 0, waiting: 0 };
        Self { inside: Mutex::new(inside), ended: Condvar::new() }
    }

    /// The first file without a thread; none when all were given.
    pub(crate) fn give(&self) -> Option<Turn> {
        let mut inside = self.lock();
        let (position, number) = inside.next()?;
        inside.under_way += 1;
        Some(Turn { position, number, ends: inside.ends })
    }

    /// The file was handed over.
    pub(crate) fn end(&self, _: Turn) {
        self.finish(self.lock());
    }

    /// The file could not be read, and is given again.
    pub(crate) fn give_back(&self, turn: Turn) {
        let mut inside = self.lock();
        inside.returned.insert(turn.position, turn.number);
        self.finish(inside);
    }

    fn finish(&self, mut inside: MutexGuard<'_, Inside>) {
        inside.under_way -= 1;
        inside.ends += 1;
        let is_awaited = inside.waiting > 0;
        drop(inside);
        if is_awaited {
            self.ended.notify_all();
        }
    }

    /// The file can't be read before reads of other threads end: gives the file back, and waits until
    /// such a read has ended, or none is left.
    pub(crate) fn wait(&self, turn: Turn) {
        let mut inside = self.lock();
        inside.returned.insert(turn.position, turn.number);
        inside.under_way -= 1;
        if inside.under_way == 0 {
            self.ended.notify_all();
        }
        inside.waiting += 1;
        while inside.ends == turn.ends && inside.under_way > 0 {
            inside = self.ended.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
        inside.waiting -= 1;
    }

    /// Files before the first file to give.
    pub(crate) fn position(&self) -> u64 {
        let inside = self.lock();
        let next = inside.cursor.position();
        inside.returned.keys().next().map_or(next, |first| next.min(*first))
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    fn next(&mut self) -> Option<(u64, u32)> {
        let position = self.cursor.position();
        self.returned.pop_first().or_else(|| Some((position, self.cursor.next()?)))
    }
}

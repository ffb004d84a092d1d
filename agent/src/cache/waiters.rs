//! The readers and the other agents that wait for chunks.
//!
//! Must hold: a waiter is in one place: with its chunk, or in the queue for a slot. Whoever takes a
//! waiter out answers it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::peer_pins::PeerWaiter;
use crate::place::ChunkKey;
use crate::progress::Progress;

/// A waiting worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) connection: u64,
    pub(crate) id: u64,
    pub(crate) file: u32,
    /// On the agent's clock.
    pub(crate) until: Duration,
}

/// A chunk on its way, and who waits for it.
#[derive(Debug)]
pub(crate) struct Awaited {
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) peers: Vec<PeerWaiter>,
    pub(crate) progress: Arc<Progress>,
}

/// All waiters.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    awaited: HashMap<ChunkKey, Awaited>,
    /// Wanted chunks without a slot.
    queue: VecDeque<(ChunkKey, Waiter)>,
}

impl Waiters {
    /// Begins a fetch without waiters.
    pub(crate) fn begin(&mut self, key: ChunkKey, progress: Arc<Progress>) {
        self.awaited.insert(key, Awaited { waiters: Vec::new(), peers: Vec::new(), progress });
    }

    /// Adds a worker to a fetch; gives the waiters whose time is over. Without a fetch, the worker
    /// itself comes back.
    pub(crate) fn add(&mut self, key: ChunkKey, waiter: Waiter, now: Duration) -> Vec<Waiter> {
        let Some(awaited) = self.awaited.get_mut(&key) else { return vec![waiter] };
        let over = awaited.waiters.extract_if(.., |one| one.until < now).collect();
        awaited.waiters.push(waiter);
        over
    }

    /// Adds another agent to a fetch.
    pub(crate) fn add_peer(&mut self, key: ChunkKey, waiter: PeerWaiter) {
        if let Some(awaited) = self.awaited.get_mut(&key) {
            awaited.peers.push(waiter);
        }
    }

    /// Takes out the workers that wait for a file of a chunk.
    pub(crate) fn take_file(&mut self, key: ChunkKey, file: u32) -> Vec<Waiter> {
        let awaited = self.awaited.get_mut(&key);
        awaited.map_or_else(Vec::new, |awaited| {
            awaited.waiters.extract_if(.., |waiter| waiter.file == file).collect()
        })
    }

    /// Ends a fetch; gives all its waiters.
    pub(crate) fn take(&mut self, key: ChunkKey) -> Option<Awaited> {
        self.awaited.remove(&key)
    }

    /// The chunks on their way.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (&ChunkKey, &Awaited)> {
        self.awaited.iter()
    }

    /// A chunk on its way.
    pub(crate) fn of(&self, key: ChunkKey) -> Option<&Awaited> {
        self.awaited.get(&key)
    }

    /// Adds a worker to the queue for a slot.
    pub(crate) fn enqueue(&mut self, key: ChunkKey, waiter: Waiter) {
        self.queue.push_back((key, waiter));
    }

    /// Takes out all workers of the queue, the first first.
    pub(crate) fn take_queue(&mut self) -> VecDeque<(ChunkKey, Waiter)> {
        std::mem::take(&mut self.queue)
    }

    /// Whether a worker waits for a slot.
    pub(crate) fn is_short(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether a connection waits for a slot for a chunk.
    pub(crate) fn is_queued(&self, key: ChunkKey, connection: u64) -> bool {
        self.queue.iter().any(|(of, one)| *of == key && one.connection == connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ChunkKey = ChunkKey { dataset: 0, chunk: 7 };

    fn waiter(id: u64, file: u32, seconds: u64) -> Waiter {
        Waiter { connection: 1, id, file, until: Duration::from_secs(seconds) }
    }

    #[test]
    fn each_waiter_comes_out_once() {
        let mut waiters = Waiters::default();
        let now = Duration::from_secs(5);
        assert_eq!(waiters.add(KEY, waiter(9, 0, 9), now), [waiter(9, 0, 9)], "without a fetch");
        waiters.begin(KEY, Arc::default());
        assert_eq!(waiters.add(KEY, waiter(1, 3, 4), Duration::ZERO), []);
        assert_eq!(waiters.add(KEY, waiter(2, 3, 9), now), [waiter(1, 3, 4)], "its time is over");
        assert_eq!(waiters.add(KEY, waiter(3, 4, 9), now), []);
        assert_eq!(waiters.take_file(KEY, 3), [waiter(2, 3, 9)]);
        assert_eq!(waiters.take(KEY).unwrap().waiters, [waiter(3, 4, 9)]);
        assert!(waiters.take(KEY).is_none() && waiters.take_file(KEY, 4).is_empty());
    }

    #[test]
    fn the_queue_keeps_its_order() {
        let mut waiters = Waiters::default();
        [1, 2, 3].into_iter().for_each(|id| waiters.enqueue(KEY, waiter(id, 0, 9)));
        assert!(waiters.is_short() && waiters.is_queued(KEY, 1) && !waiters.is_queued(KEY, 2));
        let ids: Vec<_> = waiters.take_queue().iter().map(|(_, waiter)| waiter.id).collect();
        assert_eq!((ids, waiters.is_short()), (vec![1, 2, 3], false));
    }
}

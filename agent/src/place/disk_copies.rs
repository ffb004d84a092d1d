//! The chunks of which a local disk has a copy, or is to get one.
//!
//! Must hold: a chunk is written by one task at a time, and few chunks are written at a time.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{ChunkBits, ChunkKey};

/// Most chunks being written: each pins its slot.
const WRITES_MAX: usize = 4;

/// Most chunks that wait for their write.
const QUEUE_MAX: usize = 16;

/// The copies.
#[derive(Debug, Default)]
pub struct DiskCopies {
    /// By the number of the dataset.
    there: HashMap<usize, ChunkBits>,
    /// Chunks being written.
    written: HashSet<ChunkKey>,
    /// Chunks to be written, in memory or on their way there.
    queue: VecDeque<ChunkKey>,
    /// Whether a disk takes chunks at the moment, and how many further chunks fit.
    takes: bool,
    room: u32,
    /// Changes with the set of copies.
    generation: u32,
}

impl DiskCopies {
    /// Sets the copies of a dataset, as listed on the disks.
    pub fn set(&mut self, dataset: usize, chunks: ChunkBits) {
        self.generation = self.generation.wrapping_add(1);
        self.there.insert(dataset, chunks);
    }

    /// Sets whether a disk takes chunks at the moment, and how many further chunks fit.
    pub fn set_room(&mut self, takes: bool, room: u32) {
        (self.takes, self.room) = (takes, room);
        if !takes {
            self.queue.clear();
        }
    }

    /// Whether a disk takes chunks at the moment.
    pub fn takes(&self) -> bool {
        self.takes
    }

    /// How many of an agent's own chunks of a dataset the disks have or can still take.
    pub fn capacity(&self, dataset: usize, is_own: impl Fn(u32) -> bool) -> u32 {
        let there =
            self.of(dataset).map_or(0, |chunks| chunks.iter().filter(|one| is_own(*one)).count());
        (there as u32).saturating_add(self.room)
    }

    /// The copies of a dataset.
    pub fn of(&self, dataset: usize) -> Option<&ChunkBits> {
        self.there.get(&dataset)
    }

    /// The number of the set of copies.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Forgets a dataset.
    pub fn forget(&mut self, dataset: usize) {
        self.there.remove(&dataset);
    }

    /// Whether a disk has a copy.
    pub fn holds(&self, key: ChunkKey) -> bool {
        self.there.get(&key.dataset).is_some_and(|chunks| chunks.holds(key.chunk))
    }

    /// The number of copies of a dataset.
    pub fn count(&self, dataset: usize) -> u64 {
        self.there.get(&dataset).map_or(0, ChunkBits::count)
    }

    /// Notes that a copy is gone.
    pub fn remove(&mut self, key: ChunkKey) {
        if !self.holds(key) {
            return;
        }
        self.generation = self.generation.wrapping_add(1);
        self.there.get_mut(&key.dataset).into_iter().for_each(|chunks| chunks.remove(key.chunk));
    }

    /// Whether a chunk is to be written, and waits for that.
    pub fn is_queued(&self, key: ChunkKey) -> bool {
        self.queue.contains(&key)
    }

    /// The number of chunks being written or to be written.
    pub fn under_way(&self) -> usize {
        self.written.len() + self.queue.len()
    }

    /// Whether a chunk may be queued: a disk takes it, and none has it.
    pub fn may_queue(&self, key: ChunkKey) -> bool {
        let is_absent = !self.holds(key) && !self.written.contains(&key) && !self.is_queued(key);
        self.takes && is_absent && self.there.contains_key(&key.dataset)
    }

    /// Queues a chunk to be written. The chunk that waits longest leaves a full queue.
    pub fn queue(&mut self, key: ChunkKey) {
        if self.queue.len() >= QUEUE_MAX {
            self.queue.pop_front();
        }
        self.queue.push_back(key);
    }

    /// Gives up the write of a chunk.
    pub fn give_up(&mut self, key: ChunkKey) {
        self.queue.retain(|queued| *queued != key);
    }

    /// The next chunk to be written, among those for which `is_there`; its write begins.
    pub fn next(&mut self, is_there: impl Fn(ChunkKey) -> bool) -> Option<ChunkKey> {
        if self.written.len() >= WRITES_MAX || !self.takes {
            return None;
        }
        let at = self.queue.iter().position(|key| is_there(*key))?;
        let key = self.queue.remove(at)?;
        self.written.insert(key);
        Some(key)
    }

    /// Ends the write of a chunk. `is_there`: a disk has the copy now.
    pub fn end(&mut self, key: ChunkKey, is_there: bool) {
        self.written.remove(&key);
        if is_there {
            self.generation = self.generation.wrapping_add(1);
            self.there.get_mut(&key.dataset).into_iter().for_each(|chunks| chunks.add(key.chunk));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_written_once_and_few_at_a_time() {
        let key = |chunk| ChunkKey { dataset: 0, chunk };
        let mut copies = DiskCopies::default();
        copies.set_room(true, 9);
        assert!(!copies.may_queue(key(1)), "its dataset has no folder yet");
        copies.set(0, ChunkBits::none(40));
        assert!(copies.may_queue(key(1)));
        copies.queue(key(1));
        assert!(!copies.may_queue(key(1)) && copies.may_queue(key(2)));
        assert_eq!(copies.next(|_| false), None, "it is on its way");
        assert_eq!(copies.next(|_| true), Some(key(1)));
        assert!(!copies.may_queue(key(1)) && copies.next(|_| true).is_none());
        copies.end(key(1), true);
        assert!(copies.holds(key(1)) && !copies.may_queue(key(1)));
        copies.remove(key(1));
        assert!(!copies.holds(key(1)) && copies.may_queue(key(1)));
        (2..20).for_each(|chunk| copies.queue(key(chunk)));
        assert!(!copies.is_queued(key(3)) && copies.is_queued(key(4)), "the first left");
        copies.give_up(key(5));
        let begun: Vec<_> = std::iter::from_fn(|| copies.next(|_| true)).collect();
        assert_eq!(begun, [4, 6, 7, 8].map(key));
        assert_eq!(copies.under_way(), 4 + 11);
        copies.end(key(4), false);
        assert!(!copies.holds(key(4)) && copies.next(|_| true).is_some());
        assert_eq!((copies.count(0), copies.capacity(0, |_| true)), (0, 9));
        copies.set_room(false, 0);
        copies.end(key(6), true);
        assert_eq!(copies.under_way(), 3, "nothing is queued any more");
        assert!(!copies.may_queue(key(30)) && copies.next(|_| true).is_none(), "no disk takes it");
    }
}

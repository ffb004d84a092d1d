//! The chunks of which a local disk has a copy.
//!
//! Must hold: a chunk is written by one task at a time.

use std::collections::{HashMap, HashSet};

use super::{ChunkBits, ChunkKey};

/// Most copies of one agent under way to its disks.
const WRITES_MAX: usize = 4;

/// The copies.
#[derive(Debug, Default)]
pub struct DiskCopies {
    /// By the number of the dataset.
    there: HashMap<usize, ChunkBits>,
    /// Chunks being written, or being fetched in order to be written.
    written: HashSet<ChunkKey>,
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
    }

    /// Whether a disk takes chunks at the moment.
    pub fn takes(&self) -> bool {
        self.takes
    }

    /// How many chunks of a dataset the disks have or can still take.
    pub fn capacity(&self, dataset: usize) -> u32 {
        (self.count(dataset) as u32).saturating_add(self.room)
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
        self.generation = self.generation.wrapping_add(1);
        self.there.get_mut(&key.dataset).into_iter().for_each(|chunks| chunks.remove(key.chunk));
    }

    /// Whether a chunk may be written: no disk has it, and few chunks are under way.
    pub fn may_begin(&self, key: ChunkKey) -> bool {
        let is_absent = !self.holds(key) && !self.written.contains(&key);
        self.takes && is_absent && self.there.contains_key(&key.dataset) && self.written.len() < WRITES_MAX
    }

    /// Whether a chunk is being written, or being fetched in order to be written.
    pub fn is_begun(&self, key: ChunkKey) -> bool {
        self.written.contains(&key)
    }

    /// Whether any chunk is.
    pub fn is_busy(&self) -> bool {
        !self.written.is_empty()
    }

    /// The number of these chunks.
    pub fn under_way(&self) -> u64 {
        self.written.len() as u64
    }

    /// Begins to write a chunk, or its fetch.
    pub fn begin(&mut self, key: ChunkKey) {
        self.written.insert(key);
    }

    /// Ends the writing of a chunk. `is_there`: a disk has the copy now.
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
    fn a_chunk_is_written_once_and_few_are_under_way() {
        let key = |chunk| ChunkKey { dataset: 0, chunk };
        let mut copies = DiskCopies::default();
        copies.set_room(true, 9);
        assert!(!copies.may_begin(key(1)), "its dataset has no folder yet");
        copies.set(0, ChunkBits::none(20));
        assert!(copies.may_begin(key(1)));
        copies.begin(key(1));
        assert!(!copies.may_begin(key(1)) && copies.may_begin(key(2)));
        copies.end(key(1), true);
        assert!(copies.holds(key(1)) && !copies.may_begin(key(1)));
        copies.remove(key(1));
        assert!(!copies.holds(key(1)) && copies.may_begin(key(1)));
        (2..6).for_each(|chunk| copies.begin(key(chunk)));
        assert!(!copies.may_begin(key(9)), "four are under way");
        copies.end(key(2), false);
        assert!(!copies.holds(key(2)) && copies.may_begin(key(2)));
        assert_eq!((copies.count(0), copies.capacity(0)), (0, 9));
        copies.set_room(false, 0);
        assert!(!copies.may_begin(key(9)), "no disk takes a chunk");
    }
}

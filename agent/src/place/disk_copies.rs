//! The chunks of which a local disk has a copy, or is to get one.
//!
//! Must hold: a chunk is written by one task at a time, and few chunks are written at a time. An extra
//! copy, of a chunk that memory or another agent keeps, takes no room of an own chunk.

use std::collections::{HashMap, VecDeque};

use super::{ChunkBits, ChunkKey};

/// Most chunks being written: each pins its slot.
const WRITES_MAX: usize = 4;

/// Most chunks that wait for their write.
const QUEUE_MAX: usize = 16;

/// How the write of a chunk has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteEnd {
    /// No disk has the copy.
    Failed,
    /// Another agent has written the copy.
    There,
    New,
}

/// The copies.
#[derive(Debug)]
pub struct DiskCopies {
    /// By the number of the dataset.
    there: HashMap<usize, ChunkBits>,
    /// Chunks being written; whether as extra copies.
    written: HashMap<ChunkKey, bool>,
    /// Chunks to be written, in memory or on their way there; whether as extra copies.
    queue: VecDeque<(ChunkKey, bool)>,
    /// How many further chunks fit; none while no disk takes chunks.
    room: Option<u32>,
    /// How many own chunks are in no tier.
    missing: u32,
    /// How many further extra copies fit.
    spare: u32,
    /// The extra copies that this agent has written: they leave for own chunks.
    extra: VecDeque<ChunkKey>,
    /// Changes with the set of copies.
    generation: u32,
}

impl Default for DiskCopies {
    fn default() -> Self {
        Self {
            there: HashMap::new(),
            written: HashMap::new(),
            queue: VecDeque::new(),
            room: None,
            missing: u32::MAX,
            spare: 0,
            extra: VecDeque::new(),
            generation: 0,
        }
    }
}

impl DiskCopies {
    /// Sets the copies of a dataset, as listed on the disks.
    pub fn set(&mut self, dataset: usize, chunks: ChunkBits) {
        if self.of(dataset) != Some(&chunks) {
            self.generation = self.generation.wrapping_add(1);
            self.there.insert(dataset, chunks);
        }
    }

    /// Sets how many further chunks fit; none while no disk takes chunks.
    pub fn set_room(&mut self, room: Option<u32>) {
        self.room = room;
        if !self.takes() {
            self.queue.clear();
        }
    }

    /// Sets how many own chunks are in no tier: extra copies leave room for them.
    pub fn set_missing(&mut self, missing: u32) {
        self.missing = missing;
        self.spare = self.room.unwrap_or(0).saturating_sub(missing);
    }

    /// Whether disks take own chunks at the moment.
    pub fn takes(&self) -> bool {
        self.room.is_some_and(|room| room > 0 || !self.extra.is_empty())
    }

    /// Whether datasets that nobody has open should leave for own chunks.
    pub fn needs_room(&self) -> bool {
        self.missing > 0 && self.extra.is_empty()
    }

    /// How many of an agent's own chunks of a dataset the disks have or can still take.
    pub fn capacity(&self, dataset: usize, is_own: impl Fn(u32) -> bool) -> u32 {
        let is_counted = |key: &&ChunkKey| key.dataset == dataset && is_own(key.chunk);
        let extra = self.extra.iter().filter(is_counted).count() as u32;
        let there = self.own(dataset, &is_own).saturating_sub(extra);
        let others = self.room.map_or(0, |room| room.saturating_add(self.extra.len() as u32));
        there.saturating_add(others)
    }

    /// How many of an agent's own chunks of a dataset the disks have.
    pub fn own(&self, dataset: usize, is_own: impl Fn(u32) -> bool) -> u32 {
        let of = |chunks: &ChunkBits| chunks.iter().filter(|one| is_own(*one)).count();
        self.of(dataset).map_or(0, of) as u32
    }

    /// Removes an extra copy, to make room for an own chunk. Copies that are none any more, because
    /// `is_needed`, stay.
    pub fn take_extra(&mut self, is_needed: impl Fn(ChunkKey) -> bool) -> Option<ChunkKey> {
        loop {
            let key = self.extra.pop_front()?;
            if self.holds(key) && !is_needed(key) {
                self.forget_copy(key);
                return Some(key);
            }
        }
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
        self.extra.retain(|key| key.dataset != dataset);
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
        self.forget_copy(key);
        self.extra.retain(|extra| *extra != key);
    }

    fn forget_copy(&mut self, key: ChunkKey) {
        self.generation = self.generation.wrapping_add(1);
        self.there.get_mut(&key.dataset).into_iter().for_each(|chunks| chunks.remove(key.chunk));
    }

    /// Whether a chunk is to be written, and waits for that.
    pub fn is_queued(&self, key: ChunkKey) -> bool {
        self.queue.iter().any(|(queued, _)| *queued == key)
    }

    /// The number of own chunks being written or to be written.
    pub fn under_way(&self) -> usize {
        let queued = self.queue.iter().filter(|(_, is_extra)| !is_extra);
        self.written.values().filter(|is_extra| !**is_extra).count() + queued.count()
    }

    /// Whether chunks are being written, or wait for that.
    pub fn is_writing(&self) -> bool {
        !self.written.is_empty() || !self.queue.is_empty()
    }

    /// Whether an own chunk may be queued: a disk takes it, and none has it.
    pub fn may_queue(&self, key: ChunkKey) -> bool {
        let is_written = self.written.contains_key(&key) || self.is_queued(key);
        let is_absent = !self.holds(key) && !is_written;
        self.takes() && is_absent && self.there.contains_key(&key.dataset)
    }

    /// Whether disks have room for an extra copy.
    pub fn has_spare(&self) -> bool {
        self.spare > 0
    }

    /// Whether an extra copy of a chunk may be queued.
    pub fn may_queue_extra(&self, key: ChunkKey) -> bool {
        self.has_spare() && self.room_in_queue() > 0 && self.may_queue(key)
    }

    /// How many further chunks may wait without another leaving the queue.
    pub fn room_in_queue(&self) -> usize {
        QUEUE_MAX.saturating_sub(self.queue.len())
    }

    /// Queues an own chunk to be written. An extra copy, or the chunk that waits longest, leaves a full
    /// queue.
    pub fn queue(&mut self, key: ChunkKey) {
        self.push((key, false));
    }

    /// Queues an extra copy to be written.
    pub fn queue_extra(&mut self, key: ChunkKey) {
        self.spare = self.spare.saturating_sub(1);
        self.push((key, true));
    }

    fn push(&mut self, one: (ChunkKey, bool)) {
        if self.queue.len() >= QUEUE_MAX {
            let first = self.queue.iter().position(|(_, is_extra)| *is_extra);
            self.queue.remove(first.unwrap_or(0));
        }
        self.queue.push_back(one);
    }

    /// Gives up the write of a chunk.
    pub fn give_up(&mut self, key: ChunkKey) {
        self.queue.retain(|(queued, _)| *queued != key);
    }

    /// The next chunk to be written, among those for which `is_there`; its write begins. Own chunks come
    /// first.
    pub fn next(&mut self, is_there: impl Fn(ChunkKey) -> bool) -> Option<ChunkKey> {
        if self.written.len() >= WRITES_MAX || !self.takes() {
            return None;
        }
        let first = |kind: bool| {
            let mut queue = self.queue.iter();
            queue.position(|(key, is_extra)| *is_extra == kind && is_there(*key))
        };
        let at = first(false).or_else(|| first(true))?;
        let (key, is_extra) = self.queue.remove(at)?;
        self.written.insert(key, is_extra);
        Some(key)
    }

    /// Whether a chunk is written as an extra copy.
    pub fn is_extra(&self, key: ChunkKey) -> bool {
        self.written.get(&key).is_some_and(|is_extra| *is_extra)
    }

    /// Ends the write of a chunk.
    pub fn end(&mut self, key: ChunkKey, end: WriteEnd) {
        let is_extra = self.written.remove(&key).unwrap_or(false);
        if let Some(chunks) = self.there.get_mut(&key.dataset).filter(|_| end != WriteEnd::Failed) {
            self.generation = self.generation.wrapping_add(1);
            chunks.add(key.chunk);
            if is_extra && end == WriteEnd::New {
                self.extra.push_back(key);
            }
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
        copies.set_room(Some(9));
        assert!(!copies.may_queue(key(1)), "its dataset has no folder yet");
        copies.set(0, ChunkBits::none(40));
        assert!(copies.may_queue(key(1)));
        copies.queue(key(1));
        assert!(!copies.may_queue(key(1)) && copies.may_queue(key(2)));
        assert_eq!(copies.next(|_| false), None, "it is on its way");
        assert_eq!(copies.next(|_| true), Some(key(1)));
        assert!(!copies.may_queue(key(1)) && copies.next(|_| true).is_none());
        copies.end(key(1), WriteEnd::New);
        assert!(copies.holds(key(1)) && !copies.may_queue(key(1)));
        copies.remove(key(1));
        assert!(!copies.holds(key(1)) && copies.may_queue(key(1)));
        (2..20).for_each(|chunk| copies.queue(key(chunk)));
        assert!(!copies.is_queued(key(3)) && copies.is_queued(key(4)), "the first left");
        copies.give_up(key(5));
        let begun: Vec<_> = std::iter::from_fn(|| copies.next(|_| true)).collect();
        assert_eq!(begun, [4, 6, 7, 8].map(key));
        assert_eq!(copies.under_way(), 4 + 11);
        copies.end(key(4), WriteEnd::Failed);
        assert!(!copies.holds(key(4)) && copies.next(|_| true).is_some());
        assert_eq!((copies.count(0), copies.capacity(0, |_| true)), (0, 9));
        copies.set_room(None);
        copies.end(key(6), WriteEnd::New);
        assert_eq!(copies.under_way(), 3, "nothing is queued any more");
        assert!(!copies.may_queue(key(30)) && copies.next(|_| true).is_none(), "no disk takes it");
    }

    #[test]
    fn extra_copies_leave_for_own_chunks() {
        let key = |chunk| ChunkKey { dataset: 0, chunk };
        let mut copies = DiskCopies::default();
        copies.set(0, ChunkBits::none(40));
        copies.set_room(Some(3));
        assert!(copies.may_queue(key(1)) && !copies.may_queue_extra(key(1)), "own chunks may come");
        assert!(copies.needs_room());
        copies.set_missing(1);
        for (chunk, end) in [(1, WriteEnd::New), (2, WriteEnd::New)] {
            assert!(copies.may_queue_extra(key(chunk)));
            copies.queue_extra(key(chunk));
            assert!(copies.is_writing() && copies.under_way() == 0);
            assert_eq!(copies.next(|_| true), Some(key(chunk)));
            assert!(copies.is_extra(key(chunk)));
            copies.end(key(chunk), end);
        }
        assert!(!copies.may_queue_extra(key(3)) && copies.may_queue(key(3)));
        copies.set_room(Some(0));
        assert!(copies.takes() && !copies.needs_room(), "extra copies leave first");
        assert_eq!(copies.capacity(0, |chunk| chunk > 20), 2, "in place of the extra copies");
        assert_eq!(copies.capacity(0, |_| true), 2, "counted once");
        copies.queue(key(30));
        assert_eq!(copies.next(|_| true), Some(key(30)));
        assert_eq!(copies.take_extra(|of| of == key(1)), Some(key(2)), "the first is needed");
        copies.end(key(30), WriteEnd::New);
        assert!(!copies.holds(key(2)) && copies.holds(key(1)) && !copies.takes());
        assert_eq!(copies.take_extra(|_| false), None);
    }

    #[test]
    fn own_chunks_come_before_extra_copies() {
        let key = |chunk| ChunkKey { dataset: 0, chunk };
        let mut copies = DiskCopies::default();
        copies.set(0, ChunkBits::none(40));
        copies.set_room(Some(30));
        copies.set_missing(0);
        copies.queue_extra(key(1));
        (2..QUEUE_MAX as u32 + 1).for_each(|chunk| copies.queue(key(chunk)));
        assert!(copies.is_queued(key(1)) && !copies.may_queue_extra(key(39)));
        assert_eq!(copies.next(|of| of.chunk < 3), Some(key(2)));
        copies.queue(key(30));
        assert!(copies.is_queued(key(1)), "there was room");
        copies.queue(key(31));
        assert!(!copies.is_queued(key(1)) && copies.is_queued(key(3)), "the extra copy leaves");
        copies.end(key(2), WriteEnd::There);
        assert!(copies.holds(key(2)) && copies.take_extra(|_| false).is_none());
    }
}

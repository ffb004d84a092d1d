//! The slot for the next chunk, if need be the slot of a chunk that leaves.
//!
//! Must hold: kept chunks stay, unless views pin all other slots. A chunk awaited by a worker comes
//! before chunks needed later.

use std::cmp::Reverse;
use std::time::Duration;

use super::State;
use crate::place::{ChunkKey, Retention};

impl State {
    /// An empty slot: a slot without a chunk, or the slot of a transient chunk without readers that
    /// no order needs soon. For an awaited chunk, the slot of a chunk needed late is emptied as well.
    pub(super) fn empty_a_slot(
        &mut self,
        wanted: ChunkKey,
        is_awaited: bool,
        now: Duration,
    ) -> Option<u32> {
        if let Some(slot) = self.slots.take(now) {
            return Some(slot);
        }
        if let Some(slot) = self.slot_of_transient(wanted, false) {
            return Some(slot);
        }
        // Readers wait for no write to a disk.
        let is_urgent = is_awaited || self.orders.needs(wanted);
        if is_urgent
            && self.disk.is_writing()
            && let Some(slot) = self.slot_of_transient(wanted, true)
        {
            return Some(slot);
        }
        if !is_awaited {
            return None;
        }
        self.slot_of_late(wanted).or_else(|| self.slot_of_staying())
    }

    /// The slot of a transient chunk without readers that no order needs soon. `is_urgent`: also of a
    /// chunk that waits for its write to a disk.
    fn slot_of_transient(&mut self, wanted: ChunkKey, is_urgent: bool) -> Option<u32> {
        for _ in 0..self.residency.transient().count() {
            let key = self.residency.next_transient()?;
            let is_spared = !is_urgent && self.disk.is_queued(key);
            if key == wanted || self.orders.needs(key) || is_spared {
                continue;
            }
            if let Some(slot) = self.drop_chunk(key) {
                return Some(slot);
            }
        }
        None
    }

    /// An empty slot for a chunk to be kept, if need be the slot of a copy or of a chunk needed late.
    pub(super) fn slot_to_keep(&mut self, key: ChunkKey, now: Duration) -> Option<u32> {
        if let Some(slot) = self.slots.take(now) {
            return Some(slot);
        }
        self.residency.demote(Retention::Copy);
        self.empty_a_slot(key, false, now).or_else(|| self.slot_of_late(key))
    }

    /// An empty slot for files without their chunks.
    pub(super) fn slot_for_files(&mut self, now: Duration) -> Option<u32> {
        self.slots.reuse_drained(&self.connections);
        // No chunk has this number.
        self.empty_a_slot(ChunkKey { dataset: usize::MAX, chunk: u32::MAX }, false, now)
    }

    /// The slot of a copy or of a kept chunk without readers. Called when views pin every other
    /// slot; a chunk in one of those slots is kept instead.
    fn slot_of_staying(&mut self) -> Option<u32> {
        let kept = self.residency.kept();
        let staying: Vec<_> = self.residency.staying().collect();
        let slot = staying.into_iter().find_map(|key| self.drop_chunk(key))?;
        if self.residency.kept() < kept {
            self.residency.keep_a_transient();
        }
        Some(slot)
    }

    /// The slot of the chunk needed last among the transient chunks without readers.
    fn slot_of_late(&mut self, wanted: ChunkKey) -> Option<u32> {
        let lateness = self.orders.lateness();
        let mut late: Vec<_> = self.residency.transient().filter(|key| *key != wanted).collect();
        late.sort_by_key(|key| Reverse(lateness.get(key).copied()));
        late.into_iter().find_map(|key| self.drop_chunk(key))
    }

    /// Drops a chunk; gives its empty slot. None for a chunk with readers, or on its way.
    pub(super) fn drop_chunk(&mut self, key: ChunkKey) -> Option<u32> {
        let slot = self.residency.get_full(key)?;
        let served = self.served.get(key.dataset)?;
        if !self.slots.withdraw(&served.table, key.chunk, slot, &self.connections) {
            return None;
        }
        self.residency.remove(key);
        self.backlog.is_absent_again(key);
        Some(slot)
    }
}

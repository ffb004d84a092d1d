//! Choice of the slot for the next chunk.
//!
//! Must hold: before a slot is handed out, its table word is withdrawn, no page shows a pin, and no
//! other agent reads the slot. Kept chunks stay, unless views pin all other slots. A chunk awaited
//! by a worker comes before chunks needed later.

use std::cmp::Reverse;
use std::sync::Arc;

use libdiesel::agent::Word;

use crate::cache::{ChunkState, Retention, State};
use crate::dataset::{ChunkKey, Open};

impl State {
    /// A free slot; none if the slot would take memory while memory is short.
    pub(super) fn free_slot(&mut self) -> Option<u32> {
        let slot = self.free.pop()?;
        if slot >= self.touched {
            let (arena, _) = self.arena.as_ref()?;
            let slot_bytes = arena.shape().slot_bytes;
            self.is_out_of_memory = !self.spare.allows(slot, arena.populated(), slot_bytes);
            if self.is_out_of_memory {
                self.free.push(slot);
                return None;
            }
            self.touched = slot + 1;
        }
        Some(slot)
    }

    /// An empty slot: a free slot, or the slot of a transient chunk without readers that no order
    /// needs soon. For an awaited chunk, the slot of a chunk needed late is taken as well.
    pub(super) fn take_slot(&mut self, wanted: ChunkKey, is_awaited: bool) -> Option<u32> {
        if let Some(slot) = self.free_slot() {
            return Some(slot);
        }
        for _ in 0..self.passing.len() {
            let key = self.passing.pop_front()?;
            let is_needed = key == wanted || self.orders.needs(key);
            match self.chunks.get(&key) {
                Some(ChunkState::Full { slot, stay: Retention::Transient, .. }) if !is_needed => {
                    let slot = *slot;
                    if self.withdraw(key, slot) {
                        self.chunks.remove(&key);
                        self.backlog.is_absent_again(key);
                        return Some(slot);
                    }
                    self.passing.push_back(key);
                }
                Some(ChunkState::Full { stay: Retention::Transient, .. }) => {
                    self.passing.push_back(key)
                }
                _ => {}
            }
        }
        if !is_awaited {
            return None;
        }
        self.take_slot_of_late(wanted).or_else(|| self.take_slot_of_kept())
    }

    /// An empty slot for a chunk to be kept, if need be the slot of a `Retention::Copy` chunk or of a
    /// chunk needed late.
    pub(super) fn slot_for_kept(&mut self, key: ChunkKey) -> Option<u32> {
        if let Some(slot) = self.free_slot() {
            return Some(slot);
        }
        self.demote(Retention::Copy);
        self.take_slot(key, false).or_else(|| self.take_slot_of_late(key))
    }

    /// An empty slot for files without their chunks: a free slot, or the slot of an unneeded
    /// transient chunk.
    pub(super) fn take_slot_of_passing(&mut self) -> Option<u32> {
        self.reuse_condemned();
        // No chunk has this number.
        self.take_slot(ChunkKey { dataset: usize::MAX, chunk: u32::MAX }, false)
    }

    /// The slot of a kept chunk without readers; `Retention::Copy` chunks go first. Called when views
    /// pin every other slot; a chunk in one of those slots is kept instead.
    fn take_slot_of_kept(&mut self) -> Option<u32> {
        let kept = self.chunks.iter().filter_map(|(key, held)| match held {
            ChunkState::Full { slot, stay: stay @ (Retention::Kept | Retention::Copy), .. } => {
                Some((*stay == Retention::Kept, *key, *slot))
            }
            _ => None,
        });
        let mut kept: Vec<_> = kept.collect();
        kept.sort_unstable();
        let (is_kept, key, slot) =
            kept.into_iter().find(|(_, key, slot)| self.withdraw(*key, *slot))?;
        self.chunks.remove(&key);
        self.staying_generation = self.staying_generation.wrapping_add(1);
        self.backlog.is_absent_again(key);
        if !is_kept {
            self.copies -= 1;
            return Some(slot);
        }
        self.kept -= 1;
        let passing = self.passing.pop_front();
        if let Some(ChunkState::Full { stay, .. }) =
            passing.and_then(|key| self.chunks.get_mut(&key))
        {
            *stay = Retention::Kept;
            self.kept += 1;
        }
        Some(slot)
    }

    /// The slot of the chunk needed last among the chunks without readers.
    fn take_slot_of_late(&mut self, wanted: ChunkKey) -> Option<u32> {
        let lateness = self.orders.lateness();
        let mut late: Vec<_> = self.passing.iter().filter(|key| **key != wanted).collect();
        late.sort_by_key(|key| Reverse(lateness.get(key).copied()));
        for key in late.into_iter().copied().collect::<Vec<_>>() {
            let Some(ChunkState::Full { slot, stay: Retention::Transient, .. }) =
                self.chunks.get(&key)
            else {
                continue;
            };
            let slot = *slot;
            if self.withdraw(key, slot) {
                self.chunks.remove(&key);
                self.passing.retain(|passing| *passing != key);
                self.backlog.is_absent_again(key);
                return Some(slot);
            }
        }
        None
    }

    /// Hides a chunk. A chunk with readers is shown again, and the result is false.
    pub(super) fn withdraw(&mut self, key: ChunkKey, slot: u32) -> bool {
        let Some(open) = self.datasets.get(key.dataset).map(Arc::clone) else { return false };
        open.table.withdraw(key.chunk);
        let is_pinned = self.connections.values().any(|connection| connection.pins.holds(slot));
        if !is_pinned && !self.peer_pins.holds(slot) {
            return true;
        }
        self.show(&open, key, slot);
        false
    }

    pub(super) fn show(&mut self, open: &Open, key: ChunkKey, slot: u32) {
        self.generation += 1;
        open.table.publish(key.chunk, Word::new(self.generation, slot));
    }

    /// Frees condemned slots without readers.
    pub(super) fn reuse_condemned(&mut self) {
        let connections = &self.connections;
        let is_free = |slot: &mut u32| connections.values().all(|one| !one.pins.holds(*slot));
        self.free.extend(self.condemned.extract_if(.., is_free));
    }
}

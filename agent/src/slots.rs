//! Which slot the next chunk comes into.
//!
//! Must hold: a slot is handed out only after its word was withdrawn and no page showed a pin, and
//! while no other agent reads it; kept chunks stay, unless views hold all other slots; a chunk that a worker waits for comes before those that are
//! needed later.

use std::cmp::Reverse;
use std::sync::Arc;

use libdiesel::agent::Word;

use crate::cache::{Held, State, Stay};
use crate::dataset::{ChunkKey, Open};

impl State {
    /// A free slot; none where the slot would take memory of which there is little.
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

    /// An empty slot: a free one, or that of a chunk that nobody reads and no order needs soon. For a
    /// chunk that a worker waits for, the slot of one that is needed late will do.
    pub(super) fn take_slot(&mut self, wanted: ChunkKey, is_awaited: bool) -> Option<u32> {
        if let Some(slot) = self.free_slot() {
            return Some(slot);
        }
        for _ in 0..self.passing.len() {
            let key = self.passing.pop_front()?;
            let is_needed = key == wanted || self.plans.needs(key);
            match self.held.get(&key) {
                Some(Held::Full { slot, stay: Stay::Passing, .. }) if !is_needed => {
                    let slot = *slot;
                    if self.withdraw(key, slot) {
                        self.held.remove(&key);
                        self.backlog.is_absent_again(key);
                        return Some(slot);
                    }
                    self.passing.push_back(key);
                }
                Some(Held::Full { stay: Stay::Passing, .. }) => self.passing.push_back(key),
                _ => {}
            }
        }
        if !is_awaited {
            return None;
        }
        self.take_slot_of_late(wanted).or_else(|| self.take_slot_of_kept())
    }

    /// An empty slot for a chunk that is to be kept: that of one that another agent keeps too will do, or of
    /// one that is needed late.
    pub(super) fn slot_for_kept(&mut self, key: ChunkKey) -> Option<u32> {
        if let Some(slot) = self.free_slot() {
            return Some(slot);
        }
        self.let_pass(Stay::Copy);
        self.take_slot(key, false).or_else(|| self.take_slot_of_late(key))
    }

    /// An empty slot for files that come alone: a free one, or that of a chunk that passes and nobody needs.
    pub(super) fn take_slot_of_passing(&mut self) -> Option<u32> {
        self.reuse_condemned();
        // No chunk has this number.
        self.take_slot(ChunkKey { dataset: usize::MAX, chunk: u32::MAX }, false)
    }

    /// The slot of a kept chunk that nobody reads, first of one that another agent keeps too. Views hold every other slot; the chunk of one of them is
    /// kept from now on.
    fn take_slot_of_kept(&mut self) -> Option<u32> {
        let kept = self.held.iter().filter_map(|(key, held)| match held {
            Held::Full { slot, stay: stay @ (Stay::Kept | Stay::Copy), .. } => {
                Some((*stay == Stay::Kept, *key, *slot))
            }
            _ => None,
        });
        let mut kept: Vec<_> = kept.collect();
        kept.sort_unstable();
        let (is_kept, key, slot) =
            kept.into_iter().find(|(_, key, slot)| self.withdraw(*key, *slot))?;
        self.held.remove(&key);
        self.staying_generation = self.staying_generation.wrapping_add(1);
        self.backlog.is_absent_again(key);
        if !is_kept {
            self.copies -= 1;
            return Some(slot);
        }
        self.kept -= 1;
        let passing = self.passing.pop_front();
        if let Some(Held::Full { stay, .. }) = passing.and_then(|key| self.held.get_mut(&key)) {
            *stay = Stay::Kept;
            self.kept += 1;
        }
        Some(slot)
    }

    /// The slot of the chunk that is needed last and that nobody reads.
    fn take_slot_of_late(&mut self, wanted: ChunkKey) -> Option<u32> {
        let lateness = self.plans.lateness();
        let mut late: Vec<_> = self.passing.iter().filter(|key| **key != wanted).collect();
        late.sort_by_key(|key| Reverse(lateness.get(key).copied()));
        for key in late.into_iter().copied().collect::<Vec<_>>() {
            let Some(Held::Full { slot, stay: Stay::Passing, .. }) = self.held.get(&key) else {
                continue;
            };
            let slot = *slot;
            if self.withdraw(key, slot) {
                self.held.remove(&key);
                self.passing.retain(|passing| *passing != key);
                self.backlog.is_absent_again(key);
                return Some(slot);
            }
        }
        None
    }

    /// Hides a chunk. False when somebody reads it: then it is shown again.
    fn withdraw(&mut self, key: ChunkKey, slot: u32) -> bool {
        let Some(open) = self.datasets.get(key.dataset).map(Arc::clone) else { return false };
        open.table.withdraw(key.chunk);
        let is_pinned = self.connections.values().any(|connection| connection.pins.holds(slot));
        if !is_pinned && !self.lent.holds(slot) {
            return true;
        }
        self.show(&open, key, slot);
        false
    }

    pub(super) fn show(&mut self, open: &Open, key: ChunkKey, slot: u32) {
        self.generation += 1;
        open.table.publish(key.chunk, Word::new(self.generation, slot));
    }

    /// Frees condemned slots that nobody reads any more.
    pub(super) fn reuse_condemned(&mut self) {
        let connections = &self.connections;
        let is_free = |slot: &mut u32| connections.values().all(|one| !one.pins.holds(*slot));
        self.free.extend(self.condemned.extract_if(.., is_free));
    }
}

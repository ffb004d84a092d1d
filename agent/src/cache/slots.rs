//! The slots of the arena: which are empty, and which may be filled again.
//!
//! Must hold: a slot is handed out once until it is given back. Before a slot is handed out again,
//! its table word is withdrawn, no page shows a pin, and no other agent reads the slot.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use dl_node::{Arena, Shape, Table, Word};
use libdiesel::FilePlace;

use super::budget::SpareMemory;
use super::connections::Connections;
use crate::disk::BLOCK;
use crate::pins::{PeerPins, PinnedFiles};

/// The slots.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// None before the first dataset, whose chunks decide the size of slots.
    arena: Option<(Arc<Arena>, Arc<Vec<OwnedFd>>)>,
    empty: Vec<u32>,
    /// Slots with a lower number have memory already. A higher slot takes memory at its first fill.
    touched: u32,
    spare: SpareMemory,
    /// Whether the last request for a slot failed for lack of memory.
    is_out_of_memory: bool,
    /// Slots outside of all tables that a reader may still pin.
    draining: Vec<u32>,
    /// Slots being sent to other agents, or moving to and from a disk.
    peer_pins: Arc<PeerPins>,
    /// The last generation of a table word.
    generation: u64,
}

impl Slots {
    /// Creates the arena for the chunks of a dataset if there is none. An error explains why the
    /// chunks don't fit.
    pub(crate) fn fit(&mut self, chunk: u32, budget: u64) -> Result<(), String> {
        if let Some((arena, _)) = &self.arena {
            let slot_bytes = arena.shape().slot_bytes;
            if chunk <= slot_bytes {
                return Ok(());
            }
            return Err(format!(
                "its chunks of {chunk} bytes exceed the slots of this task's agent, {slot_bytes} bytes, \
                 the chunk size of the task's first dataset: open the dataset first, or in another task"
            ));
        }
        // Disks read and write whole blocks.
        let slot_bytes = chunk.next_multiple_of(BLOCK);
        let slots = (budget / u64::from(slot_bytes)).min(u64::from(dl_node::SLOTS_MAX));
        let shape = Shape { slot_bytes, slots: slots as u32 };
        if shape.slots == 0 {
            return Err(format!(
                "the memory budget of {budget} bytes is less than one chunk of {chunk} bytes"
            ));
        }
        let (arena, files) = Arena::create(shape).map_err(|why| why.to_string())?;
        self.empty = (0..shape.slots).rev().collect();
        self.arena = Some((Arc::new(arena), Arc::new(files)));
        Ok(())
    }

    /// The arena.
    pub(crate) fn arena(&self) -> Option<Arc<Arena>> {
        self.arena.as_ref().map(|(arena, _)| Arc::clone(arena))
    }

    /// The descriptors of the arena's segments.
    pub(crate) fn segments(&self) -> Option<Arc<Vec<OwnedFd>>> {
        self.arena.as_ref().map(|(_, segments)| Arc::clone(segments))
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> u32 {
        self.arena.as_ref().map_or(0, |(arena, _)| arena.shape().slot_bytes)
    }

    /// The number of slots.
    pub(crate) fn count(&self) -> u32 {
        self.arena.as_ref().map_or(0, |(arena, _)| arena.shape().slots)
    }

    /// Slots being filled or holding a chunk.
    pub(crate) fn used(&self) -> u32 {
        self.count().saturating_sub(self.empty())
    }

    /// Empty slots.
    pub(crate) fn empty(&self) -> u32 {
        self.empty.len() as u32
    }

    /// Slots with memory, or for which memory is left.
    pub(crate) fn usable(&self) -> u32 {
        if self.is_out_of_memory { self.touched } else { self.count() }
    }

    /// Whether the last request for a slot failed for lack of memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.is_out_of_memory
    }

    /// An empty slot; none if the slot would take memory while memory is short.
    pub(crate) fn take(&mut self, now: Duration) -> Option<u32> {
        let slot = self.empty.pop()?;
        if slot >= self.touched {
            let (arena, _) = self.arena.as_ref()?;
            let slot_bytes = arena.shape().slot_bytes;
            self.is_out_of_memory = !self.spare.allows(slot, arena.populated(), slot_bytes, now);
            if self.is_out_of_memory {
                self.empty.push(slot);
                return None;
            }
            self.touched = slot + 1;
        }
        Some(slot)
    }

    /// Gives back a slot that nobody pins.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.empty.push(slot);
    }

    /// Gives back a slot that is in no table, once no reader pins it.
    pub(crate) fn drain(&mut self, slot: u32) {
        self.draining.push(slot);
    }

    /// Empties draining slots without readers.
    pub(crate) fn reuse_drained(&mut self, connections: &Connections) {
        let peer_pins = &self.peer_pins;
        let is_free = |slot: &mut u32| !connections.pin(*slot) && !peer_pins.holds(*slot);
        self.empty.extend(self.draining.extract_if(.., is_free));
    }

    /// Slots without a chunk.
    #[cfg(test)]
    pub(super) fn unowned(&self) -> impl Iterator<Item = u32> {
        self.empty.iter().chain(&self.draining).copied()
    }

    /// Shows readers the chunk in a slot.
    pub(crate) fn publish(&mut self, table: &Table, chunk: u32, slot: u32) {
        self.generation += 1;
        table.publish(chunk, Word::new(self.generation, slot));
    }

    /// Hides a chunk. A chunk with readers is shown again, and the result is false.
    pub(crate) fn withdraw(
        &mut self,
        table: &Table,
        chunk: u32,
        slot: u32,
        connections: &Connections,
    ) -> bool {
        table.withdraw(chunk);
        if !connections.pin(slot) && !self.is_sent(slot) {
            return true;
        }
        self.publish(table, chunk, slot);
        false
    }

    /// Whether a slot is being sent to another agent.
    pub(crate) fn is_sent(&self, slot: u32) -> bool {
        self.peer_pins.holds(slot)
    }

    /// Pins the files of a chunk for another agent, given their start and end in the slot.
    pub(crate) fn pin_chunk(&self, slot: u32, span: (u32, u32)) -> Option<PinnedFiles> {
        let (arena, _) = self.arena.as_ref()?;
        Some(PinnedFiles::chunk(&self.peer_pins, arena, slot, span))
    }

    /// Pins single files for another agent, each with its slot.
    pub(crate) fn pin_files(
        &self,
        files: impl IntoIterator<Item = Option<(u32, FilePlace)>>,
    ) -> Option<PinnedFiles> {
        let (arena, _) = self.arena.as_ref()?;
        Some(PinnedFiles::files(&self.peer_pins, arena, files))
    }
}

#[cfg(test)]
mod tests {
    use dl_node::{PinPage, Socket};

    use super::super::connections::Connection;
    use super::super::waiters::Waiter;
    use super::*;

    #[test]
    fn a_pinned_slot_is_not_handed_out_again() {
        let (mut slots, mut connections) = (Slots::default(), Connections::default());
        slots.fit(4_096, 3 * 4_096).unwrap();
        let (table, _file) = Table::create(4).unwrap();
        let (pins, _file) = PinPage::create(slots.count()).unwrap();
        let (socket, _worker) = Socket::pair().unwrap();
        let connection = Connection::new(1, 0, pins, Arc::new(socket), false);
        let number = connections.enter(connection, slots.count());
        let taken: Vec<_> = (0..4).map(|_| slots.take(Duration::ZERO)).collect();
        assert_eq!(taken, [Some(0), Some(1), Some(2), None]);
        slots.publish(&table, 3, 1);
        let waiter = Waiter { connection: number, id: 1, file: 0, until: Duration::ZERO };
        connections.get(number).unwrap().pins.begin_wait(1);
        connections.hand_over(waiter, 1);
        assert!(!slots.withdraw(&table, 3, 1, &connections));
        assert_eq!(table.load(3).slot(), Some(1), "the chunk is shown again");
        slots.drain(1);
        slots.reuse_drained(&connections);
        assert_eq!((slots.empty(), slots.used()), (0, 3));
        connections.get(number).unwrap().pins.unpin(1);
        assert!(slots.withdraw(&table, 3, 1, &connections));
        assert_eq!(table.load(3).slot(), None);
        slots.reuse_drained(&connections);
        let pinned = slots.pin_chunk(2, (0, 8));
        assert!(slots.is_sent(2) && !slots.withdraw(&table, 0, 2, &connections));
        drop(pinned);
        assert!(slots.withdraw(&table, 0, 2, &connections));
        assert_eq!(slots.take(Duration::ZERO), Some(1));
    }

    #[test]
    fn chunks_larger_than_the_slots_are_refused_with_the_reason() {
        let mut slots = Slots::default();
        assert!(slots.fit(4_096, 100).unwrap_err().contains("less than one chunk"));
        slots.fit(4_096, 8_192).unwrap();
        slots.fit(512, 8_192).unwrap();
        assert!(slots.fit(8_192, 8_192).unwrap_err().contains("in another task"));
        assert_eq!((slots.count(), slots.slot_bytes()), (2, 4_096));
    }
}

//! The room for chunks, and what workers are told of it.
//!
//! Must hold: transient chunks have slots; a worker is told when its order gets no further chunk.

use dl_node::{FilesAlone, Gauge};

use super::State;
use crate::place::{ChunkKey, Eviction};

/// Slots for chunks on their way to and from disks without a reader here, at most.
const DISK_SLOTS: u32 = 8;

impl State {
    /// Whether there is room for a chunk without an urgent reader. `is_own`: this agent owns the
    /// chunk.
    pub(super) fn has_room(&self, is_own: bool) -> bool {
        match self.keeps {
            true => self.can_copy() || is_own && self.can_keep(),
            false => self.has_room_for_large(),
        }
    }

    /// Whether a slot is empty for an order whose group does not fit, beside a slot for each worker.
    pub(super) fn has_room_for_large(&self) -> bool {
        self.slots.empty() > self.connections.workers()
    }

    /// Whether a connection gets no further chunk, because the groups of its order are too large.
    pub(super) fn refuses_large(&self, connection: u64) -> bool {
        let is_full = self.slots.is_out_of_memory() || !self.has_room_for_large();
        is_full && self.orders.group_max(connection).is_some()
    }

    /// Tells each worker whether its order gets no further chunk.
    pub(crate) fn announce_large_groups(&self) {
        for (number, one) in self.connections.iter() {
            let most = self.orders.group_max(number).filter(|_| self.refuses_large(number));
            one.pins.set(Gauge::GroupMax, most.map_or(0, |most| u64::from(most) + 1));
        }
    }

    /// Announces to workers without an order whether to read files without their chunks. They do so
    /// when no further chunk can be kept here, and none is evicted.
    pub(crate) fn announce_file_requests(&mut self) {
        let has_room = self.can_copy();
        // Between the drop of a chunk and the end of the next fill there seems to be room.
        let is_full = self.keeps && !has_room || self.slots.used() >= self.slots.usable();
        let is_full = is_full && !self.may_evict();
        let mut are_alone = false;
        for (number, one) in self.connections.processes() {
            let has_peers =
                || self.opens.get(one.dataset).is_some_and(|open| open.peers.connected() > 0);
            let files_alone = if !is_full || self.orders.reads(number) {
                FilesAlone::No
            } else if has_peers() {
                if has_room { FilesAlone::No } else { FilesAlone::OfAgents }
            } else {
                match (self.disk.count(one.dataset) > 0, self.disk.takes()) {
                    (true, true) => FilesAlone::OfDisksOrChunks,
                    (true, false) => FilesAlone::OfDisksOrServers,
                    // Whole chunks fill the disks.
                    (false, true) => FilesAlone::No,
                    (false, false) => FilesAlone::OfServers,
                }
            };
            one.pins.set(Gauge::FilesAlone, files_alone as u64);
            are_alone |= files_alone.asks_agent();
        }
        self.has_file_requests = are_alone;
    }

    /// Whether a kept chunk may leave for another.
    pub(super) fn may_evict(&self) -> bool {
        self.keeps && self.residency.eviction() != Eviction::Keep && !self.orders.are_read()
    }

    /// Whether there is room to keep a copy of another agent's chunk.
    pub(crate) fn can_copy(&self) -> bool {
        self.residency.can_copy(self.keep_max())
    }

    /// Whether there is room to keep one more chunk.
    pub(crate) fn can_keep(&self) -> bool {
        self.residency.can_keep(self.keep_max())
    }

    /// Reserves room for a chunk on its way; false if there is none.
    pub(crate) fn reserve(&mut self, key: ChunkKey) -> bool {
        let most = self.keep_max();
        self.residency.reserve(key, most)
    }

    /// Reserves room in memory for a chunk on its way; true also if a disk takes it instead.
    pub(crate) fn reserve_in_a_tier(&mut self, key: ChunkKey) -> bool {
        self.reserve(key) || self.disk.takes()
    }

    /// Slots through which chunks pass from disks to other agents. Without them, two agents whose slots
    /// all wait for the other agent's chunks would wait for long.
    pub(super) fn slots_for_peers(&self) -> u32 {
        let has_peers = || self.opens.iter().any(|(_, open)| open.peers.connected() > 0);
        if self.has_disks && has_peers() { DISK_SLOTS.min(self.slots.usable() / 4) } else { 0 }
    }

    /// The limit of kept chunks. The other slots are for transient chunks: two groups of each
    /// active order, and a slot for each worker.
    pub(crate) fn keep_max(&self) -> u32 {
        if !self.keeps {
            return 0;
        }
        // Files without their chunks take another slot for each worker.
        let each = 1 + u32::from(self.has_file_requests);
        let workers = self.connections.workers() * each;
        // The store's share of a group varies where disks have the rest: a third group evens it out.
        let groups = if self.has_disks { 3 } else { 2 };
        let transient = self.orders.transient_slots(groups).saturating_add(workers);
        let usable = self.slots.usable();
        if !self.has_disks {
            return usable.saturating_sub(transient);
        }
        let transient = match self.slots_for_peers() {
            0 => transient.max(DISK_SLOTS.min(usable / 4)),
            for_peers => transient.saturating_add(for_peers),
        };
        usable.saturating_sub(transient)
    }
}

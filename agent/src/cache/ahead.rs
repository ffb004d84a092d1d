//! The next chunk worth a fetch before a worker waits for it.
//!
//! Must hold: chunks that an order needs soon come first, then prefetches; with `oneshot` all other
//! chunks follow, in the order of first need where an order is known.

use std::time::Duration;

use super::State;
use super::wants::Fetch;
use crate::Policy;
use crate::place::{ChunkKey, Presence, Retention, Stage};

/// Most chunks on their way to a disk without a reader, and for other agents.
const AHEAD_MAX: usize = 4;
pub(super) const FOR_PEERS_MAX: usize = 16;

/// Where a chunk will stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stays {
    /// As there is room when it comes.
    AsItComes,
    /// In memory, with room reserved.
    InMemory,
    /// On a disk.
    OnDisk,
}

impl State {
    /// The fetch to start, if there is a slot for it.
    pub(crate) fn fetch_ahead(&mut self, policy: Policy, now: Duration) -> Option<Fetch> {
        if policy != Policy::None {
            if let Some(key) = self.next_of_readers() {
                let slot = self.empty_a_slot(key, false, now);
                // Prefetches wait for the chunks of orders.
                self.backlog.is_stuck = slot.is_none();
                return Some(self.begin(key, slot?, None, now));
            }
            if let Some(key) = self.next_of_large()
                && let Some(slot) = self.slots.take(now)
            {
                return Some(self.begin(key, slot, None, now));
            }
        }
        if let Some(key) = self.next_of_prefetches() {
            let (slot, stays) = self.slot_for_prefetch(key, now);
            // Once a disk has taken a chunk under way, it takes the next.
            self.backlog.is_stuck =
                slot.is_none() && !(self.disk.takes() && self.disk.under_way() > 0);
            return Some(self.begin_to_stay(key, slot?, stays, now));
        }
        let is_possible = policy == Policy::OneShot && (self.disk.takes() || self.has_room(true));
        let key = is_possible.then(|| self.next_of_all()).flatten()?;
        let (slot, stays) = match self.disk.takes() {
            true => self.slot_for_tiers(key, AHEAD_MAX, now),
            false => (self.slot_to_keep(key, now), Stays::AsItComes),
        };
        Some(self.begin_to_stay(key, slot?, stays, now))
    }

    /// Begins a fetch, and reserves the room for its chunk.
    fn begin_to_stay(&mut self, key: ChunkKey, slot: u32, stays: Stays, now: Duration) -> Fetch {
        let fetch = self.begin(key, slot, None, now);
        match stays {
            Stays::AsItComes => {}
            Stays::InMemory => _ = self.reserve(key),
            Stays::OnDisk => self.disk.queue(key),
        }
        fetch
    }

    /// The next chunk of the orders, or of the hints of a worker.
    fn next_of_readers(&mut self) -> Option<ChunkKey> {
        let staying = self.residency.kept() + self.residency.copies();
        let workers = self.connections.workers();
        let other = staying.saturating_add(workers).saturating_add(self.slots_for_peers());
        let room = self.slots.usable().saturating_sub(other);
        let residency = &self.residency;
        let presence = |key| match residency.get(key).map(|held| held.stage) {
            None => Presence::Absent,
            Some(Stage::Full { retention: Retention::Kept | Retention::Copy, .. }) => {
                Presence::Kept
            }
            Some(_) => Presence::Transient,
        };
        let next = self.orders.next(room, presence);
        let (served, orders) = (&self.served, &self.orders);
        next.or_else(|| {
            self.connections.next_hint(|key| {
                served.has(key) && !residency.holds(key) && !orders.is_excluded(key)
            })
        })
    }

    /// The next chunk of an order whose group does not fit into memory.
    fn next_of_large(&self) -> Option<ChunkKey> {
        let next = || self.orders.next_of_large(|key| self.residency.holds(key));
        self.has_room_for_large().then(next).flatten()
    }

    fn next_of_prefetches(&mut self) -> Option<ChunkKey> {
        let (residency, disk, orders) = (&self.residency, &self.disk, &self.orders);
        self.backlog.next_of_prefetches(|key| {
            residency.holds(key) || disk.holds(key) || orders.is_excluded(key)
        })
    }

    fn slot_for_prefetch(&mut self, key: ChunkKey, now: Duration) -> (Option<u32>, Stays) {
        let is_own = self.served.owns(key);
        if is_own && self.disk.takes() {
            return self.slot_for_tiers(key, AHEAD_MAX, now);
        }
        let slot = match self.has_room(is_own) {
            true if is_own => self.slot_to_keep(key, now),
            true => self.empty_a_slot(key, false, now),
            false => None,
        };
        (slot, Stays::AsItComes)
    }

    /// A slot for an own chunk that stays in memory or, without room there, goes on to a disk.
    /// At most `most` chunks are on their way to a disk.
    pub(super) fn slot_for_tiers(
        &mut self,
        key: ChunkKey,
        most: usize,
        now: Duration,
    ) -> (Option<u32>, Stays) {
        if self.can_keep() {
            return (self.slot_to_keep(key, now), Stays::InMemory);
        }
        let is_possible = self.disk.may_queue(key) && self.disk.under_way() < most;
        let slot = is_possible.then(|| self.empty_a_slot(key, false, now)).flatten();
        (slot, Stays::OnDisk)
    }

    /// The next absent chunk that this agent owns: each chunk is fetched by its owner. A chunk on disk
    /// is there.
    fn next_of_all(&mut self) -> Option<ChunkKey> {
        let (residency, served, disk) = (&self.residency, &self.served, &self.disk);
        let is_there = |key| residency.holds(key) || disk.holds(key) || !served.owns(key);
        let next = self.orders.next_after_window(is_there);
        let orders = &self.orders;
        next.or_else(|| self.backlog.next_of_all(|key| is_there(key) || orders.is_excluded(key)))
    }

    /// Notes a prefetch of chunks for the dataset of a connection; false when too many prefetches
    /// wait.
    pub(crate) fn prefetch(&mut self, connection: u64, runs: Vec<(u32, u32)>) -> bool {
        let Some(dataset) = self.connections.get(connection).map(|one| one.dataset) else {
            return false;
        };
        self.backlog.prefetch(dataset, self.served.chunks(dataset), runs)
    }
}

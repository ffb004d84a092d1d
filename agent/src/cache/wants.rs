//! Chunks wanted by workers, from the request to the answer.
//!
//! Must hold: every waiter gets one answer: its chunk, or the reason why it does not come.

use std::sync::Arc;
use std::time::Duration;

use super::{Awaited, PeerWaiter, State, Waiter};
use crate::place::{ChunkKey, Eviction, Origin, Stage};
use crate::progress::Progress;

/// A chunk to be fetched into a slot.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) key: ChunkKey,
    pub(crate) slot: u32,
    /// The first file needed.
    pub(crate) first: Option<u32>,
    pub(crate) progress: Arc<Progress>,
    /// Whether another agent asked for the chunk, which then comes from the servers.
    pub(crate) is_for_peer: bool,
}

/// A chunk whose bytes are in its slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    /// Start and end of its files in the slot.
    pub(crate) span: (u32, u32),
    pub(crate) origin: Origin,
}

impl State {
    /// Registers a waiting worker: the answer follows at once, or when the chunk is in memory.
    /// Returns the fetch to start, if any.
    pub(crate) fn want(&mut self, key: ChunkKey, waiter: Waiter, now: Duration) -> Option<Fetch> {
        if !self.connections.begin_wait(waiter.connection) {
            return None;
        }
        self.serve_waiter(key, waiter, now)
    }

    fn serve_waiter(&mut self, key: ChunkKey, waiter: Waiter, now: Duration) -> Option<Fetch> {
        if !self.has(key) {
            let why = "the chunk was found damaged, or its number is unknown";
            self.connections.refuse(waiter, why);
            return None;
        }
        match self.residency.get(key).map(|held| (held.slot, held.stage)) {
            Some((slot, Stage::Full { .. })) => {
                self.connections.hand_over(waiter, slot);
                None
            }
            Some((_, Stage::Filling(_))) => {
                for late in self.waiters.add(key, waiter, now) {
                    self.connections.refuse(late, "the chunk came too late");
                }
                None
            }
            None if self.refuses_large(waiter.connection) => {
                self.announce_large_groups();
                self.connections.refuse(waiter, "a group of the order does not fit into memory");
                None
            }
            None => match self.empty_a_slot(key, true, now) {
                Some(slot) => Some(self.begin(key, slot, Some(waiter), now)),
                None => {
                    self.waiters.enqueue(key, waiter);
                    None
                }
            },
        }
    }

    /// Whether the chunk exists and was not found damaged.
    pub(crate) fn has(&self, key: ChunkKey) -> bool {
        self.served.has(key) && !self.orders.is_excluded(key)
    }

    /// Starts to fill a slot for a worker, or ahead.
    pub(super) fn begin(
        &mut self,
        key: ChunkKey,
        slot: u32,
        waiter: Option<Waiter>,
        now: Duration,
    ) -> Fetch {
        // Other agents wait for chunks owned by this agent.
        self.residency.begin(key, slot, self.served.owns(key));
        let progress = Arc::new(Progress::new(now));
        self.waiters.begin(key, Arc::clone(&progress));
        let first = waiter.map(|waiter| waiter.file);
        waiter.into_iter().for_each(|waiter| _ = self.waiters.add(key, waiter, now));
        Fetch { key, slot, first, progress, is_for_peer: false }
    }

    /// Starts to fill a slot for another agent.
    pub(super) fn begin_for_peer(
        &mut self,
        key: ChunkKey,
        slot: u32,
        waiter: PeerWaiter,
        now: Duration,
    ) -> Fetch {
        self.residency.begin(key, slot, true);
        self.residency.reserve(key, self.keep_max());
        let progress = Arc::new(Progress::new(now));
        self.waiters.begin(key, Arc::clone(&progress));
        self.waiters.add_peer(key, waiter);
        Fetch { key, slot, first: None, progress, is_for_peer: true }
    }

    /// Answers the workers waiting for a file whose chunk is still being filled.
    pub(crate) fn file_is_there(&mut self, key: ChunkKey, file: u32) {
        let Some(slot) = self.residency.get(key).map(|held| held.slot) else { return };
        for waiter in self.waiters.take_file(key, file) {
            self.connections.hand_over(waiter, slot);
        }
    }

    /// Publishes a chunk after all its bytes were checked in the slot.
    pub(crate) fn filled(&mut self, key: ChunkKey, filled: Filled, now: Duration) {
        let Some(Awaited { waiters, peers, .. }) = self.waiters.take(key) else { return };
        let Filled { span, origin } = filled;
        self.count(key, filled);
        self.orders.arrived(key, origin);
        let is_mine = origin == Origin::Servers || self.served.owns(key);
        let is_mine = is_mine && origin != Origin::Disk;
        // Between two epochs, chunks of the next one arrive.
        let may_evict = self.may_evict() && !self.orders.needs(key);
        let most = self.keep_max();
        self.count_uses(now);
        let Some(slot) = self.residency.filled(key, span, is_mine, may_evict, most) else { return };
        if self.residency.eviction() != Eviction::Keep {
            // Those of the chunk before in the slot.
            self.connections.uses(slot);
        }
        if let Some(served) = self.served.get(key.dataset) {
            self.slots.publish(&served.table, key.chunk, slot);
        }
        waiters.into_iter().for_each(|waiter| self.connections.hand_over(waiter, slot));
        self.answer_peers(peers, key, slot, span);
    }

    fn count(&mut self, key: ChunkKey, Filled { span, origin }: Filled) {
        let Some(counts) = self.counts.get_mut(key.dataset) else { return };
        let bytes = u64::from(span.1.saturating_sub(span.0));
        let (chunks, of_bytes) = match origin {
            Origin::Peer => (&mut counts.chunks_from_peers, &mut counts.bytes_from_peers),
            Origin::Disk => (&mut counts.chunks_from_disk, &mut counts.bytes_from_disk),
            Origin::Servers | Origin::ServersInstead => {
                (&mut counts.chunks_from_servers, &mut counts.bytes_from_servers)
            }
        };
        *chunks += 1;
        *of_bytes += bytes;
    }

    /// Gives up a chunk after a failed fetch.
    pub(crate) fn lost(&mut self, key: ChunkKey, why: &str, is_final: bool) {
        // Dropping the other agents' waits tells the agents.
        let Some(Awaited { waiters, .. }) = self.waiters.take(key) else { return };
        if let Some((slot, _)) = self.residency.remove(key) {
            self.slots.drain(slot);
        }
        if let Some(counts) = self.counts.get_mut(key.dataset) {
            counts.failed_fetches += 1;
        }
        self.disk.give_up(key);
        if is_final {
            self.orders.exclude(key);
        } else {
            self.backlog.is_absent_again(key);
        }
        waiters.into_iter().for_each(|waiter| self.connections.refuse(waiter, why));
        self.slots.reuse_drained(&self.connections);
    }

    /// Makes chunks above the limit transient, and retries the queue. Returns the fetches to start.
    pub(crate) fn retry_queue(&mut self, now: Duration) -> Vec<Fetch> {
        self.slots.reuse_drained(&self.connections);
        self.follow();
        self.count_uses(now);
        self.residency.shrink(self.keep_max());
        self.queue_passing();
        self.announce_file_requests();
        self.announce_large_groups();
        let mut fetches = Vec::new();
        for (key, waiter) in self.waiters.take_queue() {
            if now >= waiter.until {
                self.connections.refuse(waiter, "all memory was in use");
            } else {
                fetches.extend(self.serve_waiter(key, waiter, now));
            }
        }
        fetches
    }
}

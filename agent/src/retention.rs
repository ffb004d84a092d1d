//! The choice of the chunks to keep, and for how long.
//!
//! Must hold: a chunk kept by no other agent is not dropped for another chunk; transient chunks
//! have slots.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dl_runtime::since_boot;
use libdiesel::agent::Gauge;

use crate::cache::{ChunkState, Retention, State};
use crate::progress::Progress;

/// After a change of the members, handing over kept chunks takes at most this time.
const GIVE_OVER: Duration = Duration::from_secs(60);

impl State {
    /// Whether there is room for a chunk without an urgent reader. `is_own`: this agent owns the
    /// chunk.
    pub(super) fn has_room(&self, is_own: bool) -> bool {
        let is_free = self.free.len() > self.workers() as usize;
        if self.keeps { self.can_copy() || is_own && self.can_keep() } else { is_free }
    }

    /// Whether a free slot is left for an order whose group does not fit, beside a slot for each
    /// worker.
    pub(super) fn has_room_for_large(&self) -> bool {
        self.free.len() > self.workers() as usize
    }

    /// Whether a connection gets no further chunk, because the groups of its order are too large.
    pub(super) fn refuses_large(&self, connection: u64) -> bool {
        let is_full = self.is_out_of_memory || !self.has_room_for_large();
        is_full && self.orders.group_max(connection).is_some()
    }

    /// Tells each worker whether its order gets no further chunk.
    pub(crate) fn announce_large_groups(&self) {
        for (number, one) in &self.connections {
            let most = self.orders.group_max(*number).filter(|_| self.refuses_large(*number));
            one.pins.set(Gauge::GroupMax, most.map_or(0, |most| u64::from(most) + 1));
        }
    }

    /// Whether there is room to keep a copy of another agent's chunk.
    pub(crate) fn can_copy(&self) -> bool {
        self.kept + self.copies < self.keep_max()
    }

    /// Whether there is room to keep one more chunk until the end.
    pub(crate) fn can_keep(&self) -> bool {
        self.kept + self.reserved < self.keep_max()
    }

    /// Reserves room for a chunk from the servers; false if there is none.
    pub(crate) fn reserve(&mut self, progress: &Progress) -> bool {
        let is_reserved = self.can_keep();
        if is_reserved && !progress.is_reserved.swap(true, Ordering::Relaxed) {
            self.reserved += 1;
        }
        is_reserved
    }

    /// Ends the reservation of a chunk; returns whether there was one.
    pub(crate) fn unreserve(&mut self, progress: &Progress) -> bool {
        let was_reserved = progress.is_reserved.swap(false, Ordering::Relaxed);
        self.reserved -= u32::from(was_reserved);
        was_reserved
    }

    /// The limit of kept chunks. The other slots are for transient chunks: two groups of each
    /// active order, and a slot for each worker.
    pub(crate) fn keep_max(&self) -> u32 {
        if !self.keeps {
            return 0;
        }
        // Files without their chunks take another slot for each worker.
        let each = 1 + u32::from(self.has_file_requests);
        let passing = self.orders.passing_slots().saturating_add(self.workers() * each);
        self.usable_slots().saturating_sub(passing)
    }

    /// Processes, and their further waits at the moment.
    pub(super) fn workers(&self) -> u32 {
        let connections = self.connections.values();
        let counted = connections.filter(|one| !one.is_beside || one.open > 0).count();
        (counted as u32).max(1)
    }

    /// Slots with memory, or for which memory is left.
    pub(super) fn usable_slots(&self) -> u32 {
        if self.is_out_of_memory { self.touched } else { self.slots() }
    }

    /// How long an arrived chunk stays. Copies make room for chunks kept by no other agent.
    pub(super) fn stay(&mut self, is_mine: bool, is_reserved: bool) -> Retention {
        let most = self.keep_max();
        let promised = if is_reserved { 0 } else { self.reserved };
        match is_mine {
            true if self.kept + promised < most => {
                if self.kept + self.copies >= most {
                    self.demote(Retention::Copy);
                }
                Retention::Kept
            }
            false if self.can_copy() => Retention::Copy,
            _ => Retention::Transient,
        }
    }

    /// Reacts to a change of the members: the ownership of chunks has changed.
    pub(crate) fn owners_changed(&mut self, dataset: usize) {
        let chunks = self.datasets.get(dataset).map_or(0, |open| open.snapshot.holders());
        self.backlog.begin_again(dataset, chunks);
        self.give_over_until = since_boot().saturating_add(GIVE_OVER);
    }

    /// Checks the connections to other members. Kept chunks with another owner become copies once
    /// the owner has the chunk; copies of own chunks become kept.
    pub(crate) fn look_at_owners(&mut self) {
        let opens = self.datasets.clone();
        for (dataset, open) in opens.iter() {
            if open.peers.look() {
                self.owners_changed(dataset);
            }
        }
        if since_boot() >= self.give_over_until {
            return;
        }
        let most = self.keep_max();
        for (key, held) in &mut self.chunks {
            let ChunkState::Full { stay, .. } = held else { continue };
            let Some(open) = opens.get(key.dataset) else { continue };
            match *stay {
                Retention::Copy
                    if self.kept + self.reserved < most && open.peers.owns(key.chunk) =>
                {
                    *stay = Retention::Kept;
                    self.kept += 1;
                    self.copies -= 1;
                }
                Retention::Kept if open.peers.is_at_owner(key.chunk) => {
                    *stay = Retention::Copy;
                    self.kept -= 1;
                    self.copies += 1;
                }
                Retention::Copy | Retention::Kept | Retention::Transient => {}
            }
        }
    }

    /// Makes one chunk with the given stay transient; false if there is none.
    pub(super) fn demote(&mut self, what: Retention) -> bool {
        if what == Retention::Copy && self.copies == 0 {
            return false;
        }
        let found = self.chunks.iter_mut().find_map(|(key, held)| match held {
            ChunkState::Full { stay, .. } if *stay == what => Some((*key, stay)),
            _ => None,
        });
        let Some((key, stay)) = found else { return false };
        *stay = Retention::Transient;
        self.passing.push_back(key);
        self.staying_generation = self.staying_generation.wrapping_add(1);
        match what {
            Retention::Kept => self.kept -= 1,
            Retention::Copy => self.copies -= 1,
            Retention::Transient => {}
        }
        true
    }
}

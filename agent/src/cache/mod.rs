//! The cache: chunks in slots, their readers, and the choice of the chunks to fetch and to drop.
//!
//! Must hold: before a slot is filled, its table word is withdrawn and no page shows a pin. A chunk
//! is fetched once at a time. Every waiter gets one answer. A kept chunk is not dropped for another
//! chunk while there are slots for transient chunks, unless the policy of eviction says so.

mod ahead;
mod budget;
mod closing;
mod collapsing;
mod connections;
mod counts;
mod emptying;
mod files;
mod fill;
#[cfg(test)]
mod model;
mod on_disk;
mod ownership;
mod pages;
mod peer_pins;
mod peer_requests;
mod room;
mod served;
mod slots;
mod waiters;
mod wants;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dl_node::{Gauge, Table};
use dl_runtime::{Clock, locked};
use tokio::sync::{Notify, Semaphore};

use crate::Policy;
use crate::dataset::{Open, Opens};
use crate::disk::Disks;
use crate::durations::RecentDurations;
use crate::peers::LinkEvents;
use crate::place::{Backlog, DiskCopies, Eviction, Orders, Residency};

pub use budget::{Budget, is_cgroup_visible};
pub(crate) use closing::Unread;
pub(crate) use collapsing::collapse_all;
pub(crate) use connections::{Connection, Connections};
pub(crate) use counts::Counts;
pub(crate) use on_disk::watch_disks;
pub(crate) use ownership::watch_owners;
pub use pages::Pages;
pub(crate) use peer_pins::{ChunkReply, PeerWaiter};
use served::ServedDatasets;
pub(crate) use slots::Slots;
pub(crate) use waiters::{Awaited, Waiter, Waiters};

/// Interval between two counts of uses, at least: before an eviction, and each second.
const COUNT_INTERVAL: Duration = Duration::from_millis(5);

/// Interval for each slot and connection: twenty times the work.
const COUNT_TIME: Duration = Duration::from_nanos(100);

/// Most requests of other agents that read files from disks at a time.
const FILES_FOR_PEERS_MAX: usize = 4;

/// The agent's cache.
#[derive(Debug)]
pub(crate) struct Cache {
    state: Mutex<State>,
    /// Notified when a fetch may begin.
    pub(crate) moved: Notify,
    pub(crate) policy: Policy,
    budget: u64,
    pub(crate) link_events: Arc<LinkEvents>,
    pub(crate) disks: Disks,
    /// Notified when a copy was written.
    pub(crate) disk_events: Notify,
    /// Requests of other agents for files on disks, each with a slot.
    files_for_peers: Semaphore,
    /// Fetches under way.
    fetches: AtomicUsize,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The mutable state.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) slots: Slots,
    pub(crate) opens: Opens,
    pub(crate) served: ServedDatasets,
    pub(crate) connections: Connections,
    pub(crate) waiters: Waiters,
    pub(crate) residency: Residency,
    pub(crate) orders: Orders,
    pub(crate) backlog: Backlog,
    pub(crate) disk: DiskCopies,
    /// Reads of whole chunks from the servers.
    pub(crate) server_reads: RecentDurations,
    /// Indexed by dataset.
    pub(crate) counts: Vec<Counts>,
    /// Whether chunks stay in memory without a reader.
    keeps: bool,
    has_disks: bool,
    /// Whether files come from other agents without their chunks for a worker.
    has_file_requests: bool,
    /// When the uses of chunks were counted last.
    counted_at: Duration,
}

impl Cache {
    pub(crate) fn new(
        policy: Policy,
        eviction: Eviction,
        budget: u64,
        disks: Disks,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let has_disks = !disks.is_empty();
        Self {
            state: Mutex::new(State { has_disks, ..State::new(policy, eviction) }),
            moved: Notify::new(),
            policy,
            budget,
            link_events: Arc::default(),
            disks,
            disk_events: Notify::new(),
            files_for_peers: Semaphore::new(FILES_FOR_PEERS_MAX),
            fetches: AtomicUsize::new(0),
            clock,
        }
    }

    /// Whether a worker reads along an order, or waits for memory.
    pub(crate) fn is_followed(&self) -> bool {
        let state = self.state();
        state.waiters.is_short() || state.orders.are_read()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// The memory budget in bytes.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// The time of the agent, the same in all processes of the machine.
    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }
}

impl State {
    fn new(policy: Policy, eviction: Eviction) -> Self {
        Self {
            slots: Slots::default(),
            opens: Opens::default(),
            served: ServedDatasets::default(),
            connections: Connections::default(),
            waiters: Waiters::default(),
            residency: Residency::new(eviction),
            orders: Orders::default(),
            backlog: Backlog::default(),
            disk: DiskCopies::default(),
            server_reads: RecentDurations::default(),
            counts: Vec::new(),
            keeps: policy != Policy::None,
            has_disks: false,
            has_file_requests: false,
            counted_at: Duration::ZERO,
        }
    }

    /// Adds an open dataset; gives its number.
    pub(crate) fn add(&mut self, open: Arc<Open>, policy: Policy) -> usize {
        let (table, owners) = (Arc::clone(&open.table), open.peers.owners());
        self.opens.push(open);
        let number = self.serve(table, policy);
        // Until they are counted.
        self.disk.set_missing(u32::MAX);
        _ = self.served.set_owners(number, owners);
        number
    }

    fn serve(&mut self, table: Arc<Table>, policy: Policy) -> usize {
        self.orders.slots = self.slots.count();
        self.counts.push(Counts::default());
        let chunks = table.chunks();
        let number = self.served.push(table);
        if policy == Policy::OneShot {
            self.backlog.add_all(number, chunks);
        }
        number
    }

    /// Adds a worker's connection; gives its number.
    pub(crate) fn enter(&mut self, connection: Connection) -> u64 {
        self.connections.enter(connection, self.slots.count())
    }

    /// Removes a connection with all its pins.
    pub(crate) fn leave(&mut self, number: u64) {
        self.end_order(number);
        let Some(gone) = self.connections.leave(number, self.slots.count()) else { return };
        if let Some(counts) = self.counts.get_mut(gone.dataset) {
            counts.hits += gone.pins.get(Gauge::Hits);
            counts.misses += gone.pins.get(Gauge::Misses);
            counts.hit_bytes += gone.pins.get(Gauge::HitBytes);
            counts.fallbacks += gone.pins.get(Gauge::Fallbacks);
            counts.fallback_bytes += gone.pins.get(Gauge::FallbackBytes);
            counts.waited_micros += gone.pins.get(Gauge::WaitedMicros);
        }
    }

    /// Ends the order of a connection.
    pub(crate) fn end_order(&mut self, number: u64) {
        self.follow();
        self.orders.leave(number);
        self.announce_large_groups();
    }

    /// Reads the position of each reader.
    pub(crate) fn follow(&mut self) {
        self.orders.slots = self.slots.usable();
        let connections = &self.connections;
        self.orders.follow(|connection| {
            connections.get(connection).map(|one| one.pins.get(Gauge::Position))
        });
    }

    /// Notes the uses of chunks by readers, for a policy of eviction.
    pub(crate) fn count_uses(&mut self, now: Duration) {
        let is_needed = matches!(self.residency.eviction(), Eviction::Lru | Eviction::Lfu);
        let words = self.slots.count().saturating_mul(self.connections.iter().count() as u32);
        let interval = COUNT_INTERVAL.max(COUNT_TIME.saturating_mul(words));
        if !is_needed || !self.may_evict() || now.saturating_sub(self.counted_at) < interval {
            return;
        }
        self.counted_at = now;
        let chunks: Vec<_> = self.residency.iter().map(|(key, held)| (key, held.slot)).collect();
        for (key, slot) in chunks {
            let times = self.connections.uses(slot);
            if times > 0 {
                self.residency.used(key, times);
            }
        }
    }

    /// Writes a sign of life into all tables.
    pub(crate) fn beat(&self, now: Duration) {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.served.iter().for_each(|served| served.table.beat(now));
    }
}

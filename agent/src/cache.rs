//! The slots of the arena: the chunk in each slot, the waiting workers, and the choice of chunks to
//! drop.
//!
//! Must hold: before a slot is filled, its table word is withdrawn and no page shows a pin. A chunk
//! is fetched once at a time. Every waiter gets one answer. A kept chunk is not dropped for another
//! chunk while there are slots for transient chunks.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dl_runtime::since_boot;
use libdiesel::agent::{Arena, FromAgent, Gauge, PinPage, Shape, Socket};
use tokio::sync::Notify;

use crate::Policy;
use crate::backlog::Backlog;
use crate::budget::SpareMemory;
use crate::counts::Counts;
use crate::dataset::{ChunkKey, Opens};
use crate::orders::Orders;
use crate::orders::Presence;
use crate::peer_pins::{PeerPins, PeerWaiter};
use crate::progress::Progress;

/// Maximum waits of a connection: a worker waits once for each of its reading threads.
const WAITS_MAX: usize = 64;

/// A waiting worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter {
    pub(crate) connection: u64,
    pub(crate) id: u64,
    pub(crate) file: u32,
    /// Since boot.
    pub(crate) until: Duration,
}

/// The state of a chunk with a slot.
#[derive(Debug)]
pub(crate) enum ChunkState {
    Filling {
        slot: u32,
        waiters: Vec<Waiter>,
        peer_waiters: Vec<PeerWaiter>,
        progress: Arc<Progress>,
    },
    /// With the start and the end of its files in the slot.
    Full { slot: u32, stay: Retention, span: (u32, u32) },
}

/// How long a chunk stays in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retention {
    /// Until its slot is needed.
    Transient,
    /// Until a kept chunk needs the slot; another agent keeps the chunk too.
    Copy,
    /// Until the agent ends.
    Kept,
}

/// A chunk whose bytes are in its slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    /// Start and end of its files in the slot.
    pub(crate) span: (u32, u32),
    pub(crate) origin: Origin,
}

/// The origin of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Servers,
    /// The servers, although another agent owns the chunk.
    ServersInstead,
    /// Another agent.
    Peer,
}

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

/// A worker's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) pid: u32,
    pub(crate) dataset: usize,
    pub(crate) pins: PinPage,
    pub(crate) socket: Arc<Socket>,
    /// Chunks to be read next by the worker.
    pub(crate) hints: VecDeque<u32>,
    /// Unanswered waits.
    pub(crate) open: usize,
    /// Whether the process has another connection, for all but waits.
    pub(crate) is_beside: bool,
}

/// The agent's cache.
#[derive(Debug)]
pub(crate) struct Cache {
    state: Mutex<State>,
    /// Notified when a fetch may begin.
    pub(crate) moved: Notify,
    pub(crate) policy: Policy,
    budget: u64,
    /// Fetches under way.
    pub(crate) fetches: AtomicUsize,
}

/// The mutable state.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// None before the first dataset, whose chunks decide the size of slots.
    pub(crate) arena: Option<(Arc<Arena>, Arc<Vec<OwnedFd>>)>,
    pub(crate) datasets: Opens,
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) chunks: HashMap<ChunkKey, ChunkState>,
    pub(crate) orders: Orders,
    /// Indexed by dataset.
    pub(crate) counts: Vec<Counts>,
    pub(crate) backlog: Backlog,
    pub(super) free: Vec<u32>,
    /// Slots with a lower number have memory already. A higher slot takes memory at its first fill.
    pub(super) touched: u32,
    pub(super) spare: SpareMemory,
    /// Whether the last request for a slot failed for lack of memory.
    pub(super) is_out_of_memory: bool,
    /// Whether chunks stay in memory without a reader.
    pub(super) keeps: bool,
    /// Full transient chunks, oldest first.
    pub(super) passing: VecDeque<ChunkKey>,
    /// Slots of failed fetches that a reader had pinned.
    pub(super) condemned: Vec<u32>,
    /// Wanted chunks without a slot.
    pub(crate) queue: VecDeque<(ChunkKey, Waiter)>,
    /// Since boot: until then kept chunks with new owners are handed over.
    pub(super) give_over_until: Duration,
    /// Slots being sent to other agents.
    pub(crate) peer_pins: Arc<PeerPins>,
    /// Changes with the set of kept chunks.
    pub(crate) staying_generation: u32,
    /// Number of chunks with `Retention::Kept` and with `Retention::Copy`.
    pub(crate) kept: u32,
    pub(crate) copies: u32,
    /// Whether files come from other agents without their chunks for a worker.
    pub(super) has_file_requests: bool,
    /// Chunks being fetched with a reservation to be kept.
    pub(super) reserved: u32,
    pub(super) generation: u64,
    next_connection: u64,
}

impl Cache {
    pub(crate) fn new(policy: Policy, budget: u64) -> Self {
        let fetches = AtomicUsize::new(0);
        let state = State { keeps: policy != Policy::None, ..State::default() };
        Self { state: Mutex::new(state), moved: Notify::new(), policy, budget, fetches }
    }

    /// Whether a worker reads along an order, or waits for memory.
    pub(crate) fn is_followed(&self) -> bool {
        let state = self.state();
        state.is_short() || state.orders.are_read()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory budget in bytes.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }
}

impl State {
    /// Creates the arena for the chunks of a dataset if there is none. An error explains why the
    /// chunks don't fit.
    pub(crate) fn arena_for(&mut self, chunk: u32, budget: u64) -> Result<(), String> {
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
        let slots = (budget / u64::from(chunk)).min(u64::from(libdiesel::agent::SLOTS_MAX));
        let shape = Shape { slot_bytes: chunk, slots: slots as u32 };
        if shape.slots == 0 {
            return Err(format!(
                "the memory budget of {budget} bytes is less than one chunk of {chunk} bytes"
            ));
        }
        let (arena, files) = Arena::create(shape).map_err(|why| why.to_string())?;
        self.free = (0..shape.slots).rev().collect();
        self.arena = Some((Arc::new(arena), Arc::new(files)));
        Ok(())
    }

    pub(crate) fn slots(&self) -> u32 {
        self.arena.as_ref().map_or(0, |(arena, _)| arena.shape().slots)
    }

    /// Slots being filled or holding a chunk.
    pub(crate) fn used(&self) -> u32 {
        self.slots().saturating_sub(self.free.len() as u32)
    }

    /// Adds a worker's connection.
    pub(crate) fn enter(&mut self, connection: Connection) -> u64 {
        let number = self.next_connection;
        self.next_connection += 1;
        self.connections.insert(number, connection);
        self.share_views();
        number
    }

    /// All workers' views together may pin half of the slots.
    fn share_views(&self) {
        let share = self.slots() / 2 / (self.processes().count() as u32).max(1);
        self.processes().for_each(|(_, one)| one.pins.set(Gauge::ViewsMax, share.into()));
    }

    /// The connections of processes, one of each.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (&u64, &Connection)> {
        self.connections.iter().filter(|(_, one)| !one.is_beside)
    }

    /// Ends the order of a connection.
    pub(crate) fn end_order(&mut self, number: u64) {
        self.follow();
        self.orders.leave(number);
        self.announce_large_groups();
    }

    /// Removes a connection with all its pins.
    pub(crate) fn leave(&mut self, number: u64) {
        self.end_order(number);
        let Some(gone) = self.connections.remove(&number) else { return };
        if let Some(counts) = self.counts.get_mut(gone.dataset) {
            counts.hits += gone.pins.get(Gauge::Hits);
            counts.misses += gone.pins.get(Gauge::Misses);
            counts.hit_bytes += gone.pins.get(Gauge::HitBytes);
            counts.fallbacks += gone.pins.get(Gauge::Fallbacks);
            counts.fallback_bytes += gone.pins.get(Gauge::FallbackBytes);
            counts.waited_micros += gone.pins.get(Gauge::WaitedMicros);
        }
        self.share_views();
    }

    /// Registers a waiting worker: the answer follows at once, or when the chunk is in memory.
    /// Returns the fetch to start, if any.
    pub(crate) fn want(&mut self, key: ChunkKey, waiter: Waiter) -> Option<Fetch> {
        let is_legal = self.has(key);
        let connection = self.connections.get_mut(&waiter.connection)?;
        connection.open += 1;
        if connection.open > WAITS_MAX {
            connection.socket.end();
            return None;
        }
        self.want_again(key, waiter, is_legal)
    }

    fn want_again(&mut self, key: ChunkKey, waiter: Waiter, is_legal: bool) -> Option<Fetch> {
        match self.chunks.get_mut(&key) {
            _ if !is_legal => {
                self.refuse(waiter, "the chunk was found damaged, or its number is unknown");
                None
            }
            Some(ChunkState::Full { slot, .. }) => {
                let slot = *slot;
                self.hand_over(waiter, slot);
                None
            }
            Some(ChunkState::Filling { waiters, .. }) => {
                let now = since_boot();
                let over: Vec<_> = waiters.extract_if(.., |one| one.until < now).collect();
                waiters.push(waiter);
                over.into_iter().for_each(|one| self.refuse(one, "the chunk came too late"));
                None
            }
            None => {
                if self.refuses_large(waiter.connection) {
                    self.announce_large_groups();
                    self.refuse(waiter, "a group of the order does not fit into memory");
                    return None;
                }
                match self.take_slot(key, true) {
                    Some(slot) => Some(self.begin(key, slot, Some(waiter))),
                    None => {
                        self.queue.push_back((key, waiter));
                        None
                    }
                }
            }
        }
    }

    /// Whether the chunk exists and was not found damaged.
    pub(crate) fn has(&self, key: ChunkKey) -> bool {
        let open = self.datasets.get(key.dataset);
        open.is_some_and(|open| key.chunk < open.snapshot.holders())
            && !self.orders.is_excluded(key)
    }

    /// Notes the next chunks of a worker, as far as half of its share of the slots.
    pub(crate) fn hint(&mut self, connection: u64, chunks: Vec<u32>) {
        let most = self.slots() as usize / 2 / self.processes().count().max(1);
        let Some(one) = self.connections.get(&connection) else { return };
        let (pid, dataset) = (one.pid, one.dataset);
        let is_same = |one: &Connection| one.pid == pid && one.dataset == dataset;
        // The hints of a further wait replace the hints of the process.
        let first = self.processes().find(|(_, one)| is_same(one)).map(|(number, _)| *number);
        if let Some(first) = first.and_then(|first| self.connections.get_mut(&first)) {
            first.hints = chunks.into_iter().take(most).collect();
        }
    }

    /// The next absent chunk of the hints.
    fn next_hint(&mut self) -> Option<ChunkKey> {
        let (held, orders, datasets) = (&self.chunks, &self.orders, &self.datasets);
        self.connections.values_mut().find_map(|one| {
            let holders = datasets.get(one.dataset)?.snapshot.holders();
            loop {
                let key = ChunkKey { dataset: one.dataset, chunk: *one.hints.front()? };
                if key.chunk < holders && !held.contains_key(&key) && !orders.is_excluded(key) {
                    return Some(key);
                }
                one.hints.pop_front();
            }
        })
    }

    /// The next chunk worth a fetch before a worker waits for it. Chunks that an order needs soon
    /// come first, then prefetches. With `oneshot` all other chunks follow, in the order of first
    /// need where an order is known.
    pub(crate) fn ahead(&mut self, policy: Policy) -> Option<Fetch> {
        let staying = self.kept + self.copies;
        let room = self.usable_slots().saturating_sub(staying).saturating_sub(self.workers());
        let presence = |key| match self.chunks.get(&key) {
            None => Presence::Absent,
            Some(ChunkState::Full { stay: Retention::Kept | Retention::Copy, .. }) => {
                Presence::Kept
            }
            Some(_) => Presence::Transient,
        };
        let next = match policy {
            Policy::None => None,
            _ => self.orders.next(room, presence).or_else(|| self.next_hint()),
        };
        if let Some(key) = next {
            let slot = self.take_slot(key, false);
            // Prefetches wait for the chunks of orders.
            self.backlog.is_stuck = slot.is_none();
            return Some(self.begin(key, slot?, None));
        }
        let is_there = |key| self.chunks.contains_key(&key);
        if policy != Policy::None
            && self.has_room_for_large()
            && let Some(key) = self.orders.next_of_large(is_there)
            && let Some(slot) = self.free_slot()
        {
            return Some(self.begin(key, slot, None));
        }
        let is_there = |key| self.chunks.contains_key(&key);
        let is_settled = |key| is_there(key) || self.orders.is_excluded(key);
        if let Some(key) = self.backlog.next_of_prefetches(is_settled) {
            let open = self.datasets.get(key.dataset);
            let is_own = open.is_some_and(|open| open.peers.owns(key.chunk));
            let slot = match self.has_room(is_own) {
                true if is_own => self.slot_for_kept(key),
                true => self.take_slot(key, false),
                false => None,
            };
            self.backlog.is_stuck = slot.is_none();
            return Some(self.begin(key, slot?, None));
        }
        if policy != Policy::OneShot || !self.has_room(true) {
            return None;
        }
        let datasets = &self.datasets;
        // Each chunk is fetched by the member that owns the chunk.
        let is_of_others = |key: ChunkKey| {
            datasets.get(key.dataset).is_some_and(|open| !open.peers.owns(key.chunk))
        };
        let is_there = |key| self.chunks.contains_key(&key) || is_of_others(key);
        let next = self.orders.beyond(is_there);
        let is_settled = |key| is_there(key) || self.orders.is_excluded(key);
        let key = next.or_else(|| self.backlog.next_of_all(is_settled))?;
        let slot = self.slot_for_kept(key)?;
        Some(self.begin(key, slot, None))
    }

    /// Notes a prefetch of chunks for the dataset of a connection; false when too many prefetches
    /// wait.
    pub(crate) fn prefetch(&mut self, connection: u64, runs: Vec<(u32, u32)>) -> bool {
        let Some(dataset) = self.connections.get(&connection).map(|one| one.dataset) else {
            return false;
        };
        let chunks = self.datasets.get(dataset).map_or(0, |open| open.snapshot.holders());
        self.backlog.prefetch(dataset, chunks, runs)
    }

    fn begin(&mut self, key: ChunkKey, slot: u32, waiter: Option<Waiter>) -> Fetch {
        let open = self.datasets.get(key.dataset);
        // Other agents wait for chunks owned by this agent.
        let is_own = open.is_some_and(|open| open.peers.owns(key.chunk));
        let progress = Arc::new(Progress::new(is_own));
        let (first, waiters) = (waiter.map(|waiter| waiter.file), Vec::from_iter(waiter));
        let (peer_waiters, of_held) = (Vec::new(), Arc::clone(&progress));
        self.chunks
            .insert(key, ChunkState::Filling { slot, waiters, peer_waiters, progress: of_held });
        Fetch { key, slot, first, progress, is_for_peer: false }
    }

    /// Starts a fetch for another agent.
    pub(crate) fn begin_for_peer(
        &mut self,
        key: ChunkKey,
        slot: u32,
        peer_waiter: PeerWaiter,
    ) -> Fetch {
        let progress = Arc::new(Progress::new(true));
        self.reserve(&progress);
        let (waiters, peer_waiters) = (Vec::new(), vec![peer_waiter]);
        let of_held = Arc::clone(&progress);
        self.chunks
            .insert(key, ChunkState::Filling { slot, waiters, peer_waiters, progress: of_held });
        Fetch { key, slot, first: None, progress, is_for_peer: true }
    }

    /// Answers the workers waiting for a file whose chunk is still being filled.
    pub(crate) fn file_is_there(&mut self, key: ChunkKey, file: u32) {
        let Some(ChunkState::Filling { slot, waiters, .. }) = self.chunks.get_mut(&key) else {
            return;
        };
        let slot = *slot;
        let ready: Vec<_> = waiters.extract_if(.., |waiter| waiter.file == file).collect();
        ready.into_iter().for_each(|waiter| self.hand_over(waiter, slot));
    }

    /// Publishes a chunk after all its bytes were checked in the slot.
    pub(crate) fn filled(&mut self, key: ChunkKey, filled: Filled) {
        let filling = self.chunks.remove(&key);
        let Some(ChunkState::Filling { slot, waiters, peer_waiters, progress }) = filling else {
            return;
        };
        let is_reserved = self.unreserve(&progress);
        let Filled { span, origin } = filled;
        if let Some(counts) = self.counts.get_mut(key.dataset) {
            let bytes = u64::from(span.1.saturating_sub(span.0));
            if origin == Origin::Peer {
                counts.chunks_from_peers += 1;
                counts.bytes_from_peers += bytes;
            } else {
                counts.chunks_from_servers += 1;
                counts.bytes_from_servers += bytes;
            }
        }
        self.orders.arrived(key, origin == Origin::Peer);
        let open = self.datasets.get(key.dataset);
        let is_own = open.is_some_and(|open| open.peers.owns(key.chunk));
        let stay = self.stay(origin == Origin::Servers || is_own, is_reserved);
        match stay {
            Retention::Transient => self.passing.push_back(key),
            Retention::Copy => self.copies += 1,
            Retention::Kept => self.kept += 1,
        }
        self.staying_generation = self.staying_generation.wrapping_add(1);
        self.chunks.insert(key, ChunkState::Full { slot, stay, span });
        if let Some(open) = self.datasets.get(key.dataset).map(Arc::clone) {
            self.show(&open, key, slot);
        }
        waiters.into_iter().for_each(|waiter| self.hand_over(waiter, slot));
        self.answer_peers(peer_waiters, key, slot, span);
    }

    /// Gives up a chunk after a failed fetch.
    pub(crate) fn lost(&mut self, key: ChunkKey, why: &str, is_final: bool) {
        // Dropping the peer waiters tells the waiting agents.
        let filling = self.chunks.remove(&key);
        let Some(ChunkState::Filling { slot, waiters, progress, .. }) = filling else { return };
        self.unreserve(&progress);
        self.staying_generation = self.staying_generation.wrapping_add(1);
        if let Some(counts) = self.counts.get_mut(key.dataset) {
            counts.failed_fetches += 1;
        }
        self.condemned.push(slot);
        if is_final {
            self.orders.exclude(key);
        } else {
            self.backlog.is_absent_again(key);
        }
        waiters.into_iter().for_each(|waiter| self.refuse(waiter, why));
        self.reuse_condemned();
    }

    /// Reads the position of each reader.
    pub(crate) fn follow(&mut self) {
        self.orders.slots = self.usable_slots();
        let connections = &self.connections;
        self.orders.follow(|connection| {
            connections.get(&connection).map(|one| one.pins.get(Gauge::Position))
        });
    }

    /// Drops kept chunks above the limit, and retries the queue. Returns the fetches to start.
    pub(crate) fn retry_queue(&mut self) -> Vec<Fetch> {
        self.reuse_condemned();
        self.follow();
        while self.kept + self.copies > self.keep_max() {
            if !self.demote(Retention::Copy) && !self.demote(Retention::Kept) {
                break;
            }
        }
        self.announce_file_requests();
        self.announce_large_groups();
        let now = since_boot();
        let waiting = std::mem::take(&mut self.queue);
        let mut fetches = Vec::new();
        for (key, waiter) in waiting {
            if now >= waiter.until {
                self.refuse(waiter, "all memory was in use");
            } else {
                let is_legal = self.has(key);
                fetches.extend(self.want_again(key, waiter, is_legal));
            }
        }
        fetches
    }

    /// Whether a worker waits for a slot.
    pub(crate) fn is_short(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Pins a slot for a waiter and answers, unless the waiter has given up.
    fn hand_over(&mut self, waiter: Waiter, slot: u32) {
        let Some(connection) = self.connections.get_mut(&waiter.connection) else { return };
        connection.open = connection.open.saturating_sub(1);
        if connection.pins.pin_for_reader(slot, waiter.id) {
            send_answer(connection, &FromAgent::Here { id: waiter.id });
        }
    }

    fn refuse(&mut self, waiter: Waiter, why: &str) {
        if let Some(connection) = self.connections.get_mut(&waiter.connection) {
            connection.open = connection.open.saturating_sub(1);
            send_answer(connection, &FromAgent::NotHere { id: waiter.id, reason: why.to_owned() });
        }
    }

    /// Writes a sign of life into all tables.
    pub(crate) fn beat(&self) {
        let now = u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX);
        self.datasets.iter().for_each(|(_, open)| open.table.beat(now));
    }
}

/// Sends without waiting. A worker has few open requests, so its socket has room. A worker that
/// takes no answer loses its connection and its pins.
pub(crate) fn send_answer(connection: &Connection, message: &FromAgent) {
    if let Err(why) = connection.socket.send(message, &[], Duration::ZERO) {
        tracing::debug!(pid = connection.pid, %why, "send an answer to a worker");
        connection.socket.end();
    }
}

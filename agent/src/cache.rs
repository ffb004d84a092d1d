//! The slots of the arena: which chunk lies in which, who waits for it, and which one leaves.
//!
//! Must hold: a slot is filled only after its word was withdrawn and no page showed a pin; a chunk is
//! fetched once at a time; every waiter is answered once; a kept chunk leaves for no
//! other chunk while slots pass chunks through.

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
use crate::budget::Spare;
use crate::counts::Counts;
use crate::dataset::{ChunkKey, Open};
use crate::lent::{Borrower, LentSlots};
use crate::plan::Plans;
use crate::plan::Presence;
use crate::progress::Progress;

/// Waits of one connection at most: a worker has one for each of its threads that asks.
const WAITS_MAX: usize = 64;

/// A worker that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter {
    pub(crate) connection: u64,
    pub(crate) id: u64,
    pub(crate) file: u32,
    /// Since boot.
    pub(crate) until: Duration,
}

/// What is known of a chunk that is not absent.
#[derive(Debug)]
pub(crate) enum Held {
    Filling {
        slot: u32,
        waiters: Vec<Waiter>,
        borrowers: Vec<Borrower>,
        progress: Arc<Progress>,
    },
    /// With where its files begin and end.
    Full {
        slot: u32,
        stay: Stay,
        span: (u32, u32),
    },
}

/// How long a chunk stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    /// Until its slot is needed.
    Passing,
    /// Until there is no room for a chunk that is kept: another agent keeps it too.
    Copy,
    /// Until the end.
    Kept,
}

/// A chunk that came into its slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    /// Where its files begin and end.
    pub(crate) span: (u32, u32),
    pub(crate) origin: Origin,
}

/// Where a chunk came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Servers,
    /// The servers, instead of another agent to which the chunk belongs.
    ServersInstead,
    /// Another agent.
    Peer,
}

/// A chunk that somebody is to fetch into a slot.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) key: ChunkKey,
    pub(crate) slot: u32,
    /// The file that is needed first.
    pub(crate) first: Option<u32>,
    pub(crate) progress: Arc<Progress>,
    /// Whether another agent asked for it: then it comes from the servers.
    pub(crate) is_for_peer: bool,
}

/// A worker's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) pid: u32,
    pub(crate) dataset: usize,
    pub(crate) pins: PinPage,
    pub(crate) socket: Arc<Socket>,
    /// Chunks that it reads next.
    pub(crate) hints: VecDeque<u32>,
    /// Waits that are not answered.
    pub(crate) open: usize,
}

/// The agent's cache.
#[derive(Debug)]
pub(crate) struct Cache {
    state: Mutex<State>,
    /// Something changed that lets a fetch begin.
    pub(crate) moved: Notify,
    pub(crate) policy: Policy,
    budget: u64,
    /// Fetches under way.
    pub(crate) fetches: AtomicUsize,
}

/// Everything that changes.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// None before the first dataset: chunks of it say how large slots are.
    pub(crate) arena: Option<(Arc<Arena>, Arc<Vec<OwnedFd>>)>,
    pub(crate) datasets: Vec<Arc<Open>>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) held: HashMap<ChunkKey, Held>,
    pub(crate) plans: Plans,
    /// Of each dataset.
    pub(crate) counts: Vec<Counts>,
    pub(crate) backlog: Backlog,
    pub(super) free: Vec<u32>,
    /// Slots with a lower number have memory already. A higher slot takes memory at its first fill.
    pub(super) touched: u32,
    pub(super) spare: Spare,
    /// Whether there was no memory for a slot when one was last needed.
    pub(super) is_out_of_memory: bool,
    /// Whether chunks stay when nobody needs them soon.
    pub(super) keeps: bool,
    /// Full and not kept, in the order in which they came.
    pub(super) passing: VecDeque<ChunkKey>,
    /// Slots of fetches that failed while a reader had a pin on them.
    pub(super) condemned: Vec<u32>,
    /// Chunks that are wanted and for which there is no slot.
    pub(crate) queue: VecDeque<(ChunkKey, Waiter)>,
    /// Since boot: until then chunks that belong to others now are given over.
    pub(super) give_over_until: Duration,
    /// Slots that other agents read.
    pub(crate) lent: Arc<LentSlots>,
    /// Changes with the chunks that stay.
    pub(crate) staying_generation: u32,
    /// Chunks that stay until the end, and those that stay while there is room for them.
    pub(crate) kept: u32,
    pub(crate) copies: u32,
    /// Whether files of other agents come alone for a worker.
    pub(super) are_files_alone: bool,
    /// Chunks on their way for which there is room to stay.
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

    /// Whether somebody reads along an order, or waits for memory.
    pub(crate) fn is_followed(&self) -> bool {
        let state = self.state();
        state.is_short() || state.plans.are_read()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that it may hold.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }
}

impl State {
    /// The arena; made for chunks of a dataset if there is none. An error says why its chunks don't fit.
    pub(crate) fn arena_for(&mut self, chunk: u32, budget: u64) -> Result<(), String> {
        if let Some((arena, _)) = &self.arena {
            let slot_bytes = arena.shape().slot_bytes;
            if chunk <= slot_bytes {
                return Ok(());
            }
            return Err(format!(
                "its chunks have {chunk} bytes, and the slots of this task's agent {slot_bytes}"
            ));
        }
        let slots = (budget / u64::from(chunk)).min(u64::from(libdiesel::agent::SLOTS_MAX));
        let shape = Shape { slot_bytes: chunk, slots: slots as u32 };
        if shape.slots == 0 {
            return Err(format!("{budget} bytes of memory hold no chunk of {chunk}"));
        }
        let (arena, files) = Arena::create(shape).map_err(|why| why.to_string())?;
        self.free = (0..shape.slots).rev().collect();
        self.arena = Some((Arc::new(arena), Arc::new(files)));
        Ok(())
    }

    pub(crate) fn slots(&self) -> u32 {
        self.arena.as_ref().map_or(0, |(arena, _)| arena.shape().slots)
    }

    /// Slots that hold a chunk or are being filled.
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

    /// Views of all workers together leave half of the slots to others.
    fn share_views(&self) {
        let share = self.slots() / 2 / (self.connections.len() as u32).max(1);
        self.connections.values().for_each(|one| one.pins.set(Gauge::ViewsMax, share.into()));
    }

    /// A connection reads along no order any more.
    pub(crate) fn end_order(&mut self, number: u64) {
        self.follow();
        self.plans.leave(number);
    }

    /// Forgets a connection with all its pins.
    pub(crate) fn leave(&mut self, number: u64) {
        self.end_order(number);
        let Some(gone) = self.connections.remove(&number) else { return };
        if let Some(counts) = self.counts.get_mut(gone.dataset) {
            counts.hits += gone.pins.get(Gauge::Hits);
            counts.misses += gone.pins.get(Gauge::Misses);
            counts.hit_bytes += gone.pins.get(Gauge::HitBytes);
            counts.fallbacks += gone.pins.get(Gauge::Fallbacks);
            counts.fallback_bytes += gone.pins.get(Gauge::FallbackBytes);
        }
        self.share_views();
    }

    /// A worker waits for a chunk: it is answered now, or once the chunk is there. Gives the fetch that
    /// this takes.
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
        match self.held.get_mut(&key) {
            _ if !is_legal => {
                self.refuse(waiter, "the chunk can't be had as a whole");
                None
            }
            Some(Held::Full { slot, .. }) => {
                let slot = *slot;
                self.hand_over(waiter, slot);
                None
            }
            Some(Held::Filling { waiters, .. }) => {
                let now = since_boot();
                let over: Vec<_> = waiters.extract_if(.., |one| one.until < now).collect();
                waiters.push(waiter);
                over.into_iter().for_each(|one| self.refuse(one, "the chunk came too late"));
                None
            }
            None => {
                if self.free.is_empty() && self.plans.is_too_large(waiter.connection) {
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

    /// Whether there is such a chunk, and it was not found damaged.
    pub(crate) fn has(&self, key: ChunkKey) -> bool {
        let open = self.datasets.get(key.dataset);
        open.is_some_and(|open| key.chunk < open.snapshot.holders())
            && !self.plans.is_passed_over(key)
    }

    /// A worker reads these chunks next. As many as half of its share of the slots are fetched ahead.
    pub(crate) fn hint(&mut self, connection: u64, chunks: Vec<u32>) {
        let most = self.slots() as usize / 2 / self.connections.len().max(1);
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.hints = chunks.into_iter().take(most).collect();
        }
    }

    /// The next chunk of the hints that is absent.
    fn next_hint(&mut self) -> Option<ChunkKey> {
        let (held, plans, datasets) = (&self.held, &self.plans, &self.datasets);
        self.connections.values_mut().find_map(|one| {
            let holders = datasets.get(one.dataset)?.snapshot.holders();
            loop {
                let key = ChunkKey { dataset: one.dataset, chunk: *one.hints.front()? };
                if key.chunk < holders && !held.contains_key(&key) && !plans.is_passed_over(key) {
                    return Some(key);
                }
                one.hints.pop_front();
            }
        })
    }

    /// The next chunk that is worth a fetch before anybody waits for it: one that an order needs soon,
    /// else one of a prefetch, else with `oneshot` any other one, in the order of first need where an
    /// order is known.
    pub(crate) fn ahead(&mut self, policy: Policy) -> Option<Fetch> {
        let staying = self.kept + self.copies;
        let room = self.usable_slots().saturating_sub(staying).saturating_sub(self.workers());
        let presence = |key| match self.held.get(&key) {
            None => Presence::Absent,
            Some(Held::Full { stay: Stay::Kept | Stay::Copy, .. }) => Presence::Kept,
            Some(_) => Presence::Passing,
        };
        let next = match policy {
            Policy::None => None,
            _ => self.plans.next(room, presence).or_else(|| self.next_hint()),
        };
        if let Some(key) = next {
            let slot = self.take_slot(key, false);
            // Prefetches come behind it.
            self.backlog.is_stuck = slot.is_none();
            return Some(self.begin(key, slot?, None));
        }
        let is_there = |key| self.held.contains_key(&key);
        let is_settled = |key| is_there(key) || self.plans.is_passed_over(key);
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
        // Each chunk is fetched by the member to which it belongs.
        let is_of_others = |key: ChunkKey| {
            datasets.get(key.dataset).is_some_and(|open| !open.peers.owns(key.chunk))
        };
        let is_there = |key| self.held.contains_key(&key) || is_of_others(key);
        let next = self.plans.beyond(is_there);
        let is_settled = |key| is_there(key) || self.plans.is_passed_over(key);
        let key = next.or_else(|| self.backlog.next_of_all(is_settled))?;
        let slot = self.slot_for_kept(key)?;
        Some(self.begin(key, slot, None))
    }

    /// Notes chunks of the dataset of a connection that are to be fetched as far as memory goes; false
    /// when too many are asked for already.
    pub(crate) fn prefetch(&mut self, connection: u64, runs: Vec<(u32, u32)>) -> bool {
        let Some(dataset) = self.connections.get(&connection).map(|one| one.dataset) else {
            return false;
        };
        let chunks = self.datasets.get(dataset).map_or(0, |open| open.snapshot.holders());
        self.backlog.prefetch(dataset, chunks, runs)
    }

    fn begin(&mut self, key: ChunkKey, slot: u32, waiter: Option<Waiter>) -> Fetch {
        let open = self.datasets.get(key.dataset);
        // Other agents wait for what belongs to this one.
        let is_own = open.is_some_and(|open| open.peers.owns(key.chunk));
        let progress = Arc::new(Progress::new(is_own));
        let (first, waiters) = (waiter.map(|waiter| waiter.file), Vec::from_iter(waiter));
        let (borrowers, of_held) = (Vec::new(), Arc::clone(&progress));
        self.held.insert(key, Held::Filling { slot, waiters, borrowers, progress: of_held });
        Fetch { key, slot, first, progress, is_for_peer: false }
    }

    /// Another agent waits for the chunk.
    pub(crate) fn begin_for_peer(&mut self, key: ChunkKey, slot: u32, borrower: Borrower) -> Fetch {
        let progress = Arc::new(Progress::new(true));
        self.reserve(&progress);
        let (waiters, borrowers) = (Vec::new(), vec![borrower]);
        let of_held = Arc::clone(&progress);
        self.held.insert(key, Held::Filling { slot, waiters, borrowers, progress: of_held });
        Fetch { key, slot, first: None, progress, is_for_peer: true }
    }

    /// A file of a chunk that is being filled is there: whoever waits for that file is answered.
    pub(crate) fn file_is_there(&mut self, key: ChunkKey, file: u32) {
        let Some(Held::Filling { slot, waiters, .. }) = self.held.get_mut(&key) else { return };
        let slot = *slot;
        let ready: Vec<_> = waiters.extract_if(.., |waiter| waiter.file == file).collect();
        ready.into_iter().for_each(|waiter| self.hand_over(waiter, slot));
    }

    /// All of a chunk is in its slot, and was found right.
    pub(crate) fn filled(&mut self, key: ChunkKey, filled: Filled) {
        let filling = self.held.remove(&key);
        let Some(Held::Filling { slot, waiters, borrowers, progress }) = filling else { return };
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
        self.plans.came(key, origin == Origin::Peer);
        let open = self.datasets.get(key.dataset);
        let is_own = open.is_some_and(|open| open.peers.owns(key.chunk));
        let stay = self.stay(origin == Origin::Servers || is_own, is_reserved);
        match stay {
            Stay::Passing => self.passing.push_back(key),
            Stay::Copy => self.copies += 1,
            Stay::Kept => self.kept += 1,
        }
        self.staying_generation =
            self.staying_generation.wrapping_add((stay != Stay::Passing).into());
        self.held.insert(key, Held::Full { slot, stay, span });
        if let Some(open) = self.datasets.get(key.dataset).map(Arc::clone) {
            self.show(&open, key, slot);
        }
        waiters.into_iter().for_each(|waiter| self.hand_over(waiter, slot));
        self.lend_to(borrowers, key, slot, span);
    }

    /// A chunk can't be had.
    pub(crate) fn lost(&mut self, key: ChunkKey, why: &str, is_final: bool) {
        // Agents that wait for it learn it when their borrowers are dropped.
        let filling = self.held.remove(&key);
        let Some(Held::Filling { slot, waiters, progress, .. }) = filling else { return };
        self.unreserve(&progress);
        if let Some(counts) = self.counts.get_mut(key.dataset) {
            counts.failed_fetches += 1;
        }
        self.condemned.push(slot);
        if is_final {
            self.plans.pass_over(key);
        } else {
            self.backlog.is_absent_again(key);
        }
        waiters.into_iter().for_each(|waiter| self.refuse(waiter, why));
        self.reuse_condemned();
    }

    /// Looks how far each reader is.
    pub(crate) fn follow(&mut self) {
        let connections = &self.connections;
        self.plans.turn(|connection| {
            connections.get(&connection).map(|one| one.pins.get(Gauge::Position))
        });
    }

    /// Orders have moved on: what they no longer need may leave, and kept chunks make room for
    /// orders that came.
    pub(crate) fn turn(&mut self) -> Vec<Fetch> {
        self.reuse_condemned();
        self.follow();
        while self.kept + self.copies > self.keep_max() {
            if !self.let_pass(Stay::Copy) && !self.let_pass(Stay::Kept) {
                break;
            }
        }
        self.tell_of_files();
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

    /// Whether somebody waits for a slot.
    pub(crate) fn is_short(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Pins a slot for a waiter and tells it, unless it has given up.
    fn hand_over(&mut self, waiter: Waiter, slot: u32) {
        let Some(connection) = self.connections.get_mut(&waiter.connection) else { return };
        connection.open = connection.open.saturating_sub(1);
        if connection.pins.pin_for_reader(slot, waiter.id) {
            tell(connection, &FromAgent::Here { id: waiter.id });
        }
    }

    fn refuse(&mut self, waiter: Waiter, why: &str) {
        if let Some(connection) = self.connections.get_mut(&waiter.connection) {
            connection.open = connection.open.saturating_sub(1);
            tell(connection, &FromAgent::NotHere { id: waiter.id, reason: why.to_owned() });
        }
    }

    /// A sign of life in all tables.
    pub(crate) fn beat(&self) {
        let now = u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX);
        self.datasets.iter().for_each(|open| open.table.beat(now));
    }
}

/// Sends without a wait: a worker has few questions open, so its socket has room. One that takes
/// nothing loses its connection, and with it its pins.
pub(crate) fn tell(connection: &Connection, message: &FromAgent) {
    if let Err(why) = connection.socket.send(message, &[], Duration::ZERO) {
        tracing::debug!(pid = connection.pid, %why, "a worker does not take an answer");
        connection.socket.end();
    }
}

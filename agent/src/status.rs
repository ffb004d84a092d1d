//! What the agent tells of itself.
//!
//! Must hold: counts cover connections that have ended; the text fits into one message.

use libdiesel::agent::{Gauge, TaskCounters};
use serde::{Deserialize, Serialize};

use crate::cache::{Cache, Held, State};
use crate::counts::Counts;
use crate::dataset::ChunkKey;
use crate::peers::PeerStatus;
use crate::waits::{self, PeerWait, SHOWN_MAX, Wait, seconds_since};
use crate::{EpochStatus, Pages, Policy};

/// The state of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The process.
    pub pid: u32,
    /// What it serves.
    pub datasets: Vec<DatasetStatus>,
    /// `on-demand`, `oneshot` or `none`.
    pub policy: String,
    /// Whether memory holds less than all chunks of the datasets.
    pub partial: bool,
    /// Bytes of its budget.
    pub memory_bytes: u64,
    /// Bytes of slots in use.
    pub memory_used: u64,
    /// Chunks of all datasets, and those that are in memory.
    pub chunks: u64,
    /// In memory.
    pub chunks_present: u64,
    /// Chunks that stay for later epochs.
    pub chunks_kept: u64,
    /// Chunks that stay while there is room, as another agent keeps them too.
    pub chunks_copied: u64,
    /// Files that workers read from memory.
    pub hits: u64,
    /// Bytes of these.
    pub hit_bytes: u64,
    /// Files for which workers asked the agent.
    pub misses: u64,
    /// Files that workers read from the servers, because the agent could not give them in time.
    pub fallbacks: u64,
    /// Bytes of these.
    pub fallback_bytes: u64,
    /// Chunks that came from the servers.
    pub chunks_from_servers: u64,
    /// Bytes of these.
    pub bytes_from_servers: u64,
    /// Chunks that came from other agents of the job.
    pub chunks_from_peers: u64,
    /// Bytes of these.
    pub bytes_from_peers: u64,
    /// Chunks that were given to other agents.
    pub chunks_to_peers: u64,
    /// Files that came from other agents without their chunks.
    pub files_from_peers: u64,
    /// Files that were given so to other agents.
    pub files_to_peers: u64,
    /// Fetches that failed.
    pub failed_fetches: u64,
    /// Fetches under way.
    pub fetches: u64,
    /// Chunks of prefetches that are still to be looked at.
    pub prefetch_waiting: u64,
    /// Whether there is no room for the next one of them.
    pub prefetch_stuck: bool,
    /// The pages of the slots in use.
    pub pages: Pages,
    /// Where other agents reach this one; empty for nowhere.
    pub peer_address: String,
    /// The other agents of the job, at most 256.
    pub peers: Vec<PeerStatus>,
    /// Agents beside these.
    pub peers_left_out: u64,
    /// Where the chunks of the last 64 epochs came from.
    pub epochs: Vec<EpochStatus>,
    /// The orders that are read, at most 256.
    pub orders: Vec<OrderStatus>,
    /// The processes that read, at most 256.
    pub workers: Vec<WorkerStatus>,
    /// Processes that read beside these.
    pub workers_left_out: u64,
    /// The reads that wait, at most 256.
    pub waits: Vec<Wait>,
    /// The other agents that wait for this one, at most 256.
    pub peer_waits: Vec<PeerWait>,
}

/// An order that processes of one rank read along.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OrderStatus {
    /// The dataset, as the servers name it.
    pub dataset: String,
    /// The rank.
    pub rank: u32,
    /// Processes that read along it.
    pub readers: u64,
    /// Chunks that are needed soon: those of the group that is read, and of the next ones.
    pub chunks: u64,
    /// Those of them that are in memory.
    pub chunks_present: u64,
    /// Chunks of the largest group so far.
    pub group_chunks: u32,
    /// Chunks that a group may have to fit into memory: nothing is fetched ahead for a larger one.
    pub group_chunks_max: u32,
}

/// A dataset version that the agent serves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetStatus {
    /// As the servers name it.
    pub name: String,
    /// The version that the whole task reads.
    pub version: String,
    /// Its chunks.
    pub chunks: u64,
    /// Those of them that are in memory.
    pub chunks_present: u64,
    /// Those that belong to this agent, among all agents of the job.
    pub chunks_owned: u64,
}

/// A process that reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The process.
    pub pid: u32,
    /// Slots that it pins.
    pub pins: u32,
    /// The epoch that it reads along, if any.
    pub epoch: Option<u64>,
    /// Files of its rank that were read in it.
    pub position: Option<u64>,
    /// The chunk that it waits for, if any.
    pub awaits: Option<u64>,
    /// For how long it has waited, in seconds.
    pub awaits_seconds: Option<f64>,
}

/// The state of the agent as JSON. Blocks.
pub(crate) fn text(cache: &Cache, peer_address: &str) -> String {
    let pages = Pages::now();
    let (mut status, opens) = {
        let state = cache.state();
        (of(&state, cache.policy, cache.budget(), pages), state.datasets.clone())
    };
    // The owners of all chunks take a while to count.
    let owned = opens.iter().map(|open| open.peers.owned(open.snapshot.holders()));
    let owned: Vec<_> = owned.collect();
    for ((dataset, open), owned) in status.datasets.iter_mut().zip(&opens).zip(&owned) {
        dataset.chunks_owned = open.peers.owned_by_me(owned, open.snapshot.holders());
    }
    let peers = opens.iter().zip(&owned).flat_map(|(open, owned)| {
        open.peers.links().into_iter().map(|link| PeerStatus::of(&link, &open.name, owned))
    });
    let mut peers: Vec<_> = peers.collect();
    status.peers_left_out = peers.len().saturating_sub(SHOWN_MAX) as u64;
    peers.truncate(SHOWN_MAX);
    status.peers = peers;
    status.peer_address = peer_address.to_owned();
    serde_json::to_string(&status).unwrap_or_default()
}

/// The counts of one dataset, for the servers.
pub(crate) fn counters(state: &State, dataset: usize) -> TaskCounters {
    let readers = state.connections.values().filter(|one| one.dataset == dataset);
    let sum = |gauge| readers.clone().map(|one| one.pins.get(gauge)).sum::<u64>();
    let gone = state.counts.get(dataset).copied().unwrap_or_default();
    let slot = state.arena.as_ref().map_or(0, |(arena, _)| u64::from(arena.shape().slot_bytes));
    let held = state.held.keys().filter(|key| key.dataset == dataset).count() as u64;
    let chunks = state.datasets.get(dataset).map_or(0, |open| open.snapshot.holders());
    TaskCounters {
        hits: sum(Gauge::Hits) + gone.hits,
        misses: sum(Gauge::Misses) + gone.misses,
        chunks_from_servers: gone.chunks_from_servers,
        bytes_from_servers: gone.bytes_from_servers,
        chunks: chunks.into(),
        chunks_present: present(state, dataset),
        memory_used: held * slot,
        workers: readers.count() as u32,
        chunks_from_peers: gone.chunks_from_peers,
        bytes_from_peers: gone.bytes_from_peers,
        peers: state.datasets.get(dataset).map_or(0, |open| open.peers.connected()),
    }
}

/// Chunks of a dataset that are in memory.
fn present(state: &State, dataset: usize) -> u64 {
    let of = state.held.iter().filter(|(key, _)| key.dataset == dataset);
    of.filter(|(_, held)| matches!(held, Held::Full { .. })).count() as u64
}

fn of_datasets(state: &State) -> Vec<DatasetStatus> {
    let opens = state.datasets.iter().enumerate();
    let datasets = opens.map(|(number, open)| DatasetStatus {
        name: open.name.clone(),
        version: open.snapshot.version().to_string(),
        chunks: open.snapshot.holders().into(),
        chunks_present: present(state, number),
        chunks_owned: 0,
    });
    datasets.collect()
}

fn of_orders(state: &State) -> Vec<OrderStatus> {
    let orders = state.plans.followed().take(SHOWN_MAX).map(|order| {
        let is_present = |chunk: &&u32| {
            let key = ChunkKey { dataset: order.dataset, chunk: **chunk };
            matches!(state.held.get(&key), Some(Held::Full { .. }))
        };
        OrderStatus {
            dataset: state
                .datasets
                .get(order.dataset)
                .map(|open| open.name.clone())
                .unwrap_or_default(),
            rank: order.rank,
            readers: order.readers as u64,
            chunks: order.chunks.len() as u64,
            chunks_present: order.chunks.iter().filter(is_present).count() as u64,
            group_chunks: order.group,
            group_chunks_max: order.group_max,
        }
    });
    orders.collect()
}

fn of(state: &State, policy: Policy, budget: u64, pages: Pages) -> Status {
    let datasets = of_datasets(state);
    let chunks = datasets.iter().map(|dataset| dataset.chunks).sum();
    let present = datasets.iter().map(|dataset| dataset.chunks_present).sum();
    let slot = state.arena.as_ref().map_or(0, |(arena, _)| u64::from(arena.shape().slot_bytes));
    let gone = Counts::of_all(&state.counts);
    let sum = |gauge, gone: u64| {
        state.connections.values().map(|one| one.pins.get(gauge)).sum::<u64>() + gone
    };
    let positions = state.plans.positions();
    let prefetch_waiting = state.backlog.waiting();
    let workers = state.connections.iter().take(SHOWN_MAX).map(|(number, one)| {
        let at = positions.get(number);
        let awaits = one.pins.get(Gauge::Awaited).checked_sub(1);
        let since = one.pins.get(Gauge::AwaitedSince);
        WorkerStatus {
            pid: one.pid,
            pins: one.pins.held(),
            epoch: at.map(|(epoch, _)| *epoch),
            position: at.map(|(_, position)| *position),
            awaits,
            awaits_seconds: awaits.map(|_| seconds_since(since)),
        }
    });
    let policy = match policy {
        Policy::OnDemand => "on-demand",
        Policy::OneShot => "oneshot",
        Policy::None => "none",
    };
    Status {
        pid: std::process::id(),
        datasets,
        policy: policy.to_owned(),
        partial: present < chunks,
        memory_bytes: budget,
        memory_used: u64::from(state.used()) * slot,
        chunks,
        chunks_present: present,
        chunks_kept: state.kept.into(),
        chunks_copied: state.copies.into(),
        hits: sum(Gauge::Hits, gone.hits),
        hit_bytes: sum(Gauge::HitBytes, gone.hit_bytes),
        misses: sum(Gauge::Misses, gone.misses),
        fallbacks: sum(Gauge::Fallbacks, gone.fallbacks),
        fallback_bytes: sum(Gauge::FallbackBytes, gone.fallback_bytes),
        chunks_from_servers: gone.chunks_from_servers,
        bytes_from_servers: gone.bytes_from_servers,
        chunks_from_peers: gone.chunks_from_peers,
        bytes_from_peers: gone.bytes_from_peers,
        chunks_to_peers: gone.chunks_to_peers,
        files_from_peers: gone.files_from_peers,
        files_to_peers: gone.files_to_peers,
        failed_fetches: gone.failed_fetches,
        fetches: state.held.values().filter(|held| matches!(held, Held::Filling { .. })).count()
            as u64,
        prefetch_waiting,
        prefetch_stuck: state.backlog.is_stuck && prefetch_waiting > 0,
        pages,
        peer_address: String::new(),
        peers: Vec::new(),
        peers_left_out: 0,
        epochs: state.plans.epochs.all(),
        orders: of_orders(state),
        workers: workers.collect(),
        workers_left_out: state.connections.len().saturating_sub(SHOWN_MAX) as u64,
        waits: waits::of(state),
        peer_waits: waits::of_peers(state),
    }
}

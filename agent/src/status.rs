//! What the agent tells of itself.
//!
//! Must hold: counts cover connections that have ended.

use libdiesel::agent::{Gauge, TaskCounters};
use serde::{Deserialize, Serialize};

use crate::Policy;
use crate::cache::{Cache, Counts, Held, State};

/// The state of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Files that workers read from memory.
    pub hits: u64,
    /// Bytes of these.
    pub hit_bytes: u64,
    /// Files for which workers asked the agent.
    pub misses: u64,
    /// Files that workers read from the servers, because the agent could not give them in time.
    pub fallbacks: u64,
    /// Chunks that came from the servers.
    pub chunks_from_servers: u64,
    /// Bytes of these.
    pub bytes_from_servers: u64,
    /// Fetches that failed.
    pub failed_fetches: u64,
    /// The processes that read.
    pub workers: Vec<WorkerStatus>,
}

/// A dataset version that the agent serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetStatus {
    /// As the servers name it.
    pub name: String,
    /// The version that the whole task reads.
    pub version: String,
}

/// A process that reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// The state of the agent as JSON.
pub(crate) fn text(cache: &Cache) -> String {
    let status = of(&cache.state(), cache.policy, cache.budget());
    serde_json::to_string(&status).unwrap_or_default()
}

/// The counts of one dataset, for the servers.
pub(crate) fn counters(state: &State, dataset: usize) -> TaskCounters {
    let readers = state.connections.values().filter(|one| one.dataset == dataset);
    let sum = |gauge| readers.clone().map(|one| one.pins.get(gauge)).sum::<u64>();
    let gone = if dataset == 0 { state.counts } else { Counts::default() };
    let slot = state.arena.as_ref().map_or(0, |(arena, _)| u64::from(arena.shape().slot_bytes));
    let held = state.held.iter().filter(|(key, _)| key.dataset == dataset);
    let full = held.clone().filter(|(_, held)| matches!(held, Held::Full { .. })).count() as u64;
    let chunks = state.datasets.get(dataset).map_or(0, |open| open.snapshot.holders());
    TaskCounters {
        hits: sum(Gauge::Hits) + gone.hits,
        misses: sum(Gauge::Misses) + gone.misses,
        chunks_from_servers: gone.chunks_from_servers,
        bytes_from_servers: gone.bytes_from_servers,
        chunks: chunks.into(),
        chunks_present: full,
        memory_used: held.count() as u64 * slot,
        workers: readers.count() as u32,
    }
}

fn of(state: &State, policy: Policy, budget: u64) -> Status {
    let present = state.held.values().filter(|held| matches!(held, Held::Full { .. })).count();
    let chunks = state.datasets.iter().map(|open| u64::from(open.snapshot.holders())).sum();
    let slot = state.arena.as_ref().map_or(0, |(arena, _)| u64::from(arena.shape().slot_bytes));
    let sum = |gauge, gone: u64| {
        state.connections.values().map(|one| one.pins.get(gauge)).sum::<u64>() + gone
    };
    let positions = state.plans.positions();
    let workers = state.connections.iter().map(|(number, one)| {
        let at = positions.get(number);
        WorkerStatus {
            pid: one.pid,
            pins: one.pins.held(),
            epoch: at.map(|(epoch, _)| *epoch),
            position: at.map(|(_, position)| *position),
            awaits: one.pins.get(Gauge::Awaited).checked_sub(1),
        }
    });
    let datasets = state.datasets.iter().map(|open| DatasetStatus {
        name: open.name.clone(),
        version: open.snapshot.version().to_string(),
    });
    let policy = match policy {
        Policy::OnDemand => "on-demand",
        Policy::OneShot => "oneshot",
        Policy::None => "none",
    };
    Status {
        pid: std::process::id(),
        datasets: datasets.collect(),
        policy: policy.to_owned(),
        partial: (present as u64) < chunks,
        memory_bytes: budget,
        memory_used: u64::from(state.used()) * slot,
        chunks,
        chunks_present: present as u64,
        chunks_kept: state.kept.into(),
        hits: sum(Gauge::Hits, state.counts.hits),
        hit_bytes: sum(Gauge::HitBytes, state.counts.hit_bytes),
        misses: sum(Gauge::Misses, state.counts.misses),
        fallbacks: sum(Gauge::Fallbacks, state.counts.fallbacks),
        chunks_from_servers: state.counts.chunks_from_servers,
        bytes_from_servers: state.counts.bytes_from_servers,
        failed_fetches: state.counts.failed_fetches,
        workers: workers.collect(),
    }
}

//! The status report of an agent.
//!
//! Must hold: counts cover connections that have ended; the text fits into one message.

mod waits;

use std::path::PathBuf;
use std::time::Duration;

use dl_format::TaskName;
use dl_node::Gauge;
use dl_proto::TaskCounters;
use serde::{Deserialize, Serialize};

use crate::cache::{Cache, Counts, Pages, State};
use crate::disk::TierStatus;
use crate::peers::PeerStatus;
use crate::place::{ChunkKey, EpochProgress, EpochStatus, Stage};
pub use waits::{Doing, PeerWait, Wait};
use waits::{SHOWN_MAX, seconds};

/// Facts about an agent process.
#[derive(Debug, Default)]
pub struct About {
    /// Its log.
    pub log: Option<PathBuf>,
    /// Facts that a user should know.
    pub notes: Vec<String>,
}

/// The state of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The process.
    pub pid: u32,
    /// The open datasets.
    pub datasets: Vec<DatasetStatus>,
    /// `on-demand`, `oneshot` or `none`.
    pub policy: String,
    /// `keep`, `lru`, `lfu` or `fifo`.
    pub eviction: String,
    /// Seconds for which the agent lives without a worker.
    pub idle_seconds: u64,
    /// Whether memory and disks hold fewer than all chunks of the datasets.
    pub partial: bool,
    /// The local disks.
    pub tiers: Vec<TierStatus>,
    /// Memory budget in bytes.
    pub memory_bytes: u64,
    /// Bytes of slots in use.
    pub memory_used: u64,
    /// Chunks of all datasets.
    pub chunks: u64,
    /// Chunks in memory.
    pub chunks_present: u64,
    /// Chunks kept until the agent ends.
    pub chunks_kept: u64,
    /// Chunks kept while there is room; another agent keeps them too.
    pub chunks_copied: u64,
    /// Kept chunks that left for others, by the policy of eviction.
    pub chunks_evicted: u64,
    /// Files read from memory by workers.
    pub hits: u64,
    /// Bytes of `hits`.
    pub hit_bytes: u64,
    /// Files requested from the agent by workers.
    pub misses: u64,
    /// Files read from the servers by workers, because the agent could not deliver in time.
    pub fallbacks: u64,
    /// Bytes of `fallbacks`.
    pub fallback_bytes: u64,
    /// Chunks fetched from the servers.
    pub chunks_from_servers: u64,
    /// Bytes of `chunks_from_servers`.
    pub bytes_from_servers: u64,
    /// Chunks on local disks.
    pub chunks_on_disk: u64,
    /// Chunks on their way to local disks.
    pub disk_writes: u64,
    /// Chunks written to local disks.
    pub chunks_to_disk: u64,
    /// Chunks read from local disks.
    pub chunks_from_disk: u64,
    /// Bytes of `chunks_from_disk`.
    pub bytes_from_disk: u64,
    /// Files from local disks, without their chunks.
    pub files_from_disk: u64,
    /// Chunks fetched from other agents of the job.
    pub chunks_from_peers: u64,
    /// Bytes of `chunks_from_peers`.
    pub bytes_from_peers: u64,
    /// Chunks sent to other agents.
    pub chunks_to_peers: u64,
    /// Files fetched from other agents without their chunks.
    pub files_from_peers: u64,
    /// Files sent to other agents without their chunks.
    pub files_to_peers: u64,
    /// Fetches that failed.
    pub failed_fetches: u64,
    /// Fetches under way.
    pub fetches: u64,
    /// Chunks of prefetches not yet processed.
    pub prefetch_waiting: u64,
    /// Whether memory has no room for the next chunk of a prefetch.
    pub prefetch_stuck: bool,
    /// The pages of the slots in use.
    pub pages: Pages,
    /// The log of the agent.
    pub log: Option<String>,
    /// Facts that a user should know, such as a small budget of memory.
    pub notes: Vec<String>,
    /// The address for other agents; empty if closed to them.
    pub peer_address: String,
    /// The other agents of the job, at most 256.
    pub peers: Vec<PeerStatus>,
    /// Number of agents not listed in `peers`.
    pub peers_left_out: u64,
    /// The origins of the chunks of the last 64 epochs.
    pub epochs: Vec<EpochStatus>,
    /// The orders being read, at most 256.
    pub orders: Vec<OrderStatus>,
    /// The reading processes, at most 256.
    pub workers: Vec<WorkerStatus>,
    /// Number of processes not listed in `workers`.
    pub workers_left_out: u64,
    /// The waiting reads, at most 256.
    pub waits: Vec<Wait>,
    /// The other agents waiting for this agent, at most 256.
    pub peer_waits: Vec<PeerWait>,
}

/// An order read by processes of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OrderStatus {
    /// The dataset's name on the servers.
    pub dataset: String,
    /// The rank.
    pub rank: u32,
    /// Number of processes reading along the order.
    pub readers: u64,
    /// Chunks needed soon: the chunks of the current group and of the next groups.
    pub chunks: u64,
    /// The present part of `chunks`.
    pub chunks_present: u64,
    /// Chunks of the largest group up to now.
    pub group_chunks: u32,
    /// Largest group, in chunks, that fits into memory. Larger groups are not fetched ahead.
    pub group_chunks_max: u32,
}

/// A dataset version served by the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetStatus {
    /// The dataset's name on the servers.
    pub name: String,
    /// The version read by the whole task.
    pub version: String,
    /// All chunks.
    pub chunks: u64,
    /// Chunks in memory.
    pub chunks_present: u64,
    /// Chunks on local disks.
    pub chunks_on_disk: u64,
    /// Chunks in memory or on local disks.
    pub chunks_held: u64,
    /// Chunks owned by this agent among all agents of the job.
    pub chunks_owned: u64,
    /// The end of the lease on the version, in microseconds since 1970; none before the servers have
    /// registered the agent.
    pub leased_until: Option<u64>,
    /// Facts that a user should know, such as a version older than the newest.
    pub notes: Vec<String>,
}

/// A reading process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The process id.
    pub pid: u32,
    /// Number of slots pinned by the process.
    pub pins: u32,
    /// The current epoch, if any.
    pub epoch: Option<u64>,
    /// Files of the process's rank already read in the epoch.
    pub position: Option<u64>,
    /// The awaited chunk, if any.
    pub awaits: Option<u64>,
    /// Duration of the wait, in seconds.
    pub awaits_seconds: Option<f64>,
}

/// The state of the agent as JSON. Blocks.
pub(crate) fn text(
    cache: &Cache,
    task: &TaskName,
    peer_address: &str,
    idle: Duration,
    about: &About,
) -> String {
    let pages = Pages::now();
    let (mut status, opens) = {
        let state = cache.state();
        (of(&state, cache, pages), state.opens.clone())
    };
    // Counting the owners of all chunks takes a while, so the state is not locked.
    let owned: Vec<_> = opens.iter().map(|(_, open)| open.peers.owned()).collect();
    for ((dataset, (_, open)), owned) in status.datasets.iter_mut().zip(opens.iter()).zip(&owned) {
        dataset.chunks_owned = open.peers.owned_by_me(owned, open.snapshot.holders());
        dataset.leased_until = open.registration.leased_until();
        dataset.notes = open.notes(task);
    }
    let peers = opens.iter().zip(&owned).flat_map(|((_, open), owned)| {
        open.peers
            .links()
            .into_iter()
            .map(|link| PeerStatus::of(&link, &open.name, owned, cache.now()))
    });
    let mut peers: Vec<_> = peers.collect();
    status.peers_left_out = peers.len().saturating_sub(SHOWN_MAX) as u64;
    peers.truncate(SHOWN_MAX);
    status.peers = peers;
    let servers = cache.state().server_reads.typical();
    let tiers = cache.disks.status(servers);
    status.chunks_to_disk = tiers.iter().map(|tier| tier.chunks_written).sum();
    status.tiers = tiers;
    status.peer_address = peer_address.to_owned();
    status.idle_seconds = idle.as_secs();
    status.log = about.log.as_ref().map(|log| log.to_string_lossy().into_owned());
    status.notes = about.notes.clone();
    serde_json::to_string(&status).unwrap_or_default()
}

/// The counts of one dataset, for the servers.
pub(crate) fn counters(state: &State, dataset: usize) -> TaskCounters {
    let sum = |gauge| state.connections.sum(gauge, Some(dataset));
    let ended = state.counts.get(dataset).copied().unwrap_or_default();
    let slot = u64::from(state.slots.slot_bytes());
    let held = state.residency.iter().filter(|(key, _)| key.dataset == dataset).count() as u64;
    let readers = state.connections.processes().filter(|(_, one)| one.dataset == dataset);
    let links = state.opens.get(dataset).map(|open| open.peers.link_totals()).unwrap_or_default();
    let progress = state.orders.progress(dataset);
    TaskCounters {
        hits: sum(Gauge::Hits) + ended.hits,
        misses: sum(Gauge::Misses) + ended.misses,
        fallbacks: sum(Gauge::Fallbacks) + ended.fallbacks,
        waited: sum(Gauge::WaitedMicros) + ended.waited_micros,
        chunks_from_servers: ended.chunks_from_servers,
        bytes_from_servers: ended.bytes_from_servers,
        chunks: state.served.chunks(dataset).into(),
        chunks_present: state.residency.full(dataset),
        memory_used: held * slot,
        workers: readers.count() as u32,
        chunks_from_peers: ended.chunks_from_peers,
        bytes_from_peers: ended.bytes_from_peers,
        peers: state.opens.get(dataset).map_or(0, |open| open.peers.connected()),
        slow_answers: links.slow,
        damaged_answers: links.damaged,
        failed_connections: links.failed,
        hit_bytes: sum(Gauge::HitBytes) + ended.hit_bytes,
        failed_fetches: ended.failed_fetches,
        epoch: progress.map(|progress: EpochProgress| progress.epoch),
        epoch_files: progress.map_or(0, |progress| progress.files),
        epoch_position: progress.map_or(0, |progress| progress.position),
        chunks_from_disk: ended.chunks_from_disk,
        bytes_from_disk: ended.bytes_from_disk,
    }
}

fn datasets(state: &State) -> Vec<DatasetStatus> {
    let opens = state.opens.iter();
    let datasets = opens.map(|(number, open)| DatasetStatus {
        name: open.name.clone(),
        version: open.snapshot.version().to_string(),
        chunks: open.snapshot.holders().into(),
        chunks_present: state.residency.full(number),
        chunks_on_disk: state.disk.count(number),
        chunks_held: state.residency.full(number) + only_on_disk(state, number),
        chunks_owned: 0,
        leased_until: None,
        notes: Vec::new(),
    });
    datasets.collect()
}

/// Chunks of a dataset on disk and not in memory.
fn only_on_disk(state: &State, dataset: usize) -> u64 {
    let in_both = state.residency.iter().filter(|(key, held)| {
        let is_full = matches!(held.stage, Stage::Full { .. });
        key.dataset == dataset && is_full && state.disk.holds(*key)
    });
    state.disk.count(dataset).saturating_sub(in_both.count() as u64)
}

fn orders(state: &State) -> Vec<OrderStatus> {
    let orders = state.orders.followed().take(SHOWN_MAX).map(|order| {
        let is_present = |chunk: &&u32| {
            let key = ChunkKey { dataset: order.dataset, chunk: **chunk };
            state.residency.get_full(key).is_some()
        };
        OrderStatus {
            dataset: state
                .opens
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

fn workers(state: &State, now: Duration) -> Vec<WorkerStatus> {
    let positions = state.orders.positions();
    let workers = state.connections.processes().take(SHOWN_MAX).map(|(number, one)| {
        let at = positions.get(&number);
        let awaits = one.pins.get(Gauge::Awaited).checked_sub(1);
        let since = Duration::from_millis(one.pins.get(Gauge::AwaitedSince));
        WorkerStatus {
            pid: one.pid,
            pins: one.pins.held(),
            epoch: at.map(|(epoch, _)| *epoch),
            position: at.map(|(_, position)| *position),
            awaits,
            awaits_seconds: awaits.map(|_| seconds(now, since)),
        }
    });
    workers.collect()
}

fn of(state: &State, cache: &Cache, pages: Pages) -> Status {
    let (datasets, now) = (datasets(state), cache.now());
    let chunks = datasets.iter().map(|dataset| dataset.chunks).sum();
    let present = datasets.iter().map(|dataset| dataset.chunks_present).sum();
    let on_disk = datasets.iter().map(|dataset| dataset.chunks_on_disk).sum();
    let held: u64 = datasets.iter().map(|dataset| dataset.chunks_held).sum();
    let slot = u64::from(state.slots.slot_bytes());
    let ended = Counts::of_all(&state.counts);
    let sum = |gauge, ended: u64| state.connections.sum(gauge, None) + ended;
    let prefetch_waiting = state.backlog.waiting();
    Status {
        pid: std::process::id(),
        datasets,
        policy: cache.policy.name().to_owned(),
        eviction: state.residency.eviction().name().to_owned(),
        idle_seconds: 0,
        partial: held < chunks,
        tiers: Vec::new(),
        memory_bytes: cache.budget(),
        memory_used: u64::from(state.slots.used()) * slot,
        chunks,
        chunks_present: present,
        chunks_kept: state.residency.kept().into(),
        chunks_copied: state.residency.copies().into(),
        chunks_evicted: state.residency.evicted(),
        hits: sum(Gauge::Hits, ended.hits),
        hit_bytes: sum(Gauge::HitBytes, ended.hit_bytes),
        misses: sum(Gauge::Misses, ended.misses),
        fallbacks: sum(Gauge::Fallbacks, ended.fallbacks),
        fallback_bytes: sum(Gauge::FallbackBytes, ended.fallback_bytes),
        chunks_from_servers: ended.chunks_from_servers,
        bytes_from_servers: ended.bytes_from_servers,
        chunks_on_disk: on_disk,
        disk_writes: state.disk.under_way() as u64,
        chunks_to_disk: 0,
        chunks_from_disk: ended.chunks_from_disk,
        bytes_from_disk: ended.bytes_from_disk,
        files_from_disk: ended.files_from_disk,
        chunks_from_peers: ended.chunks_from_peers,
        bytes_from_peers: ended.bytes_from_peers,
        chunks_to_peers: ended.chunks_to_peers,
        files_from_peers: ended.files_from_peers,
        files_to_peers: ended.files_to_peers,
        failed_fetches: ended.failed_fetches,
        fetches: state.waiters.awaited().count() as u64,
        prefetch_waiting,
        prefetch_stuck: state.backlog.is_stuck && prefetch_waiting > 0,
        pages,
        log: None,
        notes: Vec::new(),
        peer_address: String::new(),
        peers: Vec::new(),
        peers_left_out: 0,
        epochs: state.orders.epochs.all(),
        orders: orders(state),
        workers: workers(state, now),
        workers_left_out: state.connections.processes().count().saturating_sub(SHOWN_MAX) as u64,
        waits: waits::of(state, now),
        peer_waits: waits::of_peers(state, now),
    }
}

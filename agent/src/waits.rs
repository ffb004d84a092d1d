//! The waiting reads, and the agent's work for each.
//!
//! Must hold: a wait is reported exactly as long as its reader waits.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dl_runtime::since_boot;
use libdiesel::agent::Gauge;
use serde::{Deserialize, Serialize};

use crate::cache::{ChunkState, Connection, State};
use crate::dataset::ChunkKey;

/// Maximum of listed workers, waits and orders each.
pub(crate) const SHOWN_MAX: usize = 256;

/// A waiting read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The id of the reading process.
    pub pid: u32,
    /// The dataset's name on the servers.
    pub dataset: String,
    /// The number of the chunk.
    pub chunk: u64,
    /// Duration of the wait, in seconds.
    pub seconds: f64,
    /// The agent's work for the read.
    #[serde(flatten)]
    pub doing: Doing,
}

/// The agent's work for a waiting read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Doing {
    /// The agent fetches the chunk from the servers, or from another agent.
    Fetching {
        /// The address of the other agent.
        #[serde(skip_serializing_if = "Option::is_none")]
        peer: Option<String>,
        /// Received bytes.
        bytes: u64,
        /// Requested bytes; 0 before the request.
        length: u64,
        /// Duration of the fetch, in seconds.
        fetch_seconds: f64,
    },
    /// The chunk waits for a slot: each slot is pinned, being filled, or needed soon.
    NoSlot,
    /// The chunk is in memory.
    Answered,
    /// The agent does not work on the chunk.
    Nothing,
    /// The process reads the file from the servers, because the agent could not deliver in time.
    FromServers,
}

/// Another agent waiting for a chunk that this agent fetches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerWait {
    /// The address of the other agent; its id where the address is not known.
    pub peer: String,
    /// The dataset's name on the servers.
    pub dataset: String,
    /// The number of the chunk.
    pub chunk: u64,
    /// Duration of the wait, in seconds.
    pub seconds: f64,
    /// This agent's work for the chunk.
    #[serde(flatten)]
    pub doing: Doing,
}

/// All waiting agents.
pub(crate) fn of_peers(state: &State) -> Vec<PeerWait> {
    let waits = state.chunks.iter().flat_map(|(key, held)| {
        let peer_waiters = match held {
            ChunkState::Filling { peer_waiters, .. } => &peer_waiters[..],
            ChunkState::Full { .. } => &[],
        };
        peer_waiters.iter().map(|peer_waiter| {
            let open = state.datasets.get(key.dataset);
            let address = open.and_then(|open| open.peers.address_of(peer_waiter.member));
            PeerWait {
                peer: address.unwrap_or_else(|| peer_waiter.member.to_string()),
                dataset: open.map(|open| open.name.clone()).unwrap_or_default(),
                chunk: key.chunk.into(),
                seconds: seconds_since(peer_waiter.since.as_millis() as u64),
                doing: doing_of(held),
            }
        })
    });
    waits.take(SHOWN_MAX).collect()
}

/// All waiting reads.
pub(crate) fn of(state: &State) -> Vec<Wait> {
    let waits = state.connections.iter().flat_map(|(number, one)| {
        let worker_waits =
            awaited(one, Gauge::Awaited, Gauge::AwaitedSince).map(|(chunk, since)| {
                let doing = doing(state, *number, one.dataset, chunk);
                wait(state, one, chunk, since, doing)
            });
        let elsewhere = awaited(one, Gauge::Elsewhere, Gauge::ElsewhereSince);
        let elsewhere =
            elsewhere.map(|(chunk, since)| wait(state, one, chunk, since, Doing::FromServers));
        worker_waits.into_iter().chain(elsewhere)
    });
    waits.take(SHOWN_MAX).collect()
}

/// Seconds since a time in milliseconds since boot.
pub(crate) fn seconds_since(milliseconds: u64) -> f64 {
    let since = Duration::from_millis(milliseconds);
    // Whole milliseconds are enough, and short to read.
    since_boot().saturating_sub(since).as_millis() as f64 / 1e3
}

/// The chunk and the start time in a pair of gauges.
fn awaited(one: &Connection, chunk: Gauge, since: Gauge) -> Option<(u64, u64)> {
    Some((one.pins.get(chunk).checked_sub(1)?, one.pins.get(since)))
}

fn wait(state: &State, one: &Connection, chunk: u64, since: u64, doing: Doing) -> Wait {
    let dataset = state.datasets.get(one.dataset).map(|open| open.name.clone());
    let seconds = seconds_since(since);
    Wait { pid: one.pid, dataset: dataset.unwrap_or_default(), chunk, seconds, doing }
}

fn doing(state: &State, connection: u64, dataset: usize, chunk: u64) -> Doing {
    let Ok(chunk) = u32::try_from(chunk) else { return Doing::Nothing };
    let key = ChunkKey { dataset, chunk };
    let is_queued = state.queue.iter().any(|(of, one)| *of == key && one.connection == connection);
    match state.chunks.get(&key) {
        _ if is_queued => Doing::NoSlot,
        Some(held) => doing_of(held),
        None => Doing::Nothing,
    }
}

fn doing_of(held: &ChunkState) -> Doing {
    match held {
        ChunkState::Filling { progress, .. } => Doing::Fetching {
            peer: progress.peer(),
            bytes: progress.bytes.load(Ordering::Relaxed),
            length: progress.length.load(Ordering::Relaxed),
            fetch_seconds: seconds_since(progress.since.as_millis() as u64),
        },
        ChunkState::Full { .. } => Doing::Answered,
    }
}

//! The waiting reads, and the agent's work for each.
//!
//! Must hold: a wait is reported exactly as long as its reader waits.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dl_node::Gauge;
use serde::{Deserialize, Serialize};

use crate::cache::{Awaited, Connection, State};
use crate::place::ChunkKey;

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
    /// The agent fetches the chunk from the servers, from another agent, or from a local disk.
    Fetching {
        /// The address of the other agent, or the folder on the disk.
        #[serde(skip_serializing_if = "Option::is_none")]
        source: Option<String>,
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
pub(crate) fn of_peers(state: &State, now: Duration) -> Vec<PeerWait> {
    let waits = state.waiters.awaited().flat_map(|(key, awaited)| {
        awaited.peers.iter().map(move |peer_waiter| {
            let open = state.opens.get(key.dataset);
            let address = open.and_then(|open| open.peers.address_of(peer_waiter.member));
            PeerWait {
                peer: address.unwrap_or_else(|| peer_waiter.member.to_string()),
                dataset: open.map(|open| open.name.clone()).unwrap_or_default(),
                chunk: key.chunk.into(),
                seconds: seconds(now, peer_waiter.since),
                doing: fetching(awaited, now),
            }
        })
    });
    waits.take(SHOWN_MAX).collect()
}

/// All waiting reads.
pub(crate) fn of(state: &State, now: Duration) -> Vec<Wait> {
    let waits = state.connections.iter().flat_map(|(number, one)| {
        let worker_waits =
            awaited(one, Gauge::Awaited, Gauge::AwaitedSince).map(|(chunk, since)| {
                let doing = doing(state, number, one.dataset, chunk, now);
                wait(state, one, chunk, seconds(now, since), doing)
            });
        let elsewhere = awaited(one, Gauge::Elsewhere, Gauge::ElsewhereSince);
        let elsewhere = elsewhere
            .map(|(chunk, since)| wait(state, one, chunk, seconds(now, since), Doing::FromServers));
        worker_waits.into_iter().chain(elsewhere)
    });
    waits.take(SHOWN_MAX).collect()
}

/// Seconds since a time on the agent's clock.
pub(crate) fn seconds(now: Duration, since: Duration) -> f64 {
    // Whole milliseconds are enough, and short to read.
    now.saturating_sub(since).as_millis() as f64 / 1e3
}

/// The chunk and the start time in a pair of gauges.
fn awaited(one: &Connection, chunk: Gauge, since: Gauge) -> Option<(u64, Duration)> {
    let chunk = one.pins.get(chunk).checked_sub(1)?;
    Some((chunk, Duration::from_millis(one.pins.get(since))))
}

fn wait(state: &State, one: &Connection, chunk: u64, seconds: f64, doing: Doing) -> Wait {
    let dataset = state.opens.get(one.dataset).map(|open| open.name.clone());
    Wait { pid: one.pid, dataset: dataset.unwrap_or_default(), chunk, seconds, doing }
}

fn doing(state: &State, connection: u64, dataset: usize, chunk: u64, now: Duration) -> Doing {
    let Ok(chunk) = u32::try_from(chunk) else { return Doing::Nothing };
    let key = ChunkKey { dataset, chunk };
    if state.waiters.is_queued(key, connection) {
        return Doing::NoSlot;
    }
    match state.waiters.of(key) {
        Some(awaited) => fetching(awaited, now),
        None if state.residency.holds(key) => Doing::Answered,
        None => Doing::Nothing,
    }
}

fn fetching(Awaited { progress, .. }: &Awaited, now: Duration) -> Doing {
    Doing::Fetching {
        source: progress.source(),
        bytes: progress.bytes.load(Ordering::Relaxed),
        length: progress.length.load(Ordering::Relaxed),
        fetch_seconds: seconds(now, progress.since),
    }
}

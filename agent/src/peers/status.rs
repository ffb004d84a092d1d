//! The status of the other agents.
//!
//! Must hold: the report shows the state of each link and the time of the last change.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dl_format::MemberId;
use serde::{Deserialize, Serialize};

use super::link::Link;
use super::link_state::Phase;

/// Another agent of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The member id.
    pub member: String,
    /// The dataset's name on the servers.
    pub dataset: String,
    /// Its address.
    pub address: String,
    /// `connecting`, `up`, `down`, or `gone` after a goodbye.
    pub state: String,
    /// Duration of the state, in seconds.
    pub seconds: f64,
    /// The reason for a missing connection.
    pub reason: Option<String>,
    /// Number of chunks owned by the member.
    pub chunks_owned: u64,
    /// Chunks received from the member.
    pub chunks: u64,
    /// Bytes of `chunks`.
    pub bytes: u64,
    /// The usual time of a chunk, in milliseconds, if known.
    pub milliseconds: Option<f64>,
    /// Chunks cancelled for slowness.
    pub slow: u64,
    /// Chunks received with wrong bytes.
    pub damaged: u64,
}

impl PeerStatus {
    /// From a link, and the number of chunks owned by each member.
    pub(crate) fn of(
        link: &Link,
        dataset: &str,
        owned: &BTreeMap<MemberId, u64>,
        now: Duration,
    ) -> Self {
        let (phase, since) = link.phase();
        let (state, reason) = match phase {
            Phase::Connecting => ("connecting", None),
            Phase::Up => ("up", None),
            Phase::Down(why) => ("down", Some(why)),
            Phase::Gone => ("gone", None),
        };
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            member: link.member.to_string(),
            dataset: dataset.to_owned(),
            address: link.address.clone(),
            state: state.to_owned(),
            seconds: now.saturating_sub(since).as_millis() as f64 / 1e3,
            reason,
            chunks_owned: owned.get(&link.member).copied().unwrap_or(0),
            chunks: count(&link.counts.chunks),
            bytes: count(&link.counts.bytes),
            milliseconds: link.usual().map(|usual| usual.as_micros() as f64 / 1e3),
            slow: count(&link.counts.slow),
            damaged: count(&link.counts.damaged),
        }
    }
}

//! What an agent tells of the others.
//!
//! Must hold: it shows how each link stands and since when.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use dl_runtime::since_boot;
use libdiesel::agent::MemberId;
use serde::{Deserialize, Serialize};

use super::line::Phase;
use super::link::Link;

/// Another agent of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its id.
    pub member: String,
    /// The dataset, as the servers name it.
    pub dataset: String,
    /// Where it is reached.
    pub address: String,
    /// `connecting`, `up`, `down`, or `gone` after a goodbye.
    pub state: String,
    /// For how long, in seconds.
    pub seconds: f64,
    /// Why there is no connection.
    pub reason: Option<String>,
    /// Chunks that belong to it.
    pub chunks_owned: u64,
    /// Chunks that came from it.
    pub chunks: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// The usual time of a chunk, in milliseconds, where it is known.
    pub milliseconds: Option<f64>,
    /// Chunks that were given up for their time.
    pub slow: u64,
    /// Chunks that came with wrong bytes.
    pub damaged: u64,
}

impl PeerStatus {
    /// Of a link, with how many chunks belong to each member.
    pub(crate) fn of(link: &Link, dataset: &str, owned: &BTreeMap<MemberId, u64>) -> Self {
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
            seconds: since_boot().saturating_sub(since).as_millis() as f64 / 1e3,
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

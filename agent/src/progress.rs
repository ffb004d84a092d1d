//! The progress of a fetch, and its source.
//!
//! Must hold: readers need no lock of the cache.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The progress of a fetch.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// On the agent's clock.
    pub(crate) since: Duration,
    /// Received bytes.
    pub(crate) bytes: AtomicU64,
    /// Requested bytes.
    pub(crate) length: AtomicU64,
    /// The address of the agent that is the source.
    peer: Mutex<Option<String>>,
}

impl Progress {
    pub(crate) fn new(since: Duration) -> Self {
        Self { since, ..Self::default() }
    }

    /// Begins with a source: another agent by its address, or the servers.
    pub(crate) fn comes_from(&self, peer: Option<&str>) {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = peer.map(str::to_owned);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// The address of the agent that is the source.
    pub(crate) fn peer(&self) -> Option<String> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

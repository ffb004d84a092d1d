//! The progress of a fetch, and its source.
//!
//! Must hold: readers need no lock of the cache.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dl_runtime::locked;

/// The progress of a fetch.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// On the agent's clock.
    pub(crate) since: Duration,
    /// Received bytes.
    pub(crate) bytes: AtomicU64,
    /// Requested bytes.
    pub(crate) length: AtomicU64,
    /// The address of the agent, or the folder on a disk, that is the source.
    source: Mutex<Option<String>>,
}

impl Progress {
    pub(crate) fn new(since: Duration) -> Self {
        Self { since, ..Self::default() }
    }

    /// Begins with a source: another agent by its address, a disk by its folder, or the servers.
    pub(crate) fn comes_from(&self, source: Option<&str>) {
        *locked(&self.source) = source.map(str::to_owned);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// The address of the agent, or the folder on a disk, that is the source.
    pub(crate) fn source(&self) -> Option<String> {
        locked(&self.source).clone()
    }
}

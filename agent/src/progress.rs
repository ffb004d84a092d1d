//! The progress of a fetch, and its source.
//!
//! Must hold: readers need no lock of the cache.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dl_runtime::since_boot;

/// The progress of a fetch.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Since boot.
    pub(crate) since: Duration,
    /// Received bytes.
    pub(crate) bytes: AtomicU64,
    /// Requested bytes.
    pub(crate) length: AtomicU64,
    /// Whether the source is a server.
    is_of_servers: AtomicBool,
    /// Whether room to keep the chunk is reserved.
    pub(crate) is_reserved: AtomicBool,
    /// The address of the agent that is the source.
    peer: Mutex<Option<String>>,
}

impl Progress {
    pub(crate) fn new(is_of_servers: bool) -> Self {
        let is_of_servers = AtomicBool::new(is_of_servers);
        Self { since: since_boot(), is_of_servers, ..Self::default() }
    }

    /// Sets the source to another agent, or with none to the servers.
    pub(crate) fn asks(&self, peer: Option<&str>) {
        self.is_of_servers.store(peer.is_none(), Ordering::Relaxed);
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = peer.map(str::to_owned);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// The address of the agent that is the source.
    pub(crate) fn peer(&self) -> Option<String> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the source is a server and not another agent.
    pub(crate) fn is_of_servers(&self) -> bool {
        self.is_of_servers.load(Ordering::Relaxed)
    }
}

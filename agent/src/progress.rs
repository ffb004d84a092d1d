//! How far a fetch has come, and who is asked.
//!
//! Must hold: readers see it without the lock of the cache.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dl_runtime::since_boot;

/// How far a fetch has come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Since boot.
    pub(crate) since: Duration,
    /// Bytes that came.
    pub(crate) bytes: AtomicU64,
    /// Bytes that were asked for.
    pub(crate) length: AtomicU64,
    /// Whether the servers are asked.
    is_of_servers: AtomicBool,
    /// Whether there is room for the chunk to stay, which no other one gets.
    pub(crate) is_reserved: AtomicBool,
    /// The address of the other agent that is asked.
    peer: Mutex<Option<String>>,
}

impl Progress {
    pub(crate) fn new(is_of_servers: bool) -> Self {
        let is_of_servers = AtomicBool::new(is_of_servers);
        Self { since: since_boot(), is_of_servers, ..Self::default() }
    }

    /// From now on another agent is asked; none: the servers are.
    pub(crate) fn asks(&self, peer: Option<&str>) {
        self.is_of_servers.store(peer.is_none(), Ordering::Relaxed);
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = peer.map(str::to_owned);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// The address of the other agent that is asked.
    pub(crate) fn peer(&self) -> Option<String> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the servers are asked, and no other agent.
    pub(crate) fn is_of_servers(&self) -> bool {
        self.is_of_servers.load(Ordering::Relaxed)
    }
}

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
    /// Whether other agents may wait for the chunk: its source does not wait for them.
    may_be_awaited: AtomicBool,
    /// Whether the servers send the chunk.
    is_of_servers: AtomicBool,
    /// Whether room to keep the chunk is reserved.
    pub(crate) is_reserved: AtomicBool,
    /// The address of the agent that is the source.
    peer: Mutex<Option<String>>,
}

impl Progress {
    /// `may_be_awaited`: other agents wait for a chunk of this agent.
    pub(crate) fn new(may_be_awaited: bool) -> Self {
        let may_be_awaited = AtomicBool::new(may_be_awaited);
        Self { since: since_boot(), may_be_awaited, ..Self::default() }
    }

    /// Sets the source to another agent. An agent that keeps the chunk waits for no other agent.
    pub(crate) fn asks(&self, peer: &str, keeps: bool) {
        self.may_be_awaited.store(keeps, Ordering::Relaxed);
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = Some(peer.to_owned());
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Sets the source to the servers.
    pub(crate) fn asks_servers(&self) {
        self.may_be_awaited.store(true, Ordering::Relaxed);
        self.is_of_servers.store(true, Ordering::Relaxed);
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// The address of the agent that is the source.
    pub(crate) fn peer(&self) -> Option<String> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether other agents may wait for the chunk.
    pub(crate) fn may_be_awaited(&self) -> bool {
        self.may_be_awaited.load(Ordering::Relaxed)
    }

    /// Whether the servers send the chunk.
    pub(crate) fn is_of_servers(&self) -> bool {
        self.is_of_servers.load(Ordering::Relaxed)
    }
}

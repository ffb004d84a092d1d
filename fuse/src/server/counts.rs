//! The numbers of a server.
//!
//! Must hold: counting costs a request no lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::abi::opcode;

/// The numbers of a server since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Requests of the kernel.
    pub requests: u64,
    /// Names looked up.
    pub lookups: u64,
    /// Parts of listings.
    pub listings: u64,
    /// Reads answered from the memory of the node, and their bytes.
    pub hits: u64,
    /// Bytes of the hits.
    pub hit_bytes: u64,
    /// Reads that had to wait for their bytes.
    pub misses: u64,
    /// Bytes of the misses.
    pub miss_bytes: u64,
    /// Reads that failed.
    pub failed: u64,
    /// Reads that wait for a thread now.
    pub queued: u64,
    /// Whether the dataset had a newer version at the last look.
    pub is_stale: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    requests: AtomicU64,
    lookups: AtomicU64,
    listings: AtomicU64,
    hits: AtomicU64,
    hit_bytes: AtomicU64,
    misses: AtomicU64,
    miss_bytes: AtomicU64,
    failed: AtomicU64,
    is_stale: AtomicBool,
}

impl Counts {
    pub(super) fn add_request(&self, kind: u32) {
        self.requests.fetch_add(1, Relaxed);
        match kind {
            opcode::LOOKUP => _ = self.lookups.fetch_add(1, Relaxed),
            opcode::READDIR | opcode::READDIRPLUS => _ = self.listings.fetch_add(1, Relaxed),
            _ => {}
        }
    }

    pub(super) fn add_hit(&self, bytes: usize) {
        self.hits.fetch_add(1, Relaxed);
        self.hit_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn add_miss(&self, bytes: usize) {
        self.misses.fetch_add(1, Relaxed);
        self.miss_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn add_failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    pub(crate) fn set_stale(&self, is_stale: bool) {
        self.is_stale.store(is_stale, Relaxed);
    }

    pub(super) fn counted(&self, queued: usize) -> Counted {
        Counted {
            requests: self.requests.load(Relaxed),
            lookups: self.lookups.load(Relaxed),
            listings: self.listings.load(Relaxed),
            hits: self.hits.load(Relaxed),
            hit_bytes: self.hit_bytes.load(Relaxed),
            misses: self.misses.load(Relaxed),
            miss_bytes: self.miss_bytes.load(Relaxed),
            failed: self.failed.load(Relaxed),
            queued: queued as u64,
            is_stale: self.is_stale.load(Relaxed),
        }
    }
}

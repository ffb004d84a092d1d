//! The shared memory of concurrent recoveries of datasets.
//!
//! Must hold: no recovery keeps a share until its end, so that each recovery makes progress.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Headers of all datasets in memory: 512 KiB each at the most, mostly a few KiB.
const HEADERS: usize = 64;

/// The most rows appended in parallel, of about 600 bytes: half more than the most rows of an object.
const ROWS: u32 = 96 << 10;

/// Folders listed in parallel for all datasets, each with two lots in memory, or all names of a folder on a
/// disk: a part of the concurrent blocking work of a process.
pub(super) const FOLDERS_AT_ONCE: usize = 32;

#[derive(Debug)]
pub(super) struct Shares {
    headers: Arc<Semaphore>,
    rows: Semaphore,
    folders: Arc<Semaphore>,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            headers: Arc::new(Semaphore::new(HEADERS)),
            rows: Semaphore::new(ROWS as usize),
            folders: Arc::new(Semaphore::new(FOLDERS_AT_ONCE)),
        }
    }
}

impl Shares {
    pub(super) async fn header(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.headers).acquire_owned().await.expect("the semaphore is never closed")
    }

    pub(super) async fn rows(&self, count: u32) -> SemaphorePermit<'_> {
        let rows = self.rows.acquire_many(count.min(ROWS)).await;
        rows.expect("the semaphore is never closed")
    }

    pub(super) async fn folder(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.folders).acquire_owned().await.expect("the semaphore is never closed")
    }
}

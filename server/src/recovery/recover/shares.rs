//! The memory that concurrent recoveries of datasets share.
//!
//! Must hold: a recovery waits for no resource that another recovery holds until its end; so each recovery
//! makes progress.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Headers of all datasets that are read or appended: 512 KiB each at the most, and some KiB mostly.
const HEADERS: usize = 64;

/// Most rows appended at once, of some 600 bytes: half more than the most rows of an object.
const ROWS: u32 = 96 << 10;

/// Folders of all datasets that are listed at once, each with two lots in memory, or all names of a folder
/// on a disk: a part of the concurrent blocking work of a process.
pub(super) const FOLDERS_AT_ONCE: usize = 32;

/// The shares.
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
    /// Waits for the place of a header.
    pub(super) async fn header(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.headers).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Waits until an object with so many rows may be appended.
    pub(super) async fn rows(&self, count: u32) -> SemaphorePermit<'_> {
        let rows = self.rows.acquire_many(count.min(ROWS)).await;
        rows.expect("the semaphore is never closed")
    }

    /// Waits until a folder may be listed.
    pub(super) async fn folder(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.folders).acquire_owned().await.expect("the semaphore is never closed")
    }
}

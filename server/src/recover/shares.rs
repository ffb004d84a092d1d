//! The memory that concurrent recoveries of datasets share.
//!
//! Must hold: each recovery has a share of headers, rows and ids of its own, and waits for no resource that
//! another recovery holds until its end; so each makes progress.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Headers of all datasets that are read or appended: 512 KiB each at the most, and some KiB mostly.
const HEADERS: usize = 64;

/// Rows of all datasets that are appended at once, and so copied for the metadata store: some 600 bytes
/// each. One and a half times the most rows of an object.
const ROWS: u32 = 96 << 10;

/// Ids of a log in memory, 17 bytes each.
const IDS_EACH: usize = 128 << 10;
/// More ids for longer logs, all together.
const IDS_BESIDES: usize = 1 << 20;
/// Ids that are given out together.
const IDS_TOGETHER: u32 = 64 << 10;

/// Folders of all datasets that are listed at once, each with two lots in memory, or all names of a folder
/// on a disk: a part of the concurrent blocking work of a process.
pub(super) const FOLDERS_AT_ONCE: usize = 32;

/// The shares.
#[derive(Debug)]
pub(super) struct Shares {
    headers: Arc<Semaphore>,
    rows: Semaphore,
    ids: Arc<Semaphore>,
    folders: Arc<Semaphore>,
    passes: Arc<Semaphore>,
}

/// Room for ids of one log.
#[derive(Debug)]
pub(super) struct Room {
    ids: Arc<Semaphore>,
    besides: Option<OwnedSemaphorePermit>,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            headers: Arc::new(Semaphore::new(HEADERS)),
            rows: Semaphore::new(ROWS as usize),
            ids: Arc::new(Semaphore::new(IDS_BESIDES)),
            folders: Arc::new(Semaphore::new(FOLDERS_AT_ONCE)),
            passes: Arc::new(Semaphore::new(1)),
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

    /// Waits until no other dataset is gone through in passes, each of which reads its whole log.
    pub(super) async fn passes(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.passes).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// The share of one log.
    pub(super) fn room(&self) -> Room {
        Room { ids: Arc::clone(&self.ids), besides: None }
    }
}

impl Room {
    /// Whether so many ids have room; takes more room where there is some.
    pub(super) fn holds(&mut self, count: usize) -> bool {
        while count > IDS_EACH + self.besides.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
        {
            let ids = Arc::clone(&self.ids);
            let Ok(more) = ids.try_acquire_many_owned(IDS_TOGETHER) else { return false };
            match &mut self.besides {
                Some(besides) => besides.merge(more),
                None => self.besides = Some(more),
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_takes_free_room_and_no_share_of_another() {
        let shares = Shares::default();
        let (mut long, mut short) = (shares.room(), shares.room());
        assert!(long.holds(IDS_EACH) && shares.ids.available_permits() == IDS_BESIDES);
        assert!(long.holds(IDS_EACH + IDS_BESIDES) && !long.holds(IDS_EACH + IDS_BESIDES + 1));
        assert!(short.holds(IDS_EACH) && !short.holds(IDS_EACH + 1));
        drop(long);
        assert!(short.holds(IDS_EACH + 1));
    }
}

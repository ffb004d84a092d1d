//! What the cache learns of links.
//!
//! Must hold: a change that comes during the work for an earlier change is not missed.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Changes of the members, of links, and of the lists of kept chunks.
#[derive(Debug, Default)]
pub(crate) struct LinkEvents {
    changed: Notify,
    lists: AtomicU64,
}

impl LinkEvents {
    /// A link began or ended, or the members changed.
    pub(super) fn changed(&self) {
        self.changed.notify_one();
    }

    /// Another list of kept chunks came, or counts from now on.
    pub(crate) fn listed(&self) {
        self.lists.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// Waits for a change since the last call.
    pub(crate) async fn next(&self) {
        self.changed.notified().await;
    }

    /// The number of lists up to now.
    pub(crate) fn lists(&self) -> u64 {
        self.lists.load(Ordering::Relaxed)
    }
}

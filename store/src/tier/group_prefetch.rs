//! When files of an object are read, the other objects of its group are copied, too (paper, Figure 4): a
//! job that reads a part of a dataset reads all of it.
//!
//! Must hold: prefetched copies take free room only, and go before any copy that was read. One object is
//! fetched at a time, and about an object a second while readers wait for the slow store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dl_runtime::locked;
use futures::TryStreamExt;
use tokio::sync::Semaphore;

use super::Tier;
use crate::{Key, ObjectInfo, Prefix};

/// Gives the group of an object: all objects below a prefix with the same result.
pub type Group = fn(&Key) -> Option<Prefix>;

/// Longest wait for a moment without readers of the slow store.
const YIELD_MAX: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);

/// A group that was prefetched is listed again after so long at the earliest.
const RELIST_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// The groups that are prefetched, and the readers of the slow store.
#[derive(Debug)]
pub(super) struct GroupPrefetch {
    group: Group,
    /// When each group may be prefetched again; `None` while a task prefetches it.
    groups: Mutex<HashMap<Prefix, Option<Duration>>>,
    /// Groups are prefetched one after the other.
    turn: Semaphore,
    /// Has a clone for each read of the slow store for which a caller waits.
    pub(super) foreground_reads: Arc<()>,
}

impl GroupPrefetch {
    pub(super) fn new(group: Group) -> Self {
        let (turn, foreground_reads) = (Semaphore::new(1), Arc::default());
        Self { group, groups: Mutex::default(), turn, foreground_reads }
    }

    /// The group of an object, if the caller is to prefetch it now.
    fn begin(&self, key: &Key, now: Duration) -> Option<Prefix> {
        let group = (self.group)(key)?;
        let mut groups = locked(&self.groups);
        let rests = |until: &Option<Duration>| until.is_none_or(|until| now < until);
        if groups.get(&group).is_some_and(rests) {
            return None;
        }
        groups.retain(|_, until| rests(until));
        groups.insert(group.clone(), None);
        Some(group)
    }

    fn end(&self, group: Prefix, now: Duration) {
        let mut groups = locked(&self.groups);
        groups.insert(group, Some(now.saturating_add(RELIST_INTERVAL)));
    }
}

impl Tier {
    /// Copies the group of an object in the background, where the object itself has no copy yet.
    pub(super) fn prefetch_group(self: &Arc<Self>, key: &Key) {
        if !self.copies.is_ready() || self.copies.index().knows(key) {
            return;
        }
        let Some(group) = self.prefetch.begin(key, self.clock.monotonic()) else { return };
        let tier = Arc::clone(self);
        dl_runtime::spawn(async move {
            let turn = tier.prefetch.turn.acquire().await;
            let _turn = turn.expect("the semaphore is never closed");
            tier.copy_group(&group).await;
            tier.prefetch.end(group, tier.clock.monotonic());
        });
    }

    async fn copy_group(self: &Arc<Self>, group: &Prefix) {
        let mut objects = self.slow.list(group);
        // After a failed listing, objects are copied as they are read.
        while let Ok(Some(ObjectInfo { key, size })) = objects.try_next().await {
            if (self.prefetch.group)(&key).as_ref() != Some(group)
                || self.copies.index().knows(&key)
            {
                continue;
            }
            self.yield_to_readers().await;
            if !self.copies.is_ready() || !self.copies.index().has_free(size) {
                return;
            }
            if let Some(pending) = self.copies.begin(&key, size, true) {
                // The task goes on when this future is dropped.
                let _ = self.copy_in_background(pending).await;
            }
        }
    }

    /// Waits for a moment without readers of the slow store, but not for long.
    async fn yield_to_readers(&self) {
        let until = self.clock.monotonic().saturating_add(YIELD_MAX);
        let is_read = || Arc::strong_count(&self.prefetch.foreground_reads) > 1;
        while is_read() && self.clock.monotonic() < until {
            self.clock.sleep(POLL).await;
        }
    }
}

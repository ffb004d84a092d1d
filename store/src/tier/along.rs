//! What lies with an object whose files are read, and that is not there, is brought over too (paper,
//! Figure 4): a job that reads some of a dataset reads all of it.
//!
//! Must hold: it takes room that is free, gives up no copy for it, and goes before any copy that
//! was read; one object at a time, and while somebody waits for the slow store one a second at most.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::TryStreamExt;
use tokio::sync::Semaphore;

use super::{Tier, copy};
use crate::{Key, ObjectInfo, Prefix};

/// What is brought over with an object: all of its group that lies below the group's prefix.
pub type Group = fn(&Key) -> Option<Prefix>;

/// How long to wait for a moment in which nobody reads from the slow store.
const GIVES_WAY: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

/// A group that was brought over, as far as there was room, is looked at again so much later.
const AGAIN: Duration = Duration::from_secs(10 * 60);

/// Which groups are brought over, and who goes before.
#[derive(Debug)]
pub(super) struct Along {
    group: Group,
    /// Until when each is left alone; none for as long as it is being brought.
    groups: Mutex<HashMap<Prefix, Option<Duration>>>,
    /// One group after the other.
    turn: Semaphore,
    /// Reads of the slow store that somebody waits for.
    reading: AtomicUsize,
}

/// Somebody waits for the slow store until this is dropped.
#[derive(Debug)]
pub(super) struct Reading<'a>(&'a AtomicUsize);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Along {
    pub(super) fn new(group: Group) -> Self {
        let (groups, turn, reading) = (Mutex::default(), Semaphore::new(1), AtomicUsize::new(0));
        Self { group, groups, turn, reading }
    }

    pub(super) fn reading(&self) -> Reading<'_> {
        self.reading.fetch_add(1, Ordering::Relaxed);
        Reading(&self.reading)
    }

    /// The group of an object, if it is to be brought over now; the caller does.
    fn begin(&self, key: &Key, now: Duration) -> Option<Prefix> {
        let group = (self.group)(key)?;
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let is_left_alone = |until: &Option<Duration>| until.is_none_or(|until| now < until);
        if groups.get(&group).is_some_and(is_left_alone) {
            return None;
        }
        groups.retain(|_, until| is_left_alone(until));
        groups.insert(group.clone(), None);
        Some(group)
    }

    fn end(&self, group: Prefix, now: Duration) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.insert(group, Some(now.saturating_add(AGAIN)));
    }
}

impl Tier {
    /// Has the group of an object that is read brought over in the background, if it is not there.
    pub(super) fn bring_along(self: &Arc<Self>, key: &Key) {
        if !self.is_ready() || self.index().knows(key) {
            return;
        }
        let Some(group) = self.along.begin(key, self.clock.monotonic()) else { return };
        let tier = Arc::clone(self);
        dl_runtime::spawn(async move {
            let _turn = tier.along.turn.acquire().await.expect("the semaphore is never closed");
            tier.bring_group(&group).await;
            tier.along.end(group, tier.clock.monotonic());
        });
    }

    async fn bring_group(self: &Arc<Self>, group: &Prefix) {
        let mut objects = self.slow.list(group);
        // Where it can't be listed to its end, what is read is brought over all the same.
        while let Ok(Some(ObjectInfo { key, size })) = objects.try_next().await {
            let is_of_group = (self.along.group)(&key).as_ref() == Some(group);
            let Some(name) = copy::name(&key).filter(|_| is_of_group) else { continue };
            self.index().prove(&key);
            if self.index().knows(&key) {
                continue;
            }
            self.give_way().await;
            if !self.is_ready() || !self.index().has_free(copy::length_of(size)) {
                return;
            }
            if self.index().begin_along(&key, name.clone()) {
                // It goes on when nobody waits for it any more.
                let _ = self.send_for(key, name).await;
            }
        }
    }

    /// Waits until nobody waits for the slow store, but not for long.
    async fn give_way(&self) {
        let until = self.clock.monotonic().saturating_add(GIVES_WAY);
        while self.along.reading.load(Ordering::Relaxed) > 0 && self.clock.monotonic() < until {
            self.clock.sleep(LOOK).await;
        }
    }
}

//! Copies of objects in a store that is faster than the place where the objects live.
//!
//! Must hold: a copy has the bytes of its object and nothing else, so that readers check it by the
//! checksums that they have for the object. A failure of the store costs time only: each call has a
//! time limit, and after a failure the store rests. Nothing outside [`COPIES`] is read or removed.

mod index;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use dl_runtime::blocking::ThreadLimit;
use dl_runtime::{Clock, Deadline, locked};
use futures::TryStreamExt;
use tokio::task::JoinHandle;

use self::index::Index;
#[cfg(test)]
pub(super) use self::index::KEPT;
use crate::{Error, Key, Kind, ObjectInfo, ObjectRange, Prefix, Store};

/// The folder of the copies in their store.
pub const COPIES: &str = "copies";

/// The end of the names of copies. Files of other forms are removed at the start: earlier versions
/// wrote `.s` and `.p`, with checksums between or behind the bytes.
const SUFFIX: &str = ".o";

/// Time limit of a read, after which the caller reads the object itself.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit of a write or a removal, for which no reader waits.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// After a failure the store is not used for so long.
pub(super) const REST: Duration = Duration::from_secs(10);

/// File calls at once: enough for a fast disk, and as many threads as a hanging disk may take.
const FILE_CALLS: usize = 32;

/// The counts of the copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Exact ranges that a copy gave.
    pub hits: u64,
    /// Exact ranges that no copy gave.
    pub misses: u64,
    /// Copies made.
    pub made: u64,
    /// Failures of the store.
    pub failures: u64,
    /// Copies that were dropped because of a wrong length, or by a reader.
    pub invalidated: u64,
    /// Bytes of all copies.
    pub used: u64,
}

/// Copies of objects, at most so many bytes as the quota says. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Copies {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    /// All calls of the store take their threads here: a store that hangs holds up no other work.
    threads: ThreadLimit,
    clock: Arc<dyn Clock>,
    index: Mutex<Index>,
    health: Mutex<Health>,
    /// Without the used bytes, which the index counts.
    counts: Mutex<CopyCounts>,
}

#[derive(Debug)]
struct Health {
    /// When a store that failed is tried again.
    rests_until: Duration,
    listing: Listing,
}

/// Progress of the listing that finds the copies of earlier processes. The store is not used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    ToDo,
    Running,
    Done,
}

/// A copy that is being made, by one caller at a time, until [`fill`](Self::fill) or a drop.
#[derive(Debug)]
pub(super) struct PendingCopy {
    copies: Copies,
    key: Key,
    is_settled: bool,
}

impl Copies {
    /// Keeps copies of at most `quota` bytes in `store`, also those of an earlier process. Needs tokio.
    pub(super) fn new(store: Arc<dyn Store>, quota: u64, clock: Arc<dyn Clock>) -> Self {
        let health = Health { rests_until: Duration::ZERO, listing: Listing::ToDo };
        let inner = Inner {
            store,
            threads: ThreadLimit::new(FILE_CALLS),
            clock,
            index: Mutex::new(Index::new(quota)),
            health: Mutex::new(health),
            counts: Mutex::default(),
        };
        let copies = Self { inner: Arc::new(inner) };
        copies.is_ready();
        copies
    }

    /// Reads ranges from copies: one result for each, in order; `None` where no copy gives the range.
    pub(super) async fn read(&self, wanted: &[ObjectRange]) -> Vec<Option<Bytes>> {
        let exact = wanted.iter().filter(|range| range.range.exact_end().is_some()).count();
        let mut given = self.read_located(wanted).await;
        given.resize(wanted.len(), None);
        let hits = given.iter().flatten().count();
        self.count(|counts| {
            counts.hits += hits as u64;
            counts.misses += exact.saturating_sub(hits) as u64;
        });
        given
    }

    async fn read_located(&self, wanted: &[ObjectRange]) -> Vec<Option<Bytes>> {
        if !self.is_ready() {
            return Vec::new();
        }
        let located = self.index().locate(wanted, self.inner.clock.monotonic());
        if located.ranges.is_empty() {
            return Vec::new();
        }
        let read = self.inner.store.read(&located.ranges);
        let read = match self.within(READ_TIMEOUT, "read copies in", async { Ok(read.await) }).await
        {
            Ok(read) => read,
            Err(error) => {
                self.failed(&error);
                return Vec::new();
            }
        };
        let mut read = read.into_iter();
        let given =
            wanted.iter().zip(located.has_copy).map(|(ObjectRange { key, .. }, has_copy)| {
                match has_copy.then(|| read.next()).flatten()? {
                    Ok(bytes) => return Some(bytes),
                    // An administrator removed the copy.
                    Err(error) if error.kind == Kind::Missing => {
                        self.drop_copy(key);
                    }
                    Err(error) if error.kind == Kind::Corrupt => self.drop_damaged(key),
                    Err(error) => self.failed(&error),
                }
                None
            });
        given.collect()
    }

    /// Makes a copy of an object in the background.
    #[cfg(test)]
    pub(super) fn offer(&self, key: &Key, body: Bytes) {
        if let Some(pending) = self.begin(key, body.len() as u64, false) {
            dl_runtime::spawn(pending.fill(body));
        }
    }

    /// Begins a copy, whose caller fetches the object; `None` where a copy is there or being made, or the
    /// store can't be used now. A copy shorter than `least`, which the object has at least, is dropped.
    /// A copy ahead of any read takes free room only, and is the first to go.
    pub(super) fn begin(&self, key: &Key, least: u64, is_prefetched: bool) -> Option<PendingCopy> {
        if !self.is_ready() {
            return None;
        }
        if self.index().is_cut_off(key, least) {
            self.drop_damaged(key);
            return None;
        }
        let begins = self.index().begin(key, name_of(key)?, is_prefetched);
        begins.then(|| PendingCopy { copies: self.clone(), key: key.clone(), is_settled: false })
    }

    /// Drops a damaged copy, or a copy that must not be read, also while the copy is being made.
    pub(super) fn invalidate(&self, key: &Key) {
        if self.drop_copy(key) {
            self.count(|counts| counts.invalidated += 1);
            tracing::debug!(store = %self.inner.store, %key, "a reader asked for the object itself: its copy is dropped");
        }
    }

    /// Serves no copy of a deleted object from now on.
    pub(super) fn cancel(&self, key: &Key) {
        self.index().invalidate(key);
    }

    /// Removes the copy of a deleted object.
    pub(super) async fn remove(&self, key: &Key) {
        self.cancel(key);
        if let Some(removal) = self.remove_stale(key) {
            // The removal goes on when this future is dropped.
            let _ = removal.await;
        }
    }

    /// Removes leftovers of a prefix without copies, such as empty folders.
    pub(super) async fn prune(&self, prefix: &Prefix) {
        if !self.is_rested() {
            return;
        }
        let below = match prefix.as_str() {
            "" => Prefix::new(COPIES),
            prefix => Prefix::new(format!("{COPIES}/{prefix}")),
        };
        // A key with copies is short enough.
        let Ok(below) = below else { return };
        let prune = self.inner.store.prune(&below);
        if let Err(error) = self.within(WRITE_TIMEOUT, "remove folders of", prune).await {
            self.failed(&error);
        }
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> CopyCounts {
        let used = self.index().used();
        CopyCounts { used, ..*self.locked_counts() }
    }

    /// Whether the store can be used now. Begins the listing of the store where that is to do.
    pub(super) fn is_ready(&self) -> bool {
        if !self.is_rested() {
            return false;
        }
        let mut health = self.health();
        if health.listing == Listing::ToDo {
            health.listing = Listing::Running;
            let copies = self.clone();
            dl_runtime::spawn(async move { copies.find_copies().await });
        }
        health.listing == Listing::Done
    }

    /// Waits until no copy is being made or removed.
    #[cfg(test)]
    pub(super) async fn quiet(&self) {
        while self.index().is_busy() || self.health().listing == Listing::Running {
            tokio::task::yield_now().await;
        }
    }

    fn is_rested(&self) -> bool {
        self.inner.clock.monotonic() >= self.health().rests_until
    }

    /// The index, locked.
    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        locked(&self.inner.index)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        locked(&self.inner.health)
    }

    fn locked_counts(&self) -> MutexGuard<'_, CopyCounts> {
        locked(&self.inner.counts)
    }

    fn count(&self, add: impl FnOnce(&mut CopyCounts)) {
        add(&mut self.locked_counts());
    }

    fn failed(&self, error: &Error) {
        self.count(|counts| counts.failures += 1);
        let now = self.inner.clock.monotonic();
        let mut health = self.health();
        if now >= health.rests_until {
            let why = error.source.as_deref().map(ToString::to_string).unwrap_or_default();
            tracing::warn!(store = %self.inner.store, %error, why, "the fast store failed; it is not used for {REST:?}, then tried again");
        }
        health.rests_until = now + REST;
    }

    /// A call of the store, within its threads and a time limit.
    async fn within<T>(
        &self,
        timeout: Duration,
        action: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Inner { store, threads, clock, .. } = &*self.inner;
        let deadline = Deadline::after(&**clock, timeout);
        let done = deadline.bound(&**clock, threads.within(call)).await;
        done.map_err(|elapsed| Error::because(Kind::Unavailable, action, store, elapsed))?
    }

    /// Takes in copies of earlier processes, and removes all else below [`COPIES`] and above the quota.
    pub(super) async fn find_copies(&self) {
        let mut useless = Vec::new();
        let below = Prefix::new(COPIES).expect("the name of the folder is a key");
        let mut listed = self.inner.store.list(&below);
        let ended = loop {
            // A long listing is not a hanging one: the time limit is for each object.
            match self.within(WRITE_TIMEOUT, "list copies in", listed.try_next()).await {
                Ok(Some(ObjectInfo { key: name, size })) => match original_of(&name) {
                    Some(key) => self.index().found(key, name, size),
                    None => useless.push(name),
                },
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        for name in useless {
            let delete = self.inner.store.delete(&name);
            if let Err(error) = self.within(WRITE_TIMEOUT, "remove from", delete).await {
                self.failed(&error);
                break;
            }
        }
        self.health().listing = if ended.is_ok() { Listing::Done } else { Listing::ToDo };
        if let Err(error) = &ended {
            self.failed(error);
        }
        loop {
            let excess = self.index().excess();
            match excess {
                Some(key) if self.delete(&key).await => {}
                // After a failure, the copies go as new ones are made.
                _ => break,
            }
        }
        if ended.is_ok() {
            // Other servers delete datasets, too.
            self.prune(&Prefix::ROOT).await;
        }
    }

    /// A copy has another length than its object.
    fn drop_damaged(&self, key: &Key) {
        if self.drop_copy(key) {
            self.count(|counts| counts.invalidated += 1);
            tracing::warn!(store = %self.inner.store, %key, "a copy is damaged: it is dropped, and the object read again");
        }
    }

    /// Serves a copy no more, and removes it in the background. Whether it was served.
    fn drop_copy(&self, key: &Key) -> bool {
        let was_served = self.index().invalidate(key);
        self.remove_stale(key);
        was_served
    }

    /// Removes a stale copy in the background, unless another task does.
    fn remove_stale(&self, key: &Key) -> Option<JoinHandle<bool>> {
        if !self.is_rested() || !self.index().claim(key) {
            return None;
        }
        let (copies, key) = (self.clone(), key.clone());
        Some(dl_runtime::spawn(async move { copies.delete(&key).await }))
    }

    /// Deletes a claimed copy. False after a failure: the next copy that is made tries again.
    async fn delete(&self, key: &Key) -> bool {
        let Some(name) = name_of(key) else { return false };
        let delete = self.inner.store.delete(&name);
        match self.within(WRITE_TIMEOUT, "remove a copy from", delete).await {
            Ok(()) => {
                self.index().removed(key);
                true
            }
            Err(error) => {
                self.index().unclaim(key);
                self.failed(&error);
                false
            }
        }
    }

    /// Makes room for a pending copy.
    async fn make_room(&self, key: &Key, size: u64) -> bool {
        let now = self.inner.clock.monotonic();
        let Some(evicted) = self.index().reserve(key, size, now) else { return false };
        let mut has_room = true;
        for other in evicted {
            if has_room {
                has_room = self.delete(&other).await;
            } else {
                self.index().unclaim(&other);
            }
        }
        has_room
    }
}

impl PendingCopy {
    /// The object.
    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// Writes the copy, if there is room. `body` is all of the object.
    pub(super) async fn fill(mut self, body: Bytes) {
        let Self { copies, key, is_settled } = &mut self;
        let Some(name) = name_of(key) else { return };
        if !copies.is_rested() || !copies.make_room(key, body.len() as u64).await {
            return;
        }
        let create = copies.inner.store.create(&name, body);
        let created = copies.within(WRITE_TIMEOUT, "write a copy to", create).await;
        *is_settled = true;
        match created {
            Ok(()) => {}
            // The copy of an earlier write whose answer was lost.
            Err(error) if error.kind == Kind::Exists => {}
            Err(error) => {
                copies.failed(&error);
                return copies.index().write_failed(key);
            }
        }
        let is_served = copies.index().written(key, copies.inner.clock.monotonic());
        if is_served {
            copies.count(|counts| counts.made += 1);
        } else {
            copies.remove_stale(key);
        }
    }
}

impl Drop for PendingCopy {
    fn drop(&mut self) {
        if !self.is_settled {
            self.copies.index().abandon(&self.key);
        }
    }
}

impl fmt::Display for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.store.fmt(f)
    }
}

/// The name of a copy; none where the key is too long.
pub(super) fn name_of(key: &Key) -> Option<Key> {
    Key::new(format!("{COPIES}/{key}{SUFFIX}")).ok()
}

/// The object of a copy.
pub(super) fn original_of(name: &Key) -> Option<Key> {
    let key = name.as_str().strip_prefix(COPIES)?.strip_prefix('/')?.strip_suffix(SUFFIX)?;
    Key::new(key).ok()
}

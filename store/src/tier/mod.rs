//! A fast store in front of a slow one (paper, Figure 4): what is read is brought over, whole, in
//! the background, with what belongs to it, and read from there the next time.
//!
//! Must hold: the slow store is the truth, and says what is created, deleted and listed; the fast
//! one holds copies and its failures cost time only. Bytes that it did not get are not given out,
//! but for those that nobody doubts and that change within a quarter of an hour after a check
//! (`marks`). Only exact ranges come from copies, and keys have other bytes only through this layer.

mod along;
mod copy;
mod index;
mod marks;
mod read;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dl_runtime::blocking::Door;
use dl_runtime::{Clock, Deadline};
use futures::future::ready;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;

use self::along::Along;
pub use self::along::Group;
pub use self::copy::COPIES;
use self::index::Index;
use crate::range::Span;
use crate::{ByteRange, Error, Key, Kind, ObjectInfo, ObjectRange, Prefix, Store, StoreExt};

/// Objects that are brought over at once, each in memory as a whole.
const BROUGHT_AT_ONCE: usize = 2;

/// Bytes of an object that is no larger than usual.
const USUAL: u64 = 4 << 20;

/// A fast store that takes longer to read is slow or stuck; the slow store is asked instead.
const READ_PATIENCE: Duration = Duration::from_secs(2);

/// For a write or a removal behind the backs of the readers.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// After a failure the fast store is left alone for this long.
const RESTED: Duration = Duration::from_secs(10);

/// File calls of the fast store that run at once: enough to keep a fast disk busy. No more threads are
/// lost to one that hangs.
const PLACES: usize = 32;

/// Objects of one prefix that are looked at at once.
const LOOKED_AT_ONCE: usize = 8;

/// What a [`TierStore`] did since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Ranges read from the fast store.
    pub hits: u64,
    /// Exact ranges read from the slow store.
    pub misses: u64,
    /// Objects brought over.
    pub brought: u64,
    /// Failures of the fast store.
    pub failures: u64,
    /// Copies that were damaged, and were dropped.
    pub rotten: u64,
    /// Bytes of all copies.
    pub used: u64,
}

/// What [`TierStore::bring`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// Bytes of the objects that are in the fast store.
    pub bytes: u64,
    /// Objects that could not be brought over, for want of room or of an answer.
    pub left_out: u64,
}

/// Reads what it can from a fast store, and everything else from the slow one.
#[derive(Debug)]
pub struct TierStore {
    tier: Arc<Tier>,
}

#[derive(Debug)]
struct Tier {
    slow: Arc<dyn Store>,
    fast: Arc<dyn Store>,
    /// What every call of the fast store goes through, so that one that hangs holds up nobody else.
    door: Door,
    clock: Arc<dyn Clock>,
    index: Mutex<Index>,
    bringing: Semaphore,
    along: Along,
    health: Mutex<Health>,
    hits: AtomicU64,
    misses: AtomicU64,
    brought: AtomicU64,
    failures: AtomicU64,
    rotten: AtomicU64,
}

#[derive(Debug)]
struct Health {
    /// When a fast store that failed is tried again.
    rests_until: Duration,
    /// Why it failed, which is told once until a copy was made again.
    told: Option<String>,
    stock: Stock,
}

/// What is known of what the fast store holds. Nothing is read from it or written to it before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stock {
    Unknown,
    Counting,
    Known,
}

impl TierStore {
    /// Puts `fast` before `slow`, with at most `quota` bytes of copies in it, below `copies/`. Those
    /// of an earlier process count; they are found in the background. Needs a tokio runtime.
    pub fn new(
        slow: Arc<dyn Store>,
        fast: Arc<dyn Store>,
        quota: u64,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::of_groups(slow, fast, quota, clock, |_| None)
    }

    /// The same; what is in one group with an object whose files are read is brought over as well, as
    /// far as there is room.
    pub fn of_groups(
        slow: Arc<dyn Store>,
        fast: Arc<dyn Store>,
        quota: u64,
        clock: Arc<dyn Clock>,
        group: Group,
    ) -> Self {
        let tier = Arc::new(Tier {
            slow,
            fast,
            door: Door::new(PLACES),
            clock,
            index: Mutex::new(Index::new(quota)),
            bringing: Semaphore::new(BROUGHT_AT_ONCE),
            along: Along::new(group),
            health: Mutex::new(Health {
                rests_until: Duration::ZERO,
                told: None,
                stock: Stock::Unknown,
            }),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            brought: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            rotten: AtomicU64::new(0),
        });
        tier.is_ready();
        Self { tier }
    }

    /// Keeps what lies below these prefixes, instead of what it was last told to keep: once it is
    /// there, it goes for no other object, and others go for it, also those that are being read.
    pub fn keep(&self, prefixes: Vec<Prefix>) {
        self.tier.index().keep(prefixes);
    }

    /// Brings all objects below a prefix over that are not there. Objects that come later are for
    /// the next call.
    ///
    /// # Errors
    /// As the listing fails: what it had said until then is brought over, and what it did not say
    /// is for the next call.
    pub async fn bring(&self, prefix: &Prefix) -> Result<Kept, Error> {
        let tier = &self.tier;
        while !tier.is_ready() {
            tier.clock.sleep(RESTED).await;
        }
        let mut cut = None;
        let listed = tier.slow.list(prefix).filter_map(|object| {
            // A listing ends with its error.
            ready(object.map_err(|error| cut = Some(error)).ok())
        });
        let looked_at = listed.map(|ObjectInfo { key, size }| async move {
            tier.index().prove(&key);
            if let Some(name) = copy::name(&key)
                && tier.index().begin(&key, name.clone())
            {
                // It goes on when nobody waits for it any more.
                let _ = tier.send_for(key.clone(), name).await;
            }
            (tier.index().has(&key), size)
        });
        let looked_at = looked_at.buffer_unordered(LOOKED_AT_ONCE);
        let kept = looked_at.fold(Kept::default(), |mut kept, (is_there, size)| {
            match is_there {
                true => kept.bytes += size,
                false => kept.left_out += 1,
            }
            ready(kept)
        });
        let kept = kept.await;
        cut.map_or(Ok(kept), Err)
    }

    /// What it did so far.
    pub fn counts(&self) -> TierCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TierCounts {
            hits: read(&self.tier.hits),
            misses: read(&self.tier.misses),
            brought: read(&self.tier.brought),
            failures: read(&self.tier.failures),
            rotten: read(&self.tier.rotten),
            used: self.tier.index().used(),
        }
    }
}

impl Tier {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_rested(&self) -> bool {
        self.clock.monotonic() >= self.health().rests_until
    }

    /// Whether the fast store can be used now. Has it counted if that was not done.
    fn is_ready(self: &Arc<Self>) -> bool {
        if !self.is_rested() {
            return false;
        }
        let mut health = self.health();
        if health.stock == Stock::Unknown {
            health.stock = Stock::Counting;
            let tier = Arc::clone(self);
            dl_runtime::spawn(async move { tier.take_stock().await });
        }
        health.stock == Stock::Known
    }

    fn failed(&self, error: &Error) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.monotonic();
        let mut health = self.health();
        let why = error.source.as_deref().map(ToString::to_string).unwrap_or_default();
        if now >= health.rests_until && health.told.as_ref() != Some(&why) {
            tracing::warn!(store = %self.fast, %error, why, "the fast store failed; it is left alone for {RESTED:?}, and tried again");
            health.told = Some(why);
        }
        health.rests_until = now + RESTED;
        drop(health);
        self.index().distrust();
    }

    /// Asks the fast store. All that is asked of it goes through here, also the opening of one that
    /// is not open yet, but for the first try to, which may be begun before.
    async fn in_time<T>(
        &self,
        patience: Duration,
        action: &'static str,
        work: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let deadline = Deadline::after(&*self.clock, patience);
        let done = deadline.bound(&*self.clock, self.door.within(work)).await;
        done.map_err(|elapsed| Error::because(Kind::Unavailable, action, &self.fast, elapsed))
    }

    async fn take_stock(&self) {
        let mut useless = Vec::new();
        let copies = Prefix::new(COPIES).expect("the name of the folder is a key");
        let mut listed = self.fast.list(&copies);
        let counted = loop {
            // There may be very many: what must not take long is to hear of the next one.
            let next = self.in_time(WRITE_PATIENCE, "list copies in", listed.try_next()).await;
            match next.and_then(|next| next) {
                Ok(Some(ObjectInfo { key: name, size })) => {
                    let found = |key| self.index().found(ObjectInfo { key, size }, name.clone());
                    if !copy::original(&name).is_some_and(found) {
                        useless.push(name);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // Room that is not counted.
        for name in useless {
            let removed =
                self.in_time(WRITE_PATIENCE, "remove from", self.fast.delete(&name)).await;
            if let Err(error) = removed.and_then(|removed| removed) {
                self.failed(&error);
                break;
            }
        }
        let stock = if counted.is_ok() { Stock::Known } else { Stock::Unknown };
        self.health().stock = stock;
        if let Err(error) = &counted {
            self.failed(error);
        }
        loop {
            let beyond = self.index().beyond();
            match beyond {
                Some(key) if self.remove(&key).await => {}
                // The rest goes as other objects come.
                _ => break,
            }
        }
        if counted.is_ok() {
            // Of datasets that other servers deleted, too.
            self.prune(&copies).await;
        }
    }

    /// Removes the folders that have no copies.
    async fn prune(&self, copies: &Prefix) {
        let pruned = self.in_time(WRITE_PATIENCE, "remove folders of", self.fast.prune(copies));
        if let Err(error) = pruned.await.and_then(|pruned| pruned) {
            self.failed(&error);
        }
    }

    /// A copy is not what was written.
    fn rot(self: &Arc<Self>, key: &Key) {
        if self.drop_copy(key) {
            self.rotten.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(store = %self.fast, %key, "a copy is damaged: dropped and read again");
        }
    }

    /// Has a copy removed that is not to be served. Whether it was.
    fn drop_copy(self: &Arc<Self>, key: &Key) -> bool {
        let was_served = self.index().give_up(key);
        self.send_away(key);
        was_served
    }

    /// Removes a copy that was given up, in the background, unless somebody does.
    fn send_away(self: &Arc<Self>, key: &Key) -> Option<JoinHandle<bool>> {
        if !self.is_rested() || !self.index().claim(key) {
            return None;
        }
        let (tier, key) = (Arc::clone(self), key.clone());
        Some(dl_runtime::spawn(async move { tier.remove(&key).await }))
    }

    /// Has the objects of these ranges brought over.
    fn bring(self: &Arc<Self>, ranges: &[ObjectRange], read: &[Result<Bytes, Error>]) {
        let is_exact = |range: &ObjectRange| matches!(range.range.0, Span::Exact { .. });
        let read = ranges.iter().zip(read);
        let missed = read.filter(|(range, result)| result.is_ok() && is_exact(range));
        let missed: Vec<&ObjectRange> = missed.map(|(range, _)| range).collect();
        self.misses.fetch_add(missed.len() as u64, Ordering::Relaxed);
        if missed.is_empty() || !self.is_ready() {
            return;
        }
        for ObjectRange { key, range } in missed {
            let is_cut_off = match range.0 {
                Span::Exact { end, .. } => self.index().is_cut_off(key, end),
                Span::UpTo(_) => false,
            };
            if is_cut_off {
                self.rot(key);
            } else if let Some(name) = copy::name(key)
                && self.index().begin(key, name.clone())
            {
                self.send_for(key.clone(), name);
            }
        }
    }

    /// Brings over an object that was said to be coming, in the background.
    fn send_for(self: &Arc<Self>, key: Key, name: Key) -> JoinHandle<()> {
        let tier = Arc::clone(self);
        dl_runtime::spawn(async move {
            tier.fetch(&key, &name).await;
            tier.index().end();
        })
    }

    /// All of an object, with its place in memory. It is there twice when its copy is made, so
    /// a large one comes alone.
    async fn body(&self, key: &Key) -> Option<(Bytes, SemaphorePermit<'_>)> {
        let place = self.bringing.acquire().await.expect("the semaphore is never closed");
        let usual = ByteRange(Span::UpTo(USUAL + 1));
        let body = self.slow.read_one(key, usual).await.ok()?;
        if body.len() as u64 <= USUAL {
            return Some((body, place));
        }
        drop((body, place));
        let all = self.bringing.acquire_many(BROUGHT_AT_ONCE as u32).await;
        let all = all.expect("the semaphore is never closed");
        Some((self.slow.read_all(key).await.ok()?, all))
    }

    async fn fetch(self: &Arc<Self>, key: &Key, name: &Key) {
        let copy = match self.body(key).await {
            Some((body, place)) if self.is_rested() => (copy::of(key, &body), place),
            // Deleted meanwhile, or not to be had: whoever reads it next is told, or tries again.
            Some(_) | None => return self.index().fail(key, false),
        };
        let (copy, _place) = copy;
        let now = self.clock.monotonic();
        let Some(in_the_way) = self.index().reserve(key, copy.len() as u64, now) else {
            return self.index().fail(key, false);
        };
        let mut has_room = true;
        for other in in_the_way {
            if has_room {
                has_room = self.remove(&other).await;
            } else {
                self.index().stays(&other);
            }
        }
        if !has_room {
            return self.index().fail(key, false);
        }
        let create = self.fast.create(name, copy);
        let created = self.in_time(WRITE_PATIENCE, "write a copy to", create).await;
        match created.and_then(|created| created) {
            Ok(()) => {}
            // From before: the same bytes.
            Err(error) if error.kind == Kind::Exists => {}
            Err(error) => {
                self.failed(&error);
                return self.index().fail(key, true);
            }
        }
        let is_wanted = self.index().arrive(key, self.clock.monotonic());
        if is_wanted {
            self.brought.fetch_add(1, Ordering::Relaxed);
            self.health().told = None;
        } else {
            self.send_away(key);
        }
    }

    /// Removes a copy that was claimed. False when that failed: it is tried again before the next
    /// object comes.
    async fn remove(&self, key: &Key) -> bool {
        let Some(name) = copy::name(key) else { return false };
        let removed = self.in_time(WRITE_PATIENCE, "remove a copy from", self.fast.delete(&name));
        match removed.await.and_then(|removed| removed) {
            Ok(()) => {
                self.index().removed(key);
                true
            }
            Err(error) => {
                self.index().stays(key);
                self.failed(&error);
                false
            }
        }
    }
}

impl fmt::Display for TierStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tier({}, {})", self.tier.fast, self.tier.slow)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Store for TierStore {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        self.tier.slow.create(key, body).await
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        self.tier.read(wanted).await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        // Before, as this future may be dropped on the way; and after, as the object may have been
        // brought over meanwhile. What starts to come later finds the object deleted. A copy that
        // can't be removed is not served either.
        self.tier.index().give_up(key);
        let deleted = self.tier.slow.delete(key).await;
        self.tier.index().give_up(key);
        if let Some(removed) = self.tier.send_away(key) {
            // It goes on when nobody waits for it any more.
            let _ = removed.await;
        }
        deleted
    }

    async fn settle(&self, keys: &[Key]) -> Result<(), Error> {
        self.tier.slow.settle(keys).await
    }

    async fn prune(&self, prefix: &Prefix) -> Result<(), Error> {
        let pruned = self.tier.slow.prune(prefix).await;
        if let Ok(copies) = Prefix::new(format!("{COPIES}/{}", prefix.as_str()))
            && self.tier.is_rested()
        {
            self.tier.prune(&copies).await;
        }
        pruned
    }

    fn doubt(&self, key: &Key) {
        self.tier.index().doubt(key);
        self.tier.slow.doubt(key);
    }

    fn forsake(&self, key: &Key) {
        self.tier.drop_copy(key);
        self.tier.slow.forsake(key);
    }

    fn foresee(&self, key: &Key) {
        self.tier.bring_along(key);
        self.tier.slow.foresee(key);
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>> {
        self.tier.slow.list(prefix)
    }
}

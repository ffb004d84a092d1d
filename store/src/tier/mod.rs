//! A fast store in front of a slow store (paper, Figure 4): an object that is read is copied to the fast
//! store in the background, and read from there the next time.
//!
//! Must hold: the slow store is the truth, and alone creates, deletes and lists objects. The fast store
//! holds copies, and its failures cost time only. Only exact ranges come from copies, so that a read
//! from the first byte always reads the object itself. Bytes of a copy are not checked here: a reader
//! whose checksum does not match calls `invalidate` and reads again.

mod copies;
mod group_prefetch;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use dl_runtime::Clock;
use futures::StreamExt;
use futures::future::ready;
use futures::stream::BoxStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

pub use self::copies::{COPIES, CopyCounts};
use self::copies::{Copies, PendingCopy};
pub use self::group_prefetch::Group;
use self::group_prefetch::GroupPrefetch;
use crate::range::Span;
use crate::{ByteRange, Error, Key, Kind, ObjectInfo, ObjectRange, Prefix, Store, StoreExt};

/// Whole objects in memory for their copies.
const OBJECTS_MAX: usize = 2;

/// Bytes of an object of the usual size, at most. A larger object is in memory alone.
const USUAL: u64 = 4 << 20;

/// A read of so many bytes of an object of the usual size reads the whole object.
const MOST: u64 = USUAL / 2;

/// Objects below a prefix that are looked up at once.
const LOOKED_UP_AT_ONCE: usize = 8;

/// The result of [`TierStore::copy_all`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// Bytes of the objects that have a copy.
    pub bytes: u64,
    /// Objects without a copy, for want of room or of an answer.
    pub left_out: u64,
}

/// A store that reads from copies in a fast store where possible, and from the slow store otherwise.
#[derive(Debug)]
pub struct TierStore {
    tier: Arc<Tier>,
}

#[derive(Debug)]
struct Tier {
    slow: Arc<dyn Store>,
    copies: Copies,
    clock: Arc<dyn Clock>,
    /// Bounds the whole objects in memory.
    objects: Arc<Semaphore>,
    prefetch: GroupPrefetch,
}

/// The result of a range.
type Read = Result<Bytes, Error>;

/// A read of a whole object, for ranges of it and for its copy.
struct WholeRead {
    pending: PendingCopy,
    memory: OwnedSemaphorePermit,
}

impl TierStore {
    /// Puts `fast` in front of `slow`, with at most `quota` bytes of copies below [`COPIES`]. Needs a
    /// tokio runtime.
    pub fn new(
        slow: Arc<dyn Store>,
        fast: Arc<dyn Store>,
        quota: u64,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::with_groups(slow, fast, quota, clock, |_| None)
    }

    /// The same; when files of an object are read, the other objects of its group are copied as well, as
    /// far as there is free room.
    pub fn with_groups(
        slow: Arc<dyn Store>,
        fast: Arc<dyn Store>,
        quota: u64,
        clock: Arc<dyn Clock>,
        group: Group,
    ) -> Self {
        let copies = Copies::new(fast, quota, Arc::clone(&clock));
        let objects = Arc::new(Semaphore::new(OBJECTS_MAX));
        let prefetch = GroupPrefetch::new(group);
        Self { tier: Arc::new(Tier { slow, copies, clock, objects, prefetch }) }
    }

    /// Evicts no copy below these prefixes for others, in place of the prefixes of the last call. Other
    /// copies are evicted for them, also copies that are being read.
    pub fn keep(&self, prefixes: Vec<Prefix>) {
        self.tier.copies.index().keep(prefixes);
    }

    /// Copies all objects below a prefix without copies. Objects that are created later are for the next
    /// call.
    ///
    /// # Errors
    /// The failure of the listing. The objects listed before are copied.
    pub async fn copy_all(&self, prefix: &Prefix) -> Result<Kept, Error> {
        let tier = &self.tier;
        while !tier.copies.is_ready() {
            tier.clock.sleep(copies::REST).await;
        }
        let mut failure = None;
        let listed = tier.slow.list(prefix).filter_map(|object| {
            // A listing ends with its error.
            ready(object.map_err(|error| failure = Some(error)).ok())
        });
        let copied = listed.map(|ObjectInfo { key, size }| async move {
            if let Some(pending) = tier.copies.begin(&key, size, false) {
                // The task goes on when this future is dropped.
                let _ = tier.copy_in_background(pending).await;
            }
            (tier.copies.index().has(&key), size)
        });
        let copied = copied.buffer_unordered(LOOKED_UP_AT_ONCE);
        let kept = copied.fold(Kept::default(), |mut kept, (has_copy, size)| {
            match has_copy {
                true => kept.bytes += size,
                false => kept.left_out += 1,
            }
            ready(kept)
        });
        let kept = kept.await;
        failure.map_or(Ok(kept), Err)
    }

    /// The counts so far.
    pub fn counts(&self) -> CopyCounts {
        self.tier.copies.counts()
    }
}

impl Tier {
    async fn read(self: &Arc<Self>, wanted: &[ObjectRange]) -> Vec<Read> {
        let given = self.copies.read(wanted).await;
        let missed = wanted.iter().zip(&given).filter(|(_, given)| given.is_none());
        let missed: Vec<ObjectRange> = missed.map(|(range, _)| range.clone()).collect();
        if missed.is_empty() {
            return given.into_iter().flatten().map(Ok).collect();
        }
        let mut objects = self.read_slow(&missed).await.into_iter();
        let no_answer = |key| Err(Error::new(Kind::Corrupt, "read object", key));
        let read = wanted.iter().zip(given).map(|(range, given)| match given {
            Some(bytes) => Ok(bytes),
            None => objects.next().unwrap_or_else(|| no_answer(&range.key)),
        });
        read.collect()
    }

    /// Reads ranges from the slow store and has their objects copied, most wanted ones with the same read.
    async fn read_slow(self: &Arc<Self>, missed: &[ObjectRange]) -> Vec<Read> {
        let _foreground = Arc::clone(&self.prefetch.foreground_reads);
        let runs = || missed.chunk_by(|one, next| one.key == next.key);
        let mut asked = Vec::with_capacity(missed.len());
        let mut whole_reads = Vec::new();
        for run in runs() {
            let whole_read = self.whole_read(run);
            match &whole_read {
                Some(WholeRead { pending, .. }) => asked.push(usual(pending.key())),
                None => asked.extend_from_slice(run),
            }
            whole_reads.push(whole_read);
        }
        let mut answers = self.slow.read(&asked).await.into_iter();
        let mut results: Vec<Option<Read>> = Vec::with_capacity(missed.len());
        for (run, whole_read) in runs().zip(whole_reads) {
            match whole_read {
                Some(whole_read) => {
                    let body = answers.next().and_then(Result::ok).unwrap_or_default();
                    results.extend(run.iter().map(|range| Some(Ok(cut(&body, range.range)?))));
                    self.fill(whole_read, body);
                }
                None => {
                    let read: Vec<Option<Read>> = run.iter().map(|_| answers.next()).collect();
                    self.copy_object_of(run, &read);
                    results.extend(read);
                }
            }
        }
        // An object that is missing, or shorter than a range: the slow store gives the error of each range.
        let open = missed.iter().zip(&results).filter(|(_, result)| result.is_none());
        let open: Vec<ObjectRange> = open.map(|(range, _)| range.clone()).collect();
        if open.is_empty() {
            return results.into_iter().flatten().collect();
        }
        let mut again = self.slow.read(&open).await.into_iter();
        results.into_iter().filter_map(|result| result.or_else(|| again.next())).collect()
    }

    /// Whether an object is read as a whole: most of the object is wanted, and memory is free.
    fn whole_read(&self, run: &[ObjectRange]) -> Option<WholeRead> {
        let wanted: u64 =
            run.iter().map(|range| range.range.max_len()).fold(0, u64::saturating_add);
        let ends = run.iter().map(|range| range.range.exact_end());
        let end = ends.collect::<Option<Vec<u64>>>()?.into_iter().max()?;
        if wanted < MOST || end > USUAL {
            return None;
        }
        let memory = Arc::clone(&self.objects).try_acquire_owned().ok()?;
        let pending = self.copies.begin(&run.first()?.key, end, false)?;
        Some(WholeRead { pending, memory })
    }

    /// Makes the copy of an object that was read in the foreground; `body` is empty after a failure.
    fn fill(self: &Arc<Self>, WholeRead { pending, memory }: WholeRead, body: Bytes) {
        if body.len() as u64 > USUAL {
            drop(memory);
            self.copy_in_background(pending);
        } else if !body.is_empty() {
            dl_runtime::spawn(async move {
                pending.fill(body).await;
                drop(memory);
            });
        }
    }

    /// Copies the object of some ranges in the background, if any range was read.
    fn copy_object_of(self: &Arc<Self>, run: &[ObjectRange], read: &[Option<Read>]) {
        let read = run.iter().zip(read).filter(|(_, read)| matches!(read, Some(Ok(_))));
        let end = read.filter_map(|(range, _)| range.range.exact_end()).max();
        if let (Some(range), Some(end)) = (run.first(), end)
            && let Some(pending) = self.copies.begin(&range.key, end, false)
        {
            self.copy_in_background(pending);
        }
    }

    /// Reads an object and makes its copy.
    fn copy_in_background(self: &Arc<Self>, pending: PendingCopy) -> JoinHandle<()> {
        let tier = Arc::clone(self);
        dl_runtime::spawn(async move {
            // An object that can't be read has no copy: its next reader gets the error.
            if let Some((body, _memory)) = tier.read_object(pending.key()).await {
                pending.fill(body).await;
            }
        })
    }

    /// All of an object, with its memory.
    async fn read_object(&self, key: &Key) -> Option<(Bytes, OwnedSemaphorePermit)> {
        let memory = |objects: usize| Arc::clone(&self.objects).acquire_many_owned(objects as u32);
        let one = memory(1).await.expect("the semaphore is never closed");
        let body = self.slow.read_one(key, usual(key).range).await.ok()?;
        if body.len() as u64 <= USUAL {
            return Some((body, one));
        }
        drop((body, one));
        let all = memory(OBJECTS_MAX).await.expect("the semaphore is never closed");
        Some((self.slow.read_all(key).await.ok()?, all))
    }
}

/// All of an object of the usual size, and of a larger one a byte more.
fn usual(key: &Key) -> ObjectRange {
    ObjectRange { key: key.clone(), range: ByteRange(Span::UpTo(USUAL + 1)) }
}

/// A range out of the first bytes of an object.
fn cut(body: &Bytes, range: ByteRange) -> Option<Bytes> {
    let range = range.within(body.len() as u64)?;
    let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
    Some(body.slice(start..end))
}

impl fmt::Display for TierStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tier({}, {})", self.tier.copies, self.tier.slow)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Store for TierStore {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        self.tier.slow.create(key, body).await
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Read> {
        self.tier.read(wanted).await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        // Before, as this future may be dropped during the deletion. Again afterwards, as a copy may have
        // begun meanwhile; a copy that begins later finds the object deleted.
        self.tier.copies.cancel(key);
        let deleted = self.tier.slow.delete(key).await;
        self.tier.copies.remove(key).await;
        deleted
    }

    async fn make_durable(&self, keys: &[Key]) -> Result<(), Error> {
        self.tier.slow.make_durable(keys).await
    }

    async fn prune(&self, prefix: &Prefix) -> Result<(), Error> {
        let pruned = self.tier.slow.prune(prefix).await;
        self.tier.copies.prune(prefix).await;
        pruned
    }

    fn invalidate(&self, key: &Key) {
        self.tier.copies.invalidate(key);
        self.tier.slow.invalidate(key);
    }

    fn will_read(&self, key: &Key) {
        self.tier.prefetch_group(key);
        self.tier.slow.will_read(key);
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>> {
        self.tier.slow.list(prefix)
    }
}

//! The stores, the clock and the limits of all requests.
//!
//! Must hold: all that a server keeps beside the stores is a copy or a count, so that any server can
//! answer any request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dl_format::{ChunkId, DatasetId, ObjectKind, dataset_prefix, parse_object_key};
use dl_meta::MetaStore;
use dl_proto::Kind;
use dl_runtime::{Clock, Random};
use dl_store::{Key, Prefix, Store};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;
use crate::settings::Settings;
use crate::shared::disk_reserve::DiskReserve;
use crate::shared::name_cache::NameCache;
use crate::shared::replaced::Replaced;

/// Bounds of memory and waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of chunks being received or committed.
    pub write_bytes: u32,
    /// Bytes of files being read or sent.
    pub read_bytes: u32,
    /// The longest wait of a request for memory, and for the next piece from its client.
    pub patience: Duration,
    /// The most time between a chunk id and the server's clock at the first piece, and until the last piece.
    pub clock_skew: Duration,
    /// Pause before a new identity or name is read back; zero where a create is atomic.
    pub read_back_delay: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            write_bytes: 64 << 20,
            read_bytes: 48 << 20,
            patience: Duration::from_secs(30),
            clock_skew: Duration::from_secs(15 * 60),
            read_back_delay: Duration::ZERO,
        }
    }
}

impl Limits {
    /// The age of an id, by a server's clock, at which no put of the id is taken any more and all work on the
    /// object has ended. The receiving server's clock may be behind the writer's and the asking server's; the
    /// chunk then takes time to arrive. Two thirds of the skew are for a commit, and for a copy of a looked-up
    /// file.
    pub(crate) fn quiet_age(&self) -> Duration {
        self.clock_skew * 4 + self.clock_skew * 2 / 3
    }
}

/// What all requests of a server share.
#[derive(Debug, Clone)]
pub struct ServerContext {
    /// The chunk store.
    pub store: Arc<dyn Store>,
    /// The metadata store.
    pub meta: Arc<dyn MetaStore>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// Bounds.
    pub limits: Limits,
    /// Disk space kept free for deletes.
    pub reserve: DiskReserve,
    /// The stored snapshots with newer versions.
    pub replaced: Replaced,
    /// Settings changed by an admin.
    pub settings: Settings,
    /// The last reading of the names.
    pub names: NameCache,
}

/// Memory for work in flight, given out in bytes.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    room: Arc<Semaphore>,
    total: Arc<AtomicU32>,
    purpose: &'static str,
}

impl Budget {
    pub(crate) fn new(total: u32, purpose: &'static str) -> Self {
        let room = Arc::new(Semaphore::new(total as usize));
        Self { room, total: Arc::new(AtomicU32::new(total)), purpose }
    }

    /// The total and the used bytes.
    pub(crate) fn total_and_used(&self) -> (u64, u64) {
        let total = u64::from(self.total.load(Ordering::Relaxed));
        (total, total.saturating_sub(self.room.available_permits() as u64))
    }

    /// Whether more than half of the memory is used.
    pub(crate) fn is_short(&self) -> bool {
        let (total, used) = self.total_and_used();
        used > total / 2
    }

    /// Changes the total. A reduction takes effect once memory is given back.
    pub(crate) fn resize(&self, total: u32) {
        let before = self.total.swap(total, Ordering::Relaxed);
        match total.checked_sub(before) {
            Some(more) => self.room.add_permits(more as usize),
            None => {
                let room = Arc::clone(&self.room);
                dl_runtime::spawn(async move {
                    if let Ok(taken) = room.acquire_many_owned(before - total).await {
                        taken.forget();
                    }
                });
            }
        }
    }

    /// Takes memory at once, if 1/`part` of the total then stays free; with 0, nothing has to.
    pub(crate) fn try_take(&self, bytes: u64, part: u32) -> Option<OwnedSemaphorePermit> {
        let total = self.total.load(Ordering::Relaxed);
        let left = u64::from(total.checked_div(part).unwrap_or_default());
        if (self.room.available_permits() as u64) < bytes.saturating_add(left) {
            return None;
        }
        Arc::clone(&self.room).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }

    /// Waits for memory; a request above the total takes the total.
    pub(crate) async fn take(
        &self,
        bytes: u64,
        context: &ServerContext,
    ) -> Result<OwnedSemaphorePermit, Error> {
        self.take_within(context.limits.patience, bytes, context).await
    }

    /// Waits for memory, for no longer than `limit`.
    pub(crate) async fn take_within(
        &self,
        limit: Duration,
        bytes: u64,
        context: &ServerContext,
    ) -> Result<OwnedSemaphorePermit, Error> {
        let total = self.total.load(Ordering::Relaxed);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(total);
        if let Ok(permit) = Arc::clone(&self.room).try_acquire_many_owned(bytes) {
            return Ok(permit);
        }
        let permit = Arc::clone(&self.room).acquire_many_owned(bytes);
        tokio::select! {
            permit = permit => Ok(permit.expect("the semaphore is never closed")),
            () = context.clock.sleep(limit) => {
                let why = format!("{total} bytes are in use after {limit:?}; try again");
                Err(Error::new(Kind::Unavailable, "wait for memory to", self.purpose, why))
            }
        }
    }
}

/// The key of an object.
pub(crate) fn object_key(dataset: DatasetId, id: ChunkId, kind: ObjectKind) -> Key {
    key(dl_format::object_key(dataset, id, kind))
}

/// A key from `dl_format`.
pub(crate) fn key(text: String) -> Key {
    Key::new(text).expect("the format's keys are plain segments")
}

/// A prefix from `dl_format`.
pub(crate) fn prefix(text: String) -> Prefix {
    Prefix::new(text).expect("the format's keys are plain segments")
}

/// The prefix of all chunks in the dataset of a chunk: a fast store takes them together.
pub fn dataset_of(chunk: &Key) -> Option<Prefix> {
    let (dataset, _, is_tombstone) = parse_object_key(chunk.as_str())?;
    (!is_tombstone).then(|| prefix(dataset_prefix(dataset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_shrinking_budget_waits_and_a_growing_one_does_not() {
        let budget = Budget::new(100, "test");
        let held = Arc::clone(&budget.room).acquire_many_owned(80).await.unwrap();
        budget.resize(50);
        tokio::task::yield_now().await;
        assert_eq!(budget.total_and_used(), (50, 50));
        drop(held);
        tokio::task::yield_now().await;
        assert_eq!(budget.total_and_used(), (50, 0));
        budget.resize(200);
        assert_eq!(budget.total_and_used(), (200, 0));
    }
}

//! A disk as a tier of the cache.
//!
//! Must hold: no call waits long for a disk, and no call blocks the runtime. Calls that hang keep a
//! limited number of threads. A failure rests the tier and is told; it fails no read.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use dl_format::DatasetId;
use dl_runtime::blocking::ThreadLimit;
use dl_runtime::{Clock, blocking, locked};
use tokio::sync::Semaphore;

use super::copy::{Access, BLOCK, CopyFile, CopyName, Unfinished, is_full};
use super::folder::{Added, Folder, InUse};
use super::health::Health;
use super::{DiskConfig, TierStatus};
use crate::pins::PinnedFiles;
use crate::place::{Eviction, WriteEnd};

/// Time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit for calls that walk a folder, or remove datasets.
const LONG_TIMEOUT: Duration = Duration::from_secs(30);

/// Chunks read and written at a time.
const READS_MAX: usize = 4;
const WRITES_MAX: usize = 2;

/// Of this many chunks, one is read from a slow disk all the same.
const SPARED_MAX: u64 = 16;

/// Interval between two checks of the free space.
const SPACE_INTERVAL: Duration = Duration::from_secs(1);

/// A disk.
#[derive(Debug)]
pub(crate) struct Tier {
    config: DiskConfig,
    eviction: Eviction,
    clock: Arc<dyn Clock>,
    /// Unset until the folder could be opened.
    folder: OnceLock<Arc<Folder>>,
    reading: Semaphore,
    writing: Semaphore,
    /// Threads of calls, also of calls that hang.
    readers: ThreadLimit,
    writers: ThreadLimit,
    health: Mutex<Health>,
    /// When the free space is checked next, in milliseconds of the clock.
    space_checked: AtomicU64,
    /// Number of chunks that asked whether the disk is slow.
    spared: AtomicU64,
    counts: TierCounts,
}

/// Counts of a tier's work.
#[derive(Debug, Default)]
struct TierCounts {
    read: AtomicU64,
    bytes_read: AtomicU64,
    written: AtomicU64,
    bytes_written: AtomicU64,
    damaged: AtomicU64,
    failed: AtomicU64,
}

/// What is read of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    Chunk,
    /// Files of this many bytes.
    Files(u64),
}

/// Why a copy gives no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The copy is gone.
    Gone,
    /// The disk rests, or the call failed.
    Resting,
    /// The call hangs.
    Hanging,
}

impl Tier {
    pub(super) fn new(config: DiskConfig, eviction: Eviction, clock: Arc<dyn Clock>) -> Self {
        Self {
            config,
            eviction,
            clock,
            folder: OnceLock::new(),
            reading: Semaphore::new(READS_MAX),
            writing: Semaphore::new(WRITES_MAX),
            readers: ThreadLimit::new(READS_MAX),
            writers: ThreadLimit::new(WRITES_MAX),
            health: Mutex::default(),
            space_checked: AtomicU64::new(0),
            spared: AtomicU64::new(0),
            counts: TierCounts::default(),
        }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        locked(&self.health)
    }

    /// The path in the settings.
    pub(crate) fn path(&self) -> &PathBuf {
        &self.config.path
    }

    /// Whether the disk rests after a failure.
    pub(super) fn is_resting(&self) -> bool {
        self.health().is_resting(self.clock.monotonic())
    }

    /// A call of a thread within a time limit; its failure rests the tier.
    async fn call<T: Send + 'static>(
        &self,
        threads: &ThreadLimit,
        timeout: Duration,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, Unread> {
        let called = tokio::select! {
            called = threads.within(blocking::run(call)) => called,
            () = self.clock.sleep(timeout) => {
                self.failed(&io::Error::other(format!("no answer for {} s", timeout.as_secs())));
                return Err(Unread::Hanging);
            }
        };
        match called {
            Ok(Ok(value)) => {
                self.health().worked();
                Ok(value)
            }
            Ok(Err(why)) => {
                self.failed(&why);
                Err(Unread::Resting)
            }
            Err(_) => Err(Unread::Resting),
        }
    }

    fn failed(&self, why: &io::Error) {
        let now = self.clock.monotonic();
        if is_full(why) {
            self.health().mark_full(why.to_string(), now);
            return;
        }
        if why.kind() != io::ErrorKind::WouldBlock {
            self.counts.failed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(folder = %self.config.path.display(), %why, "use a disk: it rests");
            self.health().failed(why.to_string(), now);
        }
    }

    /// The folder, opened by the first call.
    async fn folder(&self) -> Option<Arc<Folder>> {
        if let Some(folder) = self.folder.get() {
            return Some(Arc::clone(folder));
        }
        let DiskConfig { path, quota } = self.config.clone();
        let open = move || Folder::open(&path, quota);
        let opened = self.call(&self.readers, LONG_TIMEOUT, open).await.ok()?;
        let folder = self.folder.get_or_init(|| Arc::new(opened));
        if folder.access == Access::Buffered {
            let path = self.config.path.display();
            tracing::warn!(%path, "the disk is read through the page cache, which costs more CPU time");
        }
        if let Some(kind) = folder.network {
            let path = self.config.path.display();
            tracing::warn!(%path, kind, "the folder is on a network file system, and no local disk");
        }
        Some(Arc::clone(folder))
    }

    /// Begins to use the copies of a dataset; gives them.
    pub(super) async fn enter(
        &self,
        dataset: DatasetId,
        label: &str,
    ) -> Option<(Arc<InUse>, Vec<CopyName>)> {
        if !self.health().may_try(self.clock.monotonic()) {
            return None;
        }
        let folder = self.folder().await?;
        let now = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let label = label.to_owned();
        let enter = move || {
            let of = folder.enter(dataset, &label, now as i64)?;
            let mut copies = of.list()?;
            copies.retain(|name| !folder.is_damaged(name));
            Ok((Arc::new(of), copies))
        };
        self.call(&self.readers, LONG_TIMEOUT, enter).await.ok()
    }

    /// The copies, if they have changed since a time of the folder; with the time.
    pub(super) async fn list(
        &self,
        of: &Arc<InUse>,
        before: Option<(i64, i64)>,
    ) -> Option<((i64, i64), Vec<CopyName>)> {
        if !self.health().may_try(self.clock.monotonic()) {
            return None;
        }
        let (of, folder) = (Arc::clone(of), self.folder.get().map(Arc::clone)?);
        let list = move || {
            folder.used()?;
            of.touch()?;
            let at = of.changed_at()?;
            if Some(at) == before {
                return Ok(None);
            }
            let mut copies = of.list()?;
            copies.retain(|name| !folder.is_damaged(name));
            Ok(Some((at, copies)))
        };
        self.call(&self.readers, LONG_TIMEOUT, list).await.ok()?
    }

    /// Does `work` with the file of a copy, on a thread that may block. The work goes on without the
    /// caller if the disk hangs.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        of: &Arc<InUse>,
        name: &CopyName,
        what: Read,
        work: impl FnOnce(&CopyFile) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Unread> {
        let Ok(_turn) = self.reading.acquire().await else { return Err(Unread::Resting) };
        let began = self.clock.monotonic();
        let Some(access) = self.folder.get().map(|folder| folder.access) else {
            return Err(Unread::Resting);
        };
        if !self.health().may_try(began) {
            return Err(Unread::Resting);
        }
        let (of, to_open) = (Arc::clone(of), name.clone());
        let read = move || match CopyFile::open(&of.folder, &to_open, access) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => work(&opened?).map(Some),
        };
        let read = self.call(&self.readers, TIMEOUT, read).await?.ok_or(Unread::Gone)?;
        let bytes = match what {
            Read::Files(bytes) => bytes,
            Read::Chunk => {
                let took = self.clock.monotonic().saturating_sub(began);
                self.health().reads.add(took);
                self.counts.read.fetch_add(1, Ordering::Relaxed);
                name.bytes()
            }
        };
        self.counts.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        Ok(read)
    }

    /// Notes that a copy has wrong bytes.
    pub(super) fn mark_damaged(&self, name: &CopyName) {
        self.counts.damaged.fetch_add(1, Ordering::Relaxed);
        self.folder.get().into_iter().for_each(|folder| folder.mark_damaged(name));
    }

    /// Removes a copy with wrong bytes.
    pub(super) async fn remove_damaged(&self, of: &Arc<InUse>, name: &CopyName) {
        let Some(folder) = self.folder.get().map(Arc::clone) else { return };
        let (of, name) = (Arc::clone(of), name.clone());
        let remove = move || folder.remove_damaged(&of, &name);
        let _ = self.call(&self.writers, TIMEOUT, remove).await;
    }

    /// Removes copies.
    pub(super) async fn remove(&self, of: &Arc<InUse>, names: Vec<CopyName>) {
        let Some(folder) = self.folder.get().map(Arc::clone) else { return };
        let of = Arc::clone(of);
        let remove = move || folder.remove(&of.folder, &names);
        let _ = self.call(&self.writers, TIMEOUT, remove).await;
    }

    /// Bytes for further copies, as last known; none if nothing may be written at the moment.
    pub(super) fn room(&self) -> Option<u64> {
        let folder = self.folder.get()?;
        let may_write = self.health().may_write(self.clock.monotonic());
        may_write.then(|| self.config.quota.saturating_sub(folder.last_used()))
    }

    /// Writes a copy. No other copy leaves for an extra copy.
    pub(super) async fn write(
        &self,
        of: &Arc<InUse>,
        name: &CopyName,
        pinned: Arc<PinnedFiles>,
        is_extra: bool,
    ) -> WriteEnd {
        let Ok(_turn) = self.writing.acquire().await else { return WriteEnd::Failed };
        let Some(folder) = self.folder.get().map(Arc::clone) else { return WriteEnd::Failed };
        let bytes = name.bytes();
        let has_room = match is_extra {
            true => self.room().is_some_and(|room| room >= bytes),
            false => self.make_room(&folder, bytes).await,
        };
        if !has_room {
            return WriteEnd::Failed;
        }
        let (of, name) = (Arc::clone(of), name.clone());
        let write = move || {
            let copy = Unfinished::create(&of.folder, folder.access)?;
            let (offset, bytes) = pinned.blocks(BLOCK).ok_or(io::ErrorKind::InvalidInput)?;
            copy.write(bytes, offset, name.range.end)?;
            drop(pinned);
            folder.add(&of, &copy, &name)
        };
        match self.call(&self.writers, LONG_TIMEOUT, write).await {
            Ok(Added::New) => {
                self.counts.written.fetch_add(1, Ordering::Relaxed);
                self.counts.bytes_written.fetch_add(bytes, Ordering::Relaxed);
                WriteEnd::New
            }
            Ok(Added::There) => WriteEnd::There,
            Ok(Added::Full) | Err(_) => WriteEnd::Failed,
        }
    }

    /// Makes room for a chunk where the quota is used up, at most once in a while.
    pub(super) async fn make_room_for(&self, bytes: u64) {
        let Some(folder) = self.folder.get().map(Arc::clone) else { return };
        if self.room().is_some_and(|room| room < bytes) {
            self.make_room(&folder, bytes).await;
        }
    }

    /// Makes room for bytes; without any, the tier is full for a while.
    async fn make_room(&self, folder: &Arc<Folder>, bytes: u64) -> bool {
        let now = self.clock.monotonic();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let is_due = self.space_checked.load(Ordering::Relaxed) <= millis(now);
        let next = millis(now.saturating_add(SPACE_INTERVAL));
        let (of_folder, eviction) = (Arc::clone(folder), self.eviction);
        let make = move || match is_due {
            true => of_folder.make_room(bytes, eviction),
            false => of_folder.has_room(bytes),
        };
        let has_room = self.call(&self.writers, LONG_TIMEOUT, make).await;
        self.space_checked.fetch_max(next, Ordering::Relaxed);
        match has_room {
            Ok(false) if is_due => {
                let why = "the quota or the disk has no room".to_owned();
                self.health().mark_full(why, now);
                false
            }
            has_room => has_room == Ok(true),
        }
    }

    /// Whether to ask another source first, because reads of chunks take longer than those from the
    /// servers. A part of the reads measures the disk anew.
    pub(super) fn is_slow(&self, servers: Option<Duration>) -> bool {
        self.health().is_slower_than(servers)
            && !self.spared.fetch_add(1, Ordering::Relaxed).is_multiple_of(SPARED_MAX)
    }

    /// What is told of the tier, without a call of the disk. `servers`: how long reads of chunks from
    /// the servers take.
    pub(super) fn status(&self, servers: Option<Duration>) -> TierStatus {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (now, health, folder) = (self.clock.monotonic(), self.health(), self.folder.get());
        let access = folder.map(|folder| folder.access);
        TierStatus {
            path: self.config.path.display().to_string(),
            quota_bytes: self.config.quota,
            used_bytes: folder.map(|folder| folder.last_used()),
            chunks_read: count(&self.counts.read),
            bytes_read: count(&self.counts.bytes_read),
            chunks_written: count(&self.counts.written),
            bytes_written: count(&self.counts.bytes_written),
            damaged: count(&self.counts.damaged),
            failed: count(&self.counts.failed),
            read_micros: health.reads.median().map(|median| median.as_micros() as u64),
            is_buffered: access == Some(Access::Buffered),
            network: folder.and_then(|folder| folder.network).map(str::to_owned),
            state: health.state(now, servers).to_owned(),
            reason: health.reason(now, servers),
        }
    }
}

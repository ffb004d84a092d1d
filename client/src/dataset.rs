//! A dataset handle: what the paper's Table 3 offers for one dataset. Each call is answered by an epoch
//! or a snapshot where these can, else by the servers.
//!
//! Must hold: a handle means one dataset id for ever; when the name is deleted and created again,
//! the old handle finds nothing rather than something else.

mod cached;
mod listing;
mod open;
mod read;
mod snapshot;
mod task;

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dl_format::{Attributes, Deletions, FilePath};
use dl_proto::{Dataset as DatasetInfo, StatItem};

use crate::epoch::{Epoch, WeakEpoch};
use crate::error::Error;
use crate::path::AsPath;
use crate::process::PerProcess;
use crate::remote::{Flushed, RemoteDataset, Writer};
use crate::snapshot::Snapshot;
use crate::worker::Worker;
pub use cached::AsFile;
pub use listing::Listing;

/// What is being done, in errors.
const PUT: &str = "put";

/// A dataset at some servers. Cheap to clone; clones share one writer. Usable from any thread.
///
/// What was put is packed into chunks, which are sent when they are full; [`flush`](Self::flush)
/// and [`close`](Self::close) send the rest. What was put after the last of these calls may be
/// lost when the last handle is dropped. A process forked off this one starts with nothing to
/// send.
#[derive(Debug, Clone)]
pub struct Dataset(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    remote: Arc<RemoteDataset>,
    /// Answers reads until something is written through the handle.
    snapshot: Option<Arc<Snapshot>>,
    is_written: AtomicBool,
    /// Reads from the cache of this node.
    worker: Option<Arc<Worker>>,
    /// What reads along an order are answered from.
    epoch: PerProcess<Mutex<Option<WeakEpoch>>>,
}

/// What a deletion did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleted {
    /// Files that were deleted.
    pub deleted: u64,
    /// Paths at which no file was: nothing, or a folder.
    pub missing: Vec<FilePath>,
}

impl Dataset {
    fn new(remote: RemoteDataset) -> Self {
        Self::with(remote, None, None)
    }

    fn with(
        remote: RemoteDataset,
        snapshot: Option<Arc<Snapshot>>,
        worker: Option<Arc<Worker>>,
    ) -> Self {
        let (is_written, epoch) = (AtomicBool::new(false), PerProcess::new());
        let remote = Arc::new(remote);
        Self(Arc::new(Inner { remote, snapshot, is_written, worker, epoch }))
    }

    /// The half that talks to the servers.
    pub(crate) fn remote(&self) -> &RemoteDataset {
        &self.0.remote
    }

    /// The same dataset, answering from a snapshot of it.
    pub(crate) fn answering(&self, snapshot: Snapshot) -> Self {
        Self::with(self.0.remote.at_version(snapshot.version()), Some(Arc::new(snapshot)), None)
    }

    /// The snapshot that this handle answers from; none when it asks the servers.
    pub fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.0.snapshot.as_ref().filter(|_| !self.0.is_written.load(Ordering::Relaxed))
    }

    /// From now on reads of this process are answered from an epoch, as long as that lives.
    fn set_epoch(&self, epoch: WeakEpoch) -> Result<(), Error> {
        let slot = self.0.epoch.get_or_make(|| Ok::<_, Error>(Mutex::default()))?;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(epoch);
        Ok(())
    }

    /// The epoch that reads of this process are answered from, where its snapshot still holds.
    fn epoch(&self) -> Option<(Epoch, &Arc<Snapshot>)> {
        let slot = self.0.epoch.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some((slot.as_ref()?.upgrade()?, self.snapshot()?))
    }

    /// Whether anything was written through this handle.
    fn is_written(&self) -> bool {
        self.0.is_written.load(Ordering::Relaxed)
    }

    /// What the servers said of it when the handle was made, without its counts; the version is that
    /// of the snapshot it answers from.
    pub fn info(&self) -> &DatasetInfo {
        self.0.remote.info()
    }

    /// What the servers say of it now, without its counts.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) when it was deleted, also when its name was used again;
    /// [`Kind::NeedsRecovery`](crate::Kind::NeedsRecovery) while its metadata is being rebuilt.
    pub fn refresh(&self) -> Result<DatasetInfo, Error> {
        self.0.remote.describe(false)
    }

    /// Whether it has changed since the snapshot that this handle answers from, or since the handle
    /// was made when it has none.
    ///
    /// # Errors
    /// Those of [`refresh`](Self::refresh).
    pub fn is_stale(&self) -> Result<bool, Error> {
        Ok(self.refresh()?.version != self.info().version)
    }

    /// What the servers say of it now, with its counts, for which they may have to look at every
    /// file.
    ///
    /// # Errors
    /// Those of [`refresh`](Self::refresh).
    pub fn count(&self) -> Result<DatasetInfo, Error> {
        self.0.remote.describe(true)
    }

    /// Writes a file from memory (paper, DL_put). It is acknowledged by the next
    /// [`flush`](Self::flush). Of two puts of one path, one after the other, the second holds, unless
    /// the first one was named as failed: that one may still be written within 15 minutes, and then
    /// it is the newer one.
    ///
    /// Blocks while as many chunks are under way as the options allow.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid) for what can't be a path and for a file too large for
    /// the chunks of this dataset; and, until a flush has reported it, the error of a chunk that could
    /// not be written. Nothing is put then.
    pub fn put(
        &self,
        path: impl AsPath<FilePath>,
        attributes: Attributes,
        data: &[u8],
    ) -> Result<(), Error> {
        self.writer()?.put(&*path.as_path(PUT)?, attributes, data)
    }

    /// Writes a file of this machine, with its modification time and permission bits; gives its
    /// length in bytes. A link is followed.
    ///
    /// # Errors
    /// [`Kind::Local`](crate::Kind::Local) when it can't be read, is no regular file, or changed
    /// meanwhile; and those of [`put`](Self::put).
    pub fn put_file(&self, path: impl AsPath<FilePath>, source: &Path) -> Result<u64, Error> {
        self.writer()?.put_file(&*path.as_path(PUT)?, source)
    }

    /// Writes a file with bounded memory, however large it is: exactly `length` bytes of `reader`.
    /// It may take some 21,600 chunks, which is 84 GiB in those of the usual 4 MiB.
    ///
    /// # Errors
    /// [`Kind::Local`](crate::Kind::Local) when `reader` fails or gives fewer; and those of [`put`](Self::put).
    pub fn put_reader(
        &self,
        path: impl AsPath<FilePath>,
        attributes: Attributes,
        length: u64,
        reader: &mut dyn Read,
    ) -> Result<(), Error> {
        self.writer()?.put_reader(&*path.as_path(PUT)?, attributes, length, reader)
    }

    /// Whether a put of less than a chunk goes on at once, as far as puts of other threads leave it so.
    pub fn has_room(&self) -> bool {
        self.0.remote.started_writer().is_none_or(|writer| writer.has_room())
    }

    /// Waits until every file put before, from any thread, is acknowledged or has failed (paper,
    /// DL_flush). What is acknowledged is durable and visible to all readers.
    ///
    /// # Errors
    /// [`Kind::Local`](crate::Kind::Local) when the library can't work in this process. Files that
    /// failed are no error here: look at [`Flushed::failed`], or turn it into one by [`Flushed::check`].
    pub fn flush(&self) -> Result<Flushed, Error> {
        Ok(self.writer()?.flush())
    }

    /// Gives up what was put and is not acknowledged yet, so that whoever waits for it goes on at
    /// once. The next [`flush`](Self::flush) names these files; some may be stored all the same.
    pub fn give_up(&self) {
        if let Some(writer) = self.0.remote.started_writer() {
            writer.give_up();
        }
    }

    /// Flushes, and ends this handle (paper, DL_close).
    ///
    /// # Errors
    /// That of the first write that failed since the last flush.
    pub fn close(self) -> Result<(), Error> {
        match self.0.remote.started_writer() {
            Some(writer) => writer.flush().check().map(|_| ()),
            None => Ok(()),
        }
    }

    /// What stands at a path: a file with its record (size, upload time, ...), a folder or
    /// nothing (paper, DL_stat).
    ///
    /// # Errors
    /// Those of the servers and of the way to them.
    pub fn stat(&self, path: impl AsPath<FilePath>) -> Result<StatItem, Error> {
        let path = path.as_path("stat")?;
        let found = self.stat_many(std::slice::from_ref(&*path))?;
        Ok(found.into_iter().next().unwrap_or(StatItem::Missing))
    }

    /// What stands at each of the paths, in their order. What several threads ask at the same time
    /// shares requests.
    ///
    /// # Errors
    /// Those of the servers and of the way to them.
    pub fn stat_many(&self, paths: &[FilePath]) -> Result<Vec<StatItem>, Error> {
        match self.snapshot() {
            Some(snapshot) => snapshot.stat_many(paths),
            None => self.0.remote.stat_many(paths),
        }
    }

    /// Deletes the files that stand at these paths now (paper, DL_delete), those put before
    /// through this handle included. One that is written meanwhile stays.
    ///
    /// # Errors
    /// Those of the servers and of the way to them.
    pub fn delete(&self, paths: &[FilePath]) -> Result<Deleted, Error> {
        self.0.is_written.store(true, Ordering::Relaxed);
        if let Some(writer) = self.0.remote.started_writer() {
            paths.iter().for_each(|path| writer.await_path(path));
        }
        let mut deletions = Deletions::default();
        let (mut missing, mut seen) = (Vec::new(), HashSet::new());
        for (path, item) in paths.iter().zip(self.0.remote.stat_many(paths)?) {
            match item {
                StatItem::File(record) => _ = deletions.insert(&record.version),
                StatItem::Folder | StatItem::Missing => {
                    if seen.insert(path) {
                        missing.push(path.clone());
                    }
                }
            }
        }
        Ok(Deleted { deleted: self.delete_versions(deletions)?, missing })
    }

    /// Deletes these versions, as [`stat`](Self::stat) and [`list`](Self::list) named them; gives
    /// how many. Versions that are gone already count too. What a snapshot says of a file names no
    /// version: [`Deletions::insert`] refuses it.
    ///
    /// # Errors
    /// Those of the servers and of the way to them; some may be deleted then.
    pub fn delete_versions(&self, deletions: Deletions) -> Result<u64, Error> {
        self.0.is_written.store(true, Ordering::Relaxed);
        self.0.remote.delete_versions(deletions)
    }

    fn writer(&self) -> Result<&Arc<Writer>, Error> {
        self.0.is_written.store(true, Ordering::Relaxed);
        self.0.remote.writer()
    }
}

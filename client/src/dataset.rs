//! The handle of a dataset: the calls of the paper's Table 3. An epoch or a snapshot answers a
//! call where possible, otherwise the servers do.
//!
//! Must hold: a handle means one dataset id for ever. After the name is deleted and created again,
//! the old handle finds nothing.

mod await_file;
mod batches;
mod cached;
mod epoch;
mod listing;
mod open;
mod pieces;
mod range;
mod read;
mod snapshot;
mod task;

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dl_format::{Attributes, Deletions, FilePath};
use dl_proto::{Dataset as DatasetInfo, StatItem};
use dl_runtime::locked;

use crate::epoch::{Epoch, WeakEpoch};
use crate::error::Error;
use crate::path::AsPath;
use crate::process::PerProcess;
use crate::remote::{Flushed, RemoteDataset, Writer};
use crate::snapshot::Snapshot;
use crate::worker::AgentReader;
pub use batches::{BatchFile, Batches};
pub use cached::AsFile;
pub use listing::Listing;
use pieces::Pieces;

const PUT: &str = "put";

/// A dataset at some servers. A clone is cheap and shares the writer. A handle is usable from any
/// thread.
///
/// Puts are packed into chunks; full chunks are sent at once. [`flush`](Self::flush) and
/// [`close`](Self::close) send the rest. Without such a call, the last puts may be lost when the
/// last handle is dropped. A forked process starts with nothing to send.
#[derive(Debug, Clone)]
pub struct Dataset(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    remote: Arc<RemoteDataset>,
    /// Answers reads until something is written through the handle.
    snapshot: Option<Arc<Snapshot>>,
    is_written: AtomicBool,
    /// Reads from the cache of this node.
    worker: Option<Arc<AgentReader>>,
    /// The epoch that answers reads along its order.
    epoch: PerProcess<Mutex<Option<WeakEpoch>>>,
    pieces: PerProcess<Pieces>,
}

/// The result of a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleted {
    /// Files that were deleted.
    pub deleted: u64,
    /// Paths without a file: nothing is there, or a folder.
    pub missing: Vec<FilePath>,
}

impl Dataset {
    pub(crate) fn new(remote: RemoteDataset) -> Self {
        Self::with(remote, None, None)
    }

    fn with(
        remote: RemoteDataset,
        snapshot: Option<Arc<Snapshot>>,
        worker: Option<Arc<AgentReader>>,
    ) -> Self {
        let (is_written, remote) = (AtomicBool::new(false), Arc::new(remote));
        let (epoch, pieces) = (PerProcess::new(), PerProcess::new());
        Self(Arc::new(Inner { remote, snapshot, is_written, worker, epoch, pieces }))
    }

    /// The part that talks to the servers.
    pub(crate) fn remote(&self) -> &RemoteDataset {
        &self.0.remote
    }

    /// A handle of the same dataset that answers from a snapshot. With a task, the agent of the node
    /// gives the files of the snapshot's version.
    pub(crate) fn answering(&self, snapshot: Snapshot) -> Self {
        let (remote, snapshot) = (self.0.remote.at_version(snapshot.version()), Arc::new(snapshot));
        let worker = task::reader_of(&remote, &snapshot);
        Self::with(remote, Some(snapshot), worker)
    }

    /// The same handle, but without the agent of the node.
    pub(crate) fn without_worker(&self) -> Self {
        let remote = self.0.remote.at_version(self.0.remote.info().version);
        Self::with(remote, self.0.snapshot.clone(), None)
    }

    /// The snapshot that answers for the handle; none if the servers do.
    pub fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.0.snapshot.as_ref().filter(|_| !self.is_written())
    }

    /// Answers reads of the current process from an epoch, for as long as the epoch lives.
    fn set_epoch(&self, epoch: WeakEpoch) -> Result<(), Error> {
        let slot = self.0.epoch.get_or_make(|| Ok::<_, Error>(Mutex::default()))?;
        *locked(slot) = Some(epoch);
        Ok(())
    }

    /// The epoch that answers reads of the current process, if the snapshot still holds.
    fn epoch(&self) -> Option<(Epoch, &Arc<Snapshot>)> {
        let slot = locked(self.0.epoch.get()?);
        Some((slot.as_ref()?.upgrade()?, self.snapshot()?))
    }

    /// Whether anything was written through the handle.
    fn is_written(&self) -> bool {
        self.0.is_written.load(Ordering::Relaxed)
    }

    /// The servers' description of the dataset when the handle was made, without counts. The
    /// version is the one of the handle's snapshot.
    pub fn info(&self) -> &DatasetInfo {
        self.0.remote.info()
    }

    /// The servers' description of the dataset now, without counts.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) for a deleted dataset, also if its name is in use
    /// again. [`Kind::NeedsRecovery`](crate::Kind::NeedsRecovery) during a rebuild of the metadata.
    pub fn refresh(&self) -> Result<DatasetInfo, Error> {
        self.0.remote.describe(false)
    }

    /// Whether the dataset has changed since the handle's snapshot, or since the handle was made if
    /// there is no snapshot.
    ///
    /// # Errors
    /// As for [`refresh`](Self::refresh).
    pub fn is_stale(&self) -> Result<bool, Error> {
        Ok(self.refresh()?.version != self.info().version)
    }

    /// The servers' description of the dataset now, with counts. The servers may have to look at
    /// every file.
    ///
    /// # Errors
    /// As for [`refresh`](Self::refresh).
    pub fn count(&self) -> Result<DatasetInfo, Error> {
        self.0.remote.describe(true)
    }

    /// Writes a file from memory (paper, DL_put). The next [`flush`](Self::flush) acknowledges the
    /// file. Of two successive puts of one path the second wins. Exception: a first put reported as
    /// failed may still be written within 15 minutes, and is the newer version then.
    ///
    /// Blocks while the number of chunks in flight is at its limit.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind::Invalid) for an invalid path, and for a file too large for
    /// the chunks of the dataset. After a failed chunk, every put returns the error of the chunk
    /// until a flush reports the failure. A put with an error writes nothing.
    pub fn put(
        &self,
        path: impl AsPath<FilePath>,
        attributes: Attributes,
        data: &[u8],
    ) -> Result<(), Error> {
        self.writer()?.put(&*path.as_path(PUT)?, attributes, data)
    }

    /// Writes a local file, with modification time and permission bits; gives its length in bytes.
    /// A link is followed.
    ///
    /// # Errors
    /// [`Kind::Local`](crate::Kind::Local) if the file can't be read, is no regular file, or
    /// changes during the call. Otherwise as for [`put`](Self::put).
    pub fn put_file(&self, path: impl AsPath<FilePath>, source: &Path) -> Result<u64, Error> {
        self.writer()?.put_file(&*path.as_path(PUT)?, source)
    }

    /// Writes exactly `length` bytes of `reader` as a file, with bounded memory. The limit is some
    /// 21,600 chunks: 84 GiB in chunks of the usual 4 MiB.
    ///
    /// # Errors
    /// [`Kind::Local`](crate::Kind::Local) if `reader` fails or ends early. Otherwise as for
    /// [`put`](Self::put).
    pub fn put_reader(
        &self,
        path: impl AsPath<FilePath>,
        attributes: Attributes,
        length: u64,
        reader: &mut dyn Read,
    ) -> Result<(), Error> {
        self.writer()?.put_reader(&*path.as_path(PUT)?, attributes, length, reader)
    }

    /// Whether a put of less than a chunk would not block. Puts of other threads may change the
    /// answer.
    pub fn has_room(&self) -> bool {
        self.0.remote.started_writer().is_none_or(|writer| writer.has_room())
    }

    /// Waits until every earlier put, from any thread, is acknowledged or has failed (paper,
    /// DL_flush). An acknowledged file is durable and visible to all readers.
    ///
    /// # Errors
    /// [`Kind::Local`](crate::Kind::Local) if the library can't work in the current process. Failed
    /// files are listed in [`Flushed::failed`]; [`Flushed::check`] turns a failure into an error.
    pub fn flush(&self) -> Result<Flushed, Error> {
        Ok(self.writer()?.flush())
    }

    /// Gives up all puts without an acknowledgement, and wakes the threads waiting for them. The
    /// next [`flush`](Self::flush) reports these files as failed; a few may be stored all the same.
    pub fn give_up(&self) {
        if let Some(writer) = self.0.remote.started_writer() {
            writer.give_up();
        }
    }

    /// Flushes and closes the handle (paper, DL_close).
    ///
    /// # Errors
    /// The error of the first failed write since the last flush.
    pub fn close(self) -> Result<(), Error> {
        match self.0.remote.started_writer() {
            Some(writer) => writer.flush().check().map(|_| ()),
            None => Ok(()),
        }
    }

    /// The entry at a path: a file with its record (size, upload time, ...), a folder or nothing
    /// (paper, DL_stat).
    ///
    /// # Errors
    /// Errors of the servers and of the connection.
    pub fn stat(&self, path: impl AsPath<FilePath>) -> Result<StatItem, Error> {
        let path = path.as_path("stat")?;
        let found = self.stat_many(std::slice::from_ref(&*path))?;
        Ok(found.into_iter().next().unwrap_or(StatItem::Missing))
    }

    /// The entries at the paths, in the order of the paths. Concurrent calls of several threads
    /// share requests.
    ///
    /// # Errors
    /// Errors of the servers and of the connection.
    pub fn stat_many(&self, paths: &[FilePath]) -> Result<Vec<StatItem>, Error> {
        match self.snapshot() {
            Some(snapshot) => snapshot.stat_many(paths),
            None => self.0.remote.stat_many(paths),
        }
    }

    /// Deletes the current files at the paths (paper, DL_delete), with earlier puts through the
    /// handle. A file written during the call stays.
    ///
    /// # Errors
    /// Errors of the servers and of the connection.
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

    /// Deletes versions named by [`stat`](Self::stat) and [`list`](Self::list); gives their number,
    /// with versions deleted earlier. A record from a snapshot names no version:
    /// [`Deletions::insert`] refuses the record.
    ///
    /// # Errors
    /// Errors of the servers and of the connection. A part of the versions may be deleted
    /// nevertheless.
    pub fn delete_versions(&self, deletions: Deletions) -> Result<u64, Error> {
        self.0.is_written.store(true, Ordering::Relaxed);
        self.0.remote.delete_versions(deletions)
    }

    fn writer(&self) -> Result<&Arc<Writer>, Error> {
        self.0.is_written.store(true, Ordering::Relaxed);
        self.0.remote.writer()
    }
}

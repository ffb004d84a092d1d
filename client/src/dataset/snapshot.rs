//! Handles with a snapshot, and their epochs.
//!
//! Must hold: a handle with a snapshot answers from the snapshot until something is written through
//! the handle.

use std::path::Path;
use std::sync::Arc;

use dl_format::Version;

use super::Dataset;
use super::epoch::TaskSource;
use crate::epoch::{Epoch, FileSource, ShuffleOptions};
use crate::error::{Error, Kind};
use crate::remote::{self, EpochReader};
use crate::snapshot::{Snapshot, SnapshotCache, UserFile};

impl Dataset {
    /// A handle that answers from a snapshot of the current version (paper, 4.1.3): without
    /// requests, and unchanged by later writes. The snapshot is fetched unless `cache` has a whole
    /// copy. Without a cache, or without room in the cache, the snapshot lies in the memory of the
    /// process ([`Snapshot::is_shared`], [`Snapshot::length`]).
    ///
    /// After a put or a delete through the new handle, the servers answer again. If no server
    /// answers now, a handle without writes opens the last version known.
    ///
    /// # Errors
    /// Errors of the servers and of the connection, and [`Kind::Local`] if the snapshot fits
    /// nowhere.
    pub fn with_snapshot<'a>(
        &self,
        cache: impl Into<Option<&'a SnapshotCache>>,
    ) -> Result<Self, Error> {
        let version = match self.refresh() {
            Ok(info) => info.version,
            Err(error) if error.kind().is_retryable() && !self.is_written() => self.info().version,
            Err(error) => return Err(error),
        };
        self.with_snapshot_of(version, cache)
    }

    /// The same for a version just reported by the servers.
    pub(super) fn with_snapshot_of<'a>(
        &self,
        version: Version,
        cache: impl Into<Option<&'a SnapshotCache>>,
    ) -> Result<Self, Error> {
        Ok(self.answering(self.0.remote.snapshot_of(version, false, cache.into())?))
    }

    /// A handle that answers from a snapshot file (paper, DL_load_meta), written by
    /// [`save_meta`](Self::save_meta). The file is checked and copied into `cache`, for the
    /// original may change or vanish. Without a cache, or without room in the cache, the copy lies
    /// in memory. Such a copy serves only later calls with the same file, never
    /// [`with_snapshot`](Self::with_snapshot). The version may be old: see
    /// [`is_stale`](Self::is_stale).
    ///
    /// # Errors
    /// [`Kind::Local`] for an unreadable or irregular file, [`Kind::Corrupt`] for a damaged
    /// snapshot or another kind of file, [`Kind::Conflict`] for a snapshot of another dataset.
    pub fn load_meta(&self, file: &Path, cache: Option<&SnapshotCache>) -> Result<Self, Error> {
        let given = UserFile::open(file)?;
        let snapshot = remote::load(&given, cache, &self.0.remote.session()?)?;
        if snapshot.dataset() == self.info().id {
            return Ok(self.answering(snapshot));
        }
        let why = format!("its dataset is {}, not {}", snapshot.dataset(), self.info().id);
        Err(Error::new(Kind::Conflict, "load the snapshot", file.display(), why))
    }

    /// Writes the snapshot of the handle into a file (paper, DL_save_meta), without a request. A
    /// handle without a snapshot has the servers make a snapshot of the current version. The new file
    /// replaces an old file only when complete. Until then the new file has the suffix `.partial`;
    /// the next call for `file` takes over the rest of a killed call.
    ///
    /// # Errors
    /// [`Kind::Local`] if the file can't be written, for anything but a regular file (a link is not
    /// followed), or while another process saves into the file. Also errors of the servers and of the
    /// connection.
    pub fn save_meta(&self, file: &Path) -> Result<Snapshot, Error> {
        match self.snapshot() {
            Some(snapshot) => snapshot.save(file),
            None => self.0.remote.save_snapshot(file),
        }
    }

    /// Begins or resumes an epoch (paper, DL_shuffle): a shuffled order, read in whole chunks.
    /// [`Epoch::next`] gives the files. Reads by path through the handle or its clones also use the
    /// chunks of the epoch, for files in the current group and the next.
    ///
    /// The handle needs a snapshot
    /// ([`ConnectOptions::snapshots`](crate::ConnectOptions::snapshots),
    /// [`with_snapshot`](Self::with_snapshot), [`load_meta`](Self::load_meta)).
    ///
    /// # Errors
    /// [`Kind::Invalid`] without a snapshot and for options without an order. [`Kind::Conflict`]
    /// for a token of another dataset, version or selection. [`Kind::Corrupt`] for a snapshot whose
    /// chunks don't hold each file once.
    pub fn shuffle(&self, options: ShuffleOptions) -> Result<Epoch, Error> {
        let address = self.0.remote.address();
        let Some(snapshot) = self.snapshot() else {
            let why =
                "the handle has no snapshot: open the dataset with a snapshot, and write nothing";
            return Err(Error::new(Kind::Invalid, "shuffle", address, why));
        };
        let (remote, files) = (Arc::clone(&self.0.remote), Arc::clone(snapshot));
        let worker = self.0.worker.clone();
        let open = move |cursor| -> Result<Box<dyn FileSource>, Error> {
            let (remote, files) = (Arc::clone(&remote), Arc::clone(&files));
            Ok(match &worker {
                Some(worker) => {
                    Box::new(TaskSource::new(remote, files, Arc::clone(worker), cursor))
                }
                None => Box::new(EpochReader::new(&remote, files, cursor, Box::new(|_| false))?),
            })
        };
        let epoch = Epoch::begin(address, Arc::clone(snapshot), options, Box::new(open))?;
        self.set_epoch(epoch.downgrade())?;
        Ok(epoch)
    }
}

//! Handles that answer from a snapshot, and the epochs that are read by one.
//!
//! Must hold: a handle with a snapshot answers from it until something is written through the handle.

use std::path::Path;
use std::sync::Arc;

use dl_format::Version;

use super::Dataset;
use crate::epoch::{Epoch, ShuffleOptions};
use crate::error::{Error, Kind};
use crate::remote;
use crate::snapshot::{Snapshot, SnapshotCache};
use crate::worker;

impl Dataset {
    /// A handle that answers from a snapshot of what the dataset holds now (paper, 4.1.3): without
    /// requests, and the same for ever, whatever is written meanwhile. The snapshot is fetched
    /// unless `cache` has it; one that is damaged there is fetched again. When it can't be kept there,
    /// this process holds it in memory: as many bytes as it has
    /// ([`Snapshot::is_shared`], [`Snapshot::length`]). The same without a cache.
    ///
    /// What is put or deleted through the handle shows: from then on it asks the servers again. While
    /// no server answers, a handle through which nothing was written is given the version it knows.
    ///
    /// # Errors
    /// Those of the servers and of the way to them, and [`Kind::Local`] when it fits nowhere.
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

    /// The same, where `version` was just said to be what the dataset holds.
    pub(super) fn with_snapshot_of<'a>(
        &self,
        version: Version,
        cache: impl Into<Option<&'a SnapshotCache>>,
    ) -> Result<Self, Error> {
        Ok(self.answering(self.0.remote.snapshot_of(version, cache.into())?))
    }

    /// A handle that answers from a snapshot in a file (paper, DL_load_meta), as
    /// [`save_meta`](Self::save_meta) writes them. It is checked, and copied into `cache` unless it
    /// is there, for a file elsewhere may change or vanish; without a cache, or when it can't be kept
    /// there, into memory. Only a handle from this call, for a file that begins as this one does,
    /// ever answers from the copy: never one from [`with_snapshot`](Self::with_snapshot). It may be of
    /// an older version: [`is_stale`](Self::is_stale) tells.
    ///
    /// # Errors
    /// [`Kind::Local`] when the file can't be read or is no regular file, [`Kind::Corrupt`] when it
    /// is no snapshot or a damaged one, [`Kind::Conflict`] when it is one of another dataset.
    pub fn load_meta(&self, file: &Path, cache: Option<&SnapshotCache>) -> Result<Self, Error> {
        let snapshot = remote::load(file, cache, &self.0.remote.session()?)?;
        if snapshot.dataset() == self.info().id {
            return Ok(self.answering(snapshot));
        }
        let why = format!("it is one of dataset {}, not of {}", snapshot.dataset(), self.info().id);
        Err(Error::new(Kind::Conflict, "load the snapshot", file.display(), why))
    }

    /// Writes a snapshot of what the dataset holds now into a file (paper, DL_save_meta), which it
    /// replaces once all of it is there. Until then it is `file` with `.partial` behind its name: what
    /// a call that was killed has left of that, the next one for `file` takes over.
    ///
    /// # Errors
    /// [`Kind::Local`] when the file can't be written, when there is something else than a regular
    /// file (a link is not followed), or while another process saves into it; and those of the
    /// servers and of the way to them.
    pub fn save_meta(&self, file: &Path) -> Result<Snapshot, Error> {
        self.0.remote.save_snapshot(file)
    }

    /// Begins or goes on with an epoch (paper, DL_shuffle), whose order is shuffled and read in whole
    /// chunks. Its files come by [`Epoch::next`]; or they are read by path along its order, through
    /// this handle or its clones: while the epoch lives, reads of files in the group that is read,
    /// or in the next one, come out of these chunks.
    ///
    /// The handle answers from a snapshot, which has to be there
    /// ([`ConnectOptions::snapshots`](crate::ConnectOptions::snapshots),
    /// [`with_snapshot`](Self::with_snapshot), [`load_meta`](Self::load_meta)).
    ///
    /// # Errors
    /// [`Kind::Invalid`] without a snapshot and for what has no order, [`Kind::Conflict`] for a
    /// token of another dataset, version or selection, [`Kind::Corrupt`] for a snapshot whose chunks
    /// don't hold each file once.
    pub fn shuffle(&self, options: ShuffleOptions) -> Result<Epoch, Error> {
        let address = self.0.remote.address();
        let Some(snapshot) = self.snapshot() else {
            let why =
                "there is no snapshot to go by: open it with one, and write nothing through it";
            return Err(Error::new(Kind::Invalid, "shuffle", address, why));
        };
        let (remote, files) = (Arc::clone(&self.0.remote), Arc::clone(snapshot));
        let worker = self.0.worker.clone();
        let open = move |cursor| match &worker {
            None => remote::open_epoch(&remote, Arc::clone(&files), cursor),
            Some(worker) => {
                let elsewhere = remote::read_of_servers(&remote, Arc::clone(&files))?;
                worker::open_epoch(Arc::clone(worker), &cursor, elsewhere)
            }
        };
        let epoch = Epoch::begin(address, Arc::clone(snapshot), options, Box::new(open))?;
        self.set_epoch(epoch.downgrade())?;
        Ok(epoch)
    }
}

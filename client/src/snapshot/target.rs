//! The destination file of a saved snapshot.
//!
//! Must hold: only a regular file is replaced, and only by a complete new file. A save takes over
//! the partial file of a killed save of the same name, and no other file.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use dl_format::layout::SNAPSHOT_MAGIC;

use crate::error::Error;
use crate::snapshot::file;
use crate::snapshot::index::{Snapshot, local};
use crate::snapshot::lock::Lock;

/// A file in writing, under a partial name until complete. The drop removes a partial file.
#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    partial: PathBuf,
    lock: Lock,
}

impl Target {
    /// Begins the file for a path.
    pub(crate) fn begin(path: &Path) -> io::Result<Self> {
        file::check_replaceable(path)?;
        let mut name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
        name.push(".partial");
        let partial = path.with_file_name(name);
        let blocked = |why: &dyn std::fmt::Display| {
            io::Error::other(format!("{} is in the way: {why}", partial.display()))
        };
        // The lock is on the partial file itself, which later gets the final name.
        let lock = Lock::take(&partial).map_err(|why| match why.kind() {
            io::ErrorKind::InvalidInput => blocked(&why),
            _ => why,
        })?;
        let mut lock = lock.ok_or_else(|| blocked(&"another process is writing to the file"))?;
        if !is_partial_snapshot(lock.file()) {
            lock.leave();
            return Err(blocked(&"the file is no partial snapshot; move the file away"));
        }
        Ok(Self { path: path.to_owned(), partial, lock })
    }

    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.lock.file().set_len(0)?;
        self.lock.file().rewind()
    }

    pub(crate) fn file(&mut self) -> &mut File {
        self.lock.file()
    }

    pub(crate) fn partial(&self) -> &Path {
        &self.partial
    }

    pub(crate) fn end(mut self) -> io::Result<()> {
        self.lock.file().sync_all()?;
        file::check_replaceable(&self.path)?;
        fs::rename(&self.partial, &self.path)
    }
}

impl Snapshot {
    /// Writes the snapshot into a file; gives the snapshot of the file.
    pub(crate) fn save(&self, path: &Path) -> Result<Self, Error> {
        let failed = |why| local("write", path, why);
        let mut target = Target::begin(path).map_err(failed)?;
        let written = target.clear().and_then(|()| target.file().write_all(self.bytes()));
        written.map_err(failed)?;
        let saved = Self::check(target.partial())?;
        target.end().map_err(failed)?;
        Ok(saved)
    }
}

/// Whether a file begins like a snapshot, or is empty.
fn is_partial_snapshot(file: &mut File) -> bool {
    let mut beginning = Vec::new();
    let read = file.take(SNAPSHOT_MAGIC.len() as u64).read_to_end(&mut beginning);
    read.is_ok() && SNAPSHOT_MAGIC.starts_with(&beginning)
}

//! The file that a snapshot is saved into.
//!
//! Must hold: only a regular file is ever replaced, once all of the new one is there; what a save
//! that was ended has left is taken over by the next one of the same name, and nothing else is.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use dl_format::layout::SNAPSHOT_MAGIC;

use crate::snapshot::file;
use crate::snapshot::lock::Lock;

/// A file that is being written, under another name until it is whole. Without that it is removed.
#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    partial: PathBuf,
    lock: Lock,
}

impl Target {
    /// Begins the file that is to stand at a path.
    pub(crate) fn begin(path: &Path) -> io::Result<Self> {
        file::check_replaceable(path)?;
        let mut name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
        name.push(".partial");
        let partial = path.with_file_name(name);
        let told = |why: &dyn std::fmt::Display| {
            io::Error::other(format!("{} is in the way: {why}", partial.display()))
        };
        // The lock is of the file itself: what is locked is what gets the name.
        let lock = Lock::take(&partial).map_err(|why| match why.kind() {
            io::ErrorKind::InvalidInput => told(&why),
            _ => why,
        })?;
        let mut lock = lock.ok_or_else(|| told(&"another process is saving it"))?;
        if !is_left(lock.file()) {
            lock.leave();
            return Err(told(&"it is not what a save has left; move it away"));
        }
        Ok(Self { path: path.to_owned(), partial, lock })
    }

    /// Begins anew.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.lock.file().set_len(0)?;
        self.lock.file().rewind()
    }

    /// What is written to.
    pub(crate) fn file(&mut self) -> &mut File {
        self.lock.file()
    }

    /// Where it is, until it has its name.
    pub(crate) fn partial(&self) -> &Path {
        &self.partial
    }

    /// Gives it its name.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.lock.file().sync_all()?;
        file::check_replaceable(&self.path)?;
        fs::rename(&self.partial, &self.path)
    }
}

/// Whether a file is one that a save has begun.
fn is_left(file: &mut File) -> bool {
    let mut beginning = Vec::new();
    let read = file.take(SNAPSHOT_MAGIC.len() as u64).read_to_end(&mut beginning);
    read.is_ok() && SNAPSHOT_MAGIC.starts_with(&beginning)
}

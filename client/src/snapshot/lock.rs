//! Locks for work of a single process at a time, by locked files.
//!
//! Must hold: a path has at most one lock holder at a time. A lock ends with its process. The file
//! of a lock is removed with the lock, unless the process was killed.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::snapshot::file;

/// A lock, until the drop or the end of its process.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
    /// Whether the file stays after the drop.
    stays: bool,
}

impl Lock {
    /// Takes a lock without waiting; none while another process or thread has the lock.
    pub(crate) fn take(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let file = file::open_or_make(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(why)) => return Err(why),
            }
            // The former holder may have removed the file since the opening.
            if file::is_at(&file, path)? {
                return Ok(Some(Self { file, path: path.to_owned(), stays: false }));
            }
        }
    }

    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Shows waiting processes that the holder is alive.
    pub(crate) fn show_life(&self, now: SystemTime) {
        // A failure only makes waiting processes give up earlier.
        let _ = self.file.set_modified(now);
    }

    /// Gives up the lock, and keeps the file.
    pub(crate) fn leave(mut self) {
        self.stays = true;
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.stays {
            // Under the lock, so no other process can have locked the same file.
            file::remove(&self.file, &self.path);
        }
    }
}

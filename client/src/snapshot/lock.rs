//! The right to do something that one process at a time may do, as a file that is locked.
//!
//! Must hold: of those who have a lock at the same path, one at a time; it ends with its process, and
//! its file goes with it unless the process was killed.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::snapshot::file;

/// A right, until it is dropped or its process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
    /// Whether the file is there afterwards.
    stays: bool,
}

impl Lock {
    /// Waits for nobody: none while another process or thread has it.
    pub(crate) fn take(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let file = file::open_or_make(path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(why) => return Err(why.into()),
            }
            // Whoever had it may have removed the file since it was opened here.
            if file::is_at(&file, path)? {
                return Ok(Some(Self { file, path: path.to_owned(), stays: false }));
            }
        }
    }

    /// The file that is locked.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Shows who waits for it that whoever has it goes on.
    pub(crate) fn show_life(&self, now: SystemTime) {
        // Where that can't be shown, others give up earlier.
        let _ = self.file.set_modified(now);
    }

    /// Gives the right back, and leaves the file where it is.
    pub(crate) fn leave(mut self) {
        self.stays = true;
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.stays {
            // While it is held: nobody can have taken it by the same file.
            file::remove(&self.file, &self.path);
        }
    }
}

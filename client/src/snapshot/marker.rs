//! What says that a file of the cache was found whole: a file beside it.
//!
//! Must hold: a marker counts until the machine starts again, and for the file as it was when all of it
//! was read: another file, other bytes or another length make it void. It is a note to save time:
//! without it all is read again.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::Error;

/// How the names of markers end.
pub(crate) const MARKER: &str = "whole";

/// Says how often the machine was started: differently each time.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// That of one file, which may be there.
#[derive(Debug)]
pub(crate) struct Marker(PathBuf);

impl Marker {
    /// That of the file at this path.
    pub(crate) fn of(file: &Path) -> Self {
        let mut name = file.as_os_str().to_owned();
        name.push(".");
        name.push(MARKER);
        Self(name.into())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Does `check`, unless the file was found whole.
    pub(crate) fn once(
        &self,
        file: &File,
        check: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let before = state(file);
        if before.is_some() && fs::read_to_string(&self.0).ok() == before {
            return Ok(());
        }
        check()?;
        // What changed meanwhile is looked at again.
        if before == state(file) {
            self.set(file);
        }
        Ok(())
    }

    /// Says that the file was found whole.
    pub(crate) fn set(&self, file: &File) {
        if let Some(state) = state(file) {
            // Where nothing can be written, it is read again.
            let _ = File::create(&self.0).and_then(|mut file| file.write_all(state.as_bytes()));
        }
    }

    /// Says when the file was used: it is not touched itself.
    pub(crate) fn touch(&self, now: SystemTime) {
        // Only makes it go later.
        let _ = File::open(&self.0).and_then(|file| file.set_modified(now));
    }

    /// From now on the file is not known to be whole.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What changes when the file does, or when the machine starts again.
fn state(file: &File) -> Option<String> {
    let (boot, file) = (fs::read_to_string(BOOT).ok()?, file.metadata().ok()?);
    let (device, inode, length) = (file.dev(), file.ino(), file.len());
    let modified = format!("{}.{:09}", file.mtime(), file.mtime_nsec());
    let changed = format!("{}.{:09}", file.ctime(), file.ctime_nsec());
    Some(format!("{} {device} {inode} {length} {modified} {changed}\n", boot.trim()))
}

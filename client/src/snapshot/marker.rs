//! Markers beside the files of the cache: a marked file was read whole and found good.
//!
//! Must hold: a marker counts until the next boot, and only for the file as read: another file,
//! other bytes or another length make the marker void. Markers only save time: a file without a
//! marker is read whole again.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::Error;

/// The suffix of markers.
pub(crate) const MARKER: &str = "whole";

/// The file with the id of the boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// The marker of a file, which may exist or not.
#[derive(Debug)]
pub(crate) struct Marker(PathBuf);

impl Marker {
    /// The marker of the file at a path.
    pub(crate) fn of(file: &Path) -> Self {
        let mut name = file.as_os_str().to_owned();
        name.push(".");
        name.push(MARKER);
        Self(name.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Runs `check`, unless the marker is valid.
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
        // A file changed during the check needs another check.
        if before == state(file) {
            self.set(file);
        }
        Ok(())
    }

    /// Marks a file as good.
    pub(crate) fn set(&self, file: &File) {
        if let Some(state) = state(file) {
            // Without a marker, the file is checked again.
            let _ = File::create(&self.0).and_then(|mut file| file.write_all(state.as_bytes()));
        }
    }

    /// Records the time of use of the file, whose own times stay unchanged.
    pub(crate) fn touch(&self, now: SystemTime) {
        // Only the order of eviction depends on the time.
        let _ = File::open(&self.0).and_then(|file| file.set_modified(now));
    }

    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A text that changes with the file and with the boot of the machine.
fn state(file: &File) -> Option<String> {
    let (boot, file) = (fs::read_to_string(BOOT).ok()?, file.metadata().ok()?);
    let (device, inode, length) = (file.dev(), file.ino(), file.len());
    let modified = format!("{}.{:09}", file.mtime(), file.mtime_nsec());
    let changed = format!("{}.{:09}", file.ctime(), file.ctime_nsec());
    Some(format!("{} {device} {inode} {length} {modified} {changed}\n", boot.trim()))
}

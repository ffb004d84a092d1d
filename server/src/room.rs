//! Room on the disks of this machine that puts leave to deletes.
//!
//! Must hold: what a put takes never leaves so little that a delete, or what the metadata still has
//! to write down, finds none: an administrator can always delete. What others fill is theirs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::statvfs;

/// Kept on a large file system: several times what metadata may hold in memory before it is written.
const KEPT_MAX: u64 = 256 << 20;
/// Kept on a small one: a few commits of the metadata.
const KEPT_MIN: u64 = 4 << 20;
/// Of what lies between, this part is kept.
const KEPT_PART: u64 = 16;

/// Where the stores of a server lie. Clones share what is under way.
#[derive(Debug, Clone, Default)]
pub struct Room {
    folders: Arc<[PathBuf]>,
    scratch: Option<Arc<Path>>,
    under_way: Arc<AtomicU64>,
}

/// Bytes that are being stored, until this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    under_way: Arc<AtomicU64>,
    bytes: u64,
}

/// No room is left for a put.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error(
    "no space left: {} MiB are free, of which {} MiB are kept so that datasets can still be deleted, and {} \
     MiB are for chunks that came before",
    free >> 20,
    kept >> 20,
    others >> 20
)]
pub(crate) struct Full {
    free: u64,
    kept: u64,
    others: u64,
}

impl Room {
    /// Watches the file systems of these folders; without any there is always room.
    pub fn of(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let folders = folders.into_iter().collect();
        Self { folders, scratch: None, under_way: Arc::default() }
    }

    /// The same, with a folder for what doesn't fit into memory for a while; otherwise it is that of
    /// the machine for such files.
    pub fn with_scratch(self, folder: &Path) -> Self {
        Self { scratch: Some(folder.into()), ..self }
    }

    /// Where what doesn't fit into memory may lie for a while.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.scratch.as_deref().map_or_else(std::env::temp_dir, Path::to_path_buf)
    }

    /// Takes room for so many bytes. May block.
    pub(crate) fn take(&self, bytes: u64) -> Result<Taken, Full> {
        // Before looking, so that of several at once none counts on what another one takes.
        let others = self.under_way.fetch_add(bytes, Ordering::SeqCst);
        let taken = Taken { under_way: Arc::clone(&self.under_way), bytes };
        let wanted = others.saturating_add(bytes);
        for folder in &*self.folders {
            // Where that can't be told, the write itself says what is wrong.
            let Ok(disk) = statvfs(folder) else { continue };
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let kept = kept(disk.f_blocks.saturating_mul(disk.f_frsize));
            if free < kept.saturating_add(wanted) {
                return Err(Full { free, kept, others });
            }
        }
        Ok(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.under_way.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// What is kept of a file system of this size.
fn kept(total: u64) -> u64 {
    (total / KEPT_PART).clamp(KEPT_MIN, KEPT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_disks_keep_a_part_and_large_ones_no_more_than_is_needed() {
        for (total, expected) in [(24 << 20, 4), (1 << 30, 64), (4 << 30, 256), (1 << 44, 256)] {
            assert_eq!(kept(total), expected << 20);
        }
    }

    #[test]
    fn what_is_under_way_is_not_given_twice() {
        let folder = tempfile::tempdir().unwrap();
        let room = Room::of([folder.path().to_owned()]);
        let disk = statvfs(folder.path()).unwrap();
        let free = disk.f_bavail * disk.f_frsize;
        assert!(free > KEPT_MAX + (64 << 20), "this test needs some room itself");
        let most = (free - KEPT_MAX) / 8 * 5;
        let first = room.take(most).unwrap();
        room.take(most).unwrap_err();
        drop(first);
        room.take(most).unwrap();
    }

    #[test]
    fn without_disks_of_this_machine_there_is_always_room() {
        Room::default().take(u64::MAX).unwrap();
    }
}

//! Free space on the disks of a server, kept for deletes.
//!
//! Must hold: after any put, enough space is free for deletes and for metadata still in memory: an
//! administrator can always delete. Space filled by other programs is not covered.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dl_proto::Kind;
use dl_runtime::blocking;
use rustix::fs::statvfs;

use crate::error::Error;

/// Kept on a large file system: several times the size of metadata in memory before a write.
const KEPT_MAX: u64 = 256 << 20;
/// Kept on a small file system: a few commits of the metadata.
const KEPT_MIN: u64 = 4 << 20;
/// The divisor for sizes in between.
const KEPT_PART: u64 = 16;

/// The folders of a server's stores. Clones share the bytes in flight.
#[derive(Debug, Clone, Default)]
pub struct DiskReserve {
    folders: Arc<[PathBuf]>,
    scratch: Option<Arc<Path>>,
    fast_store: Option<Arc<Path>>,
    under_way: Arc<AtomicU64>,
}

/// Room on a disk, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disk {
    /// `data` or `fast_store`.
    pub(crate) folder: &'static str,
    pub(crate) free: u64,
    pub(crate) size: u64,
}

/// Bytes in flight, until this value is dropped.
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

impl DiskReserve {
    /// Watches the file systems of `folders`; without folders there is always room.
    pub fn of(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let folders = folders.into_iter().collect();
        Self { folders, ..Self::default() }
    }

    /// Sets the folder for temporary files; by default the folder of the machine.
    pub fn with_scratch(self, folder: &Path) -> Self {
        Self { scratch: Some(folder.into()), ..self }
    }

    /// Sets the folder of the fast store, whose room is shown.
    pub fn with_fast_store(self, folder: Option<&Path>) -> Self {
        Self { fast_store: folder.map(Into::into), ..self }
    }

    /// The disks of the data and of the fast store. Of several disks with data, the disk with the least free space.
    pub(crate) async fn disks(&self) -> Vec<Disk> {
        let room = self.clone();
        let read = move || {
            let disk = |folder, path: &Path| {
                let disk = statvfs(path).ok()?;
                let [free, size] = [disk.f_bavail, disk.f_blocks];
                let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
                Some(Disk { folder, free: bytes(free), size: bytes(size) })
            };
            let data = room.folders.iter().filter_map(|path| disk("data", path));
            let fast_store = room.fast_store.and_then(|path| disk("fast_store", &path));
            data.min_by_key(|disk| disk.free).into_iter().chain(fast_store).collect()
        };
        blocking::run(read).await.unwrap_or_default()
    }

    /// The folder for data beyond memory.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.scratch.as_deref().map_or_else(std::env::temp_dir, Path::to_path_buf)
    }

    /// Takes room for so many bytes.
    ///
    /// # Errors
    /// The outer error: the process stops.
    pub(crate) async fn reserve(
        &self,
        bytes: u64,
        action: &'static str,
        what: impl Display,
    ) -> Result<Result<Taken, Full>, Error> {
        let room = self.clone();
        let taken = blocking::run(move || room.take(bytes)).await;
        taken.map_err(|error| Error::new(Kind::Unavailable, action, what, error))
    }

    /// Takes room for so many bytes. May block.
    pub(crate) fn take(&self, bytes: u64) -> Result<Taken, Full> {
        // Before the look, so that concurrent puts don't count on the same space.
        let others = self.under_way.fetch_add(bytes, Ordering::SeqCst);
        let taken = Taken { under_way: Arc::clone(&self.under_way), bytes };
        let wanted = others.saturating_add(bytes);
        for folder in &*self.folders {
            // Without an answer here, the write itself reports the problem.
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

fn kept(total: u64) -> u64 {
    (total / KEPT_PART).clamp(KEPT_MIN, KEPT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_disks_keep_a_part_and_large_disks_a_fixed_size() {
        for (total, expected) in [(24 << 20, 4), (1 << 30, 64), (4 << 30, 256), (1 << 44, 256)] {
            assert_eq!(kept(total), expected << 20);
        }
    }

    #[test]
    fn bytes_in_flight_are_not_given_twice() {
        let folder = tempfile::tempdir().unwrap();
        let room = DiskReserve::of([folder.path().to_owned()]);
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
        DiskReserve::default().take(u64::MAX).unwrap();
    }
}

//! A disk in memory for redb: may lose unsynced writes at a power cut, die at a chosen write, and be full.
//!
//! Must hold: no real disk loses more. Of the unsynced writes, any part may survive.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dl_runtime::fault::CutPoint;
use dl_runtime::{Clock, Random, locked};
use redb::{Database, StorageBackend};

use super::database::Opener;
use super::{Embedded, EmbeddedOptions, Stop};
use crate::Error;

#[derive(Debug, Clone)]
enum Change {
    Length(usize),
    Write(usize, Vec<u8>),
}

impl Change {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Self::Length(length) => image.resize(*length, 0),
            Self::Write(offset, bytes) => {
                let end = offset + bytes.len();
                if image.len() < end {
                    image.resize(end, 0);
                }
                image[*offset..end].copy_from_slice(bytes);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Images {
    live: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<Change>,
}

/// A disk for crash tests of the embedded store: its writes and syncs are points of a [`CutPoint`], and a
/// power cut drops unsynced writes. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub struct VolatileFile {
    images: Arc<Mutex<Images>>,
    full: Arc<AtomicBool>,
    /// Whether the file has its name; before, a crash leaves nothing.
    named: Arc<AtomicBool>,
    pub(super) cut: CutPoint,
}

impl VolatileFile {
    /// An empty disk, whose writes are points of `cut`.
    pub fn new(cut: CutPoint) -> Self {
        Self { cut, ..Self::default() }
    }

    /// Opens the metadata on the disk, as a new process does. Needs a tokio runtime.
    ///
    /// # Errors
    /// As [`Embedded::open`], and when the process is cut off during the opening.
    pub async fn open(
        &self,
        options: EmbeddedOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<(Embedded, Stop), Error> {
        let disk = self.clone();
        Embedded::open_with("embedded:volatile".to_owned(), move || disk.opener(), options, clock)
            .await
    }

    fn images(&self) -> MutexGuard<'_, Images> {
        locked(&self.images)
    }

    pub(super) fn opener(&self) -> Result<Opener, redb::Error> {
        let disk = self.clone();
        Ok(Box::new(move || {
            let is_new = !disk.named.load(Ordering::SeqCst);
            if is_new {
                *disk.images() = Images::default();
            }
            let mut builder = Database::builder();
            let database = builder.set_cache_size(1 << 20).create_with_backend(disk.clone())?;
            if is_new {
                disk.cut.write_point().map_err(io::Error::other)?;
                disk.named.store(true, Ordering::SeqCst);
            }
            Ok(database)
        }))
    }

    #[cfg(test)]
    pub(super) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }

    /// Whether another clone of the disk is in use, such as the clone of an open store.
    pub fn is_open(&self) -> bool {
        Arc::strong_count(&self.images) > 1
    }

    /// Cuts the power: each unsynced change survives by chance. The disk then works again.
    pub fn lose_power(&self, survive: &dyn Random) {
        let mut images = self.images();
        if !self.named.load(Ordering::SeqCst) {
            *images = Images::default();
        }
        let Images { live, synced, unsynced } = &mut *images;
        for change in unsynced.drain(..).filter(|_| survive.u64().is_multiple_of(2)) {
            change.apply(synced);
        }
        live.clone_from(synced);
        self.cut.disarm();
    }

    fn change(&self, change: Change) -> io::Result<()> {
        self.cut.write_point().map_err(io::Error::other)?;
        if self.full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut images = self.images();
        change.apply(&mut images.live);
        images.unsynced.push(change);
        Ok(())
    }
}

impl StorageBackend for VolatileFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.images().live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.cut.read_point().map_err(io::Error::other)?;
        let (images, start) = (self.images(), offset as usize);
        let bytes = images.live.get(start..start + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::Length(len as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.cut.write_point().map_err(io::Error::other)?;
        let mut images = self.images();
        let Images { synced, unsynced, .. } = &mut *images;
        for change in unsynced.drain(..) {
            change.apply(synced);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Change::Write(offset as usize, data.to_vec()))
    }
}

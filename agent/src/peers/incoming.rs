//! A chunk arriving from another agent in its slot.
//!
//! Must hold: bytes come in order and end with the chunk; a file counts once its checksum matches
//! the snapshot.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dl_format::Crc32c;
use dl_node::Arena;
use libdiesel::FilePlace;

use crate::progress::Progress;

/// The received part of a chunk.
#[derive(Debug)]
pub(crate) struct Incoming {
    arena: Arc<Arena>,
    slot: u32,
    /// Start of the first file, offset of the next byte, and end of the last file.
    start: u32,
    next: u32,
    end: u32,
    /// Sorted by end.
    files: Arc<[(u32, FilePlace)]>,
    /// Number of correct files.
    right: usize,
    progress: Arc<Progress>,
}

impl Incoming {
    /// For files sorted by end, to a slot being filled.
    pub(crate) fn new(
        arena: Arc<Arena>,
        slot: u32,
        files: Arc<[(u32, FilePlace)]>,
        progress: Arc<Progress>,
    ) -> Self {
        let start = files.iter().map(|(_, place)| place.offset).min().unwrap_or(0);
        let end = files.last().map_or(start, |(_, place)| end_of(*place));
        Self { arena, slot, start, next: start, end, files, right: 0, progress }
    }

    /// Whether a piece continues the chunk and stays within its end.
    pub(super) fn expects(&self, offset: u32, length: u32) -> bool {
        offset == self.next && length <= self.end - self.next
    }

    /// Passes the place of the next bytes to `read`, at most `most` bytes. `read` returns the
    /// number of written bytes.
    pub(super) fn take<T>(
        &mut self,
        most: usize,
        read: impl FnOnce(&mut [u8]) -> (T, usize),
    ) -> Option<T> {
        let length = most.min((self.end - self.next) as usize);
        let (result, received) = self.arena.write_with(self.slot, self.next, length, read)?;
        self.next += received.min(length) as u32;
        self.progress.bytes.fetch_add(received as u64, Ordering::Relaxed);
        Some(result)
    }

    /// Checks newly complete files; false when one is damaged.
    pub(super) fn check(&mut self) -> bool {
        while let Some((_, place)) = self.files.get(self.right)
            && end_of(*place) <= self.next
        {
            let bytes = self.arena.written(self.slot, place.offset, place.length as usize);
            if bytes.is_none_or(|bytes| Crc32c::of(bytes) != place.crc) {
                return false;
            }
            self.right += 1;
        }
        true
    }

    /// Number of correct files, in the order of their ends.
    pub(super) fn right(&self) -> usize {
        self.right
    }

    /// Whether bytes have arrived.
    pub(super) fn has_begun(&self) -> bool {
        self.next > self.start
    }

    /// Bytes still to come.
    pub(super) fn left(&self) -> u32 {
        self.end - self.next
    }

    pub(super) fn is_whole(&self) -> bool {
        self.next == self.end
    }
}

/// Files without their chunks, one behind the other, in a part of a slot.
#[derive(Debug, Clone)]
pub(crate) struct IncomingFiles {
    pub(crate) arena: Arc<Arena>,
    pub(crate) slot: u32,
    /// Offset of the first file in the slot.
    pub(crate) start: u32,
    pub(crate) files: Vec<(u32, FilePlace)>,
}

impl IncomingFiles {
    /// Starts the transfer of the files in the bitmap. Also returns the offset of each file,
    /// `u32::MAX` for an absent file.
    pub(super) fn begin(&self, comes: &[u8]) -> (Incoming, Vec<u32>) {
        let mut next = self.start;
        let (mut places, mut coming) = (Vec::with_capacity(self.files.len()), Vec::new());
        for (index, (number, place)) in self.files.iter().enumerate() {
            if comes.get(index / 8).is_none_or(|byte| byte & (1 << (index % 8)) == 0) {
                places.push(u32::MAX);
                continue;
            }
            places.push(next);
            coming.push((*number, FilePlace { offset: next, ..*place }));
            next = next.saturating_add(place.length as u32);
        }
        let progress = Arc::new(Progress::default());
        let incoming = Incoming::new(Arc::clone(&self.arena), self.slot, coming.into(), progress);
        (incoming, places)
    }
}

fn end_of(place: FilePlace) -> u32 {
    place.offset.saturating_add(place.length as u32)
}

//! A chunk that comes from another agent into its slot.
//!
//! Must hold: bytes come in order and end where the chunk does; a file counts once its checksum is that of
//! the snapshot.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dl_format::Crc32c;
use libdiesel::FilePlace;
use libdiesel::agent::Arena;

use crate::progress::Progress;

/// What came of a chunk.
#[derive(Debug)]
pub(crate) struct Incoming {
    arena: Arc<Arena>,
    slot: u32,
    /// Where the first file begins, where the next byte belongs, and where the last file ends.
    start: u32,
    next: u32,
    end: u32,
    /// By their ends.
    files: Arc<[(u32, FilePlace)]>,
    /// How many of them are right.
    right: usize,
    progress: Arc<Progress>,
}

impl Incoming {
    /// Of files by their ends, to a slot that is being filled.
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

    /// Whether bytes at an offset are the next ones, and as many still come.
    pub(super) fn expects(&self, offset: u32, length: u32) -> bool {
        offset == self.next && length <= self.end - self.next
    }

    /// Hands the place of the next bytes, at most so many, to `read`, which says how many it wrote.
    pub(super) fn take<T>(
        &mut self,
        most: usize,
        read: impl FnOnce(&mut [u8]) -> (T, usize),
    ) -> Option<T> {
        let length = most.min((self.end - self.next) as usize);
        let (result, came) = self.arena.write_with(self.slot, self.next, length, read)?;
        self.next += came.min(length) as u32;
        self.progress.bytes.fetch_add(came as u64, Ordering::Relaxed);
        Some(result)
    }

    /// Checks the files that are complete now; false when one is damaged.
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

    /// Files that are right: the first ones by their ends.
    pub(super) fn right(&self) -> usize {
        self.right
    }

    /// Whether bytes have come.
    pub(super) fn has_begun(&self) -> bool {
        self.next > self.start
    }

    /// Bytes that still come.
    pub(super) fn left(&self) -> u32 {
        self.end - self.next
    }

    pub(super) fn is_whole(&self) -> bool {
        self.next == self.end
    }
}

/// Files that come alone, one behind the other, into a part of a slot.
#[derive(Debug, Clone)]
pub(crate) struct IncomingFiles {
    pub(crate) arena: Arc<Arena>,
    pub(crate) slot: u32,
    /// Where the first one comes to.
    pub(crate) start: u32,
    pub(crate) files: Vec<(u32, FilePlace)>,
}

impl IncomingFiles {
    /// Of the files whose bits are set: how they come, and where each of all files will lie; `u32::MAX` for
    /// one that does not come.
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

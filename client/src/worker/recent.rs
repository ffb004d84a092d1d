//! The choice between an absent chunk and a single file of it, while no further chunk can be kept.
//!
//! Must hold: random reads fetch no chunk for a single file. Reads in the order of a chunk fetch the
//! chunk at the second file.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::attach::Attached;
use super::layout::Gauge;
use super::read::AgentReader;
use crate::snapshot::FilePlace;

/// Remembered files: more than the readers of a process that read in order at once.
const FILES: usize = 16;

/// Files of a chunk, one after the other, that a reader in order may pass over.
const NEAR: u32 = 8;

/// A file of a quarter of a chunk and more comes with its chunk.
const LARGE_PART: u64 = 4;

/// The last files that were read without their chunks: number plus 1.
#[derive(Debug, Default)]
pub(super) struct RecentFiles {
    files: [AtomicU64; FILES],
    next: AtomicUsize,
}

impl RecentFiles {
    /// Whether a file follows another in its chunk; notes the file otherwise. `is_same_chunk` tells
    /// whether a file near to it lies in the same chunk.
    fn is_next(&self, number: u32, is_same_chunk: impl Fn(u32) -> bool) -> bool {
        for file in &self.files {
            let Some(file) = file.load(Relaxed).checked_sub(1) else { continue };
            let file = file as u32;
            if file == number {
                return false;
            }
            if number.checked_sub(file).is_some_and(|distance| distance <= NEAR)
                && is_same_chunk(file)
            {
                return true;
            }
        }
        let next = self.next.fetch_add(1, Relaxed) % FILES;
        if let Some(oldest) = self.files.get(next) {
            oldest.store(u64::from(number) + 1, Relaxed);
        }
        false
    }
}

impl Attached {
    /// Whether an absent file should come with its chunk. `hints` are the chunks needed next.
    pub(super) fn is_chunk_worth(
        &self,
        number: u32,
        place: FilePlace,
        hints: &[u32],
        is_same_chunk: impl Fn(u32) -> bool,
    ) -> bool {
        self.has_room()
            || place.length * LARGE_PART >= self.maps.arena.shape().slot_bytes.into()
            || hints.contains(&place.chunk)
            || self.read_alone.is_next(number, is_same_chunk)
    }

    fn has_room(&self) -> bool {
        self.maps.pins.get(Gauge::FilesAlone) == 0
    }
}

impl AgentReader {
    /// Whether absent files may come without their chunks, because no further chunk can be kept.
    pub(crate) fn reads_files_alone(&self) -> bool {
        self.attached_now().is_some_and(|attached| !attached.has_room())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_file_near_by_is_worth_the_chunk() {
        let recent = RecentFiles::default();
        let is_next = |number: u32| recent.is_next(number, |file| file / 100 == number / 100);
        // The ranges of one file follow each other.
        assert!(!is_next(5) && !is_next(5));
        assert!(is_next(6));
        assert!(!is_next(4) && !is_next(5 + NEAR + 1));
        // Another chunk.
        assert!(!is_next(99) && !is_next(100) && is_next(101));
        (0..FILES as u32).for_each(|number| assert!(!is_next(1_000 + number * 100)));
        assert!(!is_next(6));
    }
}

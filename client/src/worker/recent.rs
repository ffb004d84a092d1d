//! The choice between an absent chunk and a single file of it, while no further chunk can be kept.
//!
//! Must hold: random reads fetch no chunk for a single file. Reads in the order of a chunk fetch the
//! chunk at the second file.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Remembered files: more than the readers of a process that read in order at once.
const FILES: usize = 16;

/// Files of a chunk, one after the other, that a reader in order may pass over.
const NEAR: u32 = 8;

/// The last files that were read without their chunks: number plus 1.
#[derive(Debug, Default)]
pub(super) struct RecentFiles {
    files: [AtomicU64; FILES],
    next: AtomicUsize,
}

impl RecentFiles {
    /// Whether a file follows another in its chunk; notes the file otherwise. `is_same_chunk` tells
    /// whether a file near to it lies in the same chunk.
    pub(super) fn is_next(&self, number: u32, is_same_chunk: impl Fn(u32) -> bool) -> bool {
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

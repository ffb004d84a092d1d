//! The size and alignment of a dataset's chunks, and derived limits.
//!
//! Must hold: a dataset keeps its shape. A file that fits into a chunk alone also fits when
//! rewritten.

use crate::encode::head_length;
use crate::error::PackError;
use crate::layout::{
    ALIGNMENT_DEFAULT, ALIGNMENT_MAX, CHUNK_SIZE_DEFAULT, CHUNK_SIZE_MAX, CHUNK_SIZE_MIN,
    ENTRY_LEN, ID_LEN, ORIGIN_COUNT_LEN, ORIGIN_LEN, PAGE, PAGED_FILE_MIN,
};
use crate::path::FilePath;

/// The size and alignment of a dataset's chunks: fixed when the dataset is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkShape {
    size: u32,
    alignment: u32,
}

impl ChunkShape {
    /// Offset of a file's bytes in the object of a part, in bytes.
    pub const PART_START: u32 = PAGE as u32;

    /// Chunks of at most `size` bytes, header included, with small files at multiples of `alignment`
    /// bytes (paper, 4.1).
    ///
    /// # Errors
    /// [`PackError::Shape`] for numbers outside of docs/FORMAT.md.
    pub fn new(size: u32, alignment: u32) -> Result<Self, PackError> {
        let size_fits = size.is_power_of_two() && (CHUNK_SIZE_MIN..=CHUNK_SIZE_MAX).contains(&size);
        let alignment_fits = alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX;
        if size_fits && alignment_fits {
            Ok(Self { size, alignment })
        } else {
            Err(PackError::Shape)
        }
    }

    /// Most bytes of a chunk, header included.
    pub fn size(self) -> u32 {
        self.size
    }

    /// Small files start at multiples of this many bytes.
    pub fn alignment(self) -> u32 {
        self.alignment
    }

    /// The alignment of a file of `length` bytes: long files start at a page, so that a chunk can
    /// be mapped file by file.
    pub fn alignment_of(self, length: u64) -> u32 {
        if length >= PAGED_FILE_MIN { PAGE as u32 } else { self.alignment }
    }

    /// Most bytes of an uncut file: the room of a chunk beside a header for its path, even when the
    /// chunk is later rewritten alone.
    pub fn largest_file(self, path: &FilePath) -> u64 {
        let rewrite = ORIGIN_COUNT_LEN.saturating_add(ORIGIN_LEN).saturating_add(ID_LEN * 2);
        let row = ENTRY_LEN.saturating_add(path.as_bytes().len());
        let header = head_length(4, row.saturating_add(rewrite));
        u64::from(self.size).saturating_sub(header as u64)
    }

    /// Bytes of a large file in each part except the last.
    pub fn part_length(self) -> u32 {
        self.size.saturating_sub(PAGE as u32)
    }
}

impl Default for ChunkShape {
    fn default() -> Self {
        Self { size: CHUNK_SIZE_DEFAULT, alignment: ALIGNMENT_DEFAULT }
    }
}

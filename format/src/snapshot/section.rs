//! The sections of a snapshot and the table that finds them.
//!
//! Must hold: sections stand in one order, each aligned, with nothing but zeros between them.

use crate::checksum::Crc32c;
use crate::layout::round_up;

use crate::layout::{SNAPSHOT_ALIGNMENT, SNAPSHOT_PRELUDE_LEN, SNAPSHOT_SECTION_LEN};

/// A part of a snapshot. They stand in this order, and their numbers are those of docs/FORMAT.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum SnapshotSection {
    /// Which chunks hold files.
    Chunks = 1,
    /// A record of fixed size for each file.
    Records = 2,
    /// Where each block of names begins.
    Blocks = 3,
    /// The files' paths.
    Names = 4,
    /// From hashes of paths to files.
    Index = 5,
    /// The tree of directories.
    Directories = 6,
    /// Names of the directories.
    DirectoryNames = 7,
    /// Which files lie in each directory.
    Runs = 8,
    /// Stamps of files that were moved into other chunks.
    Stamps = 9,
    /// Earlier parts of large files.
    Extents = 10,
}

impl SnapshotSection {
    /// All of them, in order.
    pub const ALL: [Self; 10] = [
        Self::Chunks,
        Self::Records,
        Self::Blocks,
        Self::Names,
        Self::Index,
        Self::Directories,
        Self::DirectoryNames,
        Self::Runs,
        Self::Stamps,
        Self::Extents,
    ];

    /// Its place in [`SnapshotSection::ALL`].
    pub(super) fn place(self) -> usize {
        (self as usize).saturating_sub(1)
    }
}

/// Bytes of prelude and section table, with what follows them up to the first section.
pub(super) const HEAD_LEN: usize = round_up(
    SNAPSHOT_PRELUDE_LEN + SNAPSHOT_SECTION_LEN * SnapshotSection::ALL.len(),
    SNAPSHOT_ALIGNMENT,
);

/// What has been written of a section.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extent {
    pub(super) length: u64,
    pub(super) crc: Crc32c,
}

impl Extent {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.crc = self.crc.then(Crc32c::of(bytes), bytes.len() as u64);
        self.length = self.length.saturating_add(bytes.len() as u64);
    }
}

/// Bytes that follow a section of this length, up to the next one.
pub fn snapshot_padding(length: u64) -> usize {
    let step = SNAPSHOT_ALIGNMENT as u64;
    let over = length.checked_rem(step).unwrap_or_default();
    if over == 0 { 0 } else { step.saturating_sub(over) as usize }
}

//! The sections of a snapshot and the table that finds them.
//!
//! Must hold: sections are stored in one order, each aligned, with only zeros between them.

use crate::checksum::Crc32c;
use crate::layout::round_up;

use crate::layout::{SNAPSHOT_ALIGNMENT, SNAPSHOT_PRELUDE_LEN, SNAPSHOT_SECTION_LEN};

/// A part of a snapshot. The sections are stored in this order, with the numbers of docs/FORMAT.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum SnapshotSection {
    /// The chunks with live files.
    Chunks = 1,
    /// A record of fixed size for each file.
    Records = 2,
    /// The start of each block of names.
    Blocks = 3,
    /// The files' paths.
    Names = 4,
    /// The index from hashes of paths to files.
    Index = 5,
    /// The tree of directories.
    Directories = 6,
    /// Names of the directories.
    DirectoryNames = 7,
    /// The runs of files in each directory.
    Runs = 8,
    /// Stamps of files moved into other chunks.
    Stamps = 9,
    /// Earlier parts of large files.
    Extents = 10,
}

impl SnapshotSection {
    /// All sections, in order.
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

/// Bytes of prelude and section table, with the padding up to the first section.
pub(super) const HEAD_LEN: usize = round_up(
    SNAPSHOT_PRELUDE_LEN + SNAPSHOT_SECTION_LEN * SnapshotSection::ALL.len(),
    SNAPSHOT_ALIGNMENT,
);

/// Length and checksum of the written bytes of a section.
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

/// Bytes between a section of the given length and the next section.
pub fn snapshot_padding(length: u64) -> usize {
    let step = SNAPSHOT_ALIGNMENT as u64;
    let over = length.checked_rem(step).unwrap_or_default();
    if over == 0 { 0 } else { step.saturating_sub(over) as usize }
}

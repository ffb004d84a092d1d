//! The entry of a file in a chunk: its attributes, the place of its bytes, and its version.
//!
//! Must hold: a version is never given to another file, and stays the same when its chunk is
//! rewritten.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::checksum::Crc32c;
use crate::id::{ChunkId, Stamp};
use crate::path::FilePath;

/// Readable for all, writable for the owner.
const MODE: u16 = 0o644;

/// Attributes set by a file's owner: stored as given, restored by `get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, at most 0o7777.
    pub mode: u16,
    /// Modification time, nanoseconds since 1970.
    pub mtime: i64,
}

impl Attributes {
    /// Of a file created at `time`: readable for all, writable for the owner.
    pub fn at(time: SystemTime) -> Self {
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let mtime = match time.duration_since(UNIX_EPOCH) {
            Ok(since) => nanos(since),
            Err(until) => nanos(until.duration()).saturating_neg(),
        };
        Self { mode: MODE, mtime }
    }
}

/// As of [`Attributes::at`], of 1970.
impl Default for Attributes {
    fn default() -> Self {
        Self { mode: MODE, mtime: 0 }
    }
}

/// Identifies one written version of one file for ever, even after its chunk was rewritten.
///
/// Of two versions of a path the greater version wins: by stamp, then chunk id, then entry number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryVersion {
    /// Stamp of the first commit.
    pub stamp: Stamp,
    /// The chunk of the first commit.
    pub chunk: ChunkId,
    /// The entry number in the chunk.
    pub entry: u32,
}

impl EntryVersion {
    /// The entry number of versions from a snapshot, which stores only stamps. No chunk has an
    /// entry of this number, so such a version deletes nothing.
    pub const UNKNOWN_ENTRY: u32 = u32::MAX;
}

/// The version of a rewritten entry in its earlier chunk.
pub type Origin = EntryVersion;

/// An earlier part of a large file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The part's object.
    pub part: ChunkId,
    /// Bytes of the file in the part.
    pub length: u32,
    /// Checksum of these bytes.
    pub crc: Crc32c,
}

/// A file of a chunk, from its verified header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number among the chunk's entries.
    pub number: u32,
    /// Its path in the dataset.
    pub path: FilePath,
    /// The owner's attributes.
    pub attributes: Attributes,
    /// Bytes of the file.
    pub length: u64,
    /// Checksum of all its bytes.
    pub crc: Crc32c,
    /// Offset of its bytes in the object; for a large file, of its last part.
    pub offset: u32,
    /// Bytes of the file in this object.
    pub stored: u32,
    /// Whether the file has earlier parts (see [`crate::Header::extents`]).
    pub has_extents: bool,
    /// The version of its first commit, if the chunk is a rewrite.
    pub origin: Option<Origin>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_time_has_that_time_and_can_be_opened() {
        let second = Duration::new(1, 5);
        for (time, mtime) in [
            (UNIX_EPOCH + second, 1_000_000_005),
            (UNIX_EPOCH - second, -1_000_000_005),
            (UNIX_EPOCH, 0),
        ] {
            assert_eq!(Attributes::at(time), Attributes { mode: 0o644, mtime });
        }
        assert_eq!(Attributes::default(), Attributes::at(UNIX_EPOCH));
    }
}

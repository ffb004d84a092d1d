//! What a chunk says of one file: its attributes, where its bytes lie, and which version it is.
//!
//! Must hold: a version is never given to another file, and keeps its name when its chunk is rewritten.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::checksum::Crc32c;
use crate::id::{ChunkId, Stamp};
use crate::path::FilePath;

/// Everybody may read, the owner may write.
const MODE: u16 = 0o644;

/// What a file's owner set: kept as given, restored by `get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, at most 0o7777.
    pub mode: u16,
    /// Modification time, nanoseconds since 1970.
    pub mtime: i64,
}

impl Attributes {
    /// Of a file that was made at `time`: everybody may read it, and its owner write it.
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

/// Names one written version of one file for ever, also after its chunk was rewritten.
///
/// Of two versions of a path the greater one holds: by stamp, then chunk id, then entry number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryVersion {
    /// When the version was first committed.
    pub stamp: Stamp,
    /// The chunk it was first committed in.
    pub chunk: ChunkId,
    /// Its number among that chunk's entries.
    pub entry: u32,
}

impl EntryVersion {
    /// The entry of a version of which only the stamp is known: that of a file which a snapshot
    /// names. No chunk has an entry of this number, so nothing can be deleted by it.
    pub const UNKNOWN_ENTRY: u32 = u32::MAX;
}

/// Where a rewritten entry comes from.
pub type Origin = EntryVersion;

/// An earlier part of a large file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The part's object.
    pub part: ChunkId,
    /// Bytes of the file in it.
    pub length: u32,
    /// Their checksum.
    pub crc: Crc32c,
}

/// One file of a chunk, as its verified header tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number among the chunk's entries.
    pub number: u32,
    /// Its path in the dataset.
    pub path: FilePath,
    /// What its owner set.
    pub attributes: Attributes,
    /// Bytes of the file.
    pub length: u64,
    /// Checksum of all its bytes.
    pub crc: Crc32c,
    /// Where its bytes begin in the object; for a large file, those of its last part.
    pub offset: u32,
    /// Bytes of it in this object.
    pub stored: u32,
    /// Whether earlier parts precede it (see [`crate::Header::extents`]).
    pub has_extents: bool,
    /// The version it was first written as, when the chunk is a rewrite.
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

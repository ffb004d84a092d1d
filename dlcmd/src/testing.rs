//! Records of files for tests.
//!
//! The fields that no test asks for have any value.

use dl_format::{Attributes, ChunkId, Crc32c, EntryVersion, FileRecord, Stamp};

/// The record of a file of a length.
pub(crate) fn record(length: u64, attributes: Attributes) -> FileRecord {
    let (stamp, chunk) = (Stamp::new(1_500_000), ChunkId::from_bytes([0; 16]));
    let version = EntryVersion { stamp, chunk, entry: 3 };
    FileRecord {
        version,
        holder: version,
        attributes,
        length,
        crc: Crc32c::from_value(0xAB),
        offset: 4096,
        stored: 7,
        has_extents: false,
    }
}

//! The parts of records, versions and chunks, for tools that inspect records
//! ([`FileRecord`](crate::FileRecord), [`DatasetInfo`](crate::DatasetInfo)) or delete single
//! versions ([`Dataset::delete_versions`](crate::Dataset::delete_versions)).

pub use dl_format::{
    ChunkId, Crc32c, DatasetId, Deletions, EntrySet, EntryVersion, PackError, Stamp, Version,
};

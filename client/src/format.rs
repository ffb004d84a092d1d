//! What records, versions and chunks are made of, for tools that look into them
//! ([`FileRecord`](crate::FileRecord), [`DatasetInfo`](crate::DatasetInfo)) or delete single versions
//! ([`Dataset::delete_versions`](crate::Dataset::delete_versions)).

pub use dl_format::{
    ChunkId, Crc32c, DatasetId, Deletions, EntrySet, EntryVersion, PackError, Stamp, Version,
};

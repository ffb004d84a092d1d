//! The numbers of a snapshot, as docs/FORMAT.md lists them.

/// Bytes of the fixed beginning of a snapshot.
pub const SNAPSHOT_PRELUDE_LEN: usize = 128;
/// Where the checksum of the prelude and the section table stands.
pub const SNAPSHOT_CHECKSUM_OFFSET: usize = 124;
/// Bytes of one row of the section table.
pub const SNAPSHOT_SECTION_LEN: usize = 32;
/// Sections begin at multiples of this.
pub const SNAPSHOT_ALIGNMENT: usize = 64;
/// Bytes of one chunk.
pub const SNAPSHOT_CHUNK_LEN: usize = 32;
/// Files whose names are coded together.
pub const SNAPSHOT_BLOCK_FILES: usize = 16;
/// Bytes of one bucket of the index.
pub const SNAPSHOT_BUCKET_LEN: usize = 64;
/// Most files of a bucket.
pub const SNAPSHOT_BUCKET_FILES: usize = 12;
/// Files for each bucket that files are sought in first.
pub const SNAPSHOT_BUCKET_LOAD: usize = 10;
/// Bytes of one directory.
pub const SNAPSHOT_DIRECTORY_LEN: usize = 12;
/// Bytes of one run of files.
pub const SNAPSHOT_RUN_LEN: usize = 8;
/// Bytes of one earlier part of a large file.
pub const SNAPSHOT_EXTENT_LEN: usize = 32;
/// Bytes behind the last record, so that eight can be read anywhere.
pub const SNAPSHOT_RECORD_PAD: usize = 8;

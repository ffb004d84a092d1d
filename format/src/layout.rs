//! The numbers of the formats, as docs/FORMAT.md lists them. A test holds the two together.
//!
//! Must hold: a number that stored objects carry never changes its meaning within a format version;
//! writers and readers take it from here, both the same.

/// Begins every chunk, part and tombstone. Like PNG's, it shows damage by text-mode transfers.
pub const MAGIC: [u8; 8] = *b"\x89DLC\r\n\x1a\n";
/// Begins the object that a dataset's name points to.
pub const NAME_MAGIC: [u8; 8] = *b"\x89DLN\r\n\x1a\n";
/// Begins a snapshot.
pub const SNAPSHOT_MAGIC: [u8; 8] = *b"\x89DLS\r\n\x1a\n";
/// The first bytes of a manifest.
pub const MANIFEST_MAGIC: [u8; 8] = *b"\x89DLM\r\n\x1a\n";
/// The first bytes of a lease.
pub const LEASE_MAGIC: [u8; 8] = *b"\x89DLL\r\n\x1a\n";
/// Begins the identity object of a store.
pub const IDENTITY_MAGIC: [u8; 8] = *b"\x89DLI\r\n\x1a\n";
/// The version that this code writes, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 1;

/// Bytes of the fixed beginning of every object, commit block included.
pub const PRELUDE_LEN: usize = 128;
/// Where the length of the header stands in the prelude.
pub const HEADER_LENGTH_OFFSET: usize = 56;
/// Where the checksum of the prelude and the section table stands; it covers what precedes it.
pub const PRELUDE_CHECKSUM_OFFSET: usize = 92;
/// Where the commit block begins in the prelude.
pub const COMMIT_OFFSET: usize = 96;
/// Bytes of the commit block.
pub const COMMIT_LEN: usize = 32;
/// Bytes of one row of the section table.
pub const SECTION_LEN: usize = 16;
/// Most rows of the section table.
pub const SECTIONS_MAX: usize = 16;
/// Bytes of one entry.
pub const ENTRY_LEN: usize = 48;
/// Bytes of one extent.
pub const EXTENT_LEN: usize = 24;
/// Bytes of an id.
pub const ID_LEN: usize = 16;
/// Bytes of the count at the beginning of the origins section.
pub const ORIGIN_COUNT_LEN: usize = 4;
/// Bytes of the origins section for each entry, beside the ids.
pub const ORIGIN_LEN: usize = 8;
/// Bytes of the count at the beginning of the deletions section.
pub const DELETION_COUNT_LEN: usize = 4;
/// Bytes of the deletions section for each chunk, beside its bitmap.
pub const DELETION_LEN: usize = 20;
/// Most entries of one chunk.
pub const ENTRIES_MAX: usize = 65_536;
/// Most bytes of a header; payload starts no later.
pub const HEADER_MAX: usize = 524_288;
/// Headers end, and payload starts, at a multiple of this.
pub const PAGE: usize = 4_096;

/// Smallest size of a dataset's chunks, in bytes.
pub const CHUNK_SIZE_MIN: u32 = 1 << 20;
/// Size of a dataset's chunks when nothing else is asked for, in bytes (paper, 4.1: about 4 MB).
pub const CHUNK_SIZE_DEFAULT: u32 = 4 << 20;
/// Largest size of a dataset's chunks, in bytes.
pub const CHUNK_SIZE_MAX: u32 = 64 << 20;
/// Files start at a multiple of this when nothing else is asked for, in bytes: a disk sector.
pub const ALIGNMENT_DEFAULT: u32 = 512;
/// Largest alignment of files, in bytes.
pub const ALIGNMENT_MAX: u32 = 4_096;
/// Files of at least this many bytes start at a multiple of [`PAGE`].
pub const PAGED_FILE_MIN: u64 = 64 << 10;

/// Most bytes of a path.
pub const PATH_MAX: usize = 4_096;
/// Most bytes of one component of a path.
pub const COMPONENT_MAX: usize = 255;

/// Most bytes of a dataset's name.
pub const NAME_MAX: usize = 128;

/// Bytes of the object that a dataset's name points to.
pub const NAME_RECORD_LEN: usize = 48;
/// Bytes of the identity object of a store.
pub const IDENTITY_RECORD_LEN: usize = 32;
/// State of a name: it names a dataset.
pub const NAME_LIVE: u16 = 1;
/// State of a name: its dataset was deleted.
pub const NAME_DELETED: u16 = 2;

/// Kind of an object: files and their bytes.
pub const KIND_CHUNK: u16 = 1;
/// Kind of an object: an earlier part of a large file, without a name.
pub const KIND_PART: u16 = 2;
/// Kind of an object: says which entries are deleted.
pub const KIND_TOMBSTONE: u16 = 3;

/// Section: fixed-size entries.
pub const SECTION_ENTRIES: u32 = 1;
/// Section: the paths of the entries, one after the other.
pub const SECTION_NAMES: u32 = 2;
/// Section: where the entries of a rewritten chunk come from.
pub const SECTION_ORIGINS: u32 = 3;
/// Section: ids of the chunks that a rewritten chunk replaces.
pub const SECTION_REPLACES: u32 = 4;
/// Section: the earlier parts of a large file.
pub const SECTION_EXTENTS: u32 = 5;
/// Section: the deleted entries that a tombstone names.
pub const SECTION_DELETIONS: u32 = 6;
/// Section: the bytes of a part; the only section outside the header.
pub const SECTION_PAYLOAD: u32 = 7;

/// Type of an entry: a regular file.
pub const TYPE_FILE: u8 = 1;
/// Codec of an entry: stored as it is.
pub const CODEC_NONE: u8 = 0;
/// Flag of an entry: its file has earlier parts, named in the extents section.
pub const FLAG_EXTENTS: u16 = 1;

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

/// Most bytes of a part of a stored snapshot.
pub const SNAPSHOT_PART_LEN: u32 = 8_388_608;
/// Bytes of a stored snapshot with a checksum of their own.
pub const SNAPSHOT_PIECE_LEN: u32 = 1_048_576;
/// Bytes of the fixed beginning of a manifest.
pub const MANIFEST_LEN: usize = 72;
/// Bytes of the fixed beginning of a lease.
pub const LEASE_LEN: usize = 60;
/// Most bytes of the name of a task.
pub const TASK_NAME_MAX: usize = 128;
/// Most bytes of the name of the user in a lease.
pub const LEASE_USER_MAX: usize = 64;

/// `length` rounded up to a multiple of `step`, a power of two.
pub(crate) const fn round_up(length: usize, step: usize) -> usize {
    length.saturating_add(step.saturating_sub(1)) & !step.saturating_sub(1)
}

//! The numbers of the formats, as listed in docs/FORMAT.md. A test compares both.
//!
//! Must hold: the meaning of a stored number never changes within a format version. Writers and
//! readers use the same constants.

/// Begins every chunk, part and tombstone. Like PNG's, it shows damage by text-mode transfers.
pub const MAGIC: [u8; 8] = *b"\x89DLC\r\n\x1a\n";
/// Begins the name object of a dataset.
pub const NAME_MAGIC: [u8; 8] = *b"\x89DLN\r\n\x1a\n";
/// Begins a snapshot.
pub const SNAPSHOT_MAGIC: [u8; 8] = *b"\x89DLS\r\n\x1a\n";
/// The first bytes of a manifest.
pub const MANIFEST_MAGIC: [u8; 8] = *b"\x89DLM\r\n\x1a\n";
/// The first bytes of a lease.
pub const LEASE_MAGIC: [u8; 8] = *b"\x89DLL\r\n\x1a\n";
/// Begins the identity object of a store.
pub const IDENTITY_MAGIC: [u8; 8] = *b"\x89DLI\r\n\x1a\n";
/// The version written by this code, and the newest readable version.
pub const FORMAT_VERSION: u16 = 1;

/// Bytes of the fixed beginning of every object, commit block included.
pub const PRELUDE_LEN: usize = 128;
/// Offset of the header length in the prelude.
pub const HEADER_LENGTH_OFFSET: usize = 56;
/// Offset of the checksum of the prelude and the section table; the checksum covers the bytes
/// before.
pub const PRELUDE_CHECKSUM_OFFSET: usize = 92;
/// Offset of the commit block in the prelude.
pub const COMMIT_OFFSET: usize = 96;
/// Bytes of the commit block.
pub const COMMIT_LEN: usize = 32;
/// Bytes of a row of the section table.
pub const SECTION_LEN: usize = 16;
/// Most rows of the section table.
pub const SECTIONS_MAX: usize = 16;
/// Bytes of an entry.
pub const ENTRY_LEN: usize = 48;
/// Bytes of an extent.
pub const EXTENT_LEN: usize = 24;
/// Bytes of an id.
pub const ID_LEN: usize = 16;
/// Bytes of the count at the start of the origins section.
pub const ORIGIN_COUNT_LEN: usize = 4;
/// Bytes of the origins section for each entry, beside the ids.
pub const ORIGIN_LEN: usize = 8;
/// Bytes of the count at the start of the deletions section.
pub const DELETION_COUNT_LEN: usize = 4;
/// Bytes of the deletions section for each chunk, beside its bitmap.
pub const DELETION_LEN: usize = 20;
/// Most entries of a chunk.
pub const ENTRIES_MAX: usize = 65_536;
/// Most bytes of a header; the payload starts no later.
pub const HEADER_MAX: usize = 524_288;
/// Headers end, and payload starts, at a multiple of `PAGE`.
pub const PAGE: usize = 4_096;

/// Smallest size of a dataset's chunks, in bytes.
pub const CHUNK_SIZE_MIN: u32 = 1 << 20;
/// Default size of a dataset's chunks, in bytes (paper, 4.1: about 4 MB).
pub const CHUNK_SIZE_DEFAULT: u32 = 4 << 20;
/// Largest size of a dataset's chunks, in bytes.
pub const CHUNK_SIZE_MAX: u32 = 64 << 20;
/// Default alignment of files, in bytes: a disk sector.
pub const ALIGNMENT_DEFAULT: u32 = 512;
/// Largest alignment of files, in bytes.
pub const ALIGNMENT_MAX: u32 = 4_096;
/// Files of at least this many bytes start at a multiple of [`PAGE`].
pub const PAGED_FILE_MIN: u64 = 64 << 10;

/// Most bytes of a path.
pub const PATH_MAX: usize = 4_096;
/// Most bytes of a component of a path.
pub const COMPONENT_MAX: usize = 255;

/// Most bytes of a dataset's name.
pub const NAME_MAX: usize = 128;

/// Bytes of the name object of a dataset.
pub const NAME_RECORD_LEN: usize = 48;
/// Bytes of the identity object of a store.
pub const IDENTITY_RECORD_LEN: usize = 32;
/// State of a name: valid.
pub const NAME_LIVE: u16 = 1;
/// State of a name: its dataset was deleted.
pub const NAME_DELETED: u16 = 2;

/// Kind of an object: files and their bytes.
pub const KIND_CHUNK: u16 = 1;
/// Kind of an object: an earlier part of a large file, without a name.
pub const KIND_PART: u16 = 2;
/// Kind of an object: a list of deleted entries.
pub const KIND_TOMBSTONE: u16 = 3;

/// Section: fixed-size entries.
pub const SECTION_ENTRIES: u32 = 1;
/// Section: the paths of the entries, one after the other.
pub const SECTION_NAMES: u32 = 2;
/// Section: the origins of the entries of a rewritten chunk.
pub const SECTION_ORIGINS: u32 = 3;
/// Section: ids of the chunks replaced by a rewritten chunk.
pub const SECTION_REPLACES: u32 = 4;
/// Section: the earlier parts of a large file.
pub const SECTION_EXTENTS: u32 = 5;
/// Section: the deleted entries of a tombstone.
pub const SECTION_DELETIONS: u32 = 6;
/// Section: the bytes of a part; the only section outside the header.
pub const SECTION_PAYLOAD: u32 = 7;

/// Type of an entry: a regular file.
pub const TYPE_FILE: u8 = 1;
/// Codec of an entry: stored unchanged.
pub const CODEC_NONE: u8 = 0;
/// Flag of an entry: its file has earlier parts, listed in the extents section.
pub const FLAG_EXTENTS: u16 = 1;

/// Bytes of the fixed beginning of a snapshot.
pub const SNAPSHOT_PRELUDE_LEN: usize = 128;
/// Offset of the checksum of the prelude and the section table.
pub const SNAPSHOT_CHECKSUM_OFFSET: usize = 124;
/// Bytes of a row of the section table.
pub const SNAPSHOT_SECTION_LEN: usize = 32;
/// Sections start at multiples of this number.
pub const SNAPSHOT_ALIGNMENT: usize = 64;
/// Bytes of a chunk's row.
pub const SNAPSHOT_CHUNK_LEN: usize = 32;
/// Files whose names are coded together.
pub const SNAPSHOT_BLOCK_FILES: usize = 16;
/// Bytes of a bucket of the index.
pub const SNAPSHOT_BUCKET_LEN: usize = 64;
/// Most files of a bucket.
pub const SNAPSHOT_BUCKET_FILES: usize = 12;
/// Average files for each home bucket.
pub const SNAPSHOT_BUCKET_LOAD: usize = 10;
/// Bytes of a directory's row.
pub const SNAPSHOT_DIRECTORY_LEN: usize = 12;
/// Bytes of a run of files.
pub const SNAPSHOT_RUN_LEN: usize = 8;
/// Bytes of an earlier part of a large file.
pub const SNAPSHOT_EXTENT_LEN: usize = 32;
/// Bytes behind the last record, so that eight bytes can be read at any record.
pub const SNAPSHOT_RECORD_PAD: usize = 8;

/// Most bytes of a part of a stored snapshot.
pub const SNAPSHOT_PART_LEN: u32 = 8_388_608;
/// Bytes of a stored snapshot covered by one checksum.
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

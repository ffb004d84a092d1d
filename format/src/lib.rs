//! The stored formats of DIESEL: ids, names, checksums, chunks, tombstones and the fold from a
//! dataset's objects to its live files (paper, 4.1).
//!
//! Must hold: decoding is total. Any bytes give a value or a [`DecodeError`] with field and offset.
//! Decoding never panics, never allocates more than the input justifies, and never returns an
//! unverified byte. No I/O, no clock, no randomness: those are arguments.

#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "tests may panic")
)]

mod checksum;
mod chunk;
mod decode;
mod encode;
mod entry;
mod error;
mod fold;
mod header;
mod id;
mod key;
mod kind;
pub mod layout;
mod lease;
mod name;
mod path;
mod record;
mod shape;
pub mod snapshot;
mod tombstone;
mod version;

pub use checksum::{CopyChecked, Crc32c};
pub use chunk::{ChunkWriter, Sealed};
pub use entry::{Attributes, Entry, EntryVersion, Extent, Origin};
pub use error::{DecodeError, PackError};
pub use fold::{FileRecord, Fold};
pub use header::{Committed, Digest, Header, Verified};
pub use id::{ChunkId, ChunkIdMaker, DatasetId, InvalidId, MemberId, Stamp, StoreId, TaskId};
pub use key::{IDENTITY_KEY, NAMES_PREFIX, SnapshotObject, dataset_prefix, hash_byte, hash_prefix};
pub use key::{name_key, name_prefix, object_key, parse_name_key, parse_object_key};
pub use key::{parse_snapshot_key, snapshot_key, snapshots_prefix};
pub use kind::ObjectKind;
pub use lease::{InvalidTaskName, Lease, TaskName};
pub use name::{DatasetName, InvalidName};
pub use path::{DirPath, FilePath, InvalidPath};
pub use record::{IdentityRecord, NameRecord, NameState};
pub use shape::ChunkShape;
pub use tombstone::{Deletions, EntrySet, encode_tombstone};
pub use version::{InvalidVersion, Version};

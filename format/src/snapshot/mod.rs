//! The snapshot: an immutable file with all metadata of a dataset at one version (paper, 4.1.3),
//! used in memory without parsing.
//!
//! Must hold: opening costs the same for any number of files. Any bytes give an answer or an error,
//! never a panic or a read outside. The same files of the same chunks give the same bytes.

mod columns;
mod entries;
mod index;
mod list;
mod manifest;
mod names;
mod read;
mod section;
mod tree;
mod verify;
mod write;

pub use columns::Observed;
pub use entries::{Entries, SnapshotEntry};
pub use list::Names;
pub use manifest::Manifest;
pub use read::{FileNumber, Snapshot, SnapshotFile};
pub use section::{SnapshotSection, snapshot_padding};
pub use write::{LiveFile, SnapshotChunk, SnapshotOf, SnapshotRun, SnapshotWriter, snapshot_hash};

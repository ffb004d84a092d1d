//! Files of this machine: the trees that `put` reads and the folder that `get` writes.
//!
//! Must hold: no symbolic link leads out of a tree, neither in reading nor in writing; every file
//! is reached through the descriptor of a folder, never twice through a path that may have moved.

mod file;
mod folder;
mod target;
mod temporary;
mod walk;

pub(crate) use file::{OpenFile, Trouble};
pub(crate) use folder::{Entry, Folder, Problem, Root};
pub(crate) use target::{NewFile, Target, own_umask, special};
pub(crate) use temporary::is_temporary;
pub(crate) use walk::{Event, Paths, Walk};

/// Whether a file of this size and time is the one that a record describes: nanoseconds since
/// 1970.
pub(crate) fn is_unchanged(size: u64, mtime: i64, record: &dl_format::FileRecord) -> bool {
    size == record.length && mtime == record.attributes.mtime
}

/// A time of the kernel in nanoseconds since 1970; times beyond 64 bits become the nearest.
fn nanos(seconds: i64, nanos: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

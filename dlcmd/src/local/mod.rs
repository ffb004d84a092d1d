//! Local files: the source trees of `put` and the target folder of `get`.
//!
//! Must hold: no symbolic link leads out of a tree, neither in writing nor, without `--follow`, in
//! reading. Every file is reached through the descriptor of a folder, never twice through a path
//! that may have moved.

mod file;
mod folder;
mod server_data;
mod target;
mod temporary;
mod walk;

pub(crate) use file::{OpenFile, ReadFailure};
pub(crate) use folder::{Destination, Entry, Folder, Problem, Root};
pub(crate) use server_data::SKIPPED as SERVER_DATA;
pub(crate) use target::{NewFile, Target, own_umask, special};
pub(crate) use temporary::is_temporary;
pub(crate) use walk::{Event, Paths, Walk};

/// A time of the kernel in nanoseconds since 1970; times beyond 64 bits become the nearest.
fn nanos(seconds: i64, nanos: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

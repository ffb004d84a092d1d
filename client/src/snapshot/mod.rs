//! Snapshots on the reader's side: the mapped file, its answers, and the cache.
//!
//! Must hold: no code here talks to a server.

mod cache;
mod file;
mod folders;
mod index;
mod local_folder;
mod lock;
mod marker;
mod pieces;
mod target;
#[cfg(test)]
pub(crate) mod tests;
mod user_file;

pub use cache::SnapshotCache;
pub(crate) use cache::{Key, Origin};
pub use folders::Child;
pub(crate) use index::Walk;
pub use index::{FilePlace, Snapshot};
pub(crate) use lock::Lock;
pub(crate) use target::Target;
pub(crate) use user_file::{UserFile, room};

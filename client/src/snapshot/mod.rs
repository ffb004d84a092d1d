//! Snapshots on the reader's side: the mapped file, what it answers, and the folder they are kept in.
//!
//! Must hold: nothing here talks to a server.

mod cache;
mod file;
mod given;
mod index;
mod lock;
mod mapped;
mod marker;
mod pieces;
mod place;
mod target;
#[cfg(test)]
pub(crate) mod tests;

pub use cache::SnapshotCache;
pub(crate) use cache::{Key, Source};
pub(crate) use given::{Given, room};
pub(crate) use index::Walk;
pub use index::{FilePlace, Snapshot};
pub(crate) use lock::Lock;
pub(crate) use target::Target;

//! Snapshots on the reader's side: the mapped file, what it answers, and the folder they are kept in.
//!
//! Must hold: nothing here talks to a server.

mod cache;
mod index;
mod mapped;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use cache::Lock;
pub use cache::SnapshotCache;
pub use index::Snapshot;
pub(crate) use index::Walk;

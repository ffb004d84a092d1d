//! The decisions of the agent as plain data: where a chunk is, who owns it, what comes next, and
//! what leaves.
//!
//! Must hold: no lock, no task, no file, and no clock but an argument, so that the same calls give
//! the same decisions in a simulation.

mod backlog;
mod bits;
mod disk_copies;
mod epochs;
mod orders;
mod owners;
mod replacement;
mod residency;
mod sources;
mod window;

pub use backlog::Backlog;
pub use bits::ChunkBits;
pub use disk_copies::{DiskCopies, WriteEnd};
pub use epochs::EpochStatus;
pub use orders::{Orders, Presence, Progress as EpochProgress};
pub use owners::{OwnerTable, Owners};
pub use replacement::{Eviction, InvalidEviction, Replacement};
pub use residency::{Filling, Held, Residency, Retention, Stage};
pub use sources::{ASKED_MAX, Candidate, Sources, sources};
pub use window::{Position, Window};

/// A chunk of a dataset. Numbers behind the chunks mean parts of large files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkKey {
    /// The number of the dataset in the agent.
    pub dataset: usize,
    /// The number of the chunk in the dataset's version.
    pub chunk: u32,
}

/// The origin of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The servers.
    Servers,
    /// The servers, although another agent owns the chunk.
    ServersInstead,
    /// Another agent.
    Peer,
    /// A local disk, which keeps the chunk too.
    Disk,
}

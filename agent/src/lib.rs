//! The node agent (paper, 4.2, the master client): one process for each task and node, which holds
//! chunks in memory that the task's processes map, and fetches them ahead along the order.
//!
//! Must hold: what it holds is a copy; its death costs time and nothing else. Memory stays within the
//! budget. Each wait of a worker is answered by its deadline.

mod backlog;
mod budget;
mod cache;
mod connection;
mod counts;
mod dataset;
mod epochs;
mod files;
mod fill;
mod lent;
mod member;
mod pages;
mod peers;
mod plan;
mod progress;
mod readiness;
mod run;
mod slots;
mod status;
mod waits;
mod window;

pub use budget::{Budget, free_memory};
pub use epochs::EpochStatus;
pub use pages::Pages;
pub use peers::{InvalidPeerAddress, PeerAddress, PeerConfig, PeerStatus, PeerTls};
pub use run::{Config, Ended, run};
pub use status::{DatasetStatus, OrderStatus, Status, WorkerStatus};
pub use waits::{Doing, PeerWait, Wait};

/// When the agent fetches chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Those that a worker reads or, along its order, is about to read.
    #[default]
    OnDemand,
    /// All of a dataset, as soon as a worker opens it, as far as memory goes.
    OneShot,
    /// Those that a worker waits for; none is kept for long.
    None,
}

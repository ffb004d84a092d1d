//! The node agent (paper, 4.2, the master client): one process for each task and node. The agent
//! holds chunks in shared memory for the task's processes, and fetches chunks ahead along the
//! order.
//!
//! Must hold: all contents are copies, so the death of an agent costs only time. Memory stays
//! within the budget. Each wait of a worker is answered by its deadline.

mod cache;
mod dataset;
mod descriptors;
mod disk;
mod durations;
mod peers;
mod pins;
#[doc(hidden)]
pub mod place;
mod progress;
mod registration;
mod run;
mod service;
mod status;

pub use cache::{Budget, Pages, is_cgroup_visible};
pub use disk::{DiskConfig, DiskDataset, DiskFate, TierStatus, clean_disk};
pub use peers::{InvalidPeerAddress, PeerAddress, PeerConfig, PeerStatus, PeerTls};
pub use place::{EpochStatus, Eviction, InvalidEviction};
pub use run::{Config, Ended, run};
pub use status::{About, DatasetStatus, Doing, OrderStatus, PeerWait, Status, Wait, WorkerStatus};

/// When the agent fetches chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Chunks needed by a worker now or, along its order, soon.
    #[default]
    OnDemand,
    /// All of a dataset, as soon as a worker opens it, as far as memory goes.
    OneShot,
    /// Chunks requested by a waiting worker; no chunk stays for long.
    None,
}

impl Policy {
    /// The name in settings and reports: `on-demand`, `oneshot` or `none`.
    pub fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::OneShot => "oneshot",
            Self::None => "none",
        }
    }
}

//! The node agent (paper, 4.2, the master client): one process for each task and node. The agent
//! holds chunks in shared memory for the task's processes, and fetches chunks ahead along the
//! order.
//!
//! Must hold: all contents are copies, so the death of an agent costs only time. Memory stays
//! within the budget. Each wait of a worker is answered by its deadline.

mod backlog;
mod budget;
mod cache;
mod closing;
mod collapsing;
mod counts;
mod dataset;
mod descriptors;
mod epochs;
mod files;
mod fill;
mod member;
mod opening;
mod orders;
mod pages;
mod peer_pins;
mod peer_requests;
mod peer_server;
mod peers;
mod progress;
mod readiness;
mod record;
mod registration;
mod retention;
mod run;
mod slots;
mod status;
mod terms;
mod waits;
mod window;
mod worker_server;

pub use budget::{Budget, is_cgroup_visible};
pub use epochs::EpochStatus;
pub use pages::Pages;
pub use peers::{InvalidPeerAddress, PeerAddress, PeerConfig, PeerStatus, PeerTls};
pub use run::{Config, Ended, run};
pub use status::{About, DatasetStatus, OrderStatus, Status, WorkerStatus};
pub use waits::{Doing, PeerWait, Wait};

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

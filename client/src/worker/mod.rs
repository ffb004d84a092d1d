//! The worker's part of the node cache: reads from the shared memory of a node (paper, 4.2), within
//! training processes. The agent, a separate process, is the other part.
//!
//! Must hold: a worker has no thread, no async runtime, and no descriptor but the socket. `None`
//! stands for a file that the agent can't give in time: the caller then reads from the servers.

pub(crate) mod address;
pub(crate) mod agent_files;
mod attach;
mod begin;
mod fork;
mod gather;
pub(crate) mod handover;
mod obstacle;
mod prefetch;
mod range;
mod read;
mod recent;
mod source;
mod uncached;
mod wait;

pub(crate) use attach::{Attached, Attacher};
pub(crate) use obstacle::Obstacle;
pub use prefetch::Presence;
pub(crate) use read::AgentReader;
pub use read::View;
pub(crate) use source::AgentOrder;

//! Reading from the memory that the processes of one node share (paper, 4.2): the half of the node
//! cache that lives in training processes. The other half is the agent, a process of its own.
//!
//! Must hold: no thread, no async runtime, and no descriptor but the socket. A file that the agent
//! can't give in time is answered by `None`: the caller reads it from the servers.

mod attach;
mod elsewhere;
mod fork;
mod gather;
mod large;
pub(crate) mod layout;
pub(crate) mod memory;
pub(crate) mod message;
#[cfg(test)]
mod model;
mod prefetch;
mod read;
pub(crate) mod runtime;
pub(crate) mod socket;
mod source;
#[cfg(test)]
mod tests;
mod wait;

pub(crate) use attach::Attacher;
pub use prefetch::Presence;
pub use read::View;
pub(crate) use read::Worker;
pub(crate) use source::open as open_epoch;

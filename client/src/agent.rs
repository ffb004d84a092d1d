//! The access of the node agent and its tools to servers and to agents. Applications need no part of
//! the module.
//!
//! Must hold: the bytes of chunks come unchecked: the caller checks them by a snapshot.

mod node;
mod tasks;

use crate::dataset::Dataset;
use crate::error::Error;
pub use crate::remote::ChunkSource;
pub use crate::worker::agent_files::{AgentFiles, older as older_log};
pub use crate::worker::handover::snapshot_file;
pub use node::{
    Claim, Owner, claim, close_on_exec, is_running, runtime_folder, start, status, stop,
};
pub use tasks::{at_servers, at_version, by_descriptor, join_task, of_cache, without_agent};

impl ChunkSource {
    /// The chunks of the dataset of a handle, for the current process.
    ///
    /// # Errors
    /// [`Kind::Local`](crate::Kind::Local) when the library can't work in this process.
    pub fn of(dataset: &Dataset) -> Result<Self, Error> {
        Self::new(dataset.remote())
    }
}

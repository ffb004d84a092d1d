//! The interface between the node agent and the library: the layout of memory, the messages, and
//! the access to servers. The module is for `dl-agent`, its tools and the Python package;
//! applications need no part of the module.
//!
//! Must hold: an agent and a worker of the same library version agree on the interface. The bytes
//! of chunks come unchecked: the caller checks them by a snapshot.

mod node;
mod tasks;

pub use dl_format::{DatasetId, InvalidTaskName, MemberId, TaskId, TaskName, Version};
pub use dl_proto::{
    ChunkRange, JoinTask, TASK_MEMBERS_MAX, TaskCounters, TaskMember, TaskMembership, task_id,
};

use crate::dataset::Dataset;
use crate::error::Error;
pub use crate::remote::ChunkSource;
pub use crate::snapshot::HUGE_PAGE;
pub use crate::worker::agent_files::{AgentFiles, older as older_log};
pub use crate::worker::copying::{copy_bytes, copy_to_new};
pub use crate::worker::handover::snapshot_file;
pub use crate::worker::layout::{Arena, Gauge, PinPage, SLOTS_MAX, Shape, Table, Word};
pub use crate::worker::message::{
    Begin, FromAgent, HINTS_MAX, Hello, NO_FILE, PROTOCOL, Servers, ToAgent, Want, WantFiles,
    WantedVersion, Welcome,
};
pub use crate::worker::socket::{DESCRIPTORS_MAX, Socket, accept, bind_at};
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

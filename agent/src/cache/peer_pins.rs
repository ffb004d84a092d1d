//! Other agents of the job that ask for a chunk.
//!
//! Must hold: a waiting agent gets the chunk, or its channel closes.

use std::time::Duration;

use dl_format::MemberId;
use tokio::sync::oneshot;

use crate::pins::PinnedFiles;

/// The answer to another agent's request for a chunk.
#[derive(Debug)]
pub(crate) enum ChunkReply {
    Here(PinnedFiles),
    /// The chunk is being fetched from the servers; the channel closes without a value if the fetch
    /// fails.
    Coming(oneshot::Receiver<PinnedFiles>),
    /// The chunk is on a disk here, and no slot is free at the moment.
    Later,
    /// The chunk can't be kept here, or comes from another agent.
    Elsewhere,
}

/// Another agent waiting for a chunk.
#[derive(Debug)]
pub(crate) struct PeerWaiter {
    pub(crate) sender: oneshot::Sender<PinnedFiles>,
    pub(crate) member: MemberId,
    /// On the agent's clock.
    pub(crate) since: Duration,
}

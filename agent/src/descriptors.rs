//! The share of file descriptors for connections with other agents.
//!
//! Must hold: connections with other agents leave half of the descriptors for workers and servers.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most connections in each direction.
const CONNECTIONS_MAX: u64 = 1 << 16;

/// Permits for connections in one direction.
#[derive(Debug, Clone)]
pub(crate) struct Descriptors(Arc<Semaphore>);

impl Descriptors {
    /// A quarter of this process's descriptors.
    pub(crate) fn for_one_direction() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let share = (limit / 4).min(CONNECTIONS_MAX);
        Self(Arc::new(Semaphore::new(share as usize)))
    }

    /// A permit for a connection; none if the share is in use.
    pub(crate) fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}

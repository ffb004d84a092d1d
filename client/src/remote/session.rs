//! The connections of a client in the current process.
//!
//! Must hold: after a fork the child makes its own connections.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::Error;
use crate::process::PerProcess;
use crate::remote::connections::Connections;
use crate::remote::options::ConnectOptions;
use crate::remote::process::Process;

/// The common part of all handles of a client.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: ConnectOptions,
    /// Whether a server has ever answered, also in a parent process.
    is_met: Arc<AtomicBool>,
    connections: PerProcess<Arc<Connections>>,
}

/// The runtime and the connections of the current process.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) process: &'static Process,
    pub(crate) connections: Arc<Connections>,
}

impl Shared {
    pub(crate) fn new(options: ConnectOptions) -> Self {
        Self { options, is_met: Arc::default(), connections: PerProcess::new() }
    }

    pub(crate) fn session(&self) -> Result<Session, Error> {
        let process = Process::current()?;
        let connections = self.connections.get_or_make(|| {
            Connections::new(&self.options, process, Arc::clone(&self.is_met)).map(Arc::new)
        })?;
        Ok(Session { process, connections: Arc::clone(connections) })
    }
}

impl Session {
    /// Blocks the calling thread until `work` is done.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.process.runtime.block_on(work)
    }
}

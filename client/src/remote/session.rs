//! A client as it is seen from the process that runs now.
//!
//! Must hold: after a fork the child makes connections of its own.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::Error;
use crate::process::PerProcess;
use crate::remote::connections::Connections;
use crate::remote::options::ConnectOptions;
use crate::remote::process::Process;

/// What all handles of one client share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: ConnectOptions,
    /// Whether a server has ever answered, a parent of this process included.
    is_met: Arc<AtomicBool>,
    connections: PerProcess<Arc<Connections>>,
}

/// The means of the process that runs now.
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

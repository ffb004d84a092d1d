//! Calls that may wait for the agent or for servers.
//!
//! Must hold: other Python threads run meanwhile. A signal handler that raises an exception ends
//! the wait within 100 ms, and the abandoned call uses no Python objects.

use std::sync::mpsc::{self, RecvTimeoutError, SendError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::named;
use crate::log;

/// Interval between two checks for signals.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs `work` without the interpreter's lock. Signals reach only the main thread of a Python
/// program, so `work` of the main thread runs in another thread, which a signal abandons.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    wait_or(py, work, drop)
}

/// Like [`wait`]; `lost` gets the result of abandoned work.
pub(crate) fn wait_or<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    lost: impl FnOnce(T) + Send + 'static,
) -> PyResult<T> {
    let done = if is_main_thread() { watched(py, work, lost) } else { Ok(py.detach(work)) };
    log::deliver(py)?;
    done
}

fn watched<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    lost: impl FnOnce(T) + Send + 'static,
) -> PyResult<T> {
    // Without a buffer, so that a result is either received or lost.
    let (sender, mut receiver) = mpsc::sync_channel(0);
    let run = move || {
        if let Err(SendError(done)) = sender.send(work()) {
            lost(done);
        }
    };
    let started = thread::Builder::new().name("libdiesel-call".to_owned()).spawn(run);
    started.map_err(|why| named(py, "LocalError", format!("start a thread: {why}")))?;
    loop {
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(POLL_INTERVAL)) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals()?;
                log::deliver(py)?;
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(named(py, "InternalError", "the call ended by a panic".to_owned()));
            }
        }
    }
}

/// Python's main thread is the first thread of the process, or the thread that called fork.
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

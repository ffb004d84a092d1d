//! Log messages of the library, passed to Python's `logging` under the name `libdiesel`.
//!
//! Must hold: a library thread never waits for the interpreter's lock: messages are stored, at most
//! [`KEPT`], until the next call from Python. No thread waits for the lock of the messages: a fork
//! may leave the lock locked in the child.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use libdiesel::log;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use tracing::Level;

/// Maximum of stored messages; older messages are dropped.
const KEPT: usize = 1_000;

static NOTES: Mutex<VecDeque<(Level, String)>> = Mutex::new(VecDeque::new());
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// Starts storing messages, unless the program has its own subscriber.
pub(crate) fn listen() {
    log::pass_to(store);
}

fn store(level: Level, text: String) {
    let Ok(mut notes) = NOTES.try_lock() else { return };
    if notes.len() == KEPT {
        notes.pop_front();
    }
    notes.push_back((level, text));
    IS_ANY.store(true, Ordering::Relaxed);
}

/// Passes stored messages to `logging`: at the end of the program there is no next call.
#[pyfunction]
pub(crate) fn deliver_notes(py: Python<'_>) -> PyResult<()> {
    deliver(py)
}

/// Passes stored messages to `logging`.
///
/// # Errors
/// Only errors other than an `Exception`, such as KeyboardInterrupt: a failing handler must not
/// fail a read.
pub(crate) fn deliver(py: Python<'_>) -> PyResult<()> {
    if !IS_ANY.swap(false, Ordering::Relaxed) {
        return Ok(());
    }
    let notes = NOTES.try_lock().map(|mut notes| std::mem::take(&mut *notes));
    let Ok(notes) = notes else { return Ok(()) };
    let logger =
        py.import("logging").and_then(|logging| logging.call_method1("getLogger", ("libdiesel",)));
    let Ok(logger) = logger else { return Ok(()) };
    for (level, text) in notes {
        let method = match level {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            _ => "debug",
        };
        match logger.call_method1(method, ("%s", text)) {
            Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

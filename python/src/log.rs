//! Log messages of the library, passed to Python's `logging` under the name `libdiesel`.
//!
//! Must hold: a library thread never waits for the interpreter's lock: messages are stored, at most
//! [`KEPT`], until the next call from Python. No thread waits for the lock of the messages: a fork
//! may leave the lock locked in the child.

use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dl_runtime::since_boot;
use libdiesel::{OnRetry, Retry};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Maximum of stored messages; older messages are dropped.
const KEPT: usize = 1_000;

/// Shorter retries get no message.
const HITCH: Duration = Duration::from_secs(1);
/// Interval between the first two messages about retries; each message doubles the interval.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);

static NOTES: Mutex<VecDeque<(Level, String)>> = Mutex::new(VecDeque::new());
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// Stores the log messages of this library.
struct Notes;

/// The text of a message, and its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

/// Starts storing messages, unless the program has its own subscriber.
pub(crate) fn listen() {
    let _ = tracing::subscriber::set_global_default(Notes);
}

fn store(level: Level, text: String) {
    let Ok(mut notes) = NOTES.try_lock() else { return };
    if notes.len() == KEPT {
        notes.pop_front();
    }
    notes.push_back((level, text));
    IS_ANY.store(true, Ordering::Relaxed);
}

/// Reports requests that a client tries again: a server that is away is known long before the call
/// fails.
pub(crate) fn of_retries() -> OnRetry {
    // The end of the silence after a report, and the pause after the next report.
    let silence = Mutex::new((Duration::ZERO, PAUSE));
    Arc::new(move |retry| {
        let now = since_boot();
        let Ok(mut silence) = silence.try_lock() else { return };
        let (until, pause) = *silence;
        if retry.waited < HITCH || now < until {
            return;
        }
        // A later outage starts over.
        let pause = if now > until.saturating_add(PAUSE_MAX) { PAUSE } else { pause };
        *silence = (now.saturating_add(pause), pause.saturating_mul(2).min(PAUSE_MAX));
        let Retry { action, subject, reason, left, .. } = retry;
        let left = left.as_secs();
        store(Level::WARN, format!("{action} {subject}: {reason}; trying for {left} s more"));
    })
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

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
            && ["libdiesel", "dl_"].iter().any(|own| metadata.target().starts_with(own))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        store(*event.metadata().level(), text.message + &text.fields);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            let _ = write!(self.fields, " {field}={value}");
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let _ = write!(self.fields, " {field}={value:?}");
        }
    }
}

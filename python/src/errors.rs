//! Errors of the library as exceptions of `libdiesel.errors`.
//!
//! Must hold: every kind has its own class, and the text names operation, object, cause and remedy.

use std::error::Error as _;
use std::io;

use libdiesel::{Error, Kind};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// The exception class of a kind.
fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::NotFound => "NotFoundError",
        Kind::Invalid => "InvalidError",
        Kind::Conflict => "ConflictError",
        Kind::NeedsRecovery => "NeedsRecoveryError",
        Kind::Full => "FullError",
        Kind::Corrupt => "CorruptError",
        Kind::Denied => "PermissionDenied",
        Kind::Unavailable => "UnavailableError",
        Kind::TimedOut => "Timeout",
        Kind::Cancelled => "CancelledError",
        Kind::Internal => "InternalError",
        Kind::Unreachable => "UnreachableError",
        Kind::Local => "LocalError",
    }
}

/// The exception of an error. An ``OSError`` gets the file, and the number of a failed system call.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let exception = named(py, class(error.kind()), error.explained());
    if exception.is_instance_of::<PyOSError>(py) {
        set(py, &exception, "filename", error.subject());
        if let Some(number) = system_error(error) {
            set(py, &exception, "errno", number);
        }
    }
    exception
}

/// The exception for a missing file.
pub(crate) fn not_found(py: Python<'_>, file: &str, text: String) -> PyErr {
    let exception = named(py, "NotFoundError", text);
    set(py, &exception, "filename", file);
    exception
}

/// Sets an attribute. A class without room for attributes keeps its text.
fn set<'py>(py: Python<'py>, exception: &PyErr, name: &str, value: impl IntoPyObject<'py>) {
    let _ = exception.value(py).setattr(name, value);
}

/// The number of the failed system call, if one is the cause.
fn system_error(error: &Error) -> Option<i32> {
    let mut source = error.source();
    while let Some(why) = source {
        if let Some(why) = why.downcast_ref::<io::Error>() {
            return why.raw_os_error();
        }
        source = why.source();
    }
    None
}

/// An exception of `libdiesel.errors`, by the name of its class.
pub(crate) fn named(py: Python<'_>, class: &str, text: String) -> PyErr {
    let made = py
        .import("libdiesel.errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call1((text,)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// An invalid request.
pub(crate) fn invalid(py: Python<'_>, text: impl Into<String>) -> PyErr {
    named(py, "InvalidError", text.into())
}

/// Conversion of library results into Python results.
pub(crate) trait Raise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> Raise<T> for Result<T, Error> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raised(py, &error))
    }
}

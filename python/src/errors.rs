//! Errors of the library as exceptions of `libdiesel.errors`.
//!
//! Must hold: every kind has its own class, and the text names operation, object, cause and remedy.

use std::error::Error as _;

use libdiesel::{Error, Kind};
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

/// An error with its causes and its remedy, in one line.
pub(crate) fn text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(why) = source {
        text.push_str(": ");
        text.push_str(&why.to_string());
        source = why.source();
    }
    match error.kind().advice() {
        Some(advice) => format!("{text}; {advice}"),
        None => text,
    }
}

/// The exception of an error.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    named(py, class(error.kind()), text(error))
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

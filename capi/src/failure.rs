//! Status codes, and failures with their reasons.
//!
//! Must hold: each kind of error has a status of its own.
#![expect(non_camel_case_types, reason = "names of the C library")]

use libdiesel::{Error, Kind};

/// The result of a call: 0 for success. DL_message() tells the reason of any other.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DL_status {
    /// Success.
    DL_OK = 0,
    /// No such object.
    DL_NOT_FOUND = 1,
    /// The request makes no sense; change the request.
    DL_INVALID = 2,
    /// Something else stands in the way; look first.
    DL_CONFLICT = 3,
    /// The server's metadata is not whole: run `dlcmd recover`.
    DL_NEEDS_RECOVERY = 4,
    /// Out of space or quota: stop writing. Reads go on.
    DL_FULL = 5,
    /// Stored bytes differ from the written bytes.
    DL_CORRUPT = 6,
    /// Not allowed: use another user, key or role, or set the clocks.
    DL_DENIED = 7,
    /// The servers are busy or down; try again later.
    DL_UNAVAILABLE = 8,
    /// No server answered in time; try again later.
    DL_TIMED_OUT = 9,
    /// Given up by a stopping server.
    DL_CANCELLED = 10,
    /// A fault of the software.
    DL_INTERNAL = 11,
    /// No server could be reached; check the addresses and the network.
    DL_UNREACHABLE = 12,
    /// A local file could not be read or written.
    DL_LOCAL = 13,
    /// The buffer is too short; the needed length was stored.
    DL_TOO_SHORT = 14,
    /// Some files of the call failed, each with a status of its own.
    DL_PARTLY = 15,
    /// The end of a list.
    DL_END = 16,
}

use DL_status::{
    DL_CANCELLED, DL_CONFLICT, DL_CORRUPT, DL_DENIED, DL_END, DL_FULL, DL_INTERNAL, DL_INVALID,
    DL_LOCAL, DL_NEEDS_RECOVERY, DL_NOT_FOUND, DL_PARTLY, DL_TIMED_OUT, DL_UNAVAILABLE,
    DL_UNREACHABLE,
};

impl From<Kind> for DL_status {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::NotFound => DL_NOT_FOUND,
            Kind::Invalid => DL_INVALID,
            Kind::Conflict => DL_CONFLICT,
            Kind::NeedsRecovery => DL_NEEDS_RECOVERY,
            Kind::Full => DL_FULL,
            Kind::Corrupt => DL_CORRUPT,
            Kind::Denied => DL_DENIED,
            Kind::Unavailable => DL_UNAVAILABLE,
            Kind::TimedOut => DL_TIMED_OUT,
            Kind::Cancelled => DL_CANCELLED,
            Kind::Internal => DL_INTERNAL,
            Kind::Unreachable => DL_UNREACHABLE,
            Kind::Local => DL_LOCAL,
        }
    }
}

/// The failure of a call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: DL_status,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(status: DL_status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(DL_INVALID, text)
    }

    /// The first failure among the files of a call.
    pub(crate) fn partly(error: &Error) -> Self {
        Self::new(DL_PARTLY, error.explained())
    }

    /// The end of a list, which needs no message.
    pub(crate) fn end() -> Self {
        Self::new(DL_END, "the end")
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.kind().into(), error.explained())
    }
}

//! Kinds of errors by their remedy, and their encoding on the wire.
//!
//! Must hold: the table is exhaustive, and every kind survives the wire.

use tonic::Code;

/// The kind of an error, by its remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The object does not exist.
    NotFound,
    /// The request is invalid; change it.
    Invalid,
    /// Another object is in the way; check first.
    Conflict,
    /// The metadata is incomplete: run `recover`.
    NeedsRecovery,
    /// Out of space or quota: writing fails, reading works.
    Full,
    /// Stored bytes differ from the written bytes.
    Corrupt,
    /// Not allowed.
    Denied,
    /// Temporary: try again, here or at another server.
    Unavailable,
    /// The time limit is exceeded.
    TimedOut,
    /// Cancelled by the caller.
    Cancelled,
    /// A fault of the software.
    Internal,
}

impl Kind {
    /// Whether the same request may succeed later or elsewhere.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Unavailable | Self::TimedOut => true,
            Self::NotFound
            | Self::Invalid
            | Self::Conflict
            | Self::NeedsRecovery
            | Self::Full
            | Self::Corrupt
            | Self::Denied
            | Self::Cancelled
            | Self::Internal => false,
        }
    }

    /// The gRPC status code of the kind.
    pub fn code(self) -> Code {
        match self {
            Self::NotFound => Code::NotFound,
            Self::Invalid => Code::InvalidArgument,
            Self::Conflict => Code::AlreadyExists,
            Self::NeedsRecovery => Code::FailedPrecondition,
            Self::Full => Code::ResourceExhausted,
            Self::Corrupt => Code::DataLoss,
            Self::Denied => Code::PermissionDenied,
            Self::Unavailable => Code::Unavailable,
            Self::TimedOut => Code::DeadlineExceeded,
            Self::Cancelled => Code::Cancelled,
            Self::Internal => Code::Internal,
        }
    }

    /// The kind of a received status code.
    pub fn of(code: Code) -> Self {
        match code {
            Code::NotFound => Self::NotFound,
            Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented => Self::Invalid,
            Code::AlreadyExists => Self::Conflict,
            Code::FailedPrecondition => Self::NeedsRecovery,
            Code::ResourceExhausted => Self::Full,
            Code::DataLoss => Self::Corrupt,
            Code::PermissionDenied | Code::Unauthenticated => Self::Denied,
            // Reported by the transport when a connection breaks during an answer.
            Code::Unavailable | Code::Unknown | Code::Aborted => Self::Unavailable,
            Code::DeadlineExceeded => Self::TimedOut,
            Code::Cancelled => Self::Cancelled,
            Code::Ok | Code::Internal => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire() {
        for kind in (0..=16).map(|code| Kind::of(Code::from(code))) {
            assert_eq!(Kind::of(kind.code()), kind);
        }
    }
}

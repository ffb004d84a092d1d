//! What a caller can do about a failed request, and how that crosses the wire.
//!
//! Must hold: the table is exhaustive, and every kind comes back from its code as it went.

use tonic::Code;

/// What the caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It is not there.
    NotFound,
    /// The request makes no sense; change it.
    Invalid,
    /// Something else stands in its place; look first.
    Conflict,
    /// The metadata is not whole: run `recover`.
    NeedsRecovery,
    /// Out of space or quota: stop writing, reading goes on.
    Full,
    /// Stored bytes are not what was written.
    Corrupt,
    /// Not allowed.
    Denied,
    /// Worth another try, here or at another server.
    Unavailable,
    /// It took longer than it may.
    TimedOut,
    /// Given up by the caller.
    Cancelled,
    /// A fault of the software.
    Internal,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::NotFound,
        Self::Invalid,
        Self::Conflict,
        Self::NeedsRecovery,
        Self::Full,
        Self::Corrupt,
        Self::Denied,
        Self::Unavailable,
        Self::TimedOut,
        Self::Cancelled,
        Self::Internal,
    ];

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

    /// The gRPC status code that carries it.
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

    /// What a status code from the other side means.
    pub fn of(code: Code) -> Self {
        match code {
            Code::NotFound => Self::NotFound,
            Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented => Self::Invalid,
            Code::AlreadyExists => Self::Conflict,
            Code::FailedPrecondition => Self::NeedsRecovery,
            Code::ResourceExhausted => Self::Full,
            Code::DataLoss => Self::Corrupt,
            Code::PermissionDenied | Code::Unauthenticated => Self::Denied,
            // What the transport says when a connection breaks in the middle of an answer.
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
        for kind in Kind::ALL {
            assert_eq!(Kind::of(kind.code()), kind);
        }
    }
}

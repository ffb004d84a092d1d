//! What went wrong, and what the caller can do about it.
//!
//! Must hold: neither text nor Debug of an error ever shows a key.

use std::fmt;
use std::sync::Arc;

type Source = Arc<dyn std::error::Error + Send + Sync>;

/// A call that failed: what was being done, to what, and, as its source, why.
#[derive(Debug, Clone)]
pub struct Error {
    kind: Kind,
    action: &'static str,
    subject: String,
    source: Option<Source>,
}

impl Error {
    pub(crate) fn new(
        kind: Kind,
        action: &'static str,
        subject: impl fmt::Display,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let source = Some(Source::from(source.into()));
        Self { kind, action, subject: subject.to_string(), source }
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What was being done, in the present tense: "read".
    pub fn action(&self) -> &'static str {
        self.action
    }

    /// To what: a path, a dataset, a server.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// All of it in one line, for a log.
    pub(crate) fn chain(&self) -> String {
        self.source.as_ref().map_or_else(|| self.to_string(), |why| format!("{self}: {why}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.action, self.subject)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It is not there.
    NotFound,
    /// The request makes no sense; change it.
    Invalid,
    /// Something else stands in its place; look first.
    Conflict,
    /// The server's metadata is not whole: run `recover`.
    NeedsRecovery,
    /// Out of space or quota: stop writing, reading goes on.
    Full,
    /// Stored bytes are not what was written.
    Corrupt,
    /// Not allowed: another user, key or role is needed, or clocks that are together.
    Denied,
    /// The servers can't do it now; try again later.
    Unavailable,
    /// No server answered in time; try again later.
    TimedOut,
    /// Given up by a server that stops.
    Cancelled,
    /// A fault of the software.
    Internal,
    /// No server could be reached; look at the addresses and the network.
    Unreachable,
    /// A file on this machine could not be read, or bytes could not be handed over.
    Local,
}

impl Kind {
    /// Whether the same request may succeed later or at another server.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Unavailable | Self::TimedOut | Self::Unreachable => true,
            Self::NotFound
            | Self::Invalid
            | Self::Conflict
            | Self::NeedsRecovery
            | Self::Full
            | Self::Corrupt
            | Self::Denied
            | Self::Cancelled
            | Self::Internal
            | Self::Local => false,
        }
    }

    /// What to do, in words for the end of an error text; none where the reason itself says it.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Self::NotFound
            | Self::Invalid
            | Self::Conflict
            | Self::NeedsRecovery
            | Self::Denied => None,
            Self::Full => {
                Some("free space, or raise what bounds it (a quota, maxmemory), then write again")
            }
            Self::Corrupt => {
                Some("put damaged files again from their source with `dlcmd put --checksum`")
            }
            Self::Unavailable | Self::TimedOut => Some("try again later"),
            Self::Cancelled => Some("try again"),
            Self::Internal => Some("report it, with the logs of client and server"),
            Self::Unreachable => Some("check the addresses and that a server runs there"),
            Self::Local => Some("check the file and its permissions on this machine"),
        }
    }
}

impl From<dl_proto::Kind> for Kind {
    fn from(kind: dl_proto::Kind) -> Self {
        match kind {
            dl_proto::Kind::NotFound => Self::NotFound,
            dl_proto::Kind::Invalid => Self::Invalid,
            dl_proto::Kind::Conflict => Self::Conflict,
            dl_proto::Kind::NeedsRecovery => Self::NeedsRecovery,
            dl_proto::Kind::Full => Self::Full,
            dl_proto::Kind::Corrupt => Self::Corrupt,
            dl_proto::Kind::Denied => Self::Denied,
            dl_proto::Kind::Unavailable => Self::Unavailable,
            dl_proto::Kind::TimedOut => Self::TimedOut,
            dl_proto::Kind::Cancelled => Self::Cancelled,
            dl_proto::Kind::Internal => Self::Internal,
        }
    }
}

//! Errors of the library, with the remedy for the caller.
//!
//! Must hold: the text and Debug of an error never show a key.

use std::fmt;
use std::sync::Arc;

type Source = Arc<dyn std::error::Error + Send + Sync>;

/// A failed call: the operation, its object and, as source, the cause.
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

    /// The kind of error, by its remedy.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The operation, as an imperative: "read".
    pub fn action(&self) -> &'static str {
        self.action
    }

    /// The object: a path, a dataset, a server.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The error with its causes and its remedy, in one line.
    pub fn explained(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(why) = source {
            text.push_str(": ");
            text.push_str(&why.to_string());
            source = why.source();
        }
        match self.kind.advice() {
            Some(advice) => format!("{text}; {advice}"),
            None => text,
        }
    }

    /// The error and its cause in one line, for a log.
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

/// Kinds of errors, by the remedy for a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No such object.
    NotFound,
    /// The request makes no sense; change the request.
    Invalid,
    /// Something else stands in the way; look first.
    Conflict,
    /// The server's metadata is not whole: run `recover`.
    NeedsRecovery,
    /// Out of space or quota: stop writing. Reads go on.
    Full,
    /// Stored bytes differ from the written bytes.
    Corrupt,
    /// Not allowed: use another user, key or role, or set the clocks.
    Denied,
    /// The servers are busy or down; try again later.
    Unavailable,
    /// No server answered in time; try again later.
    TimedOut,
    /// Given up by the caller or by a stopping server.
    Cancelled,
    /// A fault of the software.
    Internal,
    /// No server could be reached; check the addresses and the network.
    Unreachable,
    /// A local file could not be read, or the caller's reader or writer failed.
    Local,
}

impl Kind {
    /// Whether the same request may succeed later or at another server.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::TimedOut | Self::Unreachable)
    }

    /// The remedy, for the end of an error text; none where the cause names the remedy.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Self::NotFound
            | Self::Invalid
            | Self::Conflict
            | Self::NeedsRecovery
            | Self::Denied
            | Self::Local => None,
            Self::Full => {
                Some("free space, or raise the limit (a quota, maxmemory), then write again")
            }
            Self::Corrupt => {
                Some("put damaged files again from their source with `dlcmd put --checksum`")
            }
            Self::Unavailable | Self::TimedOut => Some("try again later"),
            Self::Cancelled => Some("try again"),
            Self::Internal => Some("report the fault, with the logs of client and server"),
            Self::Unreachable => Some("check the addresses and whether a server runs there"),
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

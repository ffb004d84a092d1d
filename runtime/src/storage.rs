//! Errors of the chunk store and of the metadata store, by the caller's remedy.
//!
//! Must hold: after [`Kind::Missing`], [`Kind::Exists`] and [`Kind::Conflict`] a write had no effect. An
//! unknown failure is [`Kind::Unavailable`], after which the call may have taken effect.

use std::error::Error as StdError;
use std::fmt::Display;
use std::io;

use rustix::io::Errno;

/// A failed call: `kind` tells the remedy, `source` the cause.
#[derive(Debug, thiserror::Error)]
#[error("{action} {what}")]
pub struct Error {
    /// The remedy.
    pub kind: Kind,
    /// The operation in the present tense, as in "create object".
    pub action: &'static str,
    /// The object of the operation: a key, a prefix, a dataset, or the address of a store.
    pub what: String,
    /// The cause, where more is known than the kind.
    #[source]
    pub source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Errors of a store by their remedies; each shows its meaning, as the last link of a chain of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Kind {
    /// The key has no object, or the dataset does not exist.
    #[error("not found")]
    Missing,
    /// The key is taken: read the object and compare.
    #[error("the object exists")]
    Exists,
    /// The stored state contradicts the call.
    #[error("the stored state contradicts the call")]
    Conflict,
    /// Try again, here or at another server. The call may have taken effect.
    #[error("the store is unavailable")]
    Unavailable,
    /// Out of space or quota: stop writing, reading goes on.
    #[error("no space left")]
    Full,
    /// The bytes differ from the stored bytes. Metadata can be recovered from the chunks.
    #[error("the stored bytes are damaged")]
    Corrupt,
    /// Unknown parts of the metadata are lost: recover them from the chunks.
    #[error("some of the metadata is lost; recover it from the chunks")]
    Lost,
    /// Another process has the store open: stop that process, or connect to it.
    #[error("another process has the store open")]
    InUse,
    /// The store refuses: correct permissions or credentials.
    #[error("permission denied")]
    Denied,
    /// The store does not support the call: correct the address or the request, or update the program.
    #[error("not supported by this store")]
    Unsupported,
}

impl Kind {
    /// Exhaustive on purpose: a new kind must decide.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Unavailable => true,
            Self::Missing
            | Self::Exists
            | Self::Conflict
            | Self::Full
            | Self::Corrupt
            | Self::Lost
            | Self::InUse
            | Self::Denied
            | Self::Unsupported => false,
        }
    }
}

impl Error {
    /// An error without a cause beside its kind.
    pub fn new(kind: Kind, action: &'static str, what: impl Display) -> Self {
        Self::because(kind, action, what, kind)
    }

    /// An error with its cause.
    pub fn because(
        kind: Kind,
        action: &'static str,
        what: impl Display,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, action, what: what.to_string(), source: Some(source.into()) }
    }

    /// The error of a system call.
    pub fn from_errno(errno: Errno, action: &'static str, what: impl Display) -> Self {
        Self::because(kind_of(errno), action, what, io::Error::from(errno))
    }

    /// The error of a call of the standard library.
    pub fn from_io(error: io::Error, action: &'static str, what: impl Display) -> Self {
        let kind = Errno::from_io_error(&error).map_or(Kind::Unavailable, kind_of);
        Self::because(kind, action, what, error)
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    /// Whether a disk could not read or write; other places of the disk may be readable.
    pub fn is_of_disk(&self) -> bool {
        let source = self.source.as_deref().and_then(|source| source.downcast_ref::<io::Error>());
        source.and_then(Errno::from_io_error) == Some(Errno::IO)
    }
}

/// Errnos are an open set. An unknown errno is worth a retry.
fn kind_of(errno: Errno) -> Kind {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::ISDIR => Kind::Missing,
        Errno::EXIST => Kind::Exists,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Kind::Full,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => Kind::Denied,
        Errno::NAMETOOLONG | Errno::OPNOTSUPP | Errno::NOSYS => Kind::Unsupported,
        _ => Kind::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disks_and_refusals_differ_from_errors_that_may_pass() {
        for (errno, kind) in [
            (Errno::NOSPC, Kind::Full),
            (Errno::DQUOT, Kind::Full),
            (Errno::ACCESS, Kind::Denied),
            (Errno::ROFS, Kind::Denied),
            (Errno::NOENT, Kind::Missing),
            (Errno::EXIST, Kind::Exists),
            (Errno::IO, Kind::Unavailable),
            (Errno::MFILE, Kind::Unavailable),
        ] {
            assert_eq!(Error::from_errno(errno, "read", "k").kind, kind);
            assert_eq!(Error::from_io(errno.into(), "read", "k").is_of_disk(), errno == Errno::IO);
        }
        assert!(!Error::new(Kind::Unavailable, "read", "k").is_of_disk());
    }

    #[test]
    fn display_names_the_operation_and_the_source_its_cause() {
        let error = Error::new(Kind::Missing, "read object", "a/b");
        assert_eq!(error.to_string(), "read object a/b");
        assert_eq!(error.source().map(ToString::to_string), Some("not found".to_owned()));
    }
}

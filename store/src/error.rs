//! Errors of stores, by the caller's remedy.
//!
//! Must hold: an unknown failure is `Unavailable`, after which the call may have taken effect. It is never
//! `Missing` or `Exists`, from which a caller concludes whether an object exists.

use std::error::Error as StdError;
use std::fmt::Display;
use std::io;

use rustix::io::Errno;

/// A failed call: `kind` tells the remedy, `source` the cause.
#[derive(Debug, thiserror::Error)]
#[error("{action} {key}")]
pub struct Error {
    /// The remedy.
    pub kind: Kind,
    /// The operation in the present tense, as in "create object".
    pub action: &'static str,
    /// The object of the operation: a key, a prefix, or the address of a store.
    pub key: String,
    /// The cause, where more is known than the kind.
    #[source]
    pub source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Errors of a store by their remedies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The key has no object.
    Missing,
    /// The key is taken: read the object and compare.
    Exists,
    /// Try again, here or at another server. The call may have taken effect.
    Unavailable,
    /// Out of space or quota: stop writing, reading goes on.
    Full,
    /// The bytes differ from the stored bytes.
    Corrupt,
    /// The store refuses: correct permissions or credentials.
    Denied,
    /// The store does not support the call: correct the address or the request.
    Unsupported,
}

impl Kind {
    /// Exhaustive on purpose: a new kind must decide.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Unavailable => true,
            Self::Missing
            | Self::Exists
            | Self::Full
            | Self::Corrupt
            | Self::Denied
            | Self::Unsupported => false,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Missing => "no such object",
            Self::Exists => "the object exists",
            Self::Unavailable => "the store is unavailable",
            Self::Full => "no space left",
            Self::Corrupt => "the object is not what was stored",
            Self::Denied => "permission denied",
            Self::Unsupported => "not supported by this store",
        }
    }
}

/// The meaning of a kind, as the last link of a chain of sources.
impl Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.message())
    }
}

impl StdError for Kind {}

impl Error {
    /// An error without a cause beside its kind.
    pub fn new(kind: Kind, action: &'static str, key: impl Display) -> Self {
        Self::because(kind, action, key, kind)
    }

    /// An error with its cause.
    pub fn because(
        kind: Kind,
        action: &'static str,
        key: impl Display,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, action, key: key.to_string(), source: Some(source.into()) }
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

    pub(crate) fn from_errno(errno: Errno, action: &'static str, key: impl Display) -> Self {
        Self::because(kind_of(errno), action, key, io::Error::from(errno))
    }

    pub(crate) fn from_io(error: io::Error, action: &'static str, key: impl Display) -> Self {
        let kind = Errno::from_io_error(&error).map_or(Kind::Unavailable, kind_of);
        Self::because(kind, action, key, error)
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
        }
    }

    #[test]
    fn an_error_of_the_disk_differs_from_others_that_may_pass() {
        assert!(Error::from_errno(Errno::IO, "read", "k").is_of_disk());
        assert!(Error::from_io(Errno::IO.into(), "read", "k").is_of_disk());
        assert!(!Error::from_errno(Errno::MFILE, "read", "k").is_of_disk());
        assert!(!Error::new(Kind::Unavailable, "read", "k").is_of_disk());
    }

    #[test]
    fn display_names_the_operation_and_the_source_its_cause() {
        let error = Error::new(Kind::Missing, "read object", "a/b");
        assert_eq!(error.to_string(), "read object a/b");
        assert_eq!(error.source().unwrap().to_string(), "no such object");
    }
}

//! What went wrong in the metadata store, and what the caller can do about it.
//!
//! Must hold: each kind says by name whether another try may help, none by default. After `Missing` and
//! `Conflict` nothing was written; after `Unavailable` it may have been.

use std::error::Error as StdError;
use std::fmt::{self, Display};

/// What the caller can do about it is its kind; what happened is its source.
#[derive(Debug, thiserror::Error)]
#[error("{action} {what}")]
pub struct Error {
    /// What the caller can do.
    pub kind: Kind,
    /// What was being done, in the present tense, as in "append to dataset".
    pub action: &'static str,
    /// To what: a dataset, an object, or the address of a store.
    pub what: String,
    /// Why it failed, where more is known than the kind says.
    #[source]
    pub source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What the caller of a metadata store can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No such dataset. Nothing was written.
    Missing,
    /// What is there already says otherwise. Nothing was written.
    Conflict,
    /// Worth another try, here or elsewhere. It may have been done.
    Unavailable,
    /// Out of space or quota: stop writing.
    Full,
    /// The bytes are not what was stored: remove the metadata and recover it from the chunks.
    Corrupt,
    /// Rows are gone for good, nobody knows which: recover them from the chunks.
    Lost,
    /// Another process has it open: stop that one, or connect to it.
    InUse,
    /// Permissions forbid it: mend them.
    Denied,
    /// The store cannot do what was asked: mend the address or update the program.
    Unsupported,
}

impl Kind {
    /// Exhaustive on purpose: a new kind must decide.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Unavailable => true,
            Self::Missing
            | Self::Conflict
            | Self::Full
            | Self::Corrupt
            | Self::Lost
            | Self::InUse
            | Self::Denied
            | Self::Unsupported => false,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Missing => "no such dataset",
            Self::Conflict => "the metadata says otherwise",
            Self::Unavailable => "the metadata store is unavailable",
            Self::Full => "no space left for metadata",
            Self::Corrupt => "the metadata is damaged; remove it and recover it from the chunks",
            Self::Lost => "some of the metadata is lost; recover it from the chunks",
            Self::InUse => "another process has the metadata open",
            Self::Denied => "permission denied",
            Self::Unsupported => "not supported by this metadata store",
        }
    }
}

/// As the last link of a chain of sources, it says what the kind means.
impl Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl StdError for Kind {}

impl Error {
    /// An error whose kind says all that is known.
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

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_says_what_was_done_to_what_and_the_source_says_why() {
        let error = Error::new(Kind::Missing, "append to dataset", "x");
        assert_eq!(error.to_string(), "append to dataset x");
        assert_eq!(error.source().unwrap().to_string(), "no such dataset");
    }
}

//! Errors of requests, and their form for clients.
//!
//! Must hold: each kind of the stores maps to a kind by name, none by default. Damaged metadata asks for a
//! recovery and never counts as damaged files, as the chunks hold all metadata.

use std::error::Error as StdError;
use std::fmt::Display;

use dl_meta::Refusal;
use dl_proto::Kind;
use dl_runtime::storage;
use tonic::Status;

/// The kind says how the client can react; the source says the cause.
#[derive(Debug, thiserror::Error)]
#[error("{action} {what}")]
pub struct Error {
    /// The possible reaction of the client.
    pub kind: Kind,
    /// The failed action in the present tense, as in "commit chunk".
    pub action: &'static str,
    /// The object of the action.
    pub what: String,
    /// The cause.
    #[source]
    pub source: Box<dyn StdError + Send + Sync>,
}

impl Error {
    /// An error with its cause, which names the remedy.
    pub fn new(
        kind: Kind,
        action: &'static str,
        what: impl Display,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, action, what: what.to_string(), source: source.into() }
    }

    /// The error of a request after an error of the chunk store.
    pub(crate) fn store(action: &'static str, what: impl Display, error: storage::Error) -> Self {
        Self::of_store(kind_for(error.kind), action, what, error)
    }

    /// The error of a request after an error of the metadata store.
    pub(crate) fn meta(action: &'static str, what: impl Display, error: storage::Error) -> Self {
        match error.kind {
            storage::Kind::Corrupt => {
                // The chunks are whole and hold all metadata.
                let advice = "the metadata is damaged; stop the servers, remove it, start again, and \
                              run `dlcmd recover --all`";
                let why = format!("{}; {advice}", causes(&error));
                Self::new(Kind::NeedsRecovery, action, what, why)
            }
            // An administrator can repair an unfit store while callers try again.
            storage::Kind::Unsupported => Self::of_store(Kind::Unavailable, action, what, error),
            kind => Self::of_store(kind_for(kind), action, what, error),
        }
    }

    /// The kind of an error for a refusal of the metadata store.
    pub(crate) fn kind_of(refusal: &Refusal) -> Kind {
        match refusal {
            Refusal::Full(_) => Kind::Full,
            Refusal::All(_) => Kind::Unavailable,
        }
    }

    fn of_store(
        kind: Kind,
        action: &'static str,
        what: impl Display,
        error: impl StdError + Send + Sync + 'static,
    ) -> Self {
        if kind != Kind::Denied {
            return Self::new(kind, action, what, error);
        }
        // Callers can't fix the server's permissions, and must not suspect their own.
        let advice = "check what the server itself may do: permissions of folders, logins";
        Self::new(kind, action, what, format!("{}; {advice}", causes(&error)))
    }

    /// The error and all its causes, on one line.
    pub fn chain(&self) -> String {
        causes(self)
    }
}

/// The result of a read; none where the object is missing.
pub(crate) fn if_found<T>(
    read: Result<T, dl_store::Error>,
    action: &'static str,
    what: impl Display,
) -> Result<Option<T>, Error> {
    match read {
        Err(error) if error.kind == dl_store::Kind::Missing => Ok(None),
        read => read.storing(action, what).map(Some),
    }
}

/// Whether a create made its object; false where the object was there.
pub(crate) fn is_created(
    created: Result<(), dl_store::Error>,
    action: &'static str,
    what: impl Display,
) -> Result<bool, Error> {
    match created {
        Err(error) if error.kind == dl_store::Kind::Exists => Ok(false),
        created => created.storing(action, what).map(|()| true),
    }
}

/// Results of the stores as results of requests, with the action that failed and its object.
pub(crate) trait Doing<T> {
    /// The result of the chunk store.
    fn storing(self, action: &'static str, what: impl Display) -> Result<T, Error>;

    /// The result of the metadata store.
    fn doing(self, action: &'static str, what: impl Display) -> Result<T, Error>;
}

impl<T> Doing<T> for Result<T, storage::Error> {
    fn storing(self, action: &'static str, what: impl Display) -> Result<T, Error> {
        self.map_err(|error| Error::store(action, what, error))
    }

    fn doing(self, action: &'static str, what: impl Display) -> Result<T, Error> {
        self.map_err(|error| Error::meta(action, what, error))
    }
}

fn kind_for(kind: storage::Kind) -> Kind {
    match kind {
        storage::Kind::Missing => Kind::NotFound,
        storage::Kind::Exists | storage::Kind::Conflict | storage::Kind::InUse => Kind::Conflict,
        storage::Kind::Unavailable => Kind::Unavailable,
        storage::Kind::Full => Kind::Full,
        storage::Kind::Corrupt => Kind::Corrupt,
        storage::Kind::Lost => Kind::NeedsRecovery,
        storage::Kind::Denied => Kind::Denied,
        storage::Kind::Unsupported => Kind::Invalid,
    }
}

/// An error and all its causes on one line, without causes that only repeat the action and object.
pub(crate) fn causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut told = ends(&text).map(owned);
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if told.is_none() || told != ends(&more).map(owned) {
            text.push_str(": ");
            text.push_str(&more);
            told = ends(&more).map(owned);
        }
        cause = error.source();
    }
    text
}

/// The action and the object of a text: its first and its last word.
fn ends(text: &str) -> Option<(&str, &str)> {
    let (action, _) = text.split_once(' ')?;
    let (_, what) = text.rsplit_once(' ')?;
    Some((action, what))
}

fn owned((action, what): (&str, &str)) -> (String, String) {
    (action.to_owned(), what.to_owned())
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let text = error.chain();
        match error.kind {
            Kind::Internal | Kind::Corrupt => tracing::error!(error = text, "request failed"),
            Kind::Full | Kind::Denied | Kind::Unavailable | Kind::NeedsRecovery => {
                tracing::warn!(error = text, "request failed");
            }
            Kind::NotFound | Kind::Invalid | Kind::Conflict | Kind::TimedOut | Kind::Cancelled => {
                tracing::debug!(error = text, "request failed")
            }
        }
        Self::new(error.kind.code(), text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_layer_says_again_is_said_once() {
        let key = "datasets/1/chunks/2";
        let stored = dl_store::Error::because(dl_store::Kind::Missing, "read object", key, "gone");
        let error = Error::store("read", key, stored);
        assert_eq!(error.chain(), format!("read {key}: gone"));
        let stored = dl_store::Error::because(dl_store::Kind::Full, "create object", key, "full");
        let error = Error::store("commit chunk", 2, stored);
        assert_eq!(error.chain(), format!("commit chunk 2: create object {key}: full"));
    }
}

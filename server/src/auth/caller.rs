//! Callers and their permissions.
//!
//! Must hold: permissions depend on a dataset's name alone, not on its existence.

use std::fmt;
use std::sync::Arc;

use dl_format::DatasetName;
use dl_proto::{Role, User, UserName};

/// The caller of a request.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// Any caller of a server without keys; the server itself.
    Everybody,
    /// A caller with a valid key.
    Known(Arc<Person>),
}

/// A user.
#[derive(Debug)]
pub(crate) struct Person {
    pub(crate) name: UserName,
    pub(crate) user: User,
}

impl Caller {
    /// The name of the user; empty without keys.
    pub(crate) fn user(&self) -> &str {
        match self {
            Self::Everybody => "",
            Self::Known(person) => person.name.as_str(),
        }
    }

    /// Whether the caller has a role on datasets of the name, existing or not.
    pub(crate) fn may(&self, role: Role, dataset: &DatasetName) -> bool {
        match self {
            Self::Everybody => true,
            Self::Known(person) => person.user.role(dataset) >= Some(role),
        }
    }

    /// Whether the caller has a role on every possible dataset.
    pub(crate) fn may_all(&self, role: Role) -> bool {
        match self {
            Self::Everybody => true,
            Self::Known(person) => person.user.role_on_all() >= Some(role),
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everybody => f.write_str("everybody"),
            Self::Known(person) => write!(f, "user {}", person.name),
        }
    }
}

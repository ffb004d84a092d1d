//! Who asks, and what that one may do.
//!
//! Must hold: what a caller may depends on the name of a dataset alone, not on whether there is one.

use std::fmt;
use std::sync::Arc;

use dl_format::DatasetName;
use dl_proto::{Role, User, UserName};

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// Whoever reaches a server without keys; the server itself.
    Everybody,
    /// Somebody who has shown a key.
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

    /// Whether the caller has a role on a dataset of that name, whether there is one or not.
    pub(crate) fn may(&self, role: Role, dataset: &DatasetName) -> bool {
        match self {
            Self::Everybody => true,
            Self::Known(person) => person.user.role(dataset) >= Some(role),
        }
    }

    /// Whether the caller has a role on every dataset there can be.
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

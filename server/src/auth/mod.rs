//! Authentication: users, their keys, and the roles for each method.
//!
//! Must hold: an unknown user and a wrong key get the same answer in the same time. No key, and no text that
//! may be a key, appears in logs or answers.

mod caller;
mod failures;
mod file;
mod rules;

use std::net::IpAddr;
use std::sync::Arc;

use dl_proto::{KEY_HEADER, USER_HEADER, User};
use dl_runtime::Clock;
use tonic::Status;
use tonic::codegen::http::HeaderMap;

use crate::source::Followed;

pub(crate) use self::caller::Caller;
use self::failures::Failures;
pub use self::file::People;
pub(crate) use self::rules::{RULES, Rule, SERVICE, is_change, rule};

/// Identifies callers.
#[derive(Debug)]
pub(crate) struct Auth {
    /// None when every caller may do everything.
    users: Option<Arc<Followed<People>>>,
    failures: Failures,
}

/// A refused caller, and the count of its recent failures.
#[derive(Debug)]
pub(crate) struct Refused {
    status: Status,
    times: u32,
}

impl Auth {
    pub(crate) fn new(users: Option<Arc<Followed<People>>>, clock: Arc<dyn Clock>) -> Self {
        Self { users, failures: Failures::new(clock) }
    }

    /// Whether callers need keys.
    pub(crate) fn is_on(&self) -> bool {
        self.users.is_some()
    }

    /// The caller named by the headers.
    pub(crate) fn caller(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> Result<Caller, Refused> {
        let Some(users) = &self.users else { return Ok(Caller::Everybody) };
        let said = |name: &str| headers.get(name).map(|value| value.as_bytes());
        let (Some(user), Some(key)) = (said(USER_HEADER), said(KEY_HEADER)) else {
            let status = Status::unauthenticated(
                "this server asks for a user and a key: with dlcmd, --user and --key-file, or \
                 DIESEL_USER and DIESEL_KEY",
            );
            return Err(Refused { status, times: 0 });
        };
        let person = std::str::from_utf8(user).ok().and_then(|user| users.now().person(user));
        let is_right = User::has_key(person.as_ref().map(|person| &person.user), key);
        match person {
            Some(person) if is_right => Ok(Caller::Known(person)),
            person => {
                let times = peer.map_or(1, |peer| self.failures.count(peer));
                // Each power of two, so that no peer fills the log.
                if times.is_power_of_two() {
                    // An unknown user may be a key in the wrong place.
                    let user = person.as_ref().map_or("(unknown)", |person| person.name.as_str());
                    tracing::warn!(user, ?peer, times, "a wrong user or key");
                }
                let status = Status::unauthenticated("the user or the key is wrong");
                Err(Refused { status, times })
            }
        }
    }

    /// The answer to a refused caller, after its delay.
    pub(crate) async fn refuse(&self, refused: Refused) -> Status {
        self.failures.wait(refused.times).await;
        refused.status
    }
}

//! Who may ask: users, their keys, and what each method wants of them.
//!
//! Must hold: a user that is not known and a key that is wrong get one answer, in the same time;
//! no key and no text that may be one is logged or told.

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

/// Knows who asks.
#[derive(Debug)]
pub(crate) struct Auth {
    /// None when everybody may do everything.
    users: Option<Arc<Followed<People>>>,
    failures: Failures,
}

/// Somebody who may not ask, and how often that came from the same place of late.
#[derive(Debug)]
pub(crate) struct Refused {
    status: Status,
    times: u32,
}

impl Auth {
    pub(crate) fn new(users: Option<Arc<Followed<People>>>, clock: Arc<dyn Clock>) -> Self {
        Self { users, failures: Failures::new(clock) }
    }

    /// Whether keys are asked for.
    pub(crate) fn is_on(&self) -> bool {
        self.users.is_some()
    }

    /// Who asks, by what the request says.
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
                // Each power of two, so that nobody fills the log.
                if times.is_power_of_two() {
                    // Of others it may be a key in the wrong place.
                    let user = person.as_ref().map_or("(unknown)", |person| person.name.as_str());
                    tracing::warn!(user, ?peer, times, "a wrong user or key");
                }
                let status = Status::unauthenticated("the user or the key is wrong");
                Err(Refused { status, times })
            }
        }
    }

    /// The answer to who may not ask, when it is time for it.
    pub(crate) async fn refuse(&self, refused: Refused) -> Status {
        self.failures.wait(refused.times).await;
        refused.status
    }
}

//! Errors inside this module, before the operation and its object are known.
//!
//! Must hold: each error of Redis has a single meaning: ask another node, wait and ask again, or give up.

use std::error::Error as StdError;
use std::fmt::{self, Display};
use std::io::ErrorKind;
use std::sync::Arc;

use redis::{RedisError, ServerError};

use super::address::Node;
use crate::{Error, Kind};

/// Passing errors inside scripts. A Redis before version 7 wraps them in an error of the script.
const WAITS: [&str; 4] = ["-READONLY ", "-TRYAGAIN ", "-MISCONF ", "-NOREPLICAS "];

/// Why a call failed for good.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    why: Option<String>,
}

impl Failure {
    pub(super) fn because(kind: Kind, why: impl Into<String>) -> Self {
        Self { kind, why: Some(why.into()) }
    }

    pub(super) fn corrupt(why: impl Into<String>) -> Self {
        Self::because(Kind::Corrupt, why)
    }

    pub(super) fn missing() -> Self {
        Self { kind: Kind::Missing, why: None }
    }

    /// An answer of an unexpected type.
    pub(super) fn unexpected() -> Self {
        Self::corrupt("Redis answered with another type than expected; is its data ours?")
    }

    /// The error of the call that failed.
    pub(super) fn during(self, action: &'static str, what: impl Display) -> Error {
        match self.why {
            Some(why) => Error::because(self.kind, action, what, why),
            None => Error::new(self.kind, action, what),
        }
    }
}

/// The reaction to a failed command.
#[derive(Debug, Clone)]
pub(super) enum Verdict {
    /// Ask the new node from now on.
    Moved(Node),
    /// Ask the other node once.
    Ask(Node),
    /// Load the scripts into the node again.
    Reload,
    /// Ask again later, perhaps another node.
    Wait(String),
    /// Ask again later over a new connection.
    Lost(String),
    /// Nothing helps.
    Fatal(Failure),
}

impl Verdict {
    /// The verdict on an answer of `node`.
    pub(super) fn on(error: &ServerError, node: &Node) -> Self {
        let details = error.details().unwrap_or_default();
        let text = format!("{} {details}", error.code());
        let redirect = || details.split(' ').nth(1).and_then(|to| Node::parse(to, Some(node)));
        match error.code() {
            "MOVED" => redirect().map_or(Self::Wait(text), Self::Moved),
            "ASK" => redirect().map_or(Self::Wait(text), Self::Ask),
            "NOSCRIPT" => Self::Reload,
            "READONLY" | "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" | "TRYAGAIN" | "BUSY"
            | "NOREPLICAS" | "MISCONF" => Self::Wait(text),
            "OOM" => Self::full(),
            "NOAUTH" => {
                let why = "it asks for a password: write :PASSWORD@ or USER:PASSWORD@ before its host, \
                           in the settings file or in DIESEL_META";
                Self::Fatal(Failure::because(Kind::Denied, format!("{text} {why}")))
            }
            "WRONGPASS" | "NOPERM" => Self::Fatal(Failure::because(Kind::Denied, text)),
            "WRONGTYPE" => Self::Fatal(Failure::corrupt(text)),
            _ if text.contains("-OOM ") => Self::full(),
            _ if WAITS.iter().any(|code| text.contains(code)) => Self::Wait(text),
            _ if text.contains("max number of clients") => Self::Wait(text),
            _ => Self::Fatal(Failure::because(Kind::Unsupported, text)),
        }
    }

    fn full() -> Self {
        let why = "Redis has reached its maxmemory: raise it, add primaries to the cluster, or delete \
                   something and run `dlcmd purge`";
        Self::Fatal(Failure::because(Kind::Full, why))
    }

    /// The verdict on an error without an answer.
    pub(super) fn of(error: &RedisError) -> Self {
        match error.kind() {
            redis::ErrorKind::AuthenticationFailed => {
                let why = format!("Redis refused the login: {error}");
                Self::Fatal(Failure::because(Kind::Denied, why))
            }
            redis::ErrorKind::InvalidClientConfig => {
                Self::Fatal(Failure::because(Kind::Unsupported, error.to_string()))
            }
            redis::ErrorKind::Io if error.to_string().contains("received fatal alert") => {
                let why = format!(
                    "Redis refused TLS: {error}; if it wants certificates of its clients, write \
                     ?cert=FILE&key=FILE behind its address, with one that it trusts"
                );
                Self::Fatal(Failure::because(Kind::Denied, why))
            }
            redis::ErrorKind::Io if is_untrusted(error) => {
                let why = format!("can't trust the TLS certificate of Redis: {error}");
                Self::Fatal(Failure::because(Kind::Denied, why))
            }
            _ => Self::Lost(error.to_string()),
        }
    }
}

/// Whether TLS failed for good.
fn is_untrusted(error: &RedisError) -> bool {
    let shared = error.source().and_then(|s| s.downcast_ref::<Arc<dyn StdError + Send + Sync>>());
    let io = shared.and_then(|shared| shared.downcast_ref::<std::io::Error>());
    io.is_some_and(|error| error.kind() == ErrorKind::InvalidData)
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Some(why) => f.write_str(why),
            None => write!(f, "{}", self.kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn verdict(answer: &str) -> Verdict {
        let Ok(Value::ServerError(error)) = redis::parse_redis_value(answer.as_bytes()) else {
            panic!("{answer} is no error");
        };
        Verdict::on(&error, &Node::parse("127.0.0.1:6379", None).unwrap())
    }

    #[test]
    fn an_error_inside_a_script_counts_like_one_of_a_command() {
        for code in ["READONLY", "TRYAGAIN", "MISCONF", "NOREPLICAS"] {
            let inside = format!("-ERR Error running script: @user_script:1: -{code} later.\r\n");
            for answer in [format!("-{code} later.\r\n"), inside] {
                assert!(matches!(verdict(&answer), Verdict::Wait(_)), "{answer}");
            }
        }
        for answer in ["-OOM no\r\n", "-ERR Error running script: @user_script:1: -OOM no\r\n"] {
            assert!(matches!(verdict(answer), Verdict::Fatal(Failure { kind: Kind::Full, .. })));
        }
        assert!(matches!(verdict("-ERR no\r\n"), Verdict::Fatal(_)));
    }
}

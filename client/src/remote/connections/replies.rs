//! The last reply of each server to a request, for the text of an error.
//!
//! Must hold: silence of a server does not hide the cause named in its reply before.

use std::collections::BTreeMap;

use crate::error::Kind;
use crate::remote::failure::Failure;

/// The last replies, by the number of the server.
#[derive(Debug, Default)]
pub(super) struct Replies(BTreeMap<usize, Reply>);

/// The last failure of a server.
#[derive(Debug)]
struct Reply {
    last: Failure,
    /// The answer before the silence.
    before: Option<Failure>,
}

impl Replies {
    pub(super) fn add(&mut self, server: usize, failure: Failure) {
        let before = self.0.remove(&server).filter(|_| failure.is_silence());
        let before = before.and_then(|reply| match reply.last.is_silence() {
            true => reply.before,
            false => Some(reply.last),
        });
        self.0.insert(server, Reply { last: failure, before });
    }

    /// All replies as a text; none without a reply.
    pub(super) fn text(&self) -> Option<String> {
        let all: Vec<_> = self.0.values().map(Reply::text).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    pub(super) fn are_unreachable(&self) -> bool {
        self.0.values().all(|reply| reply.last.kind == Kind::Unreachable)
    }
}

impl Reply {
    fn text(&self) -> String {
        match &self.before {
            Some(answer) => format!("{answer}; then {}", self.last.without_server()),
            None => self.last.to_string(),
        }
    }
}

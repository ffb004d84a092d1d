//! The last reply of each server to a request, for the text of an error.
//!
//! Must hold: silence of a server does not hide the cause named in its reply before.

use std::collections::BTreeMap;

use crate::error::Kind;
use crate::remote::failure::Failure;

/// The last replies, by the number of the server.
#[derive(Debug, Default)]
pub(super) struct Replies(BTreeMap<usize, Failure>);

impl Replies {
    /// Adds a reply. Silence does not replace an answer.
    pub(super) fn add(&mut self, server: usize, failure: Failure) {
        match self.0.get(&server) {
            Some(before) if failure.is_silence && !before.is_silence => {}
            _ => _ = self.0.insert(server, failure),
        }
    }

    /// All replies as a text; none without a reply.
    pub(super) fn text(&self) -> Option<String> {
        let all: Vec<_> = self.0.values().map(Failure::to_string).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    pub(super) fn are_unreachable(&self) -> bool {
        self.0.values().all(|last| last.kind == Kind::Unreachable)
    }
}

//! Requests of any bytes, for the fuzz target and the tests of this crate.
//!
//! Must hold: any bytes get an answer without a panic. An answer is at most as long as its request
//! asks for.

use std::sync::Arc;

use libdiesel::Snapshot;

use crate::abi::{AttrOut, EntryOut, Operation, Request, StatfsOut};
use crate::server::respond::{Response, respond};
use crate::tree::{Owner, Tree};

/// The tree of a snapshot, and the answer to the last request.
#[derive(Debug)]
pub struct Requests {
    tree: Tree,
    out: Vec<u8>,
}

impl Requests {
    /// A mount of the top folder of a snapshot.
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        let owner = Owner { uid: 7, gid: 8, umask: 0o022 };
        Self { tree: Tree::new(snapshot, 0, owner, 1), out: Vec::new() }
    }

    /// Answers the request in the bytes; false for bytes without a header.
    ///
    /// # Panics
    /// When the answer is longer than its request asks for, or reads a missing file.
    pub fn answer(&mut self, bytes: &[u8]) -> bool {
        let Some(request) = Request::of(bytes) else { return false };
        match respond(&self.tree, &request, &mut self.out) {
            Response::Bytes => {
                let most = longest(&request.operation);
                assert!(self.out.len() <= most, "{request:?}: {} bytes", self.out.len());
            }
            Response::Read { file, .. } => assert!(file < self.tree.snapshot().files()),
            Response::Refused(_) | Response::Nothing | Response::End => {}
        }
        true
    }
}

/// The most bytes of an answer.
fn longest(operation: &Operation<'_>) -> usize {
    match operation {
        Operation::Lookup(_) => size_of::<EntryOut>(),
        Operation::Getattr => size_of::<AttrOut>(),
        Operation::List { size, .. } => *size as usize,
        Operation::Statfs => size_of::<StatfsOut>(),
        Operation::Init(_)
        | Operation::Read { .. }
        | Operation::Notice
        | Operation::Destroy
        | Operation::Malformed
        | Operation::Unknown => 0,
    }
}

//! The answers to requests that need no bytes of files.
//!
//! Must hold: a request with any bytes gets an answer, and no panic. An answer is at most as long as
//! the request asks for.

use libdiesel::Error;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::errno;
use crate::abi::{Attr, AttrOut, Dirent, EntryOut, Operation, Request};
use crate::tree::{Entry, Node, Tree};

/// Seconds for which the kernel keeps names and attributes: a version never changes.
const LIFETIME: u64 = 365 * 24 * 3_600;

/// Longest listing in an answer, whatever the request asks for.
const LISTING_MAX: usize = 1 << 20;

/// Names in the first answer with attributes of a folder. The kernel asks for the first attributes
/// without a need, and makes an inode for each name. It goes on to ask if a program uses them.
const FIRST_NAMES: usize = 16;

/// Records of a listing start at multiples of this number.
const ALIGNMENT: usize = 8;

/// The answer to a request.
#[derive(Debug)]
pub(crate) enum Response {
    /// The bytes in the buffer.
    Bytes,
    Refused(Errno),
    /// The bytes of a file.
    Read {
        file: u32,
        offset: u64,
        size: u32,
    },
    Nothing,
    /// The end of the mount.
    End,
}

/// Answers a request; `out` is the buffer for bytes.
pub(crate) fn respond(tree: &Tree, request: &Request<'_>, out: &mut Vec<u8>) -> Response {
    out.clear();
    let refused = |error: Error| Response::Refused(errno::of(error.kind()));
    match request.operation {
        Operation::Notice => return Response::Nothing,
        Operation::Destroy => return Response::End,
        Operation::Statfs => {
            out.extend_from_slice(tree.sizes().as_bytes());
            return Response::Bytes;
        }
        Operation::Malformed | Operation::Init(_) => return Response::Refused(Errno::INVAL),
        // The kernel then opens without a request, and asks for no attributes beyond the usual.
        Operation::Unknown => return Response::Refused(Errno::NOSYS),
        Operation::Lookup(_)
        | Operation::Getattr
        | Operation::Read { .. }
        | Operation::List { .. } => {}
    }
    let Some(node) = tree.numbers().node(request.header.node) else {
        return Response::Refused(Errno::STALE);
    };
    let done = match (request.operation, node) {
        (Operation::Getattr, node) => tree.attributes(node).map(|attr| {
            let answer = AttrOut { valid: LIFETIME, attr, ..AttrOut::default() };
            out.extend_from_slice(answer.as_bytes());
        }),
        (Operation::Lookup(name), Node::Folder(folder)) => {
            look_up(tree, folder, name).map(|entry| out.extend_from_slice(entry.as_bytes()))
        }
        (Operation::List { offset, size, with_attributes }, Node::Folder(folder)) => {
            let most = (size as usize).min(LISTING_MAX);
            let left = if with_attributes && offset == 0 { FIRST_NAMES } else { usize::MAX };
            let mut listing = Listing { tree, with_attributes, most, left, out, failed: None };
            let listed = tree.list(folder, offset, &mut |entry| listing.add(&entry));
            listed.and(listing.failed.map_or(Ok(()), Err))
        }
        (Operation::Read { offset, size }, Node::File(file)) => {
            return Response::Read { file, offset, size };
        }
        (Operation::Read { .. }, Node::Folder(_)) => return Response::Refused(Errno::ISDIR),
        (_, _) => return Response::Refused(Errno::NOTDIR),
    };
    match done {
        Ok(()) => Response::Bytes,
        Err(error) => refused(error),
    }
}

/// An entry by its name. For a missing name the node is 0, so the kernel keeps the absence.
fn look_up(tree: &Tree, folder: u32, name: &[u8]) -> Result<EntryOut, Error> {
    match tree.child(folder, name)? {
        Some(node) => Ok(entry(tree, node, tree.attributes(node)?)),
        None => Ok(EntryOut { entry_valid: LIFETIME, ..EntryOut::default() }),
    }
}

fn entry(tree: &Tree, node: Node, attr: Attr) -> EntryOut {
    let node = tree.numbers().id(node);
    EntryOut { node, entry_valid: LIFETIME, attr_valid: LIFETIME, attr, ..EntryOut::default() }
}

/// A listing in progress.
struct Listing<'a> {
    tree: &'a Tree,
    with_attributes: bool,
    most: usize,
    /// Names that may still be added.
    left: usize,
    out: &'a mut Vec<u8>,
    failed: Option<Error>,
}

impl Listing<'_> {
    /// Adds an entry; false if no more fits.
    fn add(&mut self, listed: &Entry<'_>) -> bool {
        let Self { tree, out, .. } = self;
        let head = if self.with_attributes { size_of::<EntryOut>() } else { 0 };
        let length = head + size_of::<Dirent>() + listed.name.len();
        let padded = length.next_multiple_of(ALIGNMENT);
        if out.len() + padded > self.most || self.left == 0 {
            return false;
        }
        self.left -= 1;
        let end = out.len() + padded;
        if self.with_attributes {
            let is_dot = matches!(listed.name, b"." | b"..");
            // The kernel ignores the attributes of the dots.
            let attributes = match is_dot {
                true => Ok(EntryOut::default()),
                false => tree.attributes(listed.node).map(|attr| entry(tree, listed.node, attr)),
            };
            match attributes {
                Ok(entry) => out.extend_from_slice(entry.as_bytes()),
                Err(error) => {
                    self.failed = Some(error);
                    return false;
                }
            }
        }
        let (ino, kind) = (tree.numbers().inode(listed.node), listed.kind());
        let name_len = listed.name.len() as u32;
        out.extend_from_slice(Dirent { ino, next: listed.next, name_len, kind }.as_bytes());
        out.extend_from_slice(listed.name);
        out.resize(end, 0);
        true
    }
}

//! Folders with a dlserver's own data.
//!
//! Must hold: a folder is recognised by the contents of the identity object or of the metadata
//! file, not by its name. Checking never waits, and follows no link.

use std::fs::File;
use std::io::Read;

use dl_format::{IDENTITY_KEY, IdentityRecord};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, openat};

/// The reason for skipping such a folder.
pub(crate) const SKIPPED: &str = "it holds the data of a dlserver";

/// Folders to check for a server's data: the folder itself, and the two folders of
/// `dlserver --data DIR`.
const CHUNKS: [&str; 2] = ["", "chunks/"];
const METADATA: [&str; 2] = ["meta.redb", "meta/meta.redb"];
/// Bytes read of a file; an identity object is shorter.
const HEAD: u64 = 4096;

/// The first bytes of a redb file.
const REDB: &[u8] = b"redb";

/// Whether `folder` is the `--data` folder of a server, its chunk store or its embedded metadata.
pub(super) fn is_in(folder: &OwnedFd) -> bool {
    let is_identity = |bytes: Vec<u8>| IdentityRecord::decode(&bytes).is_ok();
    let has_identity =
        |below| head(folder, &format!("{below}{IDENTITY_KEY}")).is_some_and(is_identity);
    let has_metadata = |name| head(folder, name).is_some_and(|bytes| bytes.starts_with(REDB));
    CHUNKS.into_iter().any(has_identity) || METADATA.into_iter().any(has_metadata)
}

/// The first bytes of a file.
fn head(folder: &OwnedFd, name: &str) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = openat(folder, name, flags, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    File::from(file).take(HEAD).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

//! Folders that hold a dlserver's own data.
//!
//! Must hold: a folder is recognised by the contents of the identity object or by the name of the
//! metadata file, not by its own name; nothing in it is waited for, and no link is followed.

use std::fs::File;
use std::io::Read;

use dl_format::{IDENTITY_KEY, IdentityRecord};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};

/// Why such a folder is skipped.
pub(crate) const SKIPPED: &str = "it holds the data of a dlserver";

/// Folders in which a server's data is looked for: the folder itself, and the two folders that
/// `dlserver --data DIR` makes.
const CHUNKS: [&str; 2] = ["", "chunks/"];
const METADATA: [&str; 2] = ["meta.redb", "meta/meta.redb"];
/// An identity object is shorter.
const IDENTITY_MAX: u64 = 4096;

/// Whether `folder` is the `--data` folder of a server, its chunk store or its embedded metadata.
pub(super) fn is_in(folder: &OwnedFd) -> bool {
    CHUNKS.iter().any(|below| has_identity(folder, &format!("{below}{IDENTITY_KEY}")))
        || METADATA.iter().any(|name| statat(folder, *name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
}

fn has_identity(folder: &OwnedFd, name: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let Ok(file) = openat(folder, name, flags, Mode::empty()) else { return false };
    let mut bytes = Vec::new();
    File::from(file).take(IDENTITY_MAX).read_to_end(&mut bytes).is_ok()
        && IdentityRecord::decode(&bytes).is_ok()
}

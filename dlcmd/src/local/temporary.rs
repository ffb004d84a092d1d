//! Files that `get` writes under a name of its own before they get theirs.
//!
//! Must hold: such a file is locked while somebody writes it, so that one whose process is gone is
//! told from the others, also from another process; nothing without such a name is ever removed.

use std::ffi::CStr;

use dl_runtime::{OsRandom, Random};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, openat, statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::path::Arg;

const START: &str = ".dlcmd-";
const END: &str = ".tmp";
/// Hexadecimal digits of what a process draws.
const DRAWN: usize = 16;
/// The owner's alone: who looks whether it is locked has to open it.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// What names begin with: those of no other process, also of another machine or one that was killed,
/// are the same.
pub(super) fn prefix() -> String {
    let mut drawn = [0; DRAWN / 2];
    OsRandom.fill(&mut drawn);
    format!("{START}{:016x}", u64::from_le_bytes(drawn))
}

/// One of the names that begin with `prefix`.
pub(super) fn name(prefix: &str, number: u64) -> String {
    format!("{prefix}-{number}{END}")
}

/// Whether a file is called so.
pub(crate) fn is_temporary(name: &[u8]) -> bool {
    let inner =
        name.strip_prefix(START.as_bytes()).and_then(|name| name.strip_suffix(END.as_bytes()));
    let Some((drawn, [b'-', number @ ..])) = inner.and_then(|name| name.split_at_checked(DRAWN))
    else {
        return false;
    };
    let is_drawn = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    drawn.iter().all(is_drawn) && !number.is_empty() && number.iter().all(u8::is_ascii_digit)
}

/// Creates a file, open for writing and locked; none when somebody who removes what is left was faster.
pub(super) fn create(
    folder: &OwnedFd,
    name: &str,
    flags: OFlags,
) -> Result<Option<OwnedFd>, Errno> {
    let file = openat(folder, name, flags.union(OFlags::CREATE).union(OFlags::EXCL), MODE)?;
    let is_ours = lock(&file) != Err(Errno::WOULDBLOCK) && is_file(folder, name);
    Ok(is_ours.then_some(file))
}

/// Locks a file until it is closed. Where a file system has no locks, nothing is removed either.
pub(super) fn lock(file: impl AsFd) -> Result<(), Errno> {
    retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive))
}

/// Removes those in a folder whose processes are gone, as far as that can be told.
pub(super) fn sweep(folder: &OwnedFd) {
    let Ok(entries) = Dir::read_from(folder) else { return };
    for entry in entries.map_while(Result::ok) {
        let name = entry.file_name();
        if is_temporary(name.to_bytes())
            && let Some(_locked) = claim(folder, name)
        {
            // Its name may be gone already, and is given to no other file.
            let _ = unlinkat(folder, name, AtFlags::empty());
        }
    }
}

/// Locks a file that nobody writes.
fn claim(folder: &OwnedFd, name: &CStr) -> Option<OwnedFd> {
    if !is_file(folder, name) {
        return None;
    }
    let open = |access: OFlags| {
        let flags = access.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
        openat(folder, name, flags, Mode::empty())
    };
    // NFS locks only what is open for writing; one that was about to get its name may not be.
    let file = open(OFlags::WRONLY).or_else(|_| open(OFlags::RDONLY)).ok()?;
    lock(&file).ok().map(|()| file)
}

fn is_file(folder: &OwnedFd, name: impl Arg) -> bool {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_get_makes_are_temporary() {
        assert!(is_temporary(name(&prefix(), 0).as_bytes()));
        assert!(is_temporary(b".dlcmd-0123456789abcdef-4711.tmp"));
        for other in [
            ".dlcmd-.tmp",
            ".dlcmd-0123456789abcdef.tmp",
            ".dlcmd-0123456789abcdef-.tmp",
            ".dlcmd-0123456789abcdef-x.tmp",
            ".dlcmd-0123456789abcdef-1.tmp.gz",
            ".dlcmd-0123456789ABCDEF-1.tmp",
            "x.dlcmd-0123456789abcdef-1.tmp",
        ] {
            assert!(!is_temporary(other.as_bytes()), "{other}");
        }
    }
}

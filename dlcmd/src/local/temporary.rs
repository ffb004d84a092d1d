//! Temporary files of `get`, written before they get their final name.
//!
//! Must hold: a file is locked while being written, so that abandoned files are recognised, also by
//! other processes. Locks may not work across machines: files of other machines stay until
//! unmodified for a day. Only files with such a name are ever removed.

use std::ffi::CStr;
use std::fs;
use std::time::{Duration, SystemTime};

use dl_runtime::{OsRandom, Random};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, openat, statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::path::Arg;

const START: &str = ".dlcmd-";
const END: &str = ".tmp";
/// Hexadecimal digits that identify the boot of a machine, and as many random digits.
const DIGITS: usize = 8;
/// New at each boot of a machine, for all processes that share its locks.
const RUN: &str = "/proc/sys/kernel/random/boot_id";
/// A file unmodified for this time is abandoned, on any machine.
const LEFT: Duration = Duration::from_secs(24 * 60 * 60);
/// Private to the owner: checking the lock requires opening the file.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The prefix of the names of a process.
#[derive(Debug)]
pub(super) struct Names {
    /// Digits of the machine's boot id; none if unknown.
    run: Option<String>,
    prefix: String,
}

impl Names {
    pub(super) fn new() -> Self {
        let is_digits = |run: &String| run.bytes().all(is_digit);
        let run = fs::read_to_string(RUN).ok();
        let run = run.and_then(|id| Some(id.get(..DIGITS)?.to_owned())).filter(is_digits);
        let prefix = format!("{START}{}{}", run.clone().unwrap_or_else(drawn), drawn());
        Self { run, prefix }
    }

    /// The name with a number.
    pub(super) fn name(&self, number: u64) -> String {
        format!("{}-{number}{END}", self.prefix)
    }

    /// Removes abandoned files in a folder, as far as they can be recognised.
    pub(super) fn sweep(&self, folder: &OwnedFd, now: SystemTime) {
        let Ok(entries) = Dir::read_from(folder) else { return };
        for entry in entries.map_while(Result::ok) {
            let name = entry.file_name();
            if is_temporary(name.to_bytes())
                && (self.are_locked_here(name.to_bytes()) || is_old(folder, name, now))
                && let Some(_locked) = claim(folder, name)
            {
                // The name may be gone already, and is given to no other file.
                let _ = unlinkat(folder, name, AtFlags::empty());
            }
        }
    }

    /// Whether locks on a file of this name are visible to this process.
    fn are_locked_here(&self, name: &[u8]) -> bool {
        let digits = name.strip_prefix(START.as_bytes());
        let run = self.run.as_ref().map(String::as_bytes);
        run.is_some_and(|run| digits.is_some_and(|digits| digits.starts_with(run)))
    }
}

fn drawn() -> String {
    let mut drawn = [0; DIGITS / 2];
    OsRandom.fill(&mut drawn);
    format!("{:08x}", u32::from_le_bytes(drawn))
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Whether a name is the name of a temporary file.
pub(crate) fn is_temporary(name: &[u8]) -> bool {
    let inner =
        name.strip_prefix(START.as_bytes()).and_then(|name| name.strip_suffix(END.as_bytes()));
    let Some((digits, [b'-', number @ ..])) =
        inner.and_then(|name| name.split_at_checked(2 * DIGITS))
    else {
        return false;
    };
    let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
    is_number && digits.iter().copied().all(is_digit)
}

/// Creates a file, open for writing and locked. None when the name is taken, or when a sweep
/// removed the file.
pub(super) fn create(
    folder: &OwnedFd,
    name: &str,
    flags: OFlags,
) -> Result<Option<OwnedFd>, Errno> {
    let file = match openat(folder, name, flags.union(OFlags::CREATE | OFlags::EXCL), MODE) {
        Err(Errno::EXIST) => return Ok(None),
        file => file?,
    };
    let is_ours = lock(&file) != Err(Errno::WOULDBLOCK) && is_file(folder, name);
    Ok(is_ours.then_some(file))
}

/// Locks a file until closed.
pub(super) fn lock(file: impl AsFd) -> Result<(), Errno> {
    retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive))
}

/// Locks a file without a writer.
fn claim(folder: &OwnedFd, name: &CStr) -> Option<OwnedFd> {
    if !is_file(folder, name) {
        return None;
    }
    let open = |access: OFlags| {
        let flags = access.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
        openat(folder, name, flags, Mode::empty())
    };
    // NFS locks only files open for writing; a file about to be renamed may be read-only.
    let file = open(OFlags::WRONLY).or_else(|_| open(OFlags::RDONLY)).ok()?;
    lock(&file).ok().map(|()| file)
}

/// Whether a file is old by its change time. The modification time is set by `get` and may be any.
fn is_old(folder: &OwnedFd, name: &CStr, now: SystemTime) -> bool {
    let Ok(stat) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
    let changed = u64::try_from(stat.st_ctime).unwrap_or_default();
    let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(changed));
    changed.is_some_and(|at| now.duration_since(at).unwrap_or_default() >= LEFT)
}

fn is_file(folder: &OwnedFd, name: impl Arg) -> bool {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

#[cfg(test)]
mod tests {
    use dl_runtime::{Clock, SystemClock};

    use super::*;

    #[test]
    fn only_names_that_get_makes_are_temporary() {
        assert!(is_temporary(Names::new().name(0).as_bytes()));
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

    #[test]
    fn temporary_files_of_other_machines_stay_for_a_day() {
        let folder = tempfile::TempDir::new().unwrap();
        let opened = OwnedFd::from(fs::File::open(folder.path()).unwrap());
        let (here, of_nobody) = (Names::new(), Names { run: None, prefix: drawn() });
        let left = ["00000000", &here.run.clone().unwrap()]
            .map(|run| format!("{START}{run}01234567-1{END}"));
        let now = SystemClock::new().now();
        let names = |names: &Names, hours: u64| {
            for name in &left {
                let file = fs::File::create(folder.path().join(name)).unwrap();
                // The modification time of the dataset, possibly in a wrong year.
                file.set_modified(now + Duration::from_secs(1 << 30)).unwrap();
            }
            names.sweep(&opened, now + Duration::from_secs(hours * 60 * 60));
            fs::read_dir(folder.path()).unwrap().count()
        };
        assert_eq!((names(&here, 23), names(&here, 25)), (1, 0));
        assert_eq!((names(&of_nobody, 23), names(&of_nobody, 25)), (2, 0));
    }
}

//! Reading and replacing the users file.
//!
//! Must hold: a reader sees the old or the new file, both private to their owner. Of two concurrent
//! changes, the second starts from the result of the first. A file invalid for servers is not
//! written.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dl_runtime::{Deadline, SystemClock};
use libdiesel::admin::{InvalidUsers, USERS_FILE_BYTES_MAX, Users};

use crate::exit::Failure;
use crate::text::shown;

const OWNER_ALONE: u32 = 0o600;

/// Time limit for a concurrent change, which takes no longer than a disk write.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between two attempts to lock.
const PAUSE: Duration = Duration::from_millis(10);

/// Reads a users file.
pub(super) fn read(path: &Path) -> Result<Users, Failure> {
    let reading = || format!("read users {}", shown(path));
    let mut bytes = Vec::new();
    // A truncated file may grant more rights than the whole file.
    let read = File::open(path)
        .and_then(|file| file.take(USERS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    let length = read.map_err(|why| Failure::local(reading(), why))?;
    checked(length).map_err(|why| Failure::local(reading(), why))?;
    let text = String::from_utf8(bytes).map_err(|why| Failure::local(reading(), why))?;
    text.parse().map_err(|why: InvalidUsers| Failure::local(reading(), why))
}

/// Refuses more bytes than a server reads.
fn checked(length: usize) -> io::Result<()> {
    if length as u64 > USERS_FILE_BYTES_MAX {
        let why = format!("longer than {} MiB", USERS_FILE_BYTES_MAX >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(())
}

/// Replaces the users file by a changed file, or creates the file.
pub(super) fn change(
    path: &Path,
    change: impl FnOnce(&mut Users) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let writing = |why| Failure::local(format!("write users {}", shown(path)), why);
    let mut next = Replacement::beside(path, TIMEOUT).map_err(writing)?;
    let mut users =
        if path.try_exists().map_err(writing)? { read(path)? } else { Users::default() };
    change(&mut users)?;
    next.replace(path, &users).map_err(writing)
}

/// The replacement of a file. The holder of its lock is the only process to change the file.
/// Dropping the value earlier leaves nothing.
#[derive(Debug)]
struct Replacement {
    /// None after the replacement.
    path: Option<PathBuf>,
    file: File,
}

impl Replacement {
    /// Waits at most `patience` for concurrent changes.
    fn beside(path: &Path, patience: Duration) -> io::Result<Self> {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, patience);
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let path = PathBuf::from(name);
        loop {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(OWNER_ALONE);
            let file = options.open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if deadline.remaining(&clock).is_zero() => {
                    let path = shown(&path);
                    let why =
                        format!("{path} is locked by another `dlcmd user`: let that end first");
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
                }
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(TryLockError::Error(why)) => return Err(why),
            }
            // The previous lock holder may have renamed or removed the file.
            let is_there = fs::metadata(&path).is_ok_and(|there| {
                file.metadata()
                    .is_ok_and(|held| (held.dev(), held.ino()) == (there.dev(), there.ino()))
            });
            if is_there {
                return Ok(Self { path: Some(path), file });
            }
        }
    }

    fn replace(&mut self, path: &Path, users: &Users) -> io::Result<()> {
        let text = users.to_string();
        checked(text.len())?;
        self.file.set_len(0)?;
        self.file.set_permissions(Permissions::from_mode(OWNER_ALONE))?;
        if let Ok(old) = fs::metadata(path) {
            let new = self.file.metadata()?;
            // The server may run as another user than the caller.
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                fchown(&self.file, Some(old.uid()), Some(old.gid()))?;
            }
        }
        self.file.write_all(text.as_bytes())?;
        self.file.sync_all()?;
        if let Some(next) = self.path.take() {
            fs::rename(next, path)?;
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // A remaining file does no harm.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use libdiesel::admin::{Key, KeyHash, User};

    use super::*;

    fn add(path: &Path, name: &str) -> Result<(), Failure> {
        let user = User::new(KeyHash::of(&Key::from_random([1; 32]), [2; 16]), Vec::new());
        change(path, |users| {
            users.0.insert(name.parse().expect("legal"), user);
            Ok(())
        })
    }

    #[test]
    fn concurrent_changes_lose_nothing_and_leave_one_private_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("users");
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    for number in 0..10 {
                        add(path, &format!("user{thread}-{number}")).expect("added");
                    }
                });
            }
        });
        assert_eq!(read(&path).expect("readable").0.len(), 80);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, OWNER_ALONE);
    }

    #[test]
    fn a_change_that_fails_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("users");
        add(&path, "ann").expect("added");
        let before = fs::read(&path).expect("there");
        assert!(change(&path, |_| Err(Failure::failed("no"))).is_err());
        assert_eq!(fs::read(&path).expect("there"), before);
        fs::write(&path, "no users file\n").expect("written");
        assert!(add(&path, "bob").is_err());
        assert_eq!(fs::read(&path).expect("there"), b"no users file\n");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn invalid_users_files_are_neither_read_nor_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("users");
        let most = usize::try_from(USERS_FILE_BYTES_MAX).expect("it fits");
        // Cut before its last letter, it would be a good one.
        fs::write(&path, "#".repeat(most)).expect("written");
        assert!(read(&path).is_ok());
        fs::write(&path, "#".repeat(most + 1)).expect("written");
        let error = format!("{:?}", read(&path).expect_err("it is too long"));
        assert!(error.contains("longer than 4 MiB"), "{error}");
        fs::remove_file(&path).expect("removed");
        add(&path, "ann").expect("added");
        let before = fs::read(&path).expect("there");
        let grants = vec!["read:*".parse().expect("a grant"); most / 4];
        let many = User::new(KeyHash::of(&Key::from_random([1; 32]), [2; 16]), grants);
        let refused = change(&path, |users| {
            users.0.insert("bob".parse().expect("legal"), many);
            Ok(())
        });
        let error = format!("{:?}", refused.expect_err("it is too long"));
        assert!(error.contains("longer than 4 MiB"), "{error}");
        assert_eq!(fs::read(&path).expect("there"), before);
    }

    #[test]
    fn waiting_for_a_concurrent_change_times_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("users");
        let held = Replacement::beside(&path, TIMEOUT).expect("nobody has it");
        let error = Replacement::beside(&path, PAUSE).expect_err("it is held").to_string();
        assert!(error.contains("users.new is locked by another `dlcmd user`"), "{error}");
        drop(held);
        add(&path, "ann").expect("added");
    }
}

//! Reading and replacing the users file.
//!
//! Must hold: a reader sees the old file or the new one; both are for their owner alone; of two who
//! change it at once, the second starts from what the first has left.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use libdiesel::{InvalidUsers, USERS_FILE_BYTES_MAX, Users};
use rustix::fs::{FlockOperation, flock};

use crate::exit::Failure;
use crate::text::shown;

const OWNER_ALONE: u32 = 0o600;

/// Reads a users file.
pub(super) fn read(path: &Path) -> Result<Users, Failure> {
    let reading = || format!("read users {}", shown(path));
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(USERS_FILE_BYTES_MAX).read_to_string(&mut text))
        .map_err(|why| Failure::local(reading(), why))?;
    text.parse().map_err(|why: InvalidUsers| Failure::local(reading(), why))
}

/// Puts a changed file in the place of the old one, or of none.
pub(super) fn change(
    path: &Path,
    change: impl FnOnce(&mut Users) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let writing = |why| Failure::local(format!("write users {}", shown(path)), why);
    let mut next = Next::beside(path).map_err(writing)?;
    let mut users =
        if path.try_exists().map_err(writing)? { read(path)? } else { Users::default() };
    change(&mut users)?;
    next.replace(path, &users).map_err(writing)
}

/// The file that takes the place of another one. Whoever holds its lock is the only one to change
/// that; dropped before, it leaves nothing.
#[derive(Debug)]
struct Next {
    /// None once it has taken the place.
    path: Option<PathBuf>,
    file: File,
}

impl Next {
    /// Waits until nobody else changes it.
    fn beside(path: &Path) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let path = PathBuf::from(name);
        loop {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(OWNER_ALONE);
            let file = options.open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            // The one who had the lock has given this file its place, or removed it.
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
        self.file.set_len(0)?;
        self.file.set_permissions(Permissions::from_mode(OWNER_ALONE))?;
        if let Ok(old) = fs::metadata(path) {
            let new = self.file.metadata()?;
            // The one whom the server runs as may not be the one who adds a user.
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                fchown(&self.file, Some(old.uid()), Some(old.gid()))?;
            }
        }
        self.file.write_all(users.to_string().as_bytes())?;
        self.file.sync_all()?;
        if let Some(next) = self.path.take() {
            fs::rename(next, path)?;
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Next {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // What can't be removed is in nobody's way.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use libdiesel::{Key, KeyHash, User};

    use super::*;

    fn add(path: &Path, name: &str) -> Result<(), Failure> {
        let user = User::new(KeyHash::of(&Key::from_random([1; 32]), [2; 16]), Vec::new());
        change(path, |users| {
            users.0.insert(name.parse().expect("legal"), user);
            Ok(())
        })
    }

    #[test]
    fn many_who_change_it_at_once_lose_nothing_and_leave_one_private_file() {
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
        fs::write(&path, "no users file\n").expect("written");
        assert!(add(&path, "bob").is_err());
        assert_eq!(fs::read(&path).expect("there"), b"no users file\n");
        assert_ne!(before, b"no users file\n");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}

//! A folder for copies of chunks on a local disk. All agents of a user share it with one quota.
//!
//! Must hold: the usage is the sum of all copies. A process killed in a change leaves a mark, and the
//! next change counts anew. The usage never exceeds the quota. Copies of a dataset leave only while no
//! agent has the dataset open. Files that are no copies stay.

use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::sleep;
use std::time::Duration;

use dl_format::DatasetId;
use dl_runtime::locked;
use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, flock, fstat,
    fstatvfs, futimens, mkdirat, openat, stat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Uid, geteuid};

use super::copy::{Access, CopyName, Unfinished, is_full};
use super::network::network_of;
use crate::place::Eviction;

/// The file with the usage of a folder.
const USAGE: &str = "usage";

/// The file locked by each agent that has a dataset open.
const USE: &str = "use";

/// Copies removed at once, while other agents wait for their changes.
const REMOVED_AT_ONCE: usize = 256;

/// Of a disk, this part stays free for other programs.
const FREE_PART: u64 = 10;

/// A folder, open.
#[derive(Debug)]
pub(crate) struct Folder {
    folder: OwnedFd,
    usage: File,
    /// One change at a time in this process, which has one lock for all.
    turn: Mutex<()>,
    quota: u64,
    /// Copies with wrong bytes, until they are removed.
    damaged: Mutex<HashSet<CopyName>>,
    /// The usage as last seen.
    last_used: AtomicU64,
    pub(super) access: Access,
    /// The network file system on which the folder is.
    pub(super) network: Option<&'static str>,
}

/// A dataset whose copies an agent uses.
#[derive(Debug)]
pub(crate) struct InUse {
    pub(super) folder: OwnedFd,
    /// Locked, shared.
    lock: File,
}

/// What became of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Added {
    New,
    /// Another agent was faster.
    There,
    /// The quota has no room.
    Full,
}

/// A dataset in a folder, with its uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) dataset: DatasetId,
    pub(super) uses: Uses,
    /// The end or the begin of the last use: seconds since 1970, and nanoseconds.
    pub(super) last: (i64, i64),
    /// Bytes of the copies.
    pub(super) bytes: u64,
}

/// The uses of a dataset, as the file of its lock tells.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Uses {
    count: i64,
    /// The first use in seconds since 1970.
    first: i64,
    /// The name of the dataset at its last use.
    pub(super) name: String,
}

impl Folder {
    /// Opens the folder of this user in a folder, and counts its copies.
    pub(super) fn open(at: &Path, quota: u64) -> io::Result<Self> {
        let (user, path) = (geteuid(), user_path(at));
        let folder = Self::open_user(&path, user)?;
        // Left by a killed process.
        names(&folder)?.iter().for_each(|name| Unfinished::clean(&folder, name));
        let usage = open_file(&folder, USAGE)?;
        let (access, network) = (Access::of(&folder)?, network_of(&folder)?);
        let opened = Self {
            folder,
            usage,
            turn: Mutex::default(),
            quota,
            damaged: Mutex::default(),
            last_used: AtomicU64::new(0),
            access,
            network,
        };
        opened.change(|used| {
            *used = opened.count()?;
            Ok(())
        })?;
        Ok(opened)
    }

    /// Opens the folder of the user, and locks it as long as it is open.
    fn open_user(path: &Path, user: Uid) -> io::Result<OwnedFd> {
        let mut attempt = || {
            make_folder(CWD, path)?;
            let folder = open_folder(CWD, path)?;
            let own = fstat(&folder)?;
            if own.st_uid != user.as_raw() || own.st_mode & 0o077 != 0 {
                let why = format!(
                    "{} belongs to another user, or other users may enter it: remove it, or name \
                     another folder",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
            flock(&folder, FlockOperation::NonBlockingLockShared)?;
            // The folder may have been removed in between.
            let is_there = stat(path).is_ok_and(|there| own.st_ino == there.st_ino);
            is_there.then_some(folder).ok_or_else(|| io::ErrorKind::WouldBlock.into())
        };
        patiently(&mut attempt)
    }

    /// Bytes of all copies. Waits for no other process.
    pub(super) fn used(&self) -> io::Result<u64> {
        let used = read_usage(&self.usage)?.map_or_else(|| self.count(), Ok)?;
        self.last_used.store(used, Ordering::Relaxed);
        Ok(used)
    }

    /// Bytes of all copies as last seen, without a call of the disk.
    pub(super) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Relaxed)
    }

    /// Whether bytes fit into the quota now.
    pub(super) fn has_room(&self, bytes: u64) -> io::Result<bool> {
        Ok(self.used()?.saturating_add(bytes) <= self.quota)
    }

    /// Whether other programs have enough free space on the disk.
    pub(super) fn has_free_space(&self) -> io::Result<bool> {
        let stat = fstatvfs(&self.folder)?;
        Ok(stat.f_bavail >= stat.f_blocks / FREE_PART)
    }

    /// Changes copies, and the sum of their bytes, while no other process does.
    fn change<T>(&self, change: impl FnOnce(&mut u64) -> io::Result<T>) -> io::Result<T> {
        let _turn = locked(&self.turn);
        let file = &self.usage;
        // A stopped process may hold the lock.
        patiently(&mut || Ok(file.try_lock()?))?;
        let changed = read_usage(file).and_then(|known| {
            let mut used = known.map_or_else(|| self.count(), Ok)?;
            write_usage(file, None)?;
            let changed = change(&mut used);
            write_usage(file, Some(used))?;
            self.last_used.store(used, Ordering::Relaxed);
            changed
        });
        file.unlock()?;
        changed
    }

    /// Counts the bytes of all copies.
    fn count(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for dataset in self.datasets()? {
            let Some(folder) = self.existing(dataset)? else { continue };
            bytes += copies(&folder)?.iter().map(CopyName::bytes).sum::<u64>();
        }
        Ok(bytes)
    }

    /// The datasets with a folder.
    pub(super) fn datasets(&self) -> io::Result<Vec<DatasetId>> {
        Ok(names(&self.folder)?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    fn existing(&self, dataset: DatasetId) -> io::Result<Option<OwnedFd>> {
        match open_folder(&self.folder, dataset.to_string()) {
            Ok(folder) => Ok(Some(folder)),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Begins to use the copies of a dataset. `now`: seconds since 1970. An error of the kind
    /// `WouldBlock` says that another process removes them at the moment.
    pub(super) fn enter(&self, dataset: DatasetId, label: &str, now: i64) -> io::Result<InUse> {
        let name = dataset.to_string();
        let attempt = || {
            make_folder(&self.folder, &name)?;
            let folder = open_folder(&self.folder, &name)?;
            let lock = open_file(&folder, USE)?;
            lock.try_lock_shared()?;
            let there = statat(&folder, USE, AtFlags::SYMLINK_NOFOLLOW)?;
            if fstat(&lock)?.st_ino != there.st_ino {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let uses = read_uses(&lock)?;
            let first = if uses.count == 0 { now } else { uses.first };
            let text = format!("{} {first} {label}\n", uses.count + 1);
            let written = lock.write_all_at(text.as_bytes(), 0);
            match written.and_then(|()| lock.set_len(text.len() as u64)) {
                // The copies of a full disk can still be read.
                Err(why) if !is_full(&why) => Err(why),
                _ => Ok(InUse { folder, lock }),
            }
        };
        patiently(&mut || match attempt() {
            // Another process removes the dataset.
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            entered => entered,
        })
    }

    /// Links a written copy, if the quota has room.
    pub(super) fn add(&self, of: &InUse, copy: &Unfinished, name: &CopyName) -> io::Result<Added> {
        self.change(|used| {
            self.remove_if_damaged(of, name, used)?;
            if used.saturating_add(name.bytes()) > self.quota {
                return Ok(Added::Full);
            }
            if !copy.link(&of.folder, name)? {
                return Ok(Added::There);
            }
            *used += name.bytes();
            Ok(Added::New)
        })
    }

    /// Notes that a copy has wrong bytes: the next change of the copy removes it.
    pub(super) fn mark_damaged(&self, name: &CopyName) {
        self.damaged().insert(name.clone());
    }

    /// Whether a copy is known to have wrong bytes.
    pub(super) fn is_damaged(&self, name: &CopyName) -> bool {
        self.damaged().contains(name)
    }

    fn damaged(&self) -> MutexGuard<'_, HashSet<CopyName>> {
        locked(&self.damaged)
    }

    /// Removes a copy with wrong bytes, unless it was replaced meanwhile.
    pub(super) fn remove_damaged(&self, of: &InUse, name: &CopyName) -> io::Result<()> {
        self.change(|used| self.remove_if_damaged(of, name, used))
    }

    fn remove_if_damaged(&self, of: &InUse, name: &CopyName, used: &mut u64) -> io::Result<()> {
        if !self.is_damaged(name) {
            return Ok(());
        }
        unlink(&of.folder, name, used)?;
        self.damaged().remove(name);
        Ok(())
    }

    /// Removes copies of a dataset.
    pub(super) fn remove(&self, of: impl AsFd, names: &[CopyName]) -> io::Result<()> {
        for names in names.chunks(REMOVED_AT_ONCE) {
            self.change(|used| names.iter().try_for_each(|name| unlink(&of, name, used)))?;
        }
        Ok(())
    }

    /// The datasets and their uses, the first to leave first.
    pub(super) fn in_order(&self, eviction: Eviction) -> io::Result<Vec<Used>> {
        let mut all = Vec::new();
        for dataset in self.datasets()? {
            let Some(folder) = self.existing(dataset)? else { continue };
            let (uses, stat) = match open_existing(&folder, USE) {
                Ok(lock) => (read_uses(&lock)?, fstat(&lock)?),
                // Left by a process that was killed.
                Err(_) => (Uses::default(), fstat(&folder)?),
            };
            let last = (stat.st_mtime, stat.st_mtime_nsec as i64);
            let bytes = copies(&folder)?.iter().map(CopyName::bytes).sum();
            all.push(Used { dataset, uses, last, bytes });
        }
        all.sort_by_key(|used| match eviction {
            Eviction::Lfu => (used.uses.count, used.last),
            Eviction::Fifo => (used.uses.first, used.last),
            Eviction::Lru | Eviction::Keep => (0, used.last),
        });
        Ok(all)
    }

    /// Whether no agent has a dataset open.
    pub(super) fn is_free(&self, dataset: DatasetId) -> io::Result<bool> {
        let Some(folder) = self.existing(dataset)? else { return Ok(true) };
        let lock = match open_existing(&folder, USE) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(true),
            lock => lock?,
        };
        match lock.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(why)) => Err(why),
        }
    }

    /// Removes all copies of a dataset that no agent has open; gives the bytes, or none if an agent
    /// has it open.
    pub(super) fn remove_dataset(&self, dataset: DatasetId) -> io::Result<Option<u64>> {
        let Some(folder) = self.existing(dataset)? else { return Ok(Some(0)) };
        let lock = open_file(&folder, USE)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(why)) => return Err(why),
        }
        names(&folder)?.iter().for_each(|name| Unfinished::clean(&folder, name));
        let copies = copies(&folder)?;
        self.remove(&folder, &copies)?;
        unlinkat(&folder, USE, AtFlags::empty())?;
        match unlinkat(&self.folder, dataset.to_string(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => {}
            Err(why) => return Err(why.into()),
        }
        Ok(Some(copies.iter().map(CopyName::bytes).sum()))
    }

    /// Removes the folder of the user if it holds no copies and no agent uses it.
    pub(super) fn remove_user(self, at: &Path) -> io::Result<()> {
        // In place of the shared lock of this value.
        if flock(&self.folder, FlockOperation::NonBlockingLockExclusive).is_err()
            || !self.datasets()?.is_empty()
        {
            return Ok(());
        }
        let path = user_path(at);
        unlinkat(&self.folder, USAGE, AtFlags::empty())?;
        match unlinkat(CWD, path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOTEMPTY) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }

    /// Removes datasets that no agent has open until bytes fit; false if they don't.
    pub(super) fn make_room(&self, bytes: u64, eviction: Eviction) -> io::Result<bool> {
        let has_room = || Ok::<_, io::Error>(self.has_room(bytes)? && self.has_free_space()?);
        if has_room()? {
            return Ok(true);
        }
        if eviction == Eviction::Keep || bytes > self.quota {
            return Ok(false);
        }
        for used in self.in_order(eviction)? {
            if self.remove_dataset(used.dataset)?.is_some() && has_room()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The folder of the user in a folder.
pub(super) fn user_path(at: &Path) -> PathBuf {
    at.join(format!("diesel-{}", geteuid().as_raw()))
}

impl InUse {
    /// The copies of the dataset; files left by killed writers leave.
    pub(super) fn list(&self) -> io::Result<Vec<CopyName>> {
        names(&self.folder)?.iter().for_each(|name| Unfinished::clean(&self.folder, name));
        copies(&self.folder)
    }

    /// Notes that the dataset is still used.
    pub(super) fn touch(&self) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        Ok(futimens(&self.lock, &Timestamps { last_access: now, last_modification: now })?)
    }

    /// Changes with the list.
    pub(super) fn changed_at(&self) -> io::Result<(i64, i64)> {
        let stat = fstat(&self.folder)?;
        Ok((stat.st_mtime, stat.st_mtime_nsec as i64))
    }
}

/// Attempts of a call that another process delays for a moment, and their interval.
const ATTEMPTS: u32 = 100;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(10);

/// Calls again while another process delays the call; an error of the kind `WouldBlock` in the end.
fn patiently<T>(attempt: &mut impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..ATTEMPTS {
        match attempt() {
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => sleep(ATTEMPT_INTERVAL),
            done => return done,
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// The usage; none after a process was killed in a change, and in a new file.
fn read_usage(file: &File) -> io::Result<Option<u64>> {
    let mut text = [0; 64];
    let length = file.read_at(&mut text, 0)?;
    let text = text.get(..length).and_then(|text| std::str::from_utf8(text).ok());
    Ok(text.and_then(|text| text.strip_suffix(" bytes\n")?.parse().ok()))
}

/// Writes the usage, or that a change is under way.
fn write_usage(file: &File, used: Option<u64>) -> io::Result<()> {
    let text = match used {
        Some(used) => format!("{used:020} bytes\n"),
        None => format!("{:26}\n", "changing"),
    };
    file.write_all_at(text.as_bytes(), 0)
}

/// The uses of a dataset; none for a file with something else.
fn read_uses(file: &File) -> io::Result<Uses> {
    let mut text = [0; 1_024];
    let length = file.read_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default()).into_owned();
    let mut words = text.trim_end().splitn(3, ' ');
    let mut number = || words.next().and_then(|word| word.parse().ok());
    let (count, first) = (number(), number());
    let name = words.next().unwrap_or_default().to_owned();
    let uses = count.zip(first).map(|(count, first)| Uses { count, first, name });
    Ok(uses.unwrap_or_default())
}

fn make_folder(of: impl AsFd, name: impl rustix::path::Arg) -> io::Result<()> {
    match mkdirat(of, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(why) => Err(why.into()),
    }
}

fn open_folder(of: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(of, name, flags, Mode::empty())?)
}

fn open_existing(of: impl AsFd, name: &str) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(of, name, flags, Mode::empty())?))
}

fn open_file(of: impl AsFd, name: &str) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(of, name, flags, Mode::RUSR | Mode::WUSR)?))
}

/// Removes a copy, if it is there, from its folder and from the sum of the bytes.
fn unlink(of: impl AsFd, name: &CopyName, used: &mut u64) -> io::Result<()> {
    match unlinkat(of, name.file(), AtFlags::empty()) {
        Ok(()) => *used = used.saturating_sub(name.bytes()),
        Err(Errno::NOENT) => {}
        Err(why) => return Err(why.into()),
    }
    Ok(())
}

/// The names in a folder.
fn names(of: impl AsFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(of)? {
        if let Ok(name) = entry?.file_name().to_str() {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// The copies in the folder of a dataset.
fn copies(of: impl AsFd) -> io::Result<Vec<CopyName>> {
    Ok(names(of)?.iter().filter_map(|name| CopyName::parse(name)).collect())
}

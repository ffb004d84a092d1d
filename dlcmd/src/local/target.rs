//! The target folder of `get`.
//!
//! Must hold: nothing outside the folder is touched for any names, even if links are planted in the
//! folder. A file gets its final name only when complete. After an error no partial file is left,
//! and after a kill the next `get` removes it.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dl_format::{Attributes, FilePath, FileRecord};
use dl_runtime::{Clock, SystemClock, locked};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, fgetxattr,
    futimens, linkat, mkdirat, openat, renameat, statat, syncfs, unlinkat,
};
use rustix::io::Errno;

use super::file::{attributes, size};
use super::temporary::{self, Names, is_temporary};
use crate::text::shown;

const OPEN_FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Permission bits that are restored: no setuid, setgid, sticky.
const PERMISSIONS: u16 = 0o777;
/// Maximum of cached open folders.
const FOLDERS_MAX: usize = 128;
/// Maximum of folders swept for files of killed processes.
const SWEPT_MAX: usize = 1 << 16;
const NANOS: i64 = 1_000_000_000;

/// The target folder, shared by threads.
#[derive(Debug)]
pub(crate) struct Target {
    root: Arc<Folder>,
    path: PathBuf,
    umask: u16,
    folders: Mutex<HashMap<Bytes, Arc<Folder>>>,
    /// Hashes of the folders already swept for files of killed processes.
    swept: Mutex<HashSet<u64>>,
    hasher: RandomState,
    /// The names of temporary files, and the number of names given out.
    names: Names,
    named: AtomicU64,
    /// Whether the file system supports files without a name.
    makes_anonymous: AtomicBool,
    /// Whether a file can be linked by its descriptor alone.
    links_descriptors: AtomicBool,
}

/// An open folder of the target.
#[derive(Debug)]
pub(crate) struct Folder {
    descriptor: OwnedFd,
    /// Hash of its path.
    hash: u64,
    /// Whether the folder was just created, so no name in it is taken.
    is_new: bool,
    /// Whether an ACL of the folder decides about permissions instead of the umask.
    has_default_acl: bool,
}

/// A file without its final name; dropping the value removes the file.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    target: &'a Target,
    folder: Arc<Folder>,
    file: File,
    mode: u16,
    temporary: Option<String>,
}

/// The umask of this process. To be called before threads create files, because the kernel reports
/// the umask only when setting another.
pub(crate) fn own_umask() -> u16 {
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    (umask.bits() & 0o777) as u16
}

impl Target {
    /// The folder at `path`, created if missing.
    pub(crate) fn create(path: &Path, umask: u16) -> io::Result<Self> {
        let is_new = !path.exists();
        fs::create_dir_all(path)?;
        Self::open(path, umask, is_new)
    }

    /// The existing folder at `path`.
    pub(crate) fn existing(path: &Path, umask: u16) -> io::Result<Self> {
        Self::open(path, umask, false)
    }

    fn open(path: &Path, umask: u16, is_new: bool) -> io::Result<Self> {
        let descriptor = openat(CWD, path, OPEN_FOLDER, Mode::empty())?;
        let hasher = RandomState::new();
        Ok(Self {
            root: Arc::new(Folder::new(descriptor, hasher.hash_one(b""), is_new)),
            path: path.to_owned(),
            umask,
            folders: Mutex::default(),
            swept: Mutex::default(),
            hasher,
            names: Names::new(),
            named: AtomicU64::new(0),
            makes_anonymous: AtomicBool::new(true),
            links_descriptors: AtomicBool::new(true),
        })
    }

    /// A path below the target, as typed by the user.
    pub(crate) fn shown(&self, path: &[u8]) -> PathBuf {
        self.path.join(std::ffi::OsStr::from_bytes(path))
    }

    /// The folder of `path`, created if missing.
    ///
    /// # Errors
    /// Also when part of the path is no folder, since links are not followed; and for a file with
    /// the name of a temporary file.
    pub(crate) fn folder_of(&self, path: &FilePath) -> io::Result<Arc<Folder>> {
        if is_temporary(path.name()) {
            return Err(io::Error::other(
                "get calls half of a file so, and would take it for one later: `dlcmd cat` reads it",
            ));
        }
        let parent = path.parent();
        if parent.is_root() {
            return Ok(Arc::clone(&self.root));
        }
        // The bytes of the parent, without a copy.
        let length = parent.as_bytes().len();
        self.folder(path.clone().into_bytes().slice(..length))
    }

    fn folder(&self, path: Bytes) -> io::Result<Arc<Folder>> {
        if let Some(folder) = self.folders().get(&path) {
            return Ok(Arc::clone(folder));
        }
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (self.folder(path.slice(..slash))?, path.slice(slash + 1..)),
            None => (Arc::clone(&self.root), path.clone()),
        };
        let flags = OPEN_FOLDER.union(OFlags::NOFOLLOW);
        let open = || openat(&parent.descriptor, &*name, flags, Mode::empty());
        let (descriptor, is_new) = match open() {
            Err(Errno::NOENT) => {
                let made = mkdirat(&parent.descriptor, &*name, Mode::from_raw_mode(0o777));
                let is_new = match made {
                    Ok(()) => true,
                    // Another thread was faster.
                    Err(Errno::EXIST) => false,
                    Err(why) => return Err(why.into()),
                };
                (open(), is_new)
            }
            opened => (opened, false),
        };
        let descriptor = descriptor.map_err(|why| match why {
            Errno::NOTDIR | Errno::LOOP => io::Error::new(
                io::ErrorKind::NotADirectory,
                format!("{} is a file or a link; move it away", shown(&self.shown(&path))),
            ),
            other => other.into(),
        })?;
        let folder = Arc::new(Folder::new(descriptor, self.hasher.hash_one(&path), is_new));
        let mut folders = self.folders();
        if folders.len() >= FOLDERS_MAX {
            folders.clear();
        }
        Ok(Arc::clone(folders.entry(path).or_insert(folder)))
    }

    /// Creates a file in `folder` with the given permission bits.
    pub(crate) fn begin(&self, folder: &Arc<Folder>, mode: u16) -> io::Result<NewFile<'_>> {
        self.sweep(folder);
        let mode = mode & PERMISSIONS;
        let raw = Mode::from_raw_mode(mode.into());
        let flags = OFlags::WRONLY.union(OFlags::CLOEXEC);
        let new = |descriptor: OwnedFd, temporary| NewFile {
            target: self,
            folder: Arc::clone(folder),
            file: descriptor.into(),
            mode,
            temporary,
        };
        if self.makes_anonymous.load(Ordering::Relaxed) {
            match openat(&folder.descriptor, c".", flags.union(OFlags::TMPFILE), raw) {
                Ok(descriptor) => return Ok(new(descriptor, None)),
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                    self.makes_anonymous.store(false, Ordering::Relaxed);
                }
                Err(why) => return Err(why.into()),
            }
        }
        loop {
            let name = self.temporary_name();
            if let Some(descriptor) = temporary::create(&folder.descriptor, &name, flags)? {
                return Ok(new(descriptor, Some(name)));
            }
        }
    }

    /// Removes files of killed processes from a folder, before the first file is written there.
    fn sweep(&self, folder: &Folder) {
        if folder.is_new {
            return;
        }
        // Other threads wait, so their temporary files are not taken for abandoned files.
        let mut swept = locked(&self.swept);
        if swept.len() < SWEPT_MAX && swept.insert(folder.hash) {
            self.names.sweep(&folder.descriptor, SystemClock::new().now());
        }
    }

    /// Makes everything written up to now durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(syncfs(&self.root.descriptor)?)
    }

    fn temporary_name(&self) -> String {
        self.names.name(self.named.fetch_add(1, Ordering::Relaxed))
    }

    fn folders(&self) -> std::sync::MutexGuard<'_, HashMap<Bytes, Arc<Folder>>> {
        locked(&self.folders)
    }
}

impl Folder {
    fn new(descriptor: OwnedFd, hash: u64, is_new: bool) -> Self {
        // Only asks whether the attribute exists.
        let acl = fgetxattr(&descriptor, c"system.posix_acl_default", &mut [0; 0]);
        Self { descriptor, hash, is_new, has_default_acl: acl.is_ok() }
    }

    /// Whether the file exists and matches `record`.
    pub(crate) fn holds(&self, name: &[u8], record: &FileRecord) -> bool {
        !self.is_new
            && statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
                let has = attributes(&stat);
                FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                    && size(&stat) == record.length
                    && has.mtime == record.attributes.mtime
                    && has.mode == record.attributes.mode & PERMISSIONS
            })
    }

    /// Refuses the name of anything but a regular file.
    fn may_replace(&self, name: &[u8]) -> io::Result<()> {
        let stat = match statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            stat => stat?,
        };
        let (kind, what) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(()),
            FileType::Directory => (io::ErrorKind::IsADirectory, "a folder"),
            other => (io::ErrorKind::AlreadyExists, special(other)),
        };
        Err(io::Error::new(kind, format!("{what} stands in its place; move it away")))
    }
}

/// The description of an entry that is neither a file nor a folder.
pub(crate) fn special(kind: FileType) -> &'static str {
    match kind {
        FileType::Symlink => "a link",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::RegularFile | FileType::Directory | FileType::Unknown => "something unknown",
    }
}

impl NewFile<'_> {
    /// The file for the bytes.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Sets the attributes and then the name, replacing a file of the same name.
    ///
    /// # Errors
    /// Also when the name belongs to anything but a regular file, which is left unchanged.
    pub(crate) fn finish(mut self, name: &[u8], attributes: Attributes) -> io::Result<()> {
        let is_as_made = self.temporary.is_none() && !self.folder.has_default_acl;
        if !is_as_made || self.mode & self.target.umask != 0 {
            fchmod(&self.file, Mode::from_raw_mode(self.mode.into()))?;
        }
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let mtime = Timespec {
            tv_sec: attributes.mtime.div_euclid(NANOS),
            tv_nsec: attributes.mtime.rem_euclid(NANOS),
        };
        futimens(&self.file, &Timestamps { last_access: omit, last_modification: mtime })?;
        if self.temporary.is_none() {
            match self.link(name) {
                Err(Errno::EXIST) => {}
                linked => return Ok(linked?),
            }
            self.folder.may_replace(name)?;
            // The name is taken: rename replaces a file in one step, linking does not.
            let temporary = self.target.temporary_name();
            // Without locks, abandoned files are not removed.
            let _ = temporary::lock(&self.file);
            self.link(temporary.as_bytes())?;
            self.temporary = Some(temporary);
        } else {
            self.folder.may_replace(name)?;
        }
        if let Some(temporary) = &self.temporary {
            let folder = &self.folder.descriptor;
            renameat(folder, temporary.as_str(), folder, name)?;
            self.temporary = None;
        }
        Ok(())
    }

    fn link(&self, name: &[u8]) -> Result<(), Errno> {
        let folder = &self.folder.descriptor;
        let direct = &self.target.links_descriptors;
        if direct.load(Ordering::Relaxed) {
            match linkat(&self.file, c"", folder, name, AtFlags::EMPTY_PATH) {
                // Older kernels allow linking by descriptor only to the administrator.
                Err(Errno::NOENT | Errno::PERM) => direct.store(false, Ordering::Relaxed),
                linked => return linked,
            }
        }
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        linkat(CWD, path, folder, name, AtFlags::SYMLINK_FOLLOW)
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // The earlier error is reported instead.
            let _ = unlinkat(&self.folder.descriptor, temporary.as_str(), AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests;

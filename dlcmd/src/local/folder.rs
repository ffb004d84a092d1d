//! The roots that `put` reads from, and their folders.
//!
//! Must hold: a link is followed only to a file inside its root, except for a link that the user
//! named; also one that takes a folder's place meanwhile; opening never waits for a pipe or a
//! device; a message names what the user would type.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dl_format::{FilePath, InvalidPath};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, openat, openat2, statat};
use rustix::io::Errno;

use super::file::{OpenFile, attributes, size};

/// What entries of a folder are opened with: never through a link, never waiting.
const OPEN: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
const OPEN_FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// What folders are opened with on the way to what lies below them.
const PASS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Bytes of a path from which on the kernel refuses it.
const PATH_MAX: usize = 4096;

/// A folder that the user named, and where its contents go.
#[derive(Debug)]
pub(crate) struct Root {
    descriptor: OwnedFd,
    path: PathBuf,
    /// Without links: what a link's target must lie under.
    real: PathBuf,
    /// What the path of everything in the dataset starts with: nothing, or `dir/`.
    prefix: Vec<u8>,
}

/// An open folder below a root.
#[derive(Debug)]
pub(crate) struct Folder {
    root: Arc<Root>,
    /// Below the root; empty for the root itself.
    path: Box<[u8]>,
    descriptor: OwnedFd,
}

/// How an entry of a folder is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// As it stands; a link only when its target is inside.
    Found,
    /// The user named it: a link is what it points to.
    Named,
}

/// Why a file is not put.
#[derive(Debug)]
pub(crate) enum Problem {
    /// It is nothing that a dataset keeps.
    Skipped(&'static str),
    /// It can't be read.
    Failed(io::Error),
}

impl Root {
    /// Opens `path`, whose contents go below `prefix`.
    pub(crate) fn open(path: &Path, prefix: Vec<u8>) -> io::Result<Arc<Self>> {
        let here = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let descriptor = openat(CWD, here, OPEN_FOLDER, Mode::empty())?;
        let real = fs::canonicalize(here)?;
        Ok(Arc::new(Self { descriptor, path: path.to_owned(), real, prefix }))
    }

    /// Opens the folder at `path` below the root; the root for an empty path.
    pub(crate) fn folder(self: &Arc<Self>, path: &[u8]) -> io::Result<Folder> {
        let name = if path.is_empty() { b"." } else { path };
        let flags = OPEN_FOLDER.union(OFlags::NOFOLLOW);
        let descriptor = open_straight(&self.descriptor, name, flags)?;
        Ok(Folder { root: Arc::clone(self), path: path.into(), descriptor })
    }

    /// As the user would type the file or folder at `path` below the root.
    pub(crate) fn shown(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() { self.path.clone() } else { self.path.join(OsStr::from_bytes(path)) }
    }

    /// What a path in the dataset is below this root.
    pub(crate) fn relative<'a>(&self, path: &'a FilePath) -> &'a [u8] {
        path.as_bytes().strip_prefix(self.prefix.as_slice()).unwrap_or_default()
    }

    /// Opens the file at `path` below the root, as [`Folder::open`] does.
    pub(crate) fn open_file(&self, path: &[u8], entry: Entry) -> Result<OpenFile, Problem> {
        let name = CString::new(path).map_err(|why| Problem::Failed(why.into()))?;
        self.open_at(&self.descriptor, &name, entry, || path.to_vec())
    }

    /// `path` is asked for only when the entry is a link.
    fn open_at(
        &self,
        folder: &OwnedFd,
        name: &CStr,
        entry: Entry,
        path: impl FnOnce() -> Vec<u8>,
    ) -> Result<OpenFile, Problem> {
        let flags = match entry {
            Entry::Found => OPEN,
            Entry::Named => OPEN.difference(OFlags::NOFOLLOW),
        };
        let is_found = entry == Entry::Found;
        let opened = if is_found && has_folders(name) {
            open_beneath(folder, name, flags)
        } else {
            openat(folder, name, flags, Mode::empty())
        };
        let descriptor = match opened {
            // What a link gives when links are not followed, one that may lead out, and a kernel
            // or a sandbox that can't tell.
            Err(
                Errno::LOOP
                | Errno::XDEV
                | Errno::AGAIN
                | Errno::NOSYS
                | Errno::PERM
                | Errno::INVAL,
            ) if is_found => self.open_link(&path())?,
            // What a socket gives.
            Err(Errno::NXIO) => return Err(Problem::Skipped("it is a socket or a device")),
            opened => opened.map_err(|why| Problem::Failed(why.into()))?,
        };
        let opened = OpenFile::new(descriptor).map_err(Problem::Failed)?;
        opened.map_err(|kind| Problem::Skipped(not_regular(kind)))
    }

    /// Follows the links in `path` to a file below this root.
    fn open_link(&self, path: &[u8]) -> Result<OwnedFd, Problem> {
        let path = self.real.join(OsStr::from_bytes(path));
        let target = match fs::canonicalize(&path) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::symlink_metadata(&path).map_err(Problem::Failed)?;
                return Err(Problem::Skipped("it is a link to nothing"));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
                return Err(Problem::Failed(error));
            }
            Err(_) => return Err(Problem::Skipped("it is a link that can't be followed")),
        };
        let Ok(inside) = target.strip_prefix(&self.real) else {
            let is_link = fs::symlink_metadata(&path).is_ok_and(|it| it.is_symlink());
            return Err(Problem::Skipped(match is_link {
                true => "it is a link out of the folder",
                false => "it lies behind a link out of the folder",
            }));
        };
        let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
        match open_straight(&self.descriptor, inside.as_os_str().as_bytes(), OPEN) {
            Err(Errno::NXIO) => Err(Problem::Skipped("it is a link to a socket or a device")),
            opened => opened.map_err(|why| Problem::Failed(why.into())),
        }
    }
}

impl Folder {
    /// The root it lies below.
    pub(crate) fn root(&self) -> &Arc<Root> {
        &self.root
    }

    /// Its path below the root.
    #[cfg(test)]
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// The path of an entry below the root.
    pub(crate) fn path_of(&self, name: &CStr) -> Vec<u8> {
        if self.path.is_empty() {
            return name.to_bytes().to_vec();
        }
        [&self.path, name.to_bytes()].join(&b'/')
    }

    /// The path of an entry in the dataset.
    pub(crate) fn dataset_path(&self, name: &CStr) -> Result<FilePath, InvalidPath> {
        let (prefix, name) = (&self.root.prefix, name.to_bytes());
        let mut path = Vec::with_capacity(prefix.len() + self.path.len() + 1 + name.len());
        path.extend_from_slice(prefix);
        if !self.path.is_empty() {
            path.extend_from_slice(&self.path);
            path.push(b'/');
        }
        path.extend_from_slice(name);
        FilePath::new(path)
    }

    /// Its own path in the dataset.
    pub(crate) fn own_dataset_path(&self) -> Result<FilePath, InvalidPath> {
        FilePath::new([&*self.root.prefix, &self.path].concat())
    }

    /// Opens an entry.
    pub(crate) fn open(&self, name: &CStr, entry: Entry) -> Result<OpenFile, Problem> {
        self.root.open_at(&self.descriptor, name, entry, || self.path_of(name))
    }

    /// Size in bytes and modification time in nanoseconds since 1970 of an entry that is a regular
    /// file; `None` when only opening it tells.
    pub(crate) fn stat(&self, name: &CStr) -> Option<(u64, i64)> {
        if has_folders(name) {
            // Only opening looks where links on the way lead.
            let file = self.open(name, Entry::Found).ok()?;
            return Some((file.size(), file.attributes().mtime));
        }
        let stat = statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_regular.then(|| (size(&stat), attributes(&stat).mtime))
    }
}

/// Opens a path through folders none of which is a link: one by one, as a kernel that looks at all of
/// them at once looks for links at the last one only.
fn open_straight(folder: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let (mut rest, mut parent) = (path, None);
    while let Some(slash) = rest.iter().position(|byte| *byte == b'/') {
        let (name, behind) = rest.split_at(slash);
        parent = Some(openat(parent.as_ref().unwrap_or(folder), name, PASS, Mode::empty())?);
        rest = behind.get(1..).unwrap_or_default();
    }
    openat(parent.as_ref().unwrap_or(folder), rest, flags, Mode::empty())
}

/// Opens a path that leads through folders, none of them outside of `folder`. The kernel takes no
/// path as long as one in a dataset may be, so its last folder is opened first then.
fn open_beneath(folder: &OwnedFd, path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let open = |folder: &OwnedFd, path: &[u8], flags| {
        openat2(folder, path, flags, Mode::empty(), ResolveFlags::BENEATH)
    };
    let path = path.to_bytes();
    match path.iter().rposition(|byte| *byte == b'/').map(|slash| path.split_at(slash)) {
        Some((parent, [_, name @ ..])) if path.len() >= PATH_MAX => {
            open(&open(folder, parent, OPEN_FOLDER)?, name, flags)
        }
        _ => open(folder, path, flags),
    }
}

/// Whether a name is a path, with folders on the way that may be links.
fn has_folders(name: &CStr) -> bool {
    name.to_bytes().contains(&b'/')
}

/// Why something that is no regular file is skipped.
fn not_regular(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "it is a folder, or a link to one",
        FileType::Fifo => "it is a named pipe",
        FileType::Socket => "it is a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "it is a device",
        FileType::Symlink => "it is a link",
        FileType::RegularFile | FileType::Unknown => "it is no regular file",
    }
}

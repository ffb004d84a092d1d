//! The source roots of `put`, and their folders.
//!
//! Must hold: without `--follow` a link is followed only to a file inside its root, except for a
//! link named by the user. The same holds for a link that replaces a folder meanwhile. Opening
//! never waits for a pipe or a device. Messages show paths as typed by the user.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dl_format::{Attributes, FilePath, InvalidPath};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, openat, openat2, statat};
use rustix::io::Errno;

use super::file::{OpenFile, attributes, size};
use super::server_data;

/// Flags to open entries of a folder, without waiting.
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
const OPEN_FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Flags to open intermediate folders.
const PASS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Length of a path refused by the kernel.
const PATH_MAX: usize = 4096;
const LINK_TO_NOTHING: &str = "it is a link to nothing";
const LINK_IN_CIRCLE: &str = "it is a link that leads in a circle";

/// A folder named by the user, and its place in the dataset.
#[derive(Debug)]
pub(crate) struct Root {
    descriptor: OwnedFd,
    path: PathBuf,
    /// The path without links: targets of links must lie below.
    real: PathBuf,
    place: Destination,
    /// Whether all links are followed, also out of the folder.
    follow: bool,
}

/// The place of a root's contents in the dataset.
#[derive(Debug, Clone)]
pub(crate) enum Destination {
    /// Below a prefix, which is empty or ends in `/`.
    Below(Vec<u8>),
    /// A single file `source` of the root, stored as `path`.
    File {
        /// Name below the root.
        source: Vec<u8>,
        /// Path in the dataset.
        path: FilePath,
    },
}

/// An open folder below a root.
#[derive(Debug)]
pub(crate) struct Folder {
    root: Arc<Root>,
    /// Below the root; empty for the root itself.
    path: Box<[u8]>,
    descriptor: OwnedFd,
}

/// How to open an entry of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Unchanged; a link only if its target is inside.
    Found,
    /// Named by the user: a link stands for its target.
    Named,
}

/// The reason why a file is not stored.
#[derive(Debug)]
pub(crate) enum Problem {
    /// Datasets store no entries of this kind.
    Skipped(&'static str),
    /// A link, without `--follow`.
    NotFollowed(&'static str),
    /// The file can't be read.
    Failed(io::Error),
}

impl Root {
    /// Opens `path` with its place in the dataset.
    pub(crate) fn open(path: &Path, place: Destination, follow: bool) -> io::Result<Arc<Self>> {
        let here = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let descriptor = openat(CWD, here, OPEN_FOLDER, Mode::empty())?;
        let real = fs::canonicalize(here)?;
        Ok(Arc::new(Self { descriptor, path: path.to_owned(), real, place, follow }))
    }

    /// The same folder, for the single file `source`, stored as `path`.
    pub(crate) fn of_file(&self, source: Vec<u8>, path: FilePath) -> io::Result<Arc<Self>> {
        Self::open(&self.path, Destination::File { source, path }, self.follow)
    }

    /// Whether all links are followed.
    pub(super) fn follows(&self) -> bool {
        self.follow
    }

    /// Opens the folder at `path` below the root; the root for an empty path.
    pub(crate) fn folder(self: &Arc<Self>, path: &[u8]) -> io::Result<Folder> {
        let name = if path.is_empty() { b"." } else { path };
        let descriptor = open_straight(&self.descriptor, name, OPEN_FOLDER, self.follow)?;
        Ok(Folder { root: Arc::clone(self), path: path.into(), descriptor })
    }

    /// Whether the folder at `path` below the root holds the data of a server.
    pub(crate) fn holds_server_data(&self, path: &[u8]) -> bool {
        let name = if path.is_empty() { b"." } else { path };
        let folder = open_straight(&self.descriptor, name, OPEN_FOLDER, true);
        folder.is_ok_and(|folder| server_data::is_in(&folder))
    }

    /// The dataset's folders above all files of this root, the outermost first.
    pub(crate) fn folders_above(&self) -> impl Iterator<Item = FilePath> {
        let path = match &self.place {
            Destination::Below(prefix) => prefix.as_slice(),
            Destination::File { path, .. } => path.as_bytes(),
        };
        let ends = (0..path.len()).filter(|at| path.get(*at) == Some(&b'/'));
        ends.filter_map(|end| FilePath::new(path.get(..end)?.to_vec()).ok())
    }

    /// The part of this root stored in `folder` of the dataset: a path below the root, empty for
    /// the whole root.
    pub(crate) fn part_in<'a>(&self, folder: &'a FilePath) -> Option<&'a [u8]> {
        let is_inside = |path: &[u8]| {
            path.strip_prefix(folder.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
        };
        match &self.place {
            Destination::Below(prefix) if is_inside(prefix) => Some(b""),
            Destination::Below(prefix) => folder.as_bytes().strip_prefix(&**prefix),
            Destination::File { path, .. } => is_inside(path.as_bytes()).then_some(b""),
        }
    }

    /// The dataset path of an entry of a folder below the root.
    fn dataset_path(&self, folder: &[u8], name: &[u8]) -> Result<FilePath, InvalidPath> {
        let prefix = match &self.place {
            Destination::Below(prefix) => prefix,
            Destination::File { path, .. } => return Ok(path.clone()),
        };
        let mut path = Vec::with_capacity(prefix.len() + folder.len() + 1 + name.len());
        path.extend_from_slice(prefix);
        if !folder.is_empty() {
            path.extend_from_slice(folder);
            path.push(b'/');
        }
        path.extend_from_slice(name);
        FilePath::new(path)
    }

    /// The file or folder at `path` below the root, as typed by the user.
    pub(crate) fn shown(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() { self.path.clone() } else { self.path.join(OsStr::from_bytes(path)) }
    }

    /// The path below this root of a path in the dataset.
    pub(crate) fn relative<'a>(&'a self, path: &'a FilePath) -> &'a [u8] {
        match &self.place {
            Destination::Below(prefix) => {
                path.as_bytes().strip_prefix(&**prefix).unwrap_or_default()
            }
            Destination::File { source, .. } => source,
        }
    }

    /// Opens the file at `path` below the root, like [`Folder::open`].
    pub(crate) fn open_file(&self, path: &[u8], entry: Entry) -> Result<OpenFile, Problem> {
        let name = CString::new(path).map_err(|why| Problem::Failed(why.into()))?;
        self.open_at(&self.descriptor, &name, entry, || path.to_vec())
    }

    /// Calls `path` only if the entry is a link.
    fn open_at(
        &self,
        folder: &OwnedFd,
        name: &CStr,
        entry: Entry,
        path: impl FnOnce() -> Vec<u8>,
    ) -> Result<OpenFile, Problem> {
        let follows = self.follow || entry == Entry::Named;
        let opened = if follows {
            open_straight(folder, name.to_bytes(), OPEN, true)
        } else if has_folders(name) {
            open_beneath(folder, name, OPEN.union(OFlags::NOFOLLOW))
        } else {
            openat(folder, name, OPEN.union(OFlags::NOFOLLOW), Mode::empty())
        };
        let descriptor = match opened {
            // Errors in this order: a refused link, a link that may lead out, and a kernel or
            // sandbox without the system call.
            Err(
                Errno::LOOP
                | Errno::XDEV
                | Errno::AGAIN
                | Errno::NOSYS
                | Errno::PERM
                | Errno::INVAL,
            ) if !follows => return self.open_link(&path()),
            // The error for a socket.
            Err(Errno::NXIO) => return Err(Problem::Skipped("it is a socket or a device")),
            Err(Errno::LOOP) => return Err(Problem::Skipped(LINK_IN_CIRCLE)),
            Err(Errno::NOENT) if is_link(folder, name) => {
                return Err(Problem::Skipped(LINK_TO_NOTHING));
            }
            opened => opened.map_err(|why| Problem::Failed(why.into()))?,
        };
        let opened = OpenFile::new(descriptor).map_err(Problem::Failed)?;
        opened.map_err(|kind| Problem::Skipped(not_regular(kind)))
    }

    /// Follows the links in `path` to a file below this root.
    fn open_link(&self, path: &[u8]) -> Result<OpenFile, Problem> {
        let path = self.real.join(OsStr::from_bytes(path));
        let is_link = fs::symlink_metadata(&path).map_err(Problem::Failed)?.is_symlink();
        let target = match fs::canonicalize(&path) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Problem::Skipped(LINK_TO_NOTHING));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
                return Err(Problem::Failed(error));
            }
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                return Err(Problem::Skipped(LINK_IN_CIRCLE));
            }
            Err(_) => return Err(Problem::Skipped("it is a link that can't be followed")),
        };
        let Ok(inside) = target.strip_prefix(&self.real) else {
            return Err(Problem::NotFollowed(match is_link {
                true => "it is a link out of the folder",
                false => "it lies behind a link out of the folder",
            }));
        };
        let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
        let opened =
            match open_straight(&self.descriptor, inside.as_os_str().as_bytes(), OPEN, false) {
                Err(Errno::NXIO) => {
                    return Err(Problem::Skipped("it is a link to a socket or a device"));
                }
                opened => opened.map_err(|why| Problem::Failed(why.into()))?,
            };
        let opened = OpenFile::new(opened).map_err(Problem::Failed)?;
        opened.map_err(|kind| match kind {
            FileType::Directory if is_link => Problem::NotFollowed("it is a link to a folder"),
            kind => Problem::Skipped(not_regular(kind)),
        })
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
        self.root.dataset_path(&self.path, name.to_bytes())
    }

    pub(crate) fn own_dataset_path(&self) -> Result<FilePath, InvalidPath> {
        self.root.dataset_path(b"", &self.path)
    }

    pub(crate) fn open(&self, name: &CStr, entry: Entry) -> Result<OpenFile, Problem> {
        self.root.open_at(&self.descriptor, name, entry, || self.path_of(name))
    }

    /// Size in bytes and attributes of an entry.
    pub(crate) fn stat(&self, name: &CStr, entry: Entry) -> Result<(u64, Attributes), Problem> {
        // Only opening follows links.
        if !has_folders(name)
            && let Ok(stat) = statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW)
            && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        {
            return Ok((size(&stat), attributes(&stat)));
        }
        let file = self.open(name, entry)?;
        Ok((file.size(), file.attributes()))
    }
}

/// Opens a path folder by folder. Unless the call `follows` links, no part of the path may be a
/// link. A kernel that resolves the path as a whole checks only its last part.
fn open_straight(
    folder: &OwnedFd,
    path: &[u8],
    flags: OFlags,
    follows: bool,
) -> Result<OwnedFd, Errno> {
    let no_link = if follows { OFlags::empty() } else { OFlags::NOFOLLOW };
    let (mut rest, mut parent) = (path, None);
    while let Some(slash) = rest.iter().position(|byte| *byte == b'/') {
        let (name, behind) = rest.split_at(slash);
        let flags = PASS.union(no_link);
        parent = Some(openat(parent.as_ref().unwrap_or(folder), name, flags, Mode::empty())?);
        rest = behind.get(1..).unwrap_or_default();
    }
    openat(parent.as_ref().unwrap_or(folder), rest, flags.union(no_link), Mode::empty())
}

/// Whether an entry is a link itself.
fn is_link(folder: &OwnedFd, name: &CStr) -> bool {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// Opens a path through folders, none of them outside `folder`. The kernel limits the length of
/// paths more than datasets do, so the last folder of a long path is opened first.
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

/// Whether a name is a path through folders, which may be links.
fn has_folders(name: &CStr) -> bool {
    name.to_bytes().contains(&b'/')
}

/// The reason for skipping an entry that is no regular file.
fn not_regular(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "it is a folder",
        FileType::Fifo => "it is a named pipe",
        FileType::Socket => "it is a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "it is a device",
        FileType::Symlink => "it is a link",
        FileType::RegularFile | FileType::Unknown => "it is no regular file",
    }
}

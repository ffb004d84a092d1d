//! The file calls of the local store. A test replaces them by a disk that loses unsynced changes.
//!
//! Must hold: each call is a single step, with a crash before or after. Paths are relative to the root of
//! the store; the root is the empty path.

use std::fmt::Debug;

pub(super) use rustix::io::{Errno, Result};

/// A file system below one root.
pub(super) trait Files: Debug + Send + Sync + 'static {
    /// An open file; closed when dropped.
    type File: Debug + Send + Sync + 'static;

    /// Makes a directory.
    fn make_dir(&self, dir: &str) -> Result<()>;

    /// Makes the present names in `dir` durable.
    fn sync_dir(&self, dir: &str) -> Result<()>;

    /// The files and directories in `dir`, without names that aren't UTF-8.
    fn entries(&self, dir: &str) -> Result<Vec<Entry>>;

    /// Opens a new file in `dir` without a name, which ends with its last descriptor; `OPNOTSUPP` where
    /// the file system has no unnamed files.
    fn create_unnamed(&self, dir: &str) -> Result<Self::File>;

    /// Gives an unnamed file its name; `EXIST` when the name is taken, `OPNOTSUPP` where the file system
    /// can't name the file.
    fn link_unnamed(&self, file: &Self::File, to: &str) -> Result<()>;

    /// Creates a file, locked for as long as the file is open; none when a sweeper was faster.
    fn stage(&self, path: &str) -> Result<Option<Self::File>>;

    /// Opens and locks a file, unless a living process holds the lock.
    fn claim(&self, path: &str) -> Result<Option<Self::File>>;

    /// Gives a file a second name; `EXIST` when the name is taken.
    fn link(&self, from: &str, to: &str) -> Result<()>;

    /// Removes the name of a file.
    fn remove(&self, path: &str) -> Result<()>;

    /// Removes a directory; `NOTEMPTY` or `EXIST` where the directory has entries.
    fn remove_dir(&self, dir: &str) -> Result<()>;

    /// Writes the whole of `body` into an empty file.
    fn write(&self, file: &Self::File, body: &[u8]) -> Result<()>;

    /// Makes the contents of a file durable.
    fn sync_file(&self, file: &Self::File) -> Result<()>;

    /// Opens a file to read.
    fn open(&self, path: &str) -> Result<Self::File>;

    /// The state of an open file; `STALE` where the server of a network file system has lost the file.
    fn state(&self, file: &Self::File) -> Result<State>;

    /// The state of the file with the name.
    fn state_at(&self, path: &str) -> Result<State>;

    /// Fills `buffer` from `offset` on. Gives the number of bytes: fewer only where the file ends.
    fn read(&self, file: &Self::File, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Like `read`, but gives only the bytes before the first byte that is not in the page cache;
    /// `OPNOTSUPP` where the file system can't tell.
    fn read_cached(&self, file: &Self::File, offset: u64, buffer: &mut [u8]) -> Result<usize>;
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) node: Node,
}

/// The kinds of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    Dir,
    /// A file and its length in bytes.
    File(u64),
}

/// Identity of a file while the file is open: a device, and a number on the device.
pub(super) type FileId = (u64, u64);

/// An open file with its identity: a later file of the same name has another.
#[derive(Debug)]
pub(super) struct OpenFile<F> {
    pub(super) file: F,
    pub(super) id: FileId,
}

/// The present state of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    pub(super) id: FileId,
    /// Bytes.
    pub(super) size: u64,
    /// Number of names.
    pub(super) names: usize,
}

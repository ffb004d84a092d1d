//! The few file calls that the local store is made of, so that a test can put a disk under it
//! that forgets what was not synced.
//!
//! Must hold: each call is one step that a crash can come before or after. Paths are relative
//! to the root of the store; the root is the empty path.

use std::fmt::Debug;

pub(super) use rustix::io::{Errno, Result};

/// A file system below one root.
pub(super) trait Files: Debug + Send + Sync + 'static {
    /// An open file; closed when dropped.
    type File: Debug + Send + Sync + 'static;

    /// Makes one directory.
    fn make_dir(&self, dir: &str) -> Result<()>;

    /// Makes the names in `dir` as durable as they are now.
    fn sync_dir(&self, dir: &str) -> Result<()>;

    /// What `dir` holds. Names that aren't UTF-8, and what is neither file nor directory, are
    /// left out.
    fn entries(&self, dir: &str) -> Result<Vec<Entry>>;

    /// Opens a new file in `dir` that has no name and ends with its last descriptor;
    /// `OPNOTSUPP` where the file system has no such files.
    fn create_unnamed(&self, dir: &str) -> Result<Self::File>;

    /// Gives an unnamed file its name; `EXIST` when it is taken, `OPNOTSUPP` where this can't
    /// be done.
    fn link_unnamed(&self, file: &Self::File, to: &str) -> Result<()>;

    /// Creates a file and locks it for as long as it is open; none when a sweeper was faster.
    fn stage(&self, path: &str) -> Result<Option<Self::File>>;

    /// Opens a file and locks it, unless a living process holds its lock.
    fn claim(&self, path: &str) -> Result<Option<Self::File>>;

    /// Gives a file a second name; `EXIST` when it is taken.
    fn link(&self, from: &str, to: &str) -> Result<()>;

    /// Removes the name of a file.
    fn remove(&self, path: &str) -> Result<()>;

    /// Removes a directory; `NOTEMPTY` or `EXIST` where it holds anything.
    fn remove_dir(&self, dir: &str) -> Result<()>;

    /// Writes the whole of `body` into an empty file.
    fn write(&self, file: &Self::File, body: &[u8]) -> Result<()>;

    /// Makes the contents of a file durable.
    fn sync_file(&self, file: &Self::File) -> Result<()>;

    /// Opens a file to read.
    fn open(&self, path: &str) -> Result<Self::File>;

    /// The state of an open file; `STALE` where the server of a network file system has no such
    /// file any more.
    fn state(&self, file: &Self::File) -> Result<State>;

    /// The state of what has this name.
    fn state_at(&self, path: &str) -> Result<State>;

    /// Fills `buffer` from `offset` on; gives how many bytes, fewer only where the file ends.
    fn read(&self, file: &Self::File, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// As `read`, but only what is in memory, up to the first byte that is not; `OPNOTSUPP` where
    /// that can't be told.
    fn read_cached(&self, file: &Self::File, offset: u64, buffer: &mut [u8]) -> Result<usize>;
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) node: Node,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    Dir,
    /// A file and its length in bytes.
    File(u64),
}

/// Tells files apart for as long as both are open: a device, and a number on it.
pub(super) type FileId = (u64, u64);

/// An open file, and how it is told from what has its name later.
#[derive(Debug)]
pub(super) struct Named<F> {
    pub(super) file: F,
    pub(super) id: FileId,
}

/// What a file is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    pub(super) id: FileId,
    /// Bytes.
    pub(super) size: u64,
    /// How many names it has.
    pub(super) names: usize,
}

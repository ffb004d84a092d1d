//! A snapshot in a file that somebody names.
//!
//! Must hold: of a file that is no snapshot, or not all of one, no more is read than the beginning;
//! what is read is the file that was opened, and no more of it than it had then.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dl_format::snapshot::SnapshotOf;

use crate::error::Error;
use crate::snapshot::file;
use crate::snapshot::index::{Snapshot, damaged, local};

/// A file that begins as a snapshot of its length.
#[derive(Debug)]
pub(crate) struct Given {
    file: File,
    path: PathBuf,
    length: u64,
    head: Vec<u8>,
    of: SnapshotOf,
}

impl Given {
    /// Opens it, and looks at its beginning.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |why| local("open the snapshot", path, why);
        let file = file::open(path).map_err(failed)?;
        Self::of_file(file, path)
    }

    /// Looks at the beginning of an open file, which `path` names in errors.
    fn of_file(file: File, path: &Path) -> Result<Self, Error> {
        let failed = |why| local("open the snapshot", path, why);
        let length = file.metadata().map_err(failed)?.len();
        let mut head = Vec::new();
        let beginning = SnapshotOf::HEAD_LENGTH as u64;
        FromStart::of(&file).take(beginning).read_to_end(&mut head).map_err(failed)?;
        let of = SnapshotOf::read(&head, length);
        let of = of.map_err(|why| damaged(&path.display().to_string(), why))?;
        Ok(Self { file, path: path.to_owned(), length, head, of })
    }

    /// What it says it is of.
    pub(crate) fn of(&self) -> &SnapshotOf {
        &self.of
    }

    /// Where it was.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is this snapshot, by its length and by all checksums of its sections.
    pub(crate) fn is(&self, snapshot: &Snapshot) -> bool {
        self.length == snapshot.length() && snapshot.bytes().starts_with(&self.head)
    }

    /// Copies it to the end of another file.
    pub(crate) fn copy(&self, target: &mut File) -> io::Result<()> {
        (&self.file).rewind()?;
        io::copy(&mut (&self.file).take(self.length), target)?;
        Ok(())
    }

    /// Reads it into memory, and checks all of it.
    pub(crate) fn read(&self) -> Result<Snapshot, Error> {
        let failed = |why| local("read the snapshot", &self.path, why);
        let mut bytes = room(self.length).map_err(failed)?;
        FromStart::of(&self.file).take(self.length).read_to_end(&mut bytes).map_err(failed)?;
        let snapshot = Snapshot::in_memory(bytes, &self.path)?;
        snapshot.verify()?;
        Ok(snapshot)
    }
}

/// Reads a file from its beginning, and leaves alone the position that it shares with all processes
/// that have the same descriptor.
struct FromStart<'a> {
    file: &'a File,
    position: u64,
}

impl<'a> FromStart<'a> {
    fn of(file: &'a File) -> Self {
        Self { file, position: 0 }
    }
}

impl Read for FromStart<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

/// Memory for so many bytes.
pub(crate) fn room(length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let length = usize::try_from(length).map_err(io::Error::other)?;
    bytes.try_reserve_exact(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    Ok(bytes)
}

impl Snapshot {
    /// Checks a snapshot that came from somewhere else: every byte of it.
    ///
    /// # Errors
    /// [`Kind::Local`](crate::Kind::Local) when the file can't be read or is no regular file,
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) when it is no snapshot, one that ends too early, or a
    /// damaged one; the text says which.
    pub fn check(path: &Path) -> Result<Self, Error> {
        Given::open(path)?.read()
    }

    /// Opens a snapshot by a descriptor, such as one that another process has sent, and checks every byte
    /// of it. `name` stands for it in errors. A file in memory (`memfd`) that is sealed against writes
    /// and changes of its length is mapped and shared with all processes that have it; anything else is
    /// copied into the memory of this process, for it may change later.
    ///
    /// # Errors
    /// Those of [`Snapshot::check`].
    pub fn from_file(file: File, name: &Path) -> Result<Self, Error> {
        file::check_regular(&file).map_err(|why| local("open the snapshot", name, why))?;
        let given = Given::of_file(file, name)?;
        if !file::is_sealed(&given.file) {
            return given.read();
        }
        let snapshot = Self::map_sealed(&given.file, name)?;
        snapshot.verify()?;
        Ok(snapshot)
    }
}

//! A snapshot file named by the user.
//!
//! Must hold: only the beginning is read of another kind of file or an incomplete snapshot. All
//! reads go to the opened file, up to its length at opening.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use dl_format::snapshot::SnapshotOf;

use crate::error::Error;
use crate::snapshot::file;
use crate::snapshot::index::{Snapshot, damaged, local};

/// A file with the beginning of a snapshot of its length.
#[derive(Debug)]
pub(crate) struct UserFile {
    file: File,
    path: PathBuf,
    length: u64,
    head: Vec<u8>,
    of: SnapshotOf,
}

impl UserFile {
    /// Opens a file and checks its beginning.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = file::open(path).map_err(|why| local("open the snapshot", path, why))?;
        Self::of_file(file, path)
    }

    /// The same for an open file; `path` is for errors.
    pub(crate) fn of_file(file: File, path: &Path) -> Result<Self, Error> {
        let failed = |why| local("open the snapshot", path, why);
        let there = file.metadata().map_err(failed)?;
        file::check_regular(&there).map_err(failed)?;
        let length = there.len();
        let mut head = Vec::new();
        let beginning = SnapshotOf::HEAD_LENGTH as u64;
        (&file).rewind().map_err(failed)?;
        (&file).take(beginning).read_to_end(&mut head).map_err(failed)?;
        let of = SnapshotOf::read(&head, length);
        let of = of.map_err(|why| damaged(&path.display().to_string(), why))?;
        Ok(Self { file, path: path.to_owned(), length, head, of })
    }

    /// The dataset, version and shape named in the beginning of the file.
    pub(crate) fn of(&self) -> &SnapshotOf {
        &self.of
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn into_file(self) -> File {
        self.file
    }

    /// Whether the file holds the given snapshot, by length and by the checksums of all sections.
    pub(crate) fn is(&self, snapshot: &Snapshot) -> bool {
        self.length == snapshot.length() && snapshot.bytes().starts_with(&self.head)
    }

    /// Copies the file to the end of another file.
    pub(crate) fn copy(&self, target: &mut File) -> io::Result<()> {
        (&self.file).rewind()?;
        io::copy(&mut (&self.file).take(self.length), target)?;
        Ok(())
    }

    /// Reads the file into memory, and checks every byte.
    pub(crate) fn read(&self) -> Result<Snapshot, Error> {
        let failed = |why| local("read the snapshot", &self.path, why);
        let mut bytes = room(self.length).map_err(failed)?;
        (&self.file).rewind().map_err(failed)?;
        (&self.file).take(self.length).read_to_end(&mut bytes).map_err(failed)?;
        let snapshot = Snapshot::in_memory(bytes, &self.path)?;
        snapshot.verify()?;
        Ok(snapshot)
    }
}

pub(crate) fn room(length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let length = usize::try_from(length).map_err(io::Error::other)?;
    bytes.try_reserve_exact(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    Ok(bytes)
}

impl Snapshot {
    /// Checks every byte of a snapshot file of unknown origin.
    ///
    /// # Errors
    /// [`Kind::Local`](crate::Kind::Local) for an unreadable or irregular file,
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) for a damaged or incomplete snapshot, and for
    /// another kind of file; the text says which.
    pub fn check(path: &Path) -> Result<Self, Error> {
        UserFile::open(path)?.read()
    }
}

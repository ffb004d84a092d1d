//! The folders of a snapshot by number, for readers that keep numbers instead of paths.
//!
//! Must hold: folders count from 0, the root first, and each parent before its children. A path is
//! built without memory for other paths.

use std::ops::Range;

use dl_format::snapshot::FileNumber;

use crate::error::Error;
use crate::snapshot::Snapshot;

/// An entry of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Child {
    /// The number of a folder.
    Folder(u32),
    /// The number of a file.
    File(u32),
}

impl Snapshot {
    /// The number of folders, with the root.
    pub fn folders(&self) -> u32 {
        self.format().directories()
    }

    /// The number of the folder at a path; none without a folder. The empty path is the root.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) for a damaged snapshot, here and below.
    pub fn folder(&self, path: &[u8]) -> Result<Option<u32>, Error> {
        self.format().directory(path).map_err(self.damaged())
    }

    /// The entry of a folder with the given name; none without an entry.
    ///
    /// # Errors
    /// As for [`folder`](Self::folder); also for an unknown folder.
    pub fn child(&self, folder: u32, name: &[u8]) -> Result<Option<Child>, Error> {
        if let Some(number) = self.format().child(folder, name).map_err(self.damaged())? {
            return Ok(Some(Child::Folder(number)));
        }
        let mut path = self.folder_path(folder)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let file = self.format().lookup(&path).map_err(self.damaged())?;
        Ok(file.map(|FileNumber(number)| Child::File(number)))
    }

    /// The folder that contains a folder; none for the root.
    ///
    /// # Errors
    /// As for [`child`](Self::child).
    pub fn parent(&self, folder: u32) -> Result<Option<u32>, Error> {
        self.format().parent(folder).map_err(self.damaged())
    }

    /// The path of a folder, without a slash at its end; empty for the root.
    ///
    /// # Errors
    /// As for [`child`](Self::child).
    pub fn folder_path(&self, folder: u32) -> Result<Vec<u8>, Error> {
        let (mut names, mut next) = (Vec::new(), folder);
        while let Some(parent) = self.parent(next)? {
            names.push(self.folder_name(next)?);
            next = parent;
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }

    /// The name of a folder; empty for the root.
    ///
    /// # Errors
    /// As for [`child`](Self::child).
    pub fn folder_name(&self, folder: u32) -> Result<&[u8], Error> {
        self.format().name_of(folder).map_err(self.damaged())
    }

    /// The numbers of the direct subfolders, in the byte order of their names.
    ///
    /// # Errors
    /// As for [`child`](Self::child).
    pub fn folders_in(&self, folder: u32) -> Result<Range<u32>, Error> {
        self.format().subdirectories(folder).map_err(self.damaged())
    }

    /// The files directly in a folder: runs of successive numbers.
    ///
    /// # Errors
    /// As for [`child`](Self::child), here and for each run.
    pub fn runs_in(
        &self,
        folder: u32,
    ) -> Result<impl Iterator<Item = Result<Range<u32>, Error>>, Error> {
        let runs = self.format().each_run(folder).map_err(self.damaged())?;
        Ok(runs.map(|run| run.map_err(self.damaged())))
    }

    /// Passes the path of each of successive files to `take`, until `take` gives false.
    ///
    /// # Errors
    /// As for [`folder`](Self::folder).
    pub fn paths(
        &self,
        files: Range<u32>,
        mut take: impl FnMut(u32, &[u8]) -> bool,
    ) -> Result<(), Error> {
        let mut names = self.format().names(files).map_err(self.damaged())?;
        while let Some((FileNumber(number), path)) = names.next().map_err(self.damaged())? {
            if !take(number, path) {
                break;
            }
        }
        Ok(())
    }
}

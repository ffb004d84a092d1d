//! Lookups and listings, for any index that visits the winners of a dataset in path order.
//!
//! Must hold: answers agree with `dl_format::Fold`: deleted winners are no files, and a folder hides a file
//! of the same path. A page costs its entries and the dead rows on the way, not its folders' contents.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use dl_format::{FilePath, FileRecord};

use crate::{Error, Found, Kind, ListEntry, ListQuery, Steps};

/// Reads a winner, at a higher cost than its path: the record, and whether the file is deleted.
pub(crate) type Read<'a> = dyn Fn() -> Result<(FileRecord, bool), Error> + 'a;

/// Visits a winner by its path.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &Read<'_>) -> Result<ControlFlow<()>, Error> + 'a;

/// The newest version of every path of a dataset, including deleted versions.
pub(crate) trait Winners {
    /// Visits winners in path order from `start` until `visit` breaks.
    fn scan(&self, start: Bound<&[u8]>, visit: &mut Visit<'_>) -> Result<(), Error>;
}

/// Looks up `path`. Mostly a single walk suffices: a folder's files follow a file of the same path, unless
/// names that continue with a byte below the slash lie between.
pub(crate) fn find(winners: &impl Winners, path: &FilePath) -> Result<Found, Error> {
    let path = path.as_bytes();
    let (mut file, mut is_folder, mut is_cut) = (None, false, false);
    winners.scan(Bound::Included(path), &mut |next, read| {
        let Some(rest) = next.strip_prefix(path) else {
            return Ok(ControlFlow::Break(()));
        };
        match rest.first() {
            None => {
                let (record, deleted) = read()?;
                file = Some(record).filter(|_| !deleted);
            }
            Some(b'/') => is_folder = !read()?.1,
            Some(byte) => {
                is_cut = *byte < b'/';
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(if is_folder { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if is_folder || (is_cut && holds_live(winners, &inside(path), &Steps::default())?) {
        return Ok(Found::Folder);
    }
    Ok(file.map_or(Found::Missing, Found::File))
}

/// A page of a folder.
pub(crate) fn list(winners: &impl Winners, query: &ListQuery) -> Result<Vec<ListEntry>, Error> {
    let prefix = query.dir.prefix();
    let mut page =
        Page { winners, query, prefix: &prefix, entries: Vec::new(), bytes: 0, waiting: None };
    let after = query.after.as_deref().filter(|after| *after >= prefix.as_slice());
    let mut from = match after {
        Some(after) => Bound::Excluded(after.to_vec()),
        None => Bound::Included(prefix.clone()),
    };
    while page.has_room() {
        let mut folder = None;
        let start = match &from {
            Bound::Included(key) => Bound::Included(key.as_slice()),
            Bound::Excluded(key) => Bound::Excluded(key.as_slice()),
            Bound::Unbounded => Bound::Unbounded,
        };
        winners.scan(start, &mut |path, read| page.visit(path, read, &mut folder))?;
        match folder {
            Some(folder) => from = Bound::Included(behind(folder)),
            None => break,
        }
    }
    page.decide(None)?;
    Ok(page.entries)
}

struct Page<'a, W> {
    winners: &'a W,
    query: &'a ListQuery,
    prefix: &'a [u8],
    entries: Vec<ListEntry>,
    /// Bytes of the paths in `entries`.
    bytes: usize,
    /// A file, unless the next row shows that the path is also a folder.
    waiting: Option<(FilePath, FileRecord)>,
}

impl<W: Winners> Page<'_, W> {
    fn has_room(&self) -> bool {
        !self.query.is_full(self.entries.len(), self.bytes)
    }

    fn push(&mut self, entry: ListEntry) {
        self.bytes = self.bytes.saturating_add(entry.path().as_bytes().len());
        self.entries.push(entry);
    }

    /// Takes a winner; sets `folder` when the rest of the winner's folder can be skipped.
    fn visit(
        &mut self,
        path: &[u8],
        read: &Read<'_>,
        folder: &mut Option<Vec<u8>>,
    ) -> Result<ControlFlow<()>, Error> {
        let Some(rest) = path.strip_prefix(self.prefix) else {
            return Ok(ControlFlow::Break(()));
        };
        self.query.steps.step();
        let (record, deleted) = read()?;
        self.decide(Some((path, deleted)))?;
        if !self.has_room() {
            return Ok(ControlFlow::Break(()));
        }
        if deleted {
            return Ok(ControlFlow::Continue(()));
        }
        let slash = rest.iter().position(|byte| *byte == b'/').filter(|_| !self.query.recursive);
        if let Some(slash) = slash {
            let end = self.prefix.len().saturating_add(slash);
            let name = path.get(..end).unwrap_or_default();
            let entry = ListEntry::Folder(checked(name)?);
            if self.query.after.as_ref().is_none_or(|after| entry.key() > *after) {
                self.push(entry);
            }
            *folder = Some(name.to_vec());
            return Ok(ControlFlow::Break(()));
        }
        self.waiting = Some((checked(path)?, record));
        Ok(ControlFlow::Continue(()))
    }

    /// Decides about the waiting file, by the winner behind the file.
    fn decide(&mut self, next: Option<(&[u8], bool)>) -> Result<(), Error> {
        let Some((path, record)) = self.waiting.take() else { return Ok(()) };
        // Paths that start with the file's path sort directly behind the file: most files need no seek.
        let hidden =
            match next.and_then(|(next, dead)| Some((next.strip_prefix(path.as_bytes())?, dead))) {
                None => false,
                Some(([b'/', ..], false)) => true,
                Some(_) => self.holds_live(path.as_bytes())?,
            };
        if !hidden {
            self.push(ListEntry::File(path, record));
        }
        Ok(())
    }

    fn holds_live(&self, path: &[u8]) -> Result<bool, Error> {
        holds_live(self.winners, &inside(path), &self.query.steps)
    }
}

/// Whether a live file lies below `prefix`, which ends in a slash.
fn holds_live(winners: &impl Winners, prefix: &[u8], steps: &Steps) -> Result<bool, Error> {
    let mut found = false;
    winners.scan(Bound::Excluded(prefix), &mut |path, read| {
        if !path.starts_with(prefix) {
            return Ok(ControlFlow::Break(()));
        }
        steps.step();
        found = !read()?.1;
        Ok(if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(found)
}

/// The prefix of all paths in a folder.
fn inside(path: &[u8]) -> Vec<u8> {
    [path, b"/"].concat()
}

/// The first key behind a folder's contents: the folder's path and the byte after a slash.
fn behind(folder: Vec<u8>) -> Vec<u8> {
    [folder.as_slice(), b"0"].concat()
}

fn checked(path: &[u8]) -> Result<FilePath, Error> {
    FilePath::new(Bytes::copy_from_slice(path))
        .map_err(|error| Error::because(Kind::Corrupt, "read a path of", "the index", error))
}

//! The listing of a directory: its runs, each sorted by name, merged with its subdirectories.
//!
//! Must hold: memory is proportional to the runs of the directory, not to its files. Entries come
//! in the byte order of their paths; a directory sorts as if its path ended in a slash.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;

use crate::error::DecodeError;
use crate::layout::SNAPSHOT_BLOCK_FILES;

use super::names::{BlockReader, wrong};
use super::read::{FileNumber, Snapshot};

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotEntry<'a> {
    /// A file and its path.
    File(FileNumber, &'a [u8]),
    /// A directory's number and its path.
    Directory(u32, &'a [u8]),
}

/// Iterates over the direct entries of a directory. Borrows nothing of the snapshot, which is
/// passed to every call.
#[derive(Debug)]
pub struct Entries {
    /// The path of the last entry; starts with the directory's path.
    path: Vec<u8>,
    /// Bytes of the directory's path, with a trailing slash.
    own: usize,
    runs: BinaryHeap<Reverse<Run>>,
    directories: Range<u32>,
    /// The next directories, the last first: each name starts with the name before.
    held: Vec<u32>,
}

/// Consecutive files of a directory, ordered by name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    /// Without the directory.
    name: Vec<u8>,
    file: u32,
    end: u32,
    /// Bytes of the block of names behind this name.
    left: usize,
}

impl Entries {
    /// The next entry; none at the end. The snapshot must be the same in every call.
    ///
    /// # Errors
    /// For a damaged snapshot.
    pub fn next<B: AsRef<[u8]>>(
        &mut self,
        snapshot: &Snapshot<B>,
    ) -> Result<Option<SnapshotEntry<'_>>, DecodeError> {
        self.path.truncate(self.own);
        self.hold(snapshot)?;
        let directory = match self.held.last() {
            Some(number) => Some((*number, snapshot.name_of(*number)?)),
            None => None,
        };
        if let Some(mut least) = self.runs.peek_mut()
            && directory.is_none_or(|(_, name)| least.0.is_before(name))
        {
            let number = FileNumber(least.0.file);
            self.path.extend_from_slice(&least.0.name);
            let own = self.path.get(..self.own).unwrap_or_default();
            if !least.0.advance(snapshot, own)? {
                PeekMut::pop(least);
            }
            return Ok(Some(SnapshotEntry::File(number, &self.path)));
        }
        let Some((number, name)) = directory else { return Ok(None) };
        self.held.pop();
        self.path.extend_from_slice(name);
        Ok(Some(SnapshotEntry::Directory(number, &self.path)))
    }

    /// Directories are sorted by name: `a` is before `a.b`, but `a.b` comes before `a/`. Takes
    /// directories until the last has no such successor.
    fn hold<B: AsRef<[u8]>>(&mut self, snapshot: &Snapshot<B>) -> Result<(), DecodeError> {
        while let Some(next) = self.directories.clone().next() {
            if let Some(last) = self.held.last() {
                let more = snapshot.name_of(next)?.strip_prefix(snapshot.name_of(*last)?);
                if more.and_then(<[u8]>::first).is_none_or(|byte| *byte > b'/') {
                    break;
                }
            }
            self.held.push(next);
            self.directories.start = next.saturating_add(1);
        }
        Ok(())
    }
}

impl Run {
    /// Starts with the first file; none for an empty run.
    fn new<B: AsRef<[u8]>>(
        snapshot: &Snapshot<B>,
        files: Range<u32>,
        directory: &[u8],
    ) -> Result<Option<Self>, DecodeError> {
        let end = files.end;
        let mut names = snapshot.names(files)?;
        let Some((FileNumber(file), path)) = names.next()? else { return Ok(None) };
        let name = path.strip_prefix(directory).filter(|name| !name.is_empty() && is_flat(name));
        let name = name.ok_or_else(|| astray(snapshot, file))?.to_vec();
        Ok(Some(Self { name, file, end, left: names.left() }))
    }

    /// Goes to the next file; false at the end.
    fn advance<B: AsRef<[u8]>>(
        &mut self,
        snapshot: &Snapshot<B>,
        directory: &[u8],
    ) -> Result<bool, DecodeError> {
        self.file = self.file.saturating_add(1);
        if self.file >= self.end {
            return Ok(false);
        }
        let place = self.file as usize;
        let block = snapshot.names_at(place / SNAPSHOT_BLOCK_FILES)?;
        let mut reader = if place.is_multiple_of(SNAPSHOT_BLOCK_FILES) {
            BlockReader::new(block)
        } else {
            let behind = block.len().saturating_sub(self.left);
            let length = directory.len().saturating_add(self.name.len());
            BlockReader::behind(block.get(behind..).unwrap_or_default(), length)
        };
        let coded = reader.next().map_err(|wrong| snapshot.located(wrong, block))?;
        self.left = reader.left();
        // A path may share fewer bytes with its predecessor than the directory has, and then
        // repeats the others.
        let (kept, rest) = match coded.shared.checked_sub(directory.len()) {
            Some(kept) => (kept, Some(coded.rest)),
            None => {
                let again = directory.get(coded.shared..).unwrap_or_default();
                (0, coded.rest.strip_prefix(again))
            }
        };
        let before = self.name.get(kept..).unwrap_or_default();
        let rest = rest.filter(|rest| is_flat(rest) && before < *rest);
        let rest = rest.ok_or_else(|| astray(snapshot, self.file))?;
        self.name.truncate(kept);
        self.name.extend_from_slice(rest);
        Ok(true)
    }

    fn is_before(&self, directory: &[u8]) -> bool {
        self.name.iter().lt(directory.iter().chain(b"/"))
    }
}

fn is_flat(name: &[u8]) -> bool {
    !name.contains(&b'/')
}

fn astray<B: AsRef<[u8]>>(snapshot: &Snapshot<B>, file: u32) -> DecodeError {
    let block = snapshot.block(file as usize / SNAPSHOT_BLOCK_FILES).unwrap_or_default();
    snapshot.located(wrong("a path is not in its directory, or not in order"), block)
}

impl<B: AsRef<[u8]>> Snapshot<B> {
    /// The direct files and subdirectories of the directory at `path`, in byte order. A directory
    /// sorts as if its path ended in a slash.
    ///
    /// # Errors
    /// For a damaged snapshot.
    pub fn entries(&self, directory: u32, path: &[u8]) -> Result<Entries, DecodeError> {
        let mut path = path.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        let runs = self.runs_of(directory)?.into_iter();
        let runs = runs.filter_map(|run| Run::new(self, run, &path).transpose());
        let runs = runs.map(|run| run.map(Reverse)).collect::<Result<_, _>>()?;
        let directories = self.subdirectories(directory)?;
        Ok(Entries { own: path.len(), path, runs, directories, held: Vec::new() })
    }
}

//! Paths of files by number, and the contents of directories.

use std::cmp::Ordering;
use std::ops::Range;

use crate::error::DecodeError;

use super::names::{BlockReader, wrong};
use super::read::{FileNumber, Snapshot};
use super::section::SnapshotSection;
use super::tree::{DirectoryRow, run_at};
use crate::layout::SNAPSHOT_BLOCK_FILES;

/// Goes through the paths of files in the order of their numbers, in one buffer.
#[derive(Debug)]
pub struct Names<'a, B> {
    snapshot: &'a Snapshot<B>,
    block: BlockReader<'a>,
    next: u32,
    end: u32,
    path: Vec<u8>,
}

impl<B: AsRef<[u8]>> Names<'_, B> {
    /// The next file and its path; none at the end.
    ///
    /// # Errors
    /// When names are damaged.
    #[expect(clippy::should_implement_trait, reason = "the path is lent, which no iterator can")]
    pub fn next(&mut self) -> Result<Option<(FileNumber, &[u8])>, DecodeError> {
        if self.next >= self.end {
            return Ok(None);
        }
        let number = self.next;
        self.decode()?;
        Ok(Some((FileNumber(number), &self.path)))
    }

    fn decode(&mut self) -> Result<(), DecodeError> {
        let place = self.next as usize;
        if place.is_multiple_of(SNAPSHOT_BLOCK_FILES) {
            let block = self.snapshot.block(place / SNAPSHOT_BLOCK_FILES);
            self.block = BlockReader::new(block.ok_or(wrong("a block lies outside of them"))?);
        }
        let coded = self.block.next()?;
        self.path.truncate(coded.shared);
        self.path.extend_from_slice(coded.rest);
        self.next = self.next.saturating_add(1);
        Ok(())
    }
}

/// A line of a directory's listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotEntry {
    /// A file and its path.
    File(FileNumber, Vec<u8>),
    /// A directory's number and its path.
    Directory(u32, Vec<u8>),
}

impl SnapshotEntry {
    /// What listings are sorted by: the path, with a slash behind that of a directory.
    fn key(&self) -> impl Iterator<Item = &u8> {
        let (path, slash): (&[u8], &[u8]) = match self {
            Self::File(_, path) => (path, b""),
            Self::Directory(_, path) => (path, b"/"),
        };
        path.iter().chain(slash)
    }
}

impl<B: AsRef<[u8]>> Snapshot<B> {
    /// The paths of the files with these numbers, in order.
    ///
    /// # Errors
    /// When names are damaged.
    pub fn names(&self, numbers: Range<u32>) -> Result<Names<'_, B>, DecodeError> {
        let end = numbers.end.min(self.files());
        let start = numbers.start.min(end);
        let first = (start as usize).saturating_sub(start as usize % SNAPSHOT_BLOCK_FILES);
        let block = BlockReader::new(&[]);
        let next = u32::try_from(first).unwrap_or(start);
        let mut names = Names { snapshot: self, block, next, end, path: Vec::new() };
        while names.next < start {
            names.decode()?;
        }
        Ok(names)
    }

    /// The path of a file, into `path`.
    ///
    /// # Errors
    /// When there is none of this number, or names are damaged.
    pub fn path(&self, number: FileNumber, path: &mut Vec<u8>) -> Result<(), DecodeError> {
        let mut names = self.names(number.0..number.0.saturating_add(1))?;
        let (_, found) = names.next()?.ok_or(wrong("there is no such file"))?;
        path.clear();
        path.extend_from_slice(found);
        Ok(())
    }

    fn directory_row(&self, number: u32) -> Option<(DirectoryRow, DirectoryRow)> {
        let rows = self.section(SnapshotSection::Directories);
        let row = DirectoryRow::at(rows, number)?;
        let next = DirectoryRow::at(rows, number.checked_add(1)?)?;
        (number < self.directories).then_some((row, next))
    }

    /// The last component of a directory's path; nothing for the root.
    pub(super) fn directory_name(&self, number: u32) -> Option<&[u8]> {
        let (row, next) = self.directory_row(number)?;
        let names = self.section(SnapshotSection::DirectoryNames);
        names.get(row.name as usize..next.name as usize)
    }

    /// The number of a directory; none when there is no such. The root is the empty path.
    ///
    /// # Errors
    /// When the tree is damaged.
    pub fn directory(&self, path: &[u8]) -> Result<Option<u32>, DecodeError> {
        let mut number = 0;
        if path.is_empty() {
            return Ok(Some(number));
        }
        for component in path.split(|byte| *byte == b'/') {
            match self.child(number, component)? {
                Some(child) => number = child,
                None => return Ok(None),
            }
        }
        Ok(Some(number))
    }

    /// The directory of a name in another one.
    pub(super) fn child(&self, number: u32, wanted: &[u8]) -> Result<Option<u32>, DecodeError> {
        let Children(mut from, mut to) = self.children(number)?;
        while from < to {
            let middle = from.saturating_add(to.saturating_sub(from) / 2);
            let name = self.directory_name(middle).ok_or(damaged("a name is not there"))?;
            match name.cmp(wanted) {
                Ordering::Less => from = middle.saturating_add(1),
                Ordering::Greater => to = middle,
                Ordering::Equal => return Ok(Some(middle)),
            }
        }
        Ok(None)
    }

    /// The directories in a directory, which come behind it.
    pub(super) fn children(&self, number: u32) -> Result<Children, DecodeError> {
        let rows = self.directory_row(number).ok_or(damaged("there is no such directory"))?;
        let (from, to) = (rows.0.child, rows.1.child);
        if from <= number || to < from || to > self.directories {
            return Err(damaged("a directory's children are not behind it"));
        }
        Ok(Children(from, to))
    }

    /// The runs of files in a directory: first file and number of files.
    ///
    /// # Errors
    /// When the tree is damaged.
    pub fn runs_of(&self, directory: u32) -> Result<Vec<Range<u32>>, DecodeError> {
        let rows = self.directory_row(directory).ok_or(damaged("there is no such directory"))?;
        let (from, to) = (rows.0.run, rows.1.run);
        if to < from || to > self.runs {
            return Err(damaged("a directory's runs are not where it says"));
        }
        let runs = self.section(SnapshotSection::Runs);
        (from..to)
            .map(|number| {
                let (first, count) = run_at(runs, number).ok_or(damaged("a run is cut off"))?;
                let end = first.checked_add(count).filter(|end| *end <= self.files());
                Ok(first..end.ok_or(damaged("a run goes beyond the files"))?)
            })
            .collect()
    }

    /// The numbers of the directories directly in a directory, all greater than its own.
    ///
    /// # Errors
    /// When the tree is damaged.
    pub fn subdirectories(&self, directory: u32) -> Result<Range<u32>, DecodeError> {
        Ok(self.children(directory)?.numbers())
    }

    /// The directories directly in a directory whose path is `path`, with their paths.
    ///
    /// # Errors
    /// When the tree is damaged.
    pub fn folders(&self, directory: u32, path: &[u8]) -> Result<Vec<(u32, Vec<u8>)>, DecodeError> {
        let mut folders = Vec::new();
        for number in self.children(directory)?.numbers() {
            let name = self.directory_name(number).ok_or(damaged("a name is not there"))?;
            let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
            folders.push((number, [path, slash, name].concat()));
        }
        Ok(folders)
    }

    /// The files and directories directly in a directory whose path is `path`, in byte order, a
    /// directory as if its path ended in a slash.
    ///
    /// # Errors
    /// When the snapshot is damaged.
    pub fn entries(&self, directory: u32, path: &[u8]) -> Result<Vec<SnapshotEntry>, DecodeError> {
        let mut entries = Vec::new();
        for run in self.runs_of(directory)? {
            let mut names = self.names(run)?;
            while let Some((number, path)) = names.next()? {
                entries.push(SnapshotEntry::File(number, path.to_vec()));
            }
        }
        let folders = self.folders(directory, path)?.into_iter();
        entries.extend(folders.map(|(number, path)| SnapshotEntry::Directory(number, path)));
        // Already so unless files of one directory lie in several chunks.
        entries.sort_by(|a, b| a.key().cmp(b.key()));
        Ok(entries)
    }
}

/// Numbers of the first directory in one, and of the one behind the last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Children(u32, u32);

impl Children {
    pub(super) fn numbers(self) -> Range<u32> {
        self.0..self.1
    }
}

fn damaged(problem: &'static str) -> DecodeError {
    DecodeError::new("snapshot directories", 0, problem)
}

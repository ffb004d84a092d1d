//! Paths of files by number, and the tree of directories.
//!
//! Must hold: sections are checked where they are used, and an error has an offset. Children have
//! greater numbers than their directory, so every walk down ends, for any bytes.

use std::cmp::Ordering;
use std::ops::Range;

use crate::error::DecodeError;

use super::names::{BlockReader, wrong};
use super::read::{FileNumber, Snapshot};
use super::section::SnapshotSection;
use super::tree::{DirectoryRow, run_at};
use crate::layout::{SNAPSHOT_BLOCK_FILES, SNAPSHOT_DIRECTORY_LEN, SNAPSHOT_RUN_LEN};

/// A section of rows, their name in errors, and their length.
type Rows = (SnapshotSection, &'static str, usize);

const BLOCKS: Rows = (SnapshotSection::Blocks, "snapshot blocks", 8);
const DIRECTORIES: Rows =
    (SnapshotSection::Directories, "snapshot directories", SNAPSHOT_DIRECTORY_LEN);
const RUNS: Rows = (SnapshotSection::Runs, "snapshot runs", SNAPSHOT_RUN_LEN);

/// Iterates over the paths of files in the order of their numbers, in one buffer.
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
    /// For damaged names.
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
            self.block = BlockReader::new(self.snapshot.names_at(place / SNAPSHOT_BLOCK_FILES)?);
        }
        let coded = self.block.next().map_err(|wrong| {
            let block = self.snapshot.block(place / SNAPSHOT_BLOCK_FILES);
            self.snapshot.located(wrong, block.unwrap_or_default())
        })?;
        self.path.truncate(coded.shared);
        self.path.extend_from_slice(coded.rest);
        self.next = self.next.saturating_add(1);
        Ok(())
    }

    /// Bytes of the block behind the last path.
    pub(super) fn left(&self) -> usize {
        self.block.left()
    }
}

impl<B: AsRef<[u8]>> Snapshot<B> {
    /// The paths of the files with the given numbers, in order.
    ///
    /// # Errors
    /// For damaged names.
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

    /// Writes the path of a file into `path`.
    ///
    /// # Errors
    /// For an unknown number or damaged names.
    pub fn path(&self, number: FileNumber, path: &mut Vec<u8>) -> Result<(), DecodeError> {
        let mut names = self.names(number.0..number.0.saturating_add(1))?;
        let nothing =
            || self.located(wrong("there is no such file"), self.section(SnapshotSection::Names));
        let (_, found) = names.next()?.ok_or_else(nothing)?;
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

    /// The last component of a directory's path; empty for the root.
    pub(super) fn directory_name(&self, number: u32) -> Option<&[u8]> {
        let (row, next) = self.directory_row(number)?;
        let names = self.section(SnapshotSection::DirectoryNames);
        names.get(row.name as usize..next.name as usize)
    }

    /// The last component of a directory's path; empty for the root.
    ///
    /// # Errors
    /// For a damaged tree.
    pub fn name_of(&self, number: u32) -> Result<&[u8], DecodeError> {
        let name = self.directory_name(number);
        name.ok_or_else(|| self.damaged(DIRECTORIES, number, "a name is not there"))
    }

    /// The number of the directory at a path; none if missing. The empty path is the root.
    ///
    /// # Errors
    /// For a damaged tree.
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

    /// The subdirectory with the given name.
    ///
    /// # Errors
    /// For a damaged tree.
    pub fn child(&self, number: u32, wanted: &[u8]) -> Result<Option<u32>, DecodeError> {
        let Children(mut from, mut to) = self.children(number)?;
        while from < to {
            let middle = from.saturating_add(to.saturating_sub(from) / 2);
            match self.name_of(middle)?.cmp(wanted) {
                Ordering::Less => from = middle.saturating_add(1),
                Ordering::Greater => to = middle,
                Ordering::Equal => return Ok(Some(middle)),
            }
        }
        Ok(None)
    }

    /// The directory that contains a directory; none for the root.
    ///
    /// # Errors
    /// For a damaged tree.
    pub fn parent(&self, number: u32) -> Result<Option<u32>, DecodeError> {
        if number == 0 {
            return Ok(None);
        }
        // The children of each directory follow the children of the directory before.
        let (mut from, mut to) = (0, number.min(self.directories));
        while from < to {
            let middle = from.saturating_add(to.saturating_sub(from) / 2);
            let Children(_, end) = self.children(middle)?;
            if end <= number {
                from = middle.saturating_add(1);
            } else {
                to = middle;
            }
        }
        let Children(start, end) = self.children(from)?;
        match from < number && (start..end).contains(&number) {
            true => Ok(Some(from)),
            false => Err(self.damaged(DIRECTORIES, number, "a directory is in no directory")),
        }
    }

    /// The subdirectories of a directory, with greater numbers than the directory.
    pub(super) fn children(&self, number: u32) -> Result<Children, DecodeError> {
        let damaged = |problem| self.damaged(DIRECTORIES, number, problem);
        let rows = self.directory_row(number);
        let (row, next) = rows.ok_or_else(|| damaged("there is no such directory"))?;
        let (from, to) = (row.child, next.child);
        if from <= number || to < from || to > self.directories {
            return Err(damaged("a directory's children are not behind it"));
        }
        Ok(Children(from, to))
    }

    /// The runs of files in a directory: first file and number of files.
    ///
    /// # Errors
    /// For a damaged tree.
    pub fn runs_of(&self, directory: u32) -> Result<Vec<Range<u32>>, DecodeError> {
        self.each_run(directory)?.collect()
    }

    /// The same, one run after the other.
    ///
    /// # Errors
    /// For a damaged tree, here and for each run.
    pub fn each_run(
        &self,
        directory: u32,
    ) -> Result<impl Iterator<Item = Result<Range<u32>, DecodeError>>, DecodeError> {
        let damaged = |problem| self.damaged(DIRECTORIES, directory, problem);
        let rows = self.directory_row(directory);
        let (row, next) = rows.ok_or_else(|| damaged("there is no such directory"))?;
        let (from, to) = (row.run, next.run);
        if to < from || to > self.runs {
            return Err(damaged("a directory's runs are not where it says"));
        }
        let runs = self.section(SnapshotSection::Runs);
        Ok((from..to).map(|number| {
            let damaged = |problem| self.damaged(RUNS, number, problem);
            let run = run_at(runs, number);
            let (first, count) = run.ok_or_else(|| damaged("a run is cut off"))?;
            let end = first.checked_add(count).filter(|end| *end <= self.files());
            Ok(first..end.ok_or_else(|| damaged("a run goes beyond the files"))?)
        }))
    }

    /// The numbers of the direct subdirectories, all greater than the directory's number.
    ///
    /// # Errors
    /// For a damaged tree.
    pub fn subdirectories(&self, directory: u32) -> Result<Range<u32>, DecodeError> {
        Ok(self.children(directory)?.numbers())
    }

    /// A block of names, by its number.
    pub(super) fn names_at(&self, block: usize) -> Result<&[u8], DecodeError> {
        let outside = "a block lies outside of the names";
        let number = u32::try_from(block).unwrap_or(u32::MAX);
        self.block(block).ok_or_else(|| self.damaged(BLOCKS, number, outside))
    }

    /// An error at the place of a row, or of all rows if the row is missing.
    fn damaged(
        &self,
        (section, field, length): Rows,
        number: u32,
        problem: &'static str,
    ) -> DecodeError {
        let rows = self.section(section);
        let row = rows.get((number as usize).saturating_mul(length)..).unwrap_or(rows);
        self.located(DecodeError::new(field, 0, problem), row)
    }

    /// The error with the offset of a part of the snapshot's bytes.
    pub(super) fn located(&self, error: DecodeError, part: &[u8]) -> DecodeError {
        let offset = part.as_ptr().addr().saturating_sub(self.bytes().as_ptr().addr());
        DecodeError { offset: offset.min(self.bytes().len()) as u64, ..error }
    }
}

/// The numbers of the first subdirectory, and of the directory behind the last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Children(u32, u32);

impl Children {
    pub(super) fn numbers(self) -> Range<u32> {
        self.0..self.1
    }
}

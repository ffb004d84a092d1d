//! One who writes, overwrites and deletes below a folder of its own, and overwrites what all write.
//!
//! Must hold: each change is told to the book; where one of its own was not acknowledged, nothing
//! is changed again. What all write is deleted by nobody, and its bytes say whose they are.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Result;
use dl_format::{Attributes, FilePath};
use dl_tests::book::{Begun, Book, Content};
use dl_tests::dice::Dice;
use libdiesel::Dataset;

/// Files that all write: so few that writers meet there all the time.
const SHARED: usize = 3;

pub(super) struct Writer {
    dataset: Dataset,
    book: Arc<Book>,
    folder: u8,
    dice: Dice,
    own: BTreeSet<FilePath>,
    made: u32,
    round: u32,
}

impl Writer {
    pub(super) fn new(dataset: Dataset, book: Arc<Book>, folder: u8, dice: Dice) -> Self {
        Self { dataset, book, folder, dice, own: BTreeSet::new(), made: 0, round: 0 }
    }

    /// Puts some files, or deletes some; gives how many were acknowledged of those that all write.
    pub(super) fn step(&mut self) -> Result<u32> {
        self.round += 1;
        let paths = self.choose()?;
        if self.dice.once_in(4) {
            self.delete(&paths);
            return Ok(0);
        }
        let mut files = Vec::new();
        for path in paths {
            let length = self.dice.below(20_000);
            self.own.insert(path.clone());
            files.push((path, self.dice.bytes(length)));
        }
        files.push(self.shared()?);
        self.put(&files)
    }

    /// Some new paths and some known ones, of which it is known what they hold.
    fn choose(&mut self) -> Result<Vec<FilePath>> {
        let is_known = |path: &&FilePath| self.book.is_settled(path);
        let known: Vec<FilePath> = self.own.iter().filter(is_known).cloned().collect();
        let mut paths: Vec<FilePath> =
            (0..4.min(known.len())).map(|_| self.dice.pick(&known).clone()).collect();
        for _ in 0..1 + self.dice.below(12) {
            self.made += 1;
            let (folder, made) = (self.folder, self.made);
            paths.push(FilePath::new(format!("{folder}/{}/{made}", made % 7))?);
        }
        paths.sort_unstable();
        paths.dedup();
        Ok(paths)
    }

    /// A file that the others write too.
    fn shared(&self) -> Result<(FilePath, Vec<u8>)> {
        let path = FilePath::new(format!("shared/{}", self.dice.below(SHARED)))?;
        let line = format!("{path} by writer {} in round {}\n", self.folder, self.round);
        Ok((path, line.repeat(1 + self.dice.below(500)).into_bytes()))
    }

    fn put(&self, files: &[(FilePath, Vec<u8>)]) -> Result<u32> {
        let mut taken = Vec::new();
        for (path, bytes) in files {
            let begun = self.book.begin(path, Some(Content::of(bytes)));
            if self.dataset.put(path, Attributes::default(), bytes).is_ok() {
                taken.push(begun);
            }
        }
        let flushed = self.dataset.flush()?;
        let mut shared = 0;
        for begun in taken {
            let is_failed = flushed.failed.iter().any(|write| write.paths.contains(begun.path()));
            if !is_failed {
                shared += u32::from(!self.own.contains(begun.path()));
                self.book.acknowledge(begun);
            }
        }
        Ok(shared)
    }

    fn delete(&self, paths: &[FilePath]) {
        let known: Vec<FilePath> =
            paths.iter().filter(|path| self.own.contains(*path)).cloned().collect();
        let begun: Vec<Begun> = known.iter().map(|path| self.book.begin(path, None)).collect();
        if self.dataset.delete(&known).is_ok() {
            begun.into_iter().for_each(|begun| self.book.acknowledge(begun));
        }
    }
}

//! One who writes, overwrites and deletes below a folder of its own, and keeps book.
//!
//! Must hold: what was acknowledged is all that may be there; of what was not, either version may,
//! and such a path is not touched again.

use std::collections::BTreeMap;

use anyhow::Result;
use dl_format::{Attributes, FilePath};
use dl_tests::dice::Dice;
use libdiesel::Dataset;

/// What may be at a path: the bytes of one of these, or nothing.
#[derive(Debug, Clone)]
pub(super) struct Allowed(Vec<Option<Vec<u8>>>);

impl Allowed {
    /// Whether this is.
    pub(super) fn is(&self, found: Option<&[u8]>) -> bool {
        self.0.iter().any(|allowed| allowed.as_deref() == found)
    }
}

pub(super) struct Writer {
    dataset: Dataset,
    folder: u8,
    dice: Dice,
    files: BTreeMap<FilePath, Allowed>,
    made: u32,
}

impl Writer {
    pub(super) fn new(dataset: Dataset, folder: u8, dice: Dice) -> Self {
        Self { dataset, folder, dice, files: BTreeMap::new(), made: 0 }
    }

    /// What it wrote.
    pub(super) fn end(self) -> BTreeMap<FilePath, Allowed> {
        self.files
    }

    /// Puts some files, or deletes some.
    pub(super) fn step(&mut self) -> Result<()> {
        let paths = self.choose()?;
        if self.dice.once_in(4) {
            self.delete(&paths);
            return Ok(());
        }
        self.put(&paths)
    }

    /// Some new paths and some known ones, of which it is known what they hold.
    fn choose(&mut self) -> Result<Vec<FilePath>> {
        let known: Vec<FilePath> = self
            .files
            .iter()
            .filter(|(_, allowed)| allowed.0.len() == 1)
            .map(|(path, _)| path.clone())
            .collect();
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

    fn put(&mut self, paths: &[FilePath]) -> Result<()> {
        let mut tried = BTreeMap::new();
        for path in paths {
            let length = self.dice.below(20_000);
            let bytes = self.dice.bytes(length);
            let is_taken = self.dataset.put(path, Attributes::default(), &bytes).is_ok();
            tried.insert(path, (bytes, is_taken));
        }
        let flushed = self.dataset.flush()?;
        for (path, (bytes, is_taken)) in tried {
            let is_failed = flushed.failed.iter().any(|write| write.paths.contains(path));
            self.note(path, Some(bytes), is_taken && !is_failed);
        }
        Ok(())
    }

    fn delete(&mut self, paths: &[FilePath]) {
        let known: Vec<FilePath> =
            paths.iter().filter(|path| self.files.contains_key(*path)).cloned().collect();
        let is_done = self.dataset.delete(&known).is_ok();
        for path in &known {
            self.note(path, None, is_done);
        }
    }

    fn note(&mut self, path: &FilePath, now: Option<Vec<u8>>, is_acknowledged: bool) {
        let before = self.files.entry(path.clone()).or_insert_with(|| Allowed(vec![None]));
        if is_acknowledged {
            *before = Allowed(vec![now]);
        } else {
            before.0.push(now);
        }
    }
}

//! Rows of the index, kept in memory after a lookup. Each epoch looks up the same files: such lookups wait
//! for no other thread and walk no tree.
//!
//! Must hold: the rows never exceed the bound. An answer from here equals the file's answer, at the same
//! moment as the file's answers to the other paths: while a dataset changes, none of its rows is found or
//! kept. Rows read before a change are not kept after the change.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use dl_format::{DatasetId, FilePath, FileRecord};

use super::tables::{decode_file, encode_file};
use crate::Found;

/// Bytes of a row beside its contents: a slot in a half-empty table, and the allocator's header.
const PLACE_BYTES: usize = 56;

/// A dataset without a question in so many lookups makes room for other datasets.
const IDLE_AFTER: u64 = 10_000;

/// Live files without a folder of the same path, of all datasets. A full memory keeps its rows: files read
/// once an epoch, in random order, are all equally likely to be asked for next.
#[derive(Debug)]
pub(super) struct Rows {
    kept: RwLock<Kept>,
    bound: usize,
    /// The number of the last lookup.
    asked: AtomicU64,
}

#[derive(Debug, Default)]
struct Kept {
    datasets: HashMap<DatasetId, OfDataset>,
    bytes: usize,
    /// Datasets that are being changed.
    changing: Vec<DatasetId>,
    /// The number of begins and ends of changes.
    changes: u64,
}

#[derive(Debug, Default)]
struct OfDataset {
    rows: HashSet<Row>,
    bytes: usize,
    /// The number of the last lookup in this dataset.
    asked: AtomicU64,
}

/// A path and its record in the file, in a single allocation. Rows are equal when their paths are.
#[derive(Debug)]
struct Row {
    bytes: Box<[u8]>,
    path_length: u16,
}

/// Answers from memory, in the order of the paths.
#[derive(Debug)]
pub(super) struct Seen {
    /// An answer for each path; none where the file has to be asked.
    pub(super) found: Vec<Option<Found>>,
    /// The number of begins and ends of changes at the time of the lookup.
    changes: u64,
}

/// Marks datasets as changing, until dropped.
#[derive(Debug)]
pub(super) struct Change<'a> {
    rows: &'a Rows,
    datasets: Vec<DatasetId>,
}

impl Rows {
    pub(super) fn new(bound: usize) -> Self {
        Self { kept: RwLock::default(), bound, asked: AtomicU64::new(0) }
    }

    pub(super) fn find(&self, dataset: DatasetId, paths: &[FilePath]) -> Seen {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let kept = self.read();
        let Some(known) = kept.datasets.get(&dataset) else {
            return Seen { found: vec![None; paths.len()], changes: kept.changes };
        };
        known.asked.store(asked, Ordering::Relaxed);
        let find = |path: &FilePath| known.rows.get(path.as_bytes())?.record().map(Found::File);
        Seen { found: paths.iter().map(find).collect(), changes: kept.changes }
    }

    /// Keeps answers of the file, asked after `seen`, if there is room. Tells if nothing changed meanwhile.
    pub(super) fn keep<'a>(
        &self,
        dataset: DatasetId,
        seen: &Seen,
        answers: impl Iterator<Item = (&'a FilePath, &'a Found)>,
    ) -> bool {
        let rows: Vec<Row> = answers
            .filter_map(|(path, found)| match found {
                Found::File(record) => Row::new(path, record),
                Found::Folder | Found::Missing => None,
            })
            .collect();
        let wanted: usize = rows.iter().map(Row::size).sum();
        let asked = self.asked.load(Ordering::Relaxed);
        let mut kept = self.write();
        if kept.changes != seen.changes || kept.changing.contains(&dataset) {
            return false;
        }
        let is_full = kept.bytes.saturating_add(wanted) > self.bound;
        let idle = if is_full { kept.remove_idle(asked) } else { Vec::new() };
        kept.add(dataset, rows, self.bound, asked);
        drop(kept);
        // Many small allocations, freed without the lock.
        drop(idle);
        true
    }

    /// Drops the rows of datasets that the caller is about to change.
    pub(super) fn change(&self, datasets: impl IntoIterator<Item = DatasetId>) -> Change<'_> {
        let datasets = Vec::from_iter(datasets);
        let mut kept = self.write();
        kept.changes = kept.changes.wrapping_add(1);
        kept.changing.extend(&datasets);
        let gone: Vec<_> = datasets.iter().map(|dataset| kept.remove(*dataset)).collect();
        drop(kept);
        drop(gone);
        Change { rows: self, datasets }
    }

    fn read(&self) -> RwLockReadGuard<'_, Kept> {
        self.kept.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Kept> {
        self.kept.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut kept = self.rows.write();
        kept.changes = kept.changes.wrapping_add(1);
        kept.changing.retain(|dataset| !self.datasets.contains(dataset));
    }
}

impl Kept {
    /// Adds rows as long as they fit.
    fn add(&mut self, dataset: DatasetId, rows: Vec<Row>, bound: usize, asked: u64) {
        let known = self.datasets.entry(dataset).or_default();
        known.asked = asked.into();
        for row in rows {
            let size = row.size();
            if self.bytes.saturating_add(size) > bound {
                break;
            }
            if known.rows.insert(row) {
                known.bytes = known.bytes.saturating_add(size);
                self.bytes = self.bytes.saturating_add(size);
            }
        }
    }

    fn remove(&mut self, dataset: DatasetId) -> Option<OfDataset> {
        let gone = self.datasets.remove(&dataset)?;
        self.bytes = self.bytes.saturating_sub(gone.bytes);
        Some(gone)
    }

    fn remove_idle(&mut self, asked: u64) -> Vec<OfDataset> {
        let is_idle = |known: &OfDataset| {
            asked.saturating_sub(known.asked.load(Ordering::Relaxed)) > IDLE_AFTER
        };
        let idle: Vec<_> =
            self.datasets.iter().filter(|(_, known)| is_idle(known)).map(|(id, _)| *id).collect();
        idle.into_iter().filter_map(|dataset| self.remove(dataset)).collect()
    }
}

impl Row {
    fn new(path: &FilePath, record: &FileRecord) -> Option<Self> {
        let path = path.as_bytes();
        let mut encoded = Vec::new();
        encode_file(record, &mut encoded).ok()?;
        let path_length = u16::try_from(path.len()).ok()?;
        Some(Self { bytes: [path, &encoded].concat().into(), path_length })
    }

    fn path(&self) -> &[u8] {
        self.bytes.get(..self.path_length.into()).unwrap_or_default()
    }

    fn record(&self) -> Option<FileRecord> {
        decode_file(self.bytes.get(self.path_length.into()..)?).ok()
    }

    fn size(&self) -> usize {
        self.bytes.len().saturating_add(PLACE_BYTES)
    }
}

impl Borrow<[u8]> for Row {
    fn borrow(&self) -> &[u8] {
        self.path()
    }
}

impl Hash for Row {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.path().hash(state);
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.path() == other.path()
    }
}

impl Eq for Row {}

#[cfg(test)]
mod tests;

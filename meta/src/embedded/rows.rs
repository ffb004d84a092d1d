//! Rows of the index that were looked up before, kept in memory: looking up the same files again,
//! as every epoch does, waits for no other thread and walks no tree.
//!
//! Must hold: never more bytes than the bound. What is found is what the file would answer, at one
//! moment with what the file says of the rest: while a dataset is being changed nothing of it is
//! found or kept, and what was read before a change is not kept after it.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use dl_format::{DatasetId, FilePath, FileRecord};

use super::tables::{decode_file, encode_file};
use crate::Found;

/// What a row takes beside its bytes: its place in a table that is half empty, and the allocator's
/// header.
const PLACE_BYTES: usize = 56;

/// A dataset that nobody asked about in so many lookups makes room for others.
const IDLE_AFTER: u64 = 10_000;

/// Live files that no folder hides, of all datasets. When it is full, what is there stays: of
/// files that are read once an epoch, in random order, none is likelier to be asked for than
/// another.
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
    /// How often a change began or ended.
    changes: u64,
}

#[derive(Debug, Default)]
struct OfDataset {
    rows: HashSet<Row>,
    bytes: usize,
    /// The number of the last lookup that asked about this one.
    asked: AtomicU64,
}

/// A path and the record that the file has for it, in one piece of memory. Equal when the paths
/// are.
#[derive(Debug)]
struct Row {
    bytes: Box<[u8]>,
    path_length: u16,
}

/// What is known of some paths.
#[derive(Debug)]
pub(super) struct Seen {
    /// One for each path; none where the file has to be asked.
    pub(super) found: Vec<Option<Found>>,
    /// How often a change had begun or ended.
    changes: u64,
}

/// Datasets are being changed as long as this lives.
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

    /// Keeps what the file said of paths, asked after `seen`, as far as there is room; tells
    /// whether nothing changed since `seen`.
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
        // Many small pieces of memory, freed without the lock.
        drop(idle);
        true
    }

    /// Lets go of all that is known of some datasets, which the caller is about to change.
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

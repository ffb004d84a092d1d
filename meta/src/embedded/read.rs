//! Answers from a consistent view of the file.
//!
//! Must hold: no function here begins a transaction: all answers from a transaction are of the same commit.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};

use dl_format::{ChunkId, DatasetId, EntrySet, EntryVersion, FileRecord, Stamp};
use redb::{ReadOnlyTable, ReadTransaction, ReadableTableMetadata};

use super::database::failed;
use super::tables::{
    Counts, DATASETS, DatasetRow, Tables, decode_entries, decode_file, decode_object,
};
use crate::types::deleted_entries;
use crate::walk::{Visit, Winners};
use crate::{Error, ObjectRecord};

type Rows = ReadOnlyTable<&'static [u8], &'static [u8]>;

pub(super) fn dataset(
    transaction: &ReadTransaction,
    id: DatasetId,
) -> Result<Option<DatasetRow>, redb::Error> {
    let table = transaction.open_table(DATASETS)?;
    let row = table.get(id.as_bytes().as_slice())?;
    row.map(|row| DatasetRow::decode(id.as_bytes(), row.value())).transpose()
}

/// The stamp of an object in a dataset's log; none if the log lacks the object.
pub(super) fn stamp_of(
    transaction: &ReadTransaction,
    dataset: DatasetId,
    id: ChunkId,
) -> Result<Option<Stamp>, redb::Error> {
    let objects = transaction.open_table(Tables::of(dataset).objects())?;
    let key = id.as_bytes().as_slice();
    let object = objects.get(key)?.map(|object| decode_object(key, object.value())).transpose()?;
    Ok(object.map(|object| object.stamp))
}

pub(super) fn objects(
    transaction: &ReadTransaction,
    dataset: DatasetId,
    after: Option<ChunkId>,
    limit: usize,
) -> Result<Vec<ObjectRecord>, redb::Error> {
    let tables = Tables::of(dataset);
    let deletions = Deletions::open(transaction, &tables)?;
    let objects = transaction.open_table(tables.objects())?;
    let start = match &after {
        Some(after) => Bound::Excluded(after.as_bytes().as_slice()),
        None => Bound::Unbounded,
    };
    let mut page = Vec::new();
    for row in objects.range::<&[u8]>((start, Bound::Unbounded))?.take(limit) {
        let (id, bytes) = row?;
        let mut record = decode_object(id.value(), bytes.value())?;
        let deleted = deletions.of(record.id)?;
        record.deleted_entries = deleted_entries(Some(&deleted), record.entry_count);
        page.push(record);
    }
    Ok(page)
}

pub(super) fn log(
    transaction: &ReadTransaction,
    dataset: DatasetId,
) -> Result<Vec<ObjectRecord>, redb::Error> {
    let objects = transaction.open_table(Tables::of(dataset).objects())?;
    let mut log = Vec::new();
    for row in objects.range::<&[u8]>(..)? {
        let (id, bytes) = row?;
        log.push(decode_object(id.value(), bytes.value())?);
    }
    Ok(log)
}

pub(super) fn deleted(
    transaction: &ReadTransaction,
    dataset: DatasetId,
    chunks: &[ChunkId],
) -> Result<Vec<EntrySet>, redb::Error> {
    let deletions = Deletions::open(transaction, &Tables::of(dataset))?;
    chunks.iter().map(|chunk| deletions.of(*chunk)).collect()
}

pub(super) struct Index {
    paths: Rows,
    deletions: Deletions,
}

impl Index {
    pub(super) fn open(
        transaction: &ReadTransaction,
        dataset: DatasetId,
    ) -> Result<Self, redb::Error> {
        let tables = Tables::of(dataset);
        let deletions = Deletions::open(transaction, &tables)?;
        Ok(Self { paths: transaction.open_table(tables.paths())?, deletions })
    }

    /// Counts the live files, by a walk over all paths.
    pub(super) fn count(&self) -> Result<Counts, redb::Error> {
        let mut counts = Counts::default();
        for row in self.paths.range::<&[u8]>(..)? {
            let (record, deleted) = self.winner(row?.1.value())?;
            if !deleted {
                counts.add(&record);
            }
        }
        Ok(counts)
    }

    fn winner(&self, bytes: &[u8]) -> Result<(FileRecord, bool), redb::Error> {
        let record = decode_file(bytes)?;
        let deleted = self.deletions.contain(&record.version)?;
        Ok((record, deleted))
    }
}

impl Winners for Index {
    fn scan(&self, start: Bound<&[u8]>, visit: &mut Visit<'_>) -> Result<(), Error> {
        let broken = || failed("walk over paths of", "the index");
        let rows = self.paths.range::<&[u8]>((start, Bound::Unbounded));
        for row in rows.map_err(|error| broken()(error.into()))? {
            let (path, bytes) = row.map_err(|error| broken()(error.into()))?;
            let read = || self.winner(bytes.value()).map_err(broken());
            if let ControlFlow::Break(()) = visit(path.value(), &read)? {
                break;
            }
        }
        Ok(())
    }
}

/// Deleted versions. Neighbours mostly share a chunk: a bitmap is read once for many rows.
struct Deletions {
    table: Rows,
    none: bool,
    seen: RefCell<HashMap<ChunkId, EntrySet>>,
}

/// Most bitmaps in memory; beyond this number, all are dropped.
const SEEN_MAX: usize = 4_096;

impl Deletions {
    fn open(transaction: &ReadTransaction, tables: &Tables) -> Result<Self, redb::Error> {
        let table = transaction.open_table(tables.deleted())?;
        Ok(Self { none: table.is_empty()?, table, seen: RefCell::default() })
    }

    fn of(&self, chunk: ChunkId) -> Result<EntrySet, redb::Error> {
        let bits = self.table.get(chunk.as_bytes().as_slice())?;
        Ok(bits.map(|bits| decode_entries(bits.value())).transpose()?.unwrap_or_default())
    }

    fn contain(&self, version: &EntryVersion) -> Result<bool, redb::Error> {
        if self.none {
            return Ok(false);
        }
        let mut seen = self.seen.borrow_mut();
        if let Some(entries) = seen.get(&version.chunk) {
            return Ok(entries.contains(version.entry));
        }
        let entries = self.of(version.chunk)?;
        let contains = entries.contains(version.entry);
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert(version.chunk, entries);
        Ok(contains)
    }
}

//! Takes objects off the log of a dataset, inside one transaction.
//!
//! Must hold: nothing changes when a file that is not deleted lies in one of them; what stays is
//! what the index says of the other objects.

use std::collections::HashSet;

use dl_format::{ChunkId, DatasetId, FileRecord, ObjectKind, Stamp, Version};
use redb::{Error, ReadableTable, WriteTransaction};

use super::apply::{Dead, Rows};
use super::tables::{DATASETS, DatasetRow, Tables, decode_file, decode_object};

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retired {
    /// They are in the log no more.
    Done,
    /// A file lies in one of them.
    InUse,
    /// There is no such dataset.
    NoDataset,
}

/// Takes them off. `given` is the highest stamp that was given: it must not be given again when
/// the object that bore it is gone.
pub(super) fn retire(
    transaction: &WriteTransaction,
    dataset: DatasetId,
    retired: &[ChunkId],
    given: Stamp,
) -> Result<Retired, Error> {
    let mut datasets = transaction.open_table(DATASETS)?;
    let key = dataset.as_bytes().as_slice();
    let row = datasets.get(key)?.map(|row| DatasetRow::decode(key, row.value()));
    let Some(mut row) = row.transpose()? else { return Ok(Retired::NoDataset) };
    let tables = Tables::of(dataset);
    let mut objects = transaction.open_table(tables.objects())?;
    let mut deleted = transaction.open_table(tables.deleted())?;
    let mut paths = transaction.open_table(tables.paths())?;

    let retired: HashSet<ChunkId> = retired.iter().copied().collect();
    let lies_there = |record: &FileRecord| retired.contains(&record.holder.chunk);
    let mut rows = 0u64;
    {
        let mut dead = Dead::of(&deleted)?;
        for path in paths.range::<&[u8]>(..)? {
            let record = decode_file(path?.1.value())?;
            if !lies_there(&record) {
                continue;
            }
            rows = rows.saturating_add(1);
            if !dead.contains(&record.version)? {
                return Ok(Retired::InUse);
            }
        }
    }
    if rows > 0 {
        paths.retain(|_, row| !decode_file(row).is_ok_and(|record| lies_there(&record)))?;
    }
    for id in &retired {
        objects.remove(id.as_bytes().as_slice())?;
    }
    row.given = row.given.max(given).max(row.last());
    let has_tombstones = count(&objects, &mut row)?;
    if !has_tombstones {
        // Whatever they named is gone, or they would not be.
        deleted.retain(|_, _| false)?;
    }
    datasets.insert(key, row.encode()?.as_slice())?;
    Ok(Retired::Done)
}

/// Counts the log anew; tells whether tombstones are in it.
fn count(objects: &Rows<'_>, row: &mut DatasetRow) -> Result<bool, Error> {
    let (mut has_tombstones, mut count, mut version) = (false, 0u64, Version::default());
    for object in objects.range::<&[u8]>(..)? {
        let (id, bytes) = object?;
        let record = decode_object(id.value(), bytes.value())?;
        has_tombstones |= record.kind == ObjectKind::Tombstone;
        count = count.saturating_add(1);
        version.add(record.id, record.stamp);
    }
    (row.objects, row.version) = (count, version);
    Ok(has_tombstones)
}

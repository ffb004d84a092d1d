//! Takes objects off the log of a dataset, inside a transaction.
//!
//! Must hold: nothing changes if the objects hold a live file. The index keeps all rows of all other objects.

use std::collections::HashSet;

use dl_format::{ChunkId, DatasetId, FileRecord, Stamp};
use redb::{Error, ReadableTable, WriteTransaction};

use super::apply::{Dead, recount};
use super::tables::{DATASETS, DatasetRow, Tables, decode_file};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retired {
    /// The objects left the log.
    Done,
    /// The objects hold a live file.
    InUse,
    NoDataset,
}

/// Takes objects off the log. `given`, the highest stamp so far, is kept even if its object goes.
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
    let has_tombstones = recount(&objects, &mut row)?;
    if !has_tombstones {
        // The chunks named by tombstones are gone, or the log would still have the tombstones.
        deleted.retain(|_, _| false)?;
    }
    datasets.insert(key, row.encode()?.as_slice())?;
    Ok(Retired::Done)
}

//! Applies objects of the log to the index, inside a transaction.
//!
//! Must hold: a second application changes nothing, and the order of objects does not matter. Of two versions
//! of a path the superseding version stays. Deletions are kept by version, even before the version arrives.

use std::collections::{BTreeMap, HashMap};

use dl_format::{
    ChunkId, Committed, DatasetId, EntrySet, EntryVersion, FilePath, FileRecord, ObjectKind, Stamp,
    Version,
};
use redb::{Error, ReadableTable, ReadableTableMetadata, Table, WriteTransaction};

use super::tables::{
    Counts, DATASETS, DatasetRow, Tables, decode_entries, decode_file, decode_object, encode_file,
    encode_object,
};
use crate::ObjectRecord;

pub(super) type Rows<'a> = Table<'a, &'static [u8], &'static [u8]>;

/// Facts about a dataset in memory that its row may lack.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hint {
    /// The highest stamp given so far.
    pub(super) given: Stamp,
    /// The last counts, and the version of the log at the time.
    pub(super) counted: Option<(Version, Counts)>,
}

/// Applies `objects`; objects of missing datasets are skipped.
pub(super) fn apply(
    transaction: &WriteTransaction,
    objects: &[Committed],
    hints: &HashMap<DatasetId, Hint>,
) -> Result<(), Error> {
    let mut by_dataset: BTreeMap<DatasetId, Vec<&Committed>> = BTreeMap::new();
    for object in objects {
        by_dataset.entry(object.header().dataset()).or_default().push(object);
    }
    let mut datasets = transaction.open_table(DATASETS)?;
    for (id, objects) in by_dataset {
        let key = id.as_bytes().as_slice();
        let row = datasets.get(key)?.map(|row| DatasetRow::decode(key, row.value()));
        let Some(mut row) = row.transpose()? else { continue };
        let hint = hints.get(&id).copied().unwrap_or_default();
        row.given = row.given.max(hint.given);
        if let (None, Some((version, counts))) = (row.counts, hint.counted) {
            row.counts = Some(counts).filter(|_| version == row.version);
        }
        Dataset::open(transaction, &Tables::of(id), &mut row)?.apply(&objects)?;
        datasets.insert(key, row.encode()?.as_slice())?;
    }
    Ok(())
}

/// The tables of a dataset during a transaction.
struct Dataset<'t, 'r> {
    objects: Rows<'t>,
    deleted: Rows<'t>,
    paths: Rows<'t>,
    row: &'r mut DatasetRow,
}

impl<'t, 'r> Dataset<'t, 'r> {
    fn open(
        transaction: &'t WriteTransaction,
        tables: &Tables,
        row: &'r mut DatasetRow,
    ) -> Result<Self, Error> {
        Ok(Self {
            objects: transaction.open_table(tables.objects())?,
            deleted: transaction.open_table(tables.deleted())?,
            paths: transaction.open_table(tables.paths())?,
            row,
        })
    }

    fn apply(mut self, objects: &[&Committed]) -> Result<(), Error> {
        let (mut files, mut is_again) = (Vec::new(), false);
        let last: HashMap<ChunkId, usize> = objects
            .iter()
            .enumerate()
            .map(|(place, object)| (object.header().id(), place))
            .collect();
        for (place, object) in objects.iter().enumerate() {
            let record = ObjectRecord::of(object);
            if last.get(&record.id) != Some(&place) {
                continue;
            }
            let (key, encoded) = (record.id.as_bytes().as_slice(), encode_object(&record)?);
            let known = self.objects.insert(key, encoded.as_slice())?;
            let is_as_known = known.map(|known| known.value() == encoded);
            match is_as_known {
                None => {
                    self.row.objects = self.row.objects.saturating_add(1);
                    self.row.version.add(record.id, record.stamp);
                }
                // A known object is applied again, as its rows may be damaged.
                Some(true) => is_again = true,
                Some(false) => {
                    is_again = true;
                    recount(&self.objects, self.row)?;
                    self.retract(object)?;
                }
            }
            for (chunk, entries) in object.header().deletions().iter() {
                self.delete(chunk, entries)?;
            }
            let entries = object.header().entries();
            files.extend(entries.map(|entry| (FileRecord::of(object, &entry), entry.path)));
        }
        // In key order, as neighbours share pages; of each path, the winner first.
        files.sort_unstable_by(|(a, a_path), (b, b_path)| {
            a_path.cmp(b_path).then_with(|| (b.version, b.holder).cmp(&(a.version, a.holder)))
        });
        files.dedup_by(|(_, later), (_, first)| later == first);
        self.insert(&files, is_again)
    }

    /// Removes the rows of an object that was applied with another stamp.
    fn retract(&mut self, object: &Committed) -> Result<(), Error> {
        for entry in object.header().entries() {
            let path = entry.path.as_bytes();
            let row = self.paths.get(path)?.map(|row| decode_file(row.value())).transpose()?;
            if row.is_some_and(|row| row.holder.chunk == object.header().id()) {
                self.paths.remove(path)?;
                self.row.counts = None;
            }
        }
        Ok(())
    }

    fn delete(&mut self, chunk: ChunkId, entries: &EntrySet) -> Result<(), Error> {
        let key = chunk.as_bytes().as_slice();
        let known = self.deleted.get(key)?.map(|bits| decode_entries(bits.value()));
        let mut known = known.transpose()?.unwrap_or_default();
        if known.union(entries) {
            self.deleted.insert(key, known.bits())?;
            // Only the paths of these entries would tell which entries were winners, and their lengths.
            self.row.counts = None;
        }
        Ok(())
    }

    fn insert(&mut self, files: &[(FileRecord, FilePath)], is_again: bool) -> Result<(), Error> {
        let mut value = Vec::new();
        let mut counts = self.row.counts;
        let mut dead = Dead::of(&self.deleted)?;
        for (record, path) in files {
            encode_file(record, &mut value)?;
            // A single descent for nearly every row: a losing version is replaced by the old row.
            let before = self.paths.insert(path.as_bytes(), value.as_slice())?;
            let before = before.map(|before| before.value().to_vec());
            let old = before.as_deref().map(decode_file).transpose()?;
            if let (Some(before), Some(old)) = (&before, &old) {
                if old == record {
                    continue;
                }
                let is_damaged = (old.version, old.holder) == (record.version, record.holder);
                if !is_damaged && !record.supersedes(old) {
                    self.paths.insert(path.as_bytes(), before.as_slice())?;
                    continue;
                }
            }
            if is_again {
                // Damaged rows may or may not have been counted.
                counts = None;
            }
            if let Some(counts) = &mut counts {
                if let Some(old) = old
                    && !dead.contains(&old.version)?
                {
                    counts.remove(&old);
                }
                if !dead.contains(&record.version)? {
                    counts.add(record);
                }
            }
        }
        self.row.counts = counts;
        Ok(())
    }
}

/// Counts the log again; tells whether the log has tombstones.
pub(super) fn recount(objects: &Rows<'_>, row: &mut DatasetRow) -> Result<bool, Error> {
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

/// Deleted versions, with each bitmap read once.
pub(super) struct Dead<'a, 't> {
    table: &'a Rows<'t>,
    none: bool,
    seen: HashMap<ChunkId, EntrySet>,
}

impl<'a, 't> Dead<'a, 't> {
    pub(super) fn of(table: &'a Rows<'t>) -> Result<Self, Error> {
        Ok(Self { table, none: table.is_empty()?, seen: HashMap::new() })
    }

    pub(super) fn contains(&mut self, version: &EntryVersion) -> Result<bool, Error> {
        if self.none {
            return Ok(false);
        }
        if let Some(entries) = self.seen.get(&version.chunk) {
            return Ok(entries.contains(version.entry));
        }
        let bits = self.table.get(version.chunk.as_bytes().as_slice())?;
        let entries = bits.map(|bits| decode_entries(bits.value())).transpose()?;
        let entries = entries.unwrap_or_default();
        let contains = entries.contains(version.entry);
        self.seen.insert(version.chunk, entries);
        Ok(contains)
    }
}

//! The contents of the file: tables, and the records in them.
//!
//! Must hold: a record is a version byte and then bincode bytes, as wincode writes them. The keys of a
//! dataset's tables are plain bytes in listing order: folders, pages and prefixes are ranges. A drop removes
//! the tables.

use dl_format::{
    Attributes, ChunkId, Crc32c, DatasetId, EntrySet, EntryVersion, FileRecord, Stamp, Version,
};
use redb::{Error, TableDefinition};
use wincode::{SchemaRead, SchemaWrite};

use crate::stored::{self, StoredDataset};
use crate::{DatasetRecord, ObjectRecord};

/// Facts about the file, by the keys below.
pub(super) const FACTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("facts");
/// A [`DatasetRow`] for each dataset id.
pub(super) const DATASETS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("datasets");

/// The value that this version writes under [`FORMAT_KEY`].
pub(super) const FORMAT: &[u8] = b"dl-meta 1";
pub(super) const FORMAT_KEY: &str = "format";
/// The chunk store's 16 bytes.
pub(super) const IDENTITY_KEY: &str = "identity";
/// Present while the file is open; if present at an open, the last stop was not clean.
pub(super) const OPEN_KEY: &str = "open";

/// The names of a dataset's tables.
#[derive(Debug)]
pub(super) struct Tables {
    objects: String,
    deleted: String,
    paths: String,
}

pub(super) type Definition<'a> = TableDefinition<'a, &'static [u8], &'static [u8]>;

impl Tables {
    pub(super) fn of(dataset: DatasetId) -> Self {
        Self {
            objects: format!("objects/{dataset}"),
            deleted: format!("deleted/{dataset}"),
            paths: format!("paths/{dataset}"),
        }
    }

    /// The log: records of objects, by id.
    pub(super) fn objects(&self) -> Definition<'_> {
        TableDefinition::new(&self.objects)
    }

    /// Bitmaps of deleted entries, by the chunk of their first commit. The log may not hold the chunk yet.
    pub(super) fn deleted(&self) -> Definition<'_> {
        TableDefinition::new(&self.deleted)
    }

    /// The winner of each path. Deleted winners stay, as they hide older versions.
    pub(super) fn paths(&self) -> Definition<'_> {
        TableDefinition::new(&self.paths)
    }
}

/// The stored facts about a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DatasetRow {
    pub(super) record: DatasetRecord,
    /// Objects in the log.
    pub(super) objects: u64,
    /// The version of the log.
    pub(super) version: Version,
    /// The highest stamp given so far.
    pub(super) given: Stamp,
    /// The live files, unless a delete made the number unknown.
    pub(super) counts: Option<Counts>,
}

/// Live files, and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, SchemaWrite, SchemaRead)]
pub(super) struct Counts {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

impl Counts {
    pub(super) fn add(&mut self, record: &FileRecord) {
        self.files = self.files.saturating_add(1);
        self.bytes = self.bytes.saturating_add(record.length);
    }

    pub(super) fn remove(&mut self, record: &FileRecord) {
        self.files = self.files.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(record.length);
    }
}

#[derive(SchemaWrite, SchemaRead)]
struct StoredRow {
    record: StoredDataset,
    objects: u64,
    version: [u8; Version::LENGTH],
    given: u64,
    counts: Option<Counts>,
}

impl DatasetRow {
    pub(super) fn new(record: DatasetRecord) -> Self {
        Self {
            record,
            objects: 0,
            version: Version::default(),
            given: Stamp::default(),
            counts: Some(Counts::default()),
        }
    }

    /// The highest stamp in the log; zero without objects.
    pub(super) fn last(&self) -> Stamp {
        self.version.last_stamp().unwrap_or_default()
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, Error> {
        let stored = StoredRow {
            record: StoredDataset::of(&self.record),
            objects: self.objects,
            version: self.version.to_bytes(),
            given: self.given.get(),
            counts: self.counts,
        };
        let mut bytes = Vec::new();
        stored::encode(&stored, &mut bytes).map_err(Error::Corrupted)?;
        Ok(bytes)
    }

    pub(super) fn decode(id: &[u8], bytes: &[u8]) -> Result<Self, Error> {
        let what = "a dataset";
        let id = DatasetId::from_bytes(id.try_into().map_err(|_| damaged(what))?);
        let stored: StoredRow = stored::decode(bytes, what).map_err(Error::Corrupted)?;
        Ok(Self {
            record: stored.record.record(id).map_err(Error::Corrupted)?,
            objects: stored.objects,
            version: Version::from_bytes(&stored.version).map_err(|_| damaged(what))?,
            given: Stamp::new(stored.given),
            counts: stored.counts,
        })
    }
}

fn damaged(what: &str) -> Error {
    Error::Corrupted(stored::damaged(what))
}

/// An object's row, without the number of its deleted entries: another table has them.
pub(super) fn encode_object(record: &ObjectRecord) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    stored::encode_object(record, &mut bytes).map_err(Error::Corrupted)?;
    Ok(bytes)
}

pub(super) fn decode_object(id: &[u8], bytes: &[u8]) -> Result<ObjectRecord, Error> {
    stored::decode_object(id, bytes).map_err(Error::Corrupted)
}

pub(super) fn decode_entries(bytes: &[u8]) -> Result<EntrySet, Error> {
    EntrySet::from_bits(bytes).map_err(|_| damaged("deleted entries"))
}

#[derive(SchemaWrite, SchemaRead)]
struct StoredVersion {
    stamp: u64,
    chunk: [u8; 16],
    entry: u32,
}

impl StoredVersion {
    fn of(version: &EntryVersion) -> Self {
        Self { stamp: version.stamp.get(), chunk: *version.chunk.as_bytes(), entry: version.entry }
    }

    fn version(&self) -> EntryVersion {
        EntryVersion {
            stamp: Stamp::new(self.stamp),
            chunk: ChunkId::from_bytes(self.chunk),
            entry: self.entry,
        }
    }
}

#[derive(SchemaWrite, SchemaRead)]
struct StoredFile {
    holder: StoredVersion,
    /// Only if the holder is another version: after a rewrite.
    version: Option<StoredVersion>,
    mode: u16,
    mtime: i64,
    length: u64,
    crc: u32,
    offset: u32,
    stored: u32,
    has_extents: bool,
}

/// Writes a winner into a buffer for many winners.
pub(super) fn encode_file(record: &FileRecord, into: &mut Vec<u8>) -> Result<(), Error> {
    let moved = record.version != record.holder;
    let stored = StoredFile {
        holder: StoredVersion::of(&record.holder),
        version: moved.then(|| StoredVersion::of(&record.version)),
        mode: record.attributes.mode,
        mtime: record.attributes.mtime,
        length: record.length,
        crc: record.crc.value(),
        offset: record.offset,
        stored: record.stored,
        has_extents: record.has_extents,
    };
    into.clear();
    stored::encode(&stored, into).map_err(Error::Corrupted)
}

pub(super) fn decode_file(bytes: &[u8]) -> Result<FileRecord, Error> {
    let stored: StoredFile = stored::decode(bytes, "a file").map_err(Error::Corrupted)?;
    let holder = stored.holder.version();
    Ok(FileRecord {
        version: stored.version.map_or(holder, |version| version.version()),
        holder,
        attributes: Attributes { mode: stored.mode, mtime: stored.mtime },
        length: stored.length,
        crc: Crc32c::from_value(stored.crc),
        offset: stored.offset,
        stored: stored.stored,
        has_extents: stored.has_extents,
    })
}

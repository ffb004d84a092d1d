//! The contents of the file: tables, and the records in them.
//!
//! Must hold: a record is a version byte and then bincode bytes, as wincode writes them. The keys of a
//! dataset's tables are plain bytes in listing order: folders, pages and prefixes are ranges. A drop removes
//! the tables.

use dl_format::{
    Attributes, ChunkId, ChunkShape, Crc32c, DatasetId, DatasetName, EntrySet, EntryVersion,
    FileRecord, ObjectKind, Stamp, Version,
};
use redb::{Error, TableDefinition};
use wincode::{SchemaRead, SchemaWrite};

use crate::{DatasetRecord, DatasetState, ObjectRecord};

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

const VERSION: u8 = 1;

fn encode<T: SchemaWrite<wincode::config::DefaultConfig, Src = T>>(
    row: &T,
    into: &mut Vec<u8>,
) -> Result<(), Error> {
    into.clear();
    into.push(VERSION);
    wincode::serialize_into(into, row)
        .map_err(|error| Error::Corrupted(format!("a record that can't be written: {error}")))
}

fn body<'a>(bytes: &'a [u8], what: &str) -> Result<&'a [u8], Error> {
    match bytes.split_first() {
        Some((&VERSION, body)) => Ok(body),
        _ => Err(damaged(what)),
    }
}

fn damaged(what: &str) -> Error {
    Error::Corrupted(format!("the record of {what} can't be read"))
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
struct StoredDataset {
    name: String,
    generation: u32,
    chunk_size: u32,
    alignment: u32,
    created: u64,
    state: u8,
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
        let stored = StoredDataset {
            name: self.record.name.as_str().to_owned(),
            generation: self.record.generation,
            chunk_size: self.record.shape.size(),
            alignment: self.record.shape.alignment(),
            created: self.record.created.get(),
            state: match self.record.state {
                DatasetState::Live => 0,
                DatasetState::Recovering => 1,
                DatasetState::Ending => 2,
            },
            objects: self.objects,
            version: self.version.to_bytes(),
            given: self.given.get(),
            counts: self.counts,
        };
        let mut bytes = Vec::new();
        encode(&stored, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn decode(id: &[u8], bytes: &[u8]) -> Result<Self, Error> {
        let what = "a dataset";
        let id = DatasetId::from_bytes(id.try_into().map_err(|_| damaged(what))?);
        let stored: StoredDataset =
            wincode::deserialize_exact(body(bytes, what)?).map_err(|_| damaged(what))?;
        let record = DatasetRecord {
            name: DatasetName::new(stored.name).map_err(|_| damaged(what))?,
            generation: stored.generation,
            id,
            shape: ChunkShape::new(stored.chunk_size, stored.alignment)
                .map_err(|_| damaged(what))?,
            created: Stamp::new(stored.created),
            state: match stored.state {
                0 => DatasetState::Live,
                1 => DatasetState::Recovering,
                2 => DatasetState::Ending,
                _ => return Err(damaged(what)),
            },
        };
        Ok(Self {
            record,
            objects: stored.objects,
            version: Version::from_bytes(&stored.version).map_err(|_| damaged(what))?,
            given: Stamp::new(stored.given),
            counts: stored.counts,
        })
    }
}

#[derive(SchemaWrite, SchemaRead)]
struct StoredObject {
    kind: u8,
    stamp: u64,
    object_length: u64,
    header_length: u32,
    entry_count: u32,
    file_bytes: u64,
}

/// An object's row, without the number of its deleted entries: another table has them.
pub(super) fn encode_object(record: &ObjectRecord) -> Result<Vec<u8>, Error> {
    let stored = StoredObject {
        kind: match record.kind {
            ObjectKind::Chunk => 1,
            ObjectKind::Part => 2,
            ObjectKind::Tombstone => 3,
        },
        stamp: record.stamp.get(),
        object_length: record.object_length,
        header_length: record.header_length,
        entry_count: record.entry_count,
        file_bytes: record.file_bytes,
    };
    let mut bytes = Vec::new();
    encode(&stored, &mut bytes)?;
    Ok(bytes)
}

pub(super) fn decode_object(id: &[u8], bytes: &[u8]) -> Result<ObjectRecord, Error> {
    let what = "an object";
    let stored: StoredObject =
        wincode::deserialize_exact(body(bytes, what)?).map_err(|_| damaged(what))?;
    Ok(ObjectRecord {
        id: ChunkId::from_bytes(id.try_into().map_err(|_| damaged(what))?),
        kind: match stored.kind {
            1 => ObjectKind::Chunk,
            2 => ObjectKind::Part,
            3 => ObjectKind::Tombstone,
            _ => return Err(damaged(what)),
        },
        stamp: Stamp::new(stored.stamp),
        object_length: stored.object_length,
        header_length: stored.header_length,
        entry_count: stored.entry_count,
        file_bytes: stored.file_bytes,
        deleted_entries: 0,
    })
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
    encode(&stored, into)
}

pub(super) fn decode_file(bytes: &[u8]) -> Result<FileRecord, Error> {
    let what = "a file";
    let stored: StoredFile =
        wincode::deserialize_exact(body(bytes, what)?).map_err(|_| damaged(what))?;
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

//! The records of datasets and of the objects in their logs, as bytes, the same in all stores.
//!
//! Must hold: a record is a version byte and then bincode bytes, as wincode writes them. Damage is an error,
//! as a sentence.

use dl_format::{ChunkId, ChunkShape, DatasetId, DatasetName, ObjectKind, Stamp};
use wincode::config::DefaultConfig;
use wincode::{SchemaRead, SchemaReadOwned, SchemaWrite};

use crate::{DatasetRecord, DatasetState, ObjectRecord};

pub(crate) const VERSION: u8 = 1;

#[derive(SchemaWrite, SchemaRead)]
pub(crate) struct StoredDataset {
    name: String,
    generation: u32,
    chunk_size: u32,
    alignment: u32,
    created: u64,
    state: u8,
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

/// Appends a record to `into`.
pub(crate) fn encode<T>(record: &T, into: &mut Vec<u8>) -> Result<(), String>
where
    T: SchemaWrite<DefaultConfig, Src = T>,
{
    into.push(VERSION);
    wincode::serialize_into(into, record)
        .map_err(|error| format!("a record that can't be written: {error}"))
}

/// Reads a record; `what` is its name in the error.
pub(crate) fn decode<T>(bytes: &[u8], what: &str) -> Result<T, String>
where
    T: SchemaReadOwned<DefaultConfig, Dst = T>,
{
    let body = bytes.strip_prefix(&[VERSION]).ok_or_else(|| damaged(what))?;
    wincode::deserialize_exact(body).map_err(|_| damaged(what))
}

pub(crate) fn damaged(what: &str) -> String {
    format!("the record of {what} can't be read")
}

impl StoredDataset {
    pub(crate) fn of(record: &DatasetRecord) -> Self {
        Self {
            name: record.name.as_str().to_owned(),
            generation: record.generation,
            chunk_size: record.shape.size(),
            alignment: record.shape.alignment(),
            created: record.created.get(),
            state: match record.state {
                DatasetState::Live => 0,
                DatasetState::Recovering => 1,
                DatasetState::Ending => 2,
            },
        }
    }

    pub(crate) fn record(self, id: DatasetId) -> Result<DatasetRecord, String> {
        let damaged = || damaged("a dataset");
        Ok(DatasetRecord {
            name: DatasetName::new(self.name).map_err(|_| damaged())?,
            generation: self.generation,
            id,
            shape: ChunkShape::new(self.chunk_size, self.alignment).map_err(|_| damaged())?,
            created: Stamp::new(self.created),
            state: match self.state {
                0 => DatasetState::Live,
                1 => DatasetState::Recovering,
                2 => DatasetState::Ending,
                _ => return Err(damaged()),
            },
        })
    }
}

/// Appends the record of an object to `into`, without its id and the number of deleted entries.
pub(crate) fn encode_object(record: &ObjectRecord, into: &mut Vec<u8>) -> Result<(), String> {
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
    encode(&stored, into)
}

/// Reads the record of an object, with no deleted entry.
pub(crate) fn decode_object(id: &[u8], bytes: &[u8]) -> Result<ObjectRecord, String> {
    let what = "an object";
    let stored: StoredObject = decode(bytes, what)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_known_bytes_read_back_and_damage_is_told() {
        let id = DatasetId::from_bytes([4; 16]);
        for state in [DatasetState::Live, DatasetState::Recovering, DatasetState::Ending] {
            let name = DatasetName::new("imagenet-1k").unwrap();
            let (shape, created) = (ChunkShape::default(), Stamp::new(u64::MAX));
            let record = DatasetRecord { name, generation: 7, id, shape, created, state };
            let mut bytes = Vec::new();
            encode(&StoredDataset::of(&record), &mut bytes).unwrap();
            let mut known = [&[VERSION, 11, 0, 0, 0, 0, 0, 0, 0], &b"imagenet-1k"[..]].concat();
            known.extend([7, 0, 0, 0]);
            known.extend(shape.size().to_le_bytes());
            known.extend(shape.alignment().to_le_bytes());
            known.extend([0xFF; 8]);
            assert_eq!(bytes[..bytes.len() - 1], known);
            let stored: StoredDataset = decode(&bytes, "a dataset").unwrap();
            assert_eq!(stored.record(id).unwrap(), record);
            assert!(decode::<StoredDataset>(&bytes[1..], "a dataset").is_err());
        }
        for kind in [ObjectKind::Chunk, ObjectKind::Part, ObjectKind::Tombstone] {
            let record = ObjectRecord {
                id: ChunkId::from_bytes([9; 16]),
                kind,
                stamp: Stamp::new(5),
                object_length: 4 << 20,
                header_length: 100_000,
                entry_count: 65_536,
                file_bytes: 1,
                deleted_entries: 0,
            };
            let mut bytes = Vec::new();
            encode_object(&record, &mut bytes).unwrap();
            assert_eq!(decode_object(&[9; 16], &bytes).unwrap(), record);
            assert!(decode_object(&[9; 16], &bytes[..bytes.len() - 1]).is_err());
            assert!(decode_object(&[9; 15], &bytes).is_err());
        }
    }
}

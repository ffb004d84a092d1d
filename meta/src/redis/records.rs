//! The records of datasets and of the objects in their logs, as bytes.
//!
//! Must hold: a record is a version byte and then bincode bytes, as wincode writes them. Damage is an error.

use bytes::Bytes;
use dl_format::{
    ChunkId, ChunkShape, Committed, DatasetId, DatasetName, Header, ObjectKind, Stamp,
};
use wincode::{SchemaRead, SchemaWrite};

use super::failure::Failure;
use crate::{DatasetRecord, DatasetState, ObjectRecord};

const VERSION: u8 = 1;

#[derive(SchemaWrite, SchemaRead)]
struct StoredDataset {
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

fn encode<T: SchemaWrite<wincode::config::DefaultConfig, Src = T>>(
    row: &T,
    mut into: Vec<u8>,
) -> Result<Vec<u8>, Failure> {
    into.push(VERSION);
    wincode::serialize_into(&mut into, row)
        .map_err(|error| Failure::corrupt(format!("a record that can't be written: {error}")))?;
    Ok(into)
}

fn body<'a>(bytes: &'a [u8], what: &str) -> Result<&'a [u8], Failure> {
    match bytes.split_first() {
        Some((&VERSION, body)) => Ok(body),
        _ => Err(damaged(what)),
    }
}

fn damaged(what: &str) -> Failure {
    Failure::corrupt(format!("the record of {what} can't be read"))
}

pub(super) fn encode_dataset(record: &DatasetRecord) -> Result<Vec<u8>, Failure> {
    let stored = StoredDataset {
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
    };
    encode(&stored, Vec::new())
}

pub(super) fn decode_dataset(id: DatasetId, bytes: &[u8]) -> Result<DatasetRecord, Failure> {
    let what = "a dataset";
    let stored: StoredDataset =
        wincode::deserialize_exact(body(bytes, what)?).map_err(|_| damaged(what))?;
    Ok(DatasetRecord {
        name: DatasetName::new(stored.name).map_err(|_| damaged(what))?,
        generation: stored.generation,
        id,
        shape: ChunkShape::new(stored.chunk_size, stored.alignment).map_err(|_| damaged(what))?,
        created: Stamp::new(stored.created),
        state: match stored.state {
            0 => DatasetState::Live,
            1 => DatasetState::Recovering,
            2 => DatasetState::Ending,
            _ => return Err(damaged(what)),
        },
    })
}

/// The copy of a header, without the zeros at the end of its last page: a tombstone is mostly zeros.
pub(super) fn encode_header(header: &Header) -> &[u8] {
    let raw = header.raw();
    let end = raw.iter().rposition(|byte| *byte != 0).map_or(0, |last| last.saturating_add(1));
    raw.get(..end).unwrap_or_default()
}

pub(super) fn decode_header(id: ChunkId, mut copy: Vec<u8>) -> Result<Committed, Failure> {
    let damaged = |error| Failure::corrupt(format!("the header of {id}: {error}"));
    let length = Header::length(&copy).map_err(damaged)?;
    copy.resize(length.max(copy.len()), 0);
    Header::decode(&Bytes::from(copy)).and_then(Header::committed).map_err(damaged)
}

/// A log's member for an object: the id, for the order, and the record, without a number of deletions.
pub(super) fn encode_object(record: &ObjectRecord) -> Result<Vec<u8>, Failure> {
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
    encode(&stored, record.id.as_bytes().to_vec())
}

pub(super) fn decode_object(member: &[u8]) -> Result<ObjectRecord, Failure> {
    let what = "an object";
    let (id, bytes) = member.split_first_chunk::<16>().ok_or_else(|| damaged(what))?;
    let stored: StoredObject =
        wincode::deserialize_exact(body(bytes, what)?).map_err(|_| damaged(what))?;
    Ok(ObjectRecord {
        id: ChunkId::from_bytes(*id),
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

/// The meaning of a name: a generation and a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) generation: u32,
    pub(super) id: DatasetId,
}

impl Named {
    pub(super) fn encode(self) -> Vec<u8> {
        [&[VERSION], self.generation.to_le_bytes().as_slice(), self.id.as_bytes()].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let what = "a name";
        let (generation, id) =
            body(bytes, what)?.split_first_chunk::<4>().ok_or_else(|| damaged(what))?;
        let id = id.try_into().map_err(|_| damaged(what))?;
        let generation = u32::from_le_bytes(*generation);
        Ok(Self { generation, id: DatasetId::from_bytes(id) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_and_damage_is_told() {
        let id = DatasetId::from_bytes([4; 16]);
        for state in [DatasetState::Live, DatasetState::Recovering, DatasetState::Ending] {
            let name = DatasetName::new("imagenet-1k").unwrap();
            let (shape, created) = (ChunkShape::default(), Stamp::new(u64::MAX));
            let record = DatasetRecord { name, generation: 7, id, shape, created, state };
            let bytes = encode_dataset(&record).unwrap();
            assert_eq!(decode_dataset(id, &bytes).unwrap(), record);
            assert!(decode_dataset(id, &bytes[1..]).is_err());
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
            let bytes = encode_object(&record).unwrap();
            assert_eq!(decode_object(&bytes).unwrap(), record);
            assert!(decode_object(&bytes[..bytes.len() - 1]).is_err());
        }
        let named = Named { generation: 3, id };
        assert_eq!(Named::decode(&named.encode()).unwrap(), named);
        assert!(Named::decode(&named.encode()[..20]).is_err());
    }
}

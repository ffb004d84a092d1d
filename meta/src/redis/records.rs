//! The records of datasets and of the objects in their logs, as bytes.
//!
//! Must hold: a record is a version byte and then bincode bytes, as wincode writes them. Damage is an error.

use bytes::Bytes;
use dl_format::{ChunkId, Committed, DatasetId, Header};

use super::failure::Failure;
use crate::stored::{self, StoredDataset, VERSION};
use crate::{DatasetRecord, ObjectRecord};

pub(super) fn encode_dataset(record: &DatasetRecord) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    stored::encode(&StoredDataset::of(record), &mut bytes).map_err(Failure::corrupt)?;
    Ok(bytes)
}

pub(super) fn decode_dataset(id: DatasetId, bytes: &[u8]) -> Result<DatasetRecord, Failure> {
    let stored = stored::decode::<StoredDataset>(bytes, "a dataset");
    stored.and_then(|stored| stored.record(id)).map_err(Failure::corrupt)
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
    let mut member = record.id.as_bytes().to_vec();
    stored::encode_object(record, &mut member).map_err(Failure::corrupt)?;
    Ok(member)
}

pub(super) fn decode_object(member: &[u8]) -> Result<ObjectRecord, Failure> {
    let (id, record) = member.split_at_checked(16).unwrap_or((member, &[]));
    stored::decode_object(id, record).map_err(Failure::corrupt)
}

/// The meaning of a name: a generation and a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NameTarget {
    pub(super) generation: u32,
    pub(super) id: DatasetId,
}

impl NameTarget {
    pub(super) fn encode(self) -> Vec<u8> {
        [&[VERSION], self.generation.to_le_bytes().as_slice(), self.id.as_bytes()].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let (generation, id) = stored::decode(bytes, "a name").map_err(Failure::corrupt)?;
        Ok(Self { generation, id: DatasetId::from_bytes(id) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_of_a_name_reads_back_and_damage_is_told() {
        let target = NameTarget { generation: 3, id: DatasetId::from_bytes([4; 16]) };
        assert_eq!(NameTarget::decode(&target.encode()).unwrap(), target);
        assert!(NameTarget::decode(&target.encode()[..20]).is_err());
        assert!(NameTarget::decode(&target.encode()[1..]).is_err());
    }
}

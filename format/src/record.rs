//! The two small objects beside the chunks: name records and the identity of a store.
//!
//! Must hold: each kind has a fixed length, and ends with the checksum of all bytes before. Both
//! are checked before a record is accepted.

use crate::checksum::Crc32c;
use crate::decode::{Cursor, check_version, range};
use crate::encode::FieldWriter;
use crate::error::{DecodeError, NEWER_VERSION};
use crate::id::{DatasetId, Stamp, StoreId};
use crate::layout::{
    FORMAT_VERSION, IDENTITY_MAGIC, IDENTITY_RECORD_LEN, NAME_DELETED, NAME_LIVE, NAME_MAGIC,
    NAME_RECORD_LEN,
};
use crate::shape::ChunkShape;

/// The state of a dataset's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameState {
    /// The name is valid.
    Live,
    /// The dataset was deleted; its objects are being removed.
    Deleted,
}

/// A generation of a dataset's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameRecord {
    /// The state of the name.
    pub state: NameState,
    /// The dataset's id.
    pub dataset: DatasetId,
    /// The shape of its chunks.
    pub shape: ChunkShape,
    /// The creation time of the generation.
    pub created: Stamp,
}

impl NameRecord {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let state = match self.state {
            NameState::Live => NAME_LIVE,
            NameState::Deleted => NAME_DELETED,
        };
        let mut bytes = vec![0; NAME_RECORD_LEN];
        let mut put = FieldWriter(&mut bytes);
        put.field(&NAME_MAGIC);
        put.field(&FORMAT_VERSION.to_le_bytes());
        put.field(&state.to_le_bytes());
        put.field(self.dataset.as_bytes());
        put.field(&self.shape.size().to_le_bytes());
        put.field(&self.shape.alignment().to_le_bytes());
        put.field(&self.created.get().to_le_bytes());
        seal(bytes)
    }

    /// Checks and decodes the object.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = open(bytes, NAME_MAGIC, NAME_RECORD_LEN)?;
        let state = match cursor.u16("state")? {
            NAME_LIVE => NameState::Live,
            NAME_DELETED => NameState::Deleted,
            _ => return Err(DecodeError::new("state", 10, NEWER_VERSION)),
        };
        let dataset = DatasetId::from_bytes(cursor.array("dataset id")?);
        let (size, alignment) = (cursor.u32("chunk size")?, cursor.u32("alignment")?);
        let shape = ChunkShape::new(size, alignment)
            .map_err(|_| DecodeError::new("chunk size", 28, "is not one a dataset can have"))?;
        Ok(Self { state, dataset, shape, created: Stamp::new(cursor.u64("created")?) })
    }
}

/// The identity of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdentityRecord {
    /// The store's random id.
    pub store: StoreId,
}

impl IdentityRecord {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; IDENTITY_RECORD_LEN];
        let mut put = FieldWriter(&mut bytes);
        put.field(&IDENTITY_MAGIC);
        put.field(&FORMAT_VERSION.to_le_bytes());
        put.field(&[0; 2]);
        put.field(self.store.as_bytes());
        seal(bytes)
    }

    /// Checks and decodes the object.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = open(bytes, IDENTITY_MAGIC, IDENTITY_RECORD_LEN)?;
        cursor.zero::<2>("reserved")?;
        Ok(Self { store: StoreId::from_bytes(cursor.array("store id")?) })
    }
}

/// Writes the checksum of all bytes before into the last four bytes.
pub(crate) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some((body, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = Crc32c::of(body).value().to_le_bytes();
    }
    bytes
}

/// Checks magic, version, length and checksum; returns a cursor behind the version.
pub(crate) fn open(bytes: &[u8], magic: [u8; 8], length: usize) -> Result<Cursor<'_>, DecodeError> {
    let mut cursor = Cursor::new(bytes, 0);
    if cursor.array::<8>("magic")? != magic {
        return Err(DecodeError::new("magic", 0, "not the object its key promises"));
    }
    check_version(&mut cursor)?;
    let body = length.saturating_sub(4);
    let crc = range(bytes, body, 4).filter(|_| bytes.len() == length);
    let crc = crc.ok_or(DecodeError::new("checksum", body, "the object has another length"))?;
    if Crc32c::of(range(bytes, 0, body).unwrap_or_default()).value().to_le_bytes() != *crc {
        return Err(DecodeError::new("checksum", body, "does not match the bytes"));
    }
    Ok(cursor)
}

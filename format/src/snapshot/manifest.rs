//! The manifest of a stored snapshot: the checksums of its pieces.
//!
//! Must hold: the manifest is written after the last part, so a snapshot with a manifest is
//! complete. Readers compare all bytes with the checksums of the manifest.

use std::ops::Range;

use crate::checksum::Crc32c;
use crate::decode::Cursor;
use crate::encode::FieldWriter;
use crate::error::DecodeError;
use crate::id::{DatasetId, Stamp};
use crate::layout::{
    FORMAT_VERSION, MANIFEST_LEN, MANIFEST_MAGIC, SNAPSHOT_PART_LEN, SNAPSHOT_PIECE_LEN,
};
use crate::record::{open, seal};
use crate::version::Version;

/// The description of a stored snapshot. The snapshot is cut into pieces of [`SNAPSHOT_PIECE_LEN`]
/// bytes, each with a checksum. Objects have [`SNAPSHOT_PART_LEN`] bytes of pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The dataset.
    pub dataset: DatasetId,
    /// The version of the dataset.
    pub version: Version,
    /// Bytes of the snapshot.
    pub length: u64,
    /// The build time.
    pub built: Stamp,
    /// The checksums of the pieces, in order.
    pub checksums: Vec<Crc32c>,
}

impl Manifest {
    /// The byte range of a piece and its checksum; none beyond the last piece.
    pub fn piece(&self, number: u64) -> Option<(Range<u64>, Crc32c)> {
        let crc = *self.checksums.get(usize::try_from(number).ok()?)?;
        let start = number.checked_mul(SNAPSHOT_PIECE_LEN.into())?;
        let end = start.checked_add(SNAPSHOT_PIECE_LEN.into())?.min(self.length);
        Some((start..end, crc))
    }

    /// The number of parts.
    pub fn parts(&self) -> u32 {
        u32::try_from(self.length.div_ceil(SNAPSHOT_PART_LEN.into())).unwrap_or(u32::MAX)
    }

    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut head = [0; MANIFEST_LEN];
        let mut put = FieldWriter(&mut head);
        put.field(&MANIFEST_MAGIC);
        put.field(&FORMAT_VERSION.to_le_bytes());
        put.field(&[0; 2]);
        put.field(&SNAPSHOT_PIECE_LEN.to_le_bytes());
        put.field(self.dataset.as_bytes());
        put.field(&self.version.to_bytes());
        put.field(&self.length.to_le_bytes());
        put.field(&self.built.get().to_le_bytes());
        let mut bytes = head.to_vec();
        bytes.extend(self.checksums.iter().flat_map(|crc| crc.value().to_le_bytes()));
        bytes.extend([0; 4]);
        seal(bytes)
    }

    /// Checks and decodes the object.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = open(bytes, MANIFEST_MAGIC, bytes.len())?;
        cursor.zero::<2>("reserved")?;
        let at = cursor.offset();
        if cursor.u32("piece length")? != SNAPSHOT_PIECE_LEN {
            return Err(DecodeError::new("piece length", at, "not that of this version"));
        }
        let dataset = DatasetId::from_bytes(cursor.array("dataset id")?);
        let version = Version::from_bytes(&cursor.array::<{ Version::LENGTH }>("version")?)?;
        let at = cursor.offset();
        let length = cursor.u64("snapshot length")?;
        let built = Stamp::new(cursor.u64("built")?);
        let checksums = read_checksums(&mut cursor, bytes.len())?;
        if length.div_ceil(SNAPSHOT_PIECE_LEN.into()) != checksums.len() as u64 {
            return Err(DecodeError::new("snapshot length", at, "not that of the pieces"));
        }
        Ok(Self { dataset, version, length, built, checksums })
    }
}

/// Reads all piece checksums before the checksum of the manifest itself, which is already verified.
fn read_checksums(cursor: &mut Cursor<'_>, end: usize) -> Result<Vec<Crc32c>, DecodeError> {
    let mut checksums = Vec::new();
    loop {
        match end.saturating_sub(cursor.offset()) {
            0..4 => break,
            4 => return Ok(checksums),
            _ => checksums.push(Crc32c::from_value(cursor.u32("piece checksum")?)),
        }
    }
    Err(DecodeError::new("piece checksum", cursor.offset(), "the last one is cut off"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(length: u64) -> Manifest {
        let pieces = length.div_ceil(SNAPSHOT_PIECE_LEN.into());
        let checksums = (0..pieces).map(|piece| Crc32c::from_value(piece as u32 + 9)).collect();
        let dataset = DatasetId::from_bytes([7; 16]);
        let (version, built) = (Version::default(), Stamp::new(5));
        Manifest { dataset, version, length, built, checksums }
    }

    #[test]
    fn a_manifest_reads_back_and_covers_the_snapshot() {
        let piece = u64::from(SNAPSHOT_PIECE_LEN);
        for length in [0, 1, piece, piece + 1, 9 * piece - 1] {
            let manifest = manifest(length);
            assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest.clone()));
            let mut pieces = 0..;
            let mut next = 0;
            while let Some((range, crc)) = manifest.piece(pieces.next().unwrap()) {
                assert_eq!((range.start, crc.value()), (next, (next / piece) as u32 + 9));
                next = range.end;
            }
            assert_eq!(next, length);
            assert_eq!(u64::from(manifest.parts()), length.div_ceil(8 * piece));
        }
    }
}

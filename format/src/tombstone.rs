//! Tombstones: objects that delete entries. The version seen by the caller identifies an entry. A
//! delete therefore commutes with all changes, and a late retry can't delete a newer file.
//!
//! Must hold: a set of deletions has exactly one encoding. An [`EntrySet`] never ends with a zero
//! byte, and [`Deletions`] contain no empty set.

use std::collections::BTreeMap;

use crate::decode::Cursor;
use crate::encode::{HeadWriter, narrow};
use crate::entry::EntryVersion;
use crate::error::{DecodeError, PackError};
use crate::id::{ChunkId, DatasetId};
use crate::kind::ObjectKind;
use crate::layout::{
    DELETION_COUNT_LEN, DELETION_LEN, ENTRIES_MAX, HEADER_MAX, PRELUDE_LEN, SECTION_DELETIONS,
    SECTION_LEN,
};

/// A set of entry numbers below 65,536, as a bitmap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntrySet {
    bits: Vec<u8>,
}

impl EntrySet {
    /// The set with the bitmap `bits`: bit n of byte m stands for entry 8 m + n.
    ///
    /// # Errors
    /// For more than 8,192 bytes, as in a tombstone.
    pub fn from_bits(bits: &[u8]) -> Result<Self, DecodeError> {
        if bits.len() > ENTRIES_MAX / 8 {
            return Err(DecodeError::new("deletion bitmap", 0, "longer than 8192 bytes"));
        }
        let end = bits.iter().rposition(|byte| *byte != 0).map_or(0, |last| last.saturating_add(1));
        Ok(Self { bits: bits.get(..end).unwrap_or_default().to_vec() })
    }

    /// The bitmap, without trailing zero bytes.
    pub fn bits(&self) -> &[u8] {
        &self.bits
    }

    /// Adds an entry; false for an invalid number.
    pub fn insert(&mut self, entry: u32) -> bool {
        let (byte, bit) = (entry as usize / 8, entry % 8);
        if entry as usize >= ENTRIES_MAX {
            return false;
        }
        if self.bits.len() <= byte {
            self.bits.resize(byte.saturating_add(1), 0);
        }
        if let Some(slot) = self.bits.get_mut(byte) {
            *slot |= 1 << bit;
        }
        true
    }

    /// Whether the set contains an entry.
    pub fn contains(&self, entry: u32) -> bool {
        let byte = self.bits.get(entry as usize / 8).copied().unwrap_or(0);
        byte & (1 << (entry % 8)) != 0
    }

    /// Adds all of `other`; true if the set has changed.
    pub fn union(&mut self, other: &Self) -> bool {
        if self.bits.len() < other.bits.len() {
            self.bits.resize(other.bits.len(), 0);
        }
        let mut changed = false;
        for (mine, theirs) in self.bits.iter_mut().zip(&other.bits) {
            changed |= *theirs & !*mine != 0;
            *mine |= *theirs;
        }
        changed
    }

    /// The entries, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.bits.iter().zip(0u32..).flat_map(|(byte, index)| {
            (0..8u32)
                .filter(move |bit| byte & (1 << bit) != 0)
                .map(move |bit| index.saturating_mul(8).saturating_add(bit))
        })
    }

    /// The number of entries.
    pub fn count(&self) -> u32 {
        self.bits.iter().map(|byte| byte.count_ones()).sum()
    }
}

/// The deleted entries of a tombstone, by the chunk of their first commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deletions(BTreeMap<ChunkId, EntrySet>);

impl Deletions {
    /// Deletes a version seen by a caller; false for an impossible entry number.
    pub fn insert(&mut self, version: &EntryVersion) -> bool {
        // Checked first: an invalid entry must not leave an empty set behind.
        (version.entry as usize) < ENTRIES_MAX
            && self.0.entry(version.chunk).or_default().insert(version.entry)
    }

    /// Deletes all of `entries` of one chunk.
    pub fn add(&mut self, chunk: ChunkId, entries: &EntrySet) {
        if !entries.bits.is_empty() {
            self.0.entry(chunk).or_default().union(entries);
        }
    }

    /// Chunks and their deleted entries, by id.
    pub fn iter(&self) -> impl Iterator<Item = (ChunkId, &EntrySet)> {
        self.0.iter().map(|(chunk, entries)| (*chunk, entries))
    }

    /// Whether there are no deletions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of deleted entries.
    pub fn count(&self) -> u64 {
        self.0.values().map(|entries| u64::from(entries.count())).sum()
    }

    /// Splits the deletions into pieces for one tombstone each; none for no deletions.
    pub fn split(self) -> Vec<Self> {
        let room = HEADER_MAX.saturating_sub(PRELUDE_LEN.saturating_add(SECTION_LEN));
        let mut pieces = Vec::new();
        let (mut piece, mut size) = (Self::default(), DELETION_COUNT_LEN);
        for (chunk, entries) in self.0 {
            let more = entries.bits.len().saturating_add(DELETION_LEN);
            if size.saturating_add(more) > room {
                pieces.push(std::mem::take(&mut piece));
                size = DELETION_COUNT_LEN;
            }
            size = size.saturating_add(more);
            piece.0.insert(chunk, entries);
        }
        if !piece.is_empty() {
            pieces.push(piece);
        }
        pieces
    }

    pub(crate) fn decode(bytes: &[u8], at: usize) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes, at);
        let count = cursor.u32("deletion count")?;
        let mut deletions = BTreeMap::new();
        for _ in 0..count {
            let offset = cursor.offset();
            let chunk = ChunkId::from_bytes(cursor.array("deletion chunk")?);
            let length = cursor.u32("deletion bitmap length")? as usize;
            let start = cursor.offset();
            let bits = cursor.slice(length, "deletion bitmap")?;
            if deletions.last_key_value().is_some_and(|(last, _)| *last >= chunk) {
                return Err(DecodeError::new("deletion chunk", offset, "not in ascending order"));
            }
            let entries = EntrySet::from_bits(bits)
                .map_err(|error| DecodeError { offset: start as u64, ..error })?;
            if entries.bits.is_empty() || entries.bits.len() != length {
                let problem = "empty, or ends with a zero byte";
                return Err(DecodeError::new("deletion bitmap", start, problem));
            }
            deletions.insert(chunk, entries);
        }
        if cursor.is_empty() {
            Ok(Self(deletions))
        } else {
            Err(DecodeError::new("deletions", cursor.offset(), "longer than their count says"))
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(narrow(self.0.len()).to_le_bytes());
        for (chunk, entries) in &self.0 {
            bytes.extend(chunk.as_bytes());
            bytes.extend(narrow(entries.bits.len()).to_le_bytes());
            bytes.extend(&entries.bits);
        }
        bytes
    }
}

/// The tombstone object for `deletions`, ready to be committed.
///
/// # Errors
/// [`PackError::Full`] for too many deletions (see [`Deletions::split`]), [`PackError::Empty`] for
/// no deletions.
pub fn encode_tombstone(
    dataset: DatasetId,
    id: ChunkId,
    deletions: &Deletions,
) -> Result<Vec<u8>, PackError> {
    if deletions.is_empty() {
        return Err(PackError::Empty);
    }
    let mut head = HeadWriter::new(ObjectKind::Tombstone, id, dataset);
    head.section(SECTION_DELETIONS, deletions.encode());
    let length = head.length();
    if length > HEADER_MAX {
        return Err(PackError::Full);
    }
    let mut object = vec![0; length];
    head.write(&mut object, length as u64, 0, 0);
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_union_tells_whether_it_changed_anything() {
        let set = |bits: &[u8]| EntrySet::from_bits(bits).expect("a short bitmap");
        let mut mine = set(&[1, 2]);
        assert!(mine.union(&set(&[4, 2])), "in a byte that isn't the last");
        assert!(!mine.union(&set(&[5, 2])));
        assert!(!mine.union(&EntrySet::default()));
        assert!(mine.union(&set(&[0, 0, 0, 128])));
        assert_eq!(mine.iter().collect::<Vec<_>>(), [0, 2, 9, 31]);
        assert!(EntrySet::from_bits(&[0; ENTRIES_MAX / 8 + 1]).is_err());
    }

    #[test]
    fn every_piece_of_a_split_fits_even_when_full() {
        let set = |length: usize| EntrySet::from_bits(&vec![0xFF; length]).expect("short enough");
        // 63 full bitmaps leave room for a bitmap of 6,764 bytes beside the count.
        for (first, second) in [(6_764, 6_764), (6_764, 6_765), (6_765, 6_764), (6_765, 6_765)] {
            let mut deletions = Deletions::default();
            for number in 0..128u8 {
                let length = match number {
                    63 => first,
                    127 => second,
                    _ => ENTRIES_MAX / 8,
                };
                deletions.add(ChunkId::from_bytes([number; 16]), &set(length));
            }
            for piece in deletions.split() {
                let (dataset, id) = (DatasetId::from_bytes([0; 16]), ChunkId::from_bytes([0; 16]));
                assert!(encode_tombstone(dataset, id, &piece).is_ok(), "{first} and {second}");
            }
        }
    }
}

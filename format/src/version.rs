//! The version of a dataset: its state at one point of its log.
//!
//! Must hold: a pure function of the set of committed object ids and the highest stamp. The order
//! of objects plays no role, nor does a lost and rebuilt log.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_128;

use crate::decode::Cursor;
use crate::error::DecodeError;
use crate::id::{ChunkId, Stamp};

/// A hash over the ids of a dataset's committed objects, with the last stamp. The default is the
/// version of an empty dataset. The order of versions has no meaning. Stored in 24 bytes: the hash
/// and the stamp, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// The sum of the ids' hashes, modulo 2^128: objects are added in any order.
    sum: u128,
    last: Stamp,
}

impl Version {
    /// Bytes of a stored version.
    pub const LENGTH: usize = 24;

    /// Adds an object not added before.
    pub fn add(&mut self, id: ChunkId, stamp: Stamp) {
        self.sum = self.sum.wrapping_add(xxh3_128(id.as_bytes()));
        self.last = self.last.max(stamp);
    }

    /// The highest stamp; none without objects.
    pub fn last_stamp(self) -> Option<Stamp> {
        (self != Self::default()).then_some(self.last)
    }

    /// The stored bytes.
    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        let (sum, last) = bytes.split_at_mut(16);
        sum.copy_from_slice(&self.sum.to_le_bytes());
        last.copy_from_slice(&self.last.get().to_le_bytes());
        bytes
    }

    /// Decodes the stored bytes.
    ///
    /// # Errors
    /// For any other number of bytes than [`Version::LENGTH`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes, 0);
        let sum = u128::from_le_bytes(cursor.array("version hash")?);
        let last = Stamp::new(cursor.u64("version stamp")?);
        if !cursor.is_empty() {
            return Err(DecodeError::new("version", Self::LENGTH, "bytes follow"));
        }
        Ok(Self { sum, last })
    }
}

/// 32 hexadecimal digits of the hash and, behind a dash, the last stamp.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{}", self.sum, self.last.get())
    }
}

/// A text that is no printed version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a version is 32 hexadecimal digits, a dash and a number")]
pub struct InvalidVersion;

impl FromStr for Version {
    type Err = InvalidVersion;

    fn from_str(text: &str) -> Result<Self, InvalidVersion> {
        let (sum, last) = text.split_once('-').ok_or(InvalidVersion)?;
        let sum = u128::from_str_radix(sum, 16).map_err(|_| InvalidVersion)?;
        let last = Stamp::new(last.parse().map_err(|_| InvalidVersion)?);
        let version = Self { sum, last };
        // Only the canonical text is accepted.
        if version.to_string() == text { Ok(version) } else { Err(InvalidVersion) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(objects: &[(u8, u64)]) -> Version {
        let mut version = Version::default();
        for (id, stamp) in objects {
            version.add(ChunkId::from_bytes([*id; 16]), Stamp::new(*stamp));
        }
        version
    }

    /// Keeps rule 7: the set decides, and all of it.
    #[test]
    fn a_version_is_that_of_a_set_of_objects() {
        assert_eq!(of(&[(1, 5), (2, 9), (3, 7)]), of(&[(3, 7), (1, 5), (2, 9)]));
        assert_ne!(of(&[(1, 5), (2, 9)]), of(&[(1, 5), (3, 9)]));
        assert_ne!(of(&[(1, 5), (2, 9)]), of(&[(1, 5)]));
        assert_ne!(of(&[(1, 5)]), of(&[(1, 6)]));
        assert_eq!(
            (of(&[]).last_stamp(), of(&[(1, 5), (2, 3)]).last_stamp()),
            (None, Some(Stamp::new(5)))
        );
    }

    #[test]
    fn a_version_is_read_back_and_nothing_else_is() {
        let version = of(&[(1, 5), (2, 9)]);
        assert_eq!(Version::from_bytes(&version.to_bytes()).unwrap(), version);
        for bytes in [&[0; 23][..], &[0; 25]] {
            assert!(Version::from_bytes(bytes).is_err());
        }
        assert_eq!(of(&[]).to_string(), format!("{}-0", "0".repeat(32)));
        let text = version.to_string();
        assert_eq!(text.parse(), Ok(version));
        for other in
            [text.to_uppercase(), text.replace('-', "-0"), text.replace('-', "-+"), "-".into()]
        {
            assert_eq!(other.parse::<Version>(), Err(InvalidVersion), "{other}");
        }
    }
}

//! CRC-32C, the checksum of every file and every header section.
//!
//! Must hold: the checksum of two parts combined equals the checksum of their concatenated bytes,
//! however computed.

/// Block size of the copy: with its copy half of a first-level data cache.
const BLOCK: usize = 8_192;

/// Appends bytes to a buffer and returns their CRC-32C: a copy that computes both at once, with
/// processor instructions not used by this crate.
pub type CopyChecked = fn(&[u8], &mut Vec<u8>) -> u32;

/// CRC-32C (Castagnoli) of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Crc32c(u32);

impl Crc32c {
    /// The checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(crc_fast::crc32_iscsi(bytes))
    }

    /// The checksum of `head` followed by `tail`.
    pub(crate) fn of_two(head: &[u8], tail: &[u8]) -> Self {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        digest.update(head);
        digest.update(tail);
        Self::from_wide(digest.finalize())
    }

    /// From the width used by crc-fast for all its checksums.
    fn from_wide(value: u64) -> Self {
        Self(u32::try_from(value).unwrap_or(u32::MAX))
    }

    /// Appends `data` to `copy` and returns its checksum. Block by block, so that large data is
    /// brought into the cache once for both. The copy goes first, because the checksum waits longer
    /// for memory.
    pub(crate) fn of_copied(data: &[u8], copy: &mut Vec<u8>) -> Self {
        if data.len() <= BLOCK {
            let crc = Self::of(data);
            copy.extend_from_slice(data);
            return crc;
        }
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        for block in data.chunks(BLOCK) {
            copy.extend_from_slice(block);
            digest.update(block);
        }
        Self::from_wide(digest.finalize())
    }

    /// A stored checksum.
    pub const fn from_value(value: u32) -> Self {
        Self(value)
    }

    /// The stored number.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The checksum of the bytes of `self` followed by `next_length` bytes with the checksum
    /// `next`.
    #[must_use]
    pub fn then(self, next: Self, next_length: u64) -> Self {
        let combined = crc_fast::checksum_combine(
            crc_fast::CrcAlgorithm::Crc32Iscsi,
            self.0.into(),
            next.0.into(),
            next_length,
        );
        Self::from_wide(combined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_standard_holds() {
        assert_eq!(Crc32c::of(b"123456789").value(), 0xE306_9283);
    }

    #[test]
    fn joined_checksums_equal_the_checksum_of_the_joined_bytes() {
        let bytes: Vec<u8> = (0..10_000u32).map(|n| (n * 31) as u8).collect();
        for cut in [0, 1, 17, 4096, 9_999, 10_000] {
            let (head, tail) = bytes.split_at(cut);
            let joined = Crc32c::of(head).then(Crc32c::of(tail), tail.len() as u64);
            assert_eq!(joined, Crc32c::of(&bytes), "cut at {cut}");
            assert_eq!(Crc32c::of_two(head, tail), joined, "cut at {cut}");
        }
    }

    #[test]
    fn a_copy_made_with_the_checksum_is_whole() {
        for length in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7] {
            let bytes: Vec<u8> = (0..length).map(|n| (n * 31) as u8).collect();
            let mut copy = b"before".to_vec();
            assert_eq!(Crc32c::of_copied(&bytes, &mut copy), Crc32c::of(&bytes), "{length}");
            assert_eq!(copy, [b"before", &bytes[..]].concat(), "{length}");
        }
    }
}

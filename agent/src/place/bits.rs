//! A set of chunks, a bit for each: the form in which agents tell each other what they keep.
//!
//! Must hold: a chunk outside of the set's length is not in the set.

/// The chunks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChunkBits(Vec<u8>);

impl ChunkBits {
    /// None of `chunks` chunks.
    pub fn none(chunks: u32) -> Self {
        Self(vec![0; (chunks as usize).div_ceil(8)])
    }

    /// From the bytes of another agent.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes for another agent.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Whether a chunk is in the set.
    pub fn holds(&self, chunk: u32) -> bool {
        let byte = self.0.get(chunk as usize / 8);
        byte.is_some_and(|byte| byte & (1 << (chunk % 8)) != 0)
    }

    /// Adds a chunk, as far as the set has room for its number.
    pub fn add(&mut self, chunk: u32) {
        let byte = self.0.get_mut(chunk as usize / 8);
        byte.into_iter().for_each(|byte| *byte |= 1 << (chunk % 8));
    }

    /// Removes a chunk.
    pub fn remove(&mut self, chunk: u32) {
        let byte = self.0.get_mut(chunk as usize / 8);
        byte.into_iter().for_each(|byte| *byte &= !(1 << (chunk % 8)));
    }

    /// The chunks.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let bits = self.0.len() as u32 * u8::BITS;
        (0..bits).filter(|chunk| self.holds(*chunk))
    }

    /// The number of chunks.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|byte| u64::from(byte.count_ones())).sum()
    }

    /// Adds the chunks of another set, as far as the set has room.
    pub fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(to, bits)| *to |= bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_keeps_chunks_within_its_length() {
        let mut bits = ChunkBits::none(10);
        [0, 9, 15, 16, u32::MAX].into_iter().for_each(|chunk| bits.add(chunk));
        let held =
            |bits: &ChunkBits| (0..20).filter(|chunk| bits.holds(*chunk)).collect::<Vec<_>>();
        assert_eq!(held(&bits), [0, 9, 15]);
        let mut other = ChunkBits::from_bytes(vec![0b10, 0xff, 0xff]);
        other.remove(8);
        bits.add_all(&other);
        assert_eq!(held(&bits), [0, 1, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(bits.into_bytes(), [0b11, 0xfe]);
    }
}

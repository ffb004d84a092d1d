//! Randomness, as an argument: from the operating system, or repeatable from a seed.
//!
//! Must hold: ids and names that must not repeat are drawn from [`OsRandom`]; a
//! [`SeededRandom`] gives the same numbers for the same seed on every machine.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where randomness comes from. Shared as `Arc<dyn Random>`.
pub trait Random: Debug + Send + Sync + 'static {
    /// Fills `bytes` with random bits.
    fn fill(&self, bytes: &mut [u8]);

    /// A number with 64 random bits.
    fn u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A number in `0.0..1.0`, in steps of 2⁻⁵³: every `f64` it gives is exact.
    fn unit(&self) -> f64 {
        const STEPS: u32 = 53;
        (self.u64() >> (u64::BITS - STEPS)) as f64 / (1_u64 << STEPS) as f64
    }
}

/// The operating system's randomness, fit for ids and keys.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsRandom;

impl Random for OsRandom {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the kernel gives randomness once it has booted");
    }
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
/// Not for ids or keys.
#[derive(Debug)]
pub struct SeededRandom {
    state: AtomicU64,
}

impl SeededRandom {
    /// The same seed gives the same numbers, in the order in which they are drawn.
    pub fn new(seed: u64) -> Self {
        Self { state: AtomicU64::new(seed) }
    }
}

impl Random for SeededRandom {
    fn fill(&self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(size_of::<u64>()) {
            for (byte, drawn) in part.iter_mut().zip(self.u64().to_le_bytes()) {
                *byte = drawn;
            }
        }
    }

    fn u64(&self) -> u64 {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self.state.fetch_add(GOLDEN, Ordering::Relaxed).wrapping_add(GOLDEN);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_numbers_of_its_generator() {
        let random = SeededRandom::new(1_234_567);
        let drawn = [random.u64(), random.u64(), random.u64()];
        assert_eq!(
            drawn,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn filled_bytes_are_the_drawn_numbers_also_at_a_ragged_end() {
        let (numbers, bytes) = (SeededRandom::new(3), SeededRandom::new(3));
        let mut filled = [0; 11];
        bytes.fill(&mut filled);
        assert_eq!(filled[..8], numbers.u64().to_le_bytes());
        assert_eq!(filled[8..], numbers.u64().to_le_bytes()[..3]);
    }
}

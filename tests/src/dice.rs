//! Random choices from one seed, so that a failure can be repeated.
//!
//! Must hold: the same seed gives the same choices.

use dl_runtime::{Random, SeededRandom};

/// A source of choices.
#[derive(Debug)]
pub struct Dice {
    random: SeededRandom,
}

impl Dice {
    /// Draws from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { random: SeededRandom::new(seed) }
    }

    /// A number below `end`, which is not zero.
    pub fn below(&self, end: usize) -> usize {
        (self.random.u64() % end.max(1) as u64) as usize
    }

    /// True once in `times`.
    pub fn once_in(&self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub fn pick<'a, T>(&self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// That many bytes.
    pub fn bytes(&self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.random.fill(&mut bytes);
        bytes
    }

    /// The source itself.
    pub fn random(&self) -> &dyn Random {
        &self.random
    }
}

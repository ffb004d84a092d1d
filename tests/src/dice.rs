//! Random choices from a seed, so that a failure can be repeated.
//!
//! Must hold: equal seeds give equal choices.

use dl_runtime::{Random, SeededRandom};

/// A source of choices.
#[derive(Debug)]
pub struct Dice {
    random: SeededRandom,
}

impl Dice {
    /// A source with this seed.
    pub fn new(seed: u64) -> Self {
        Self { random: SeededRandom::new(seed) }
    }

    /// A number below `end`; `end` is at least 1.
    pub fn below(&self, end: usize) -> usize {
        (self.random.u64() % end.max(1) as u64) as usize
    }

    /// True with probability 1 in `times`.
    pub fn once_in(&self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A random element of a slice.
    pub fn pick<'a, T>(&self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Random bytes.
    pub fn bytes(&self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.random.fill(&mut bytes);
        bytes
    }

    /// The random source.
    pub fn random(&self) -> &dyn Random {
        &self.random
    }
}

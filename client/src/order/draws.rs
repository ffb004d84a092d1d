//! The random numbers of an order: xoshiro256++ (Blackman, Vigna: "Scrambled linear pseudorandom
//! number generators", 2021), with a state from SplitMix64 (Steele, Lea, Flood, 2014).
//!
//! Must hold: the numbers are those of docs/ORDER.md, on every machine and for ever.

/// The use of a generator. No two uses share their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Stream {
    /// The order of the chunks of an epoch.
    Chunks = 0,
    /// The order of the files of a group.
    Files = 1,
}

#[derive(Debug)]
pub(super) struct Draws([u64; 4]);

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

impl Draws {
    /// The numbers of a stream of an epoch; `index` separates the shuffles of a stream.
    pub(super) fn new(seed: u64, epoch: u64, stream: Stream, index: u64) -> Self {
        let key = [seed, epoch, stream as u64, index];
        let mut state =
            key.into_iter().fold(0, |hash: u64, word| mix((hash ^ word).wrapping_add(GOLDEN)));
        Self([(); 4].map(|()| {
            state = state.wrapping_add(GOLDEN);
            mix(state)
        }))
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let drawn = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        drawn
    }

    /// A uniform number below `bound`, which is not 0 (Lemire: "Fast random integer generation in
    /// an interval", 2019).
    fn below(&mut self, bound: u64) -> u64 {
        let mut wide = u128::from(self.next()) * u128::from(bound);
        if (wide as u64) < bound {
            let least = bound.wrapping_neg() % bound;
            while (wide as u64) < least {
                wide = u128::from(self.next()) * u128::from(bound);
            }
        }
        (wide >> 64) as u64
    }

    /// Shuffles from the last place down: each place is exchanged with a random place up to itself.
    pub(super) fn shuffle<T>(mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            values.swap(last, other);
        }
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_numbers() {
        let mut draws = Draws([1, 2, 3, 4]);
        let drawn = [(); 4].map(|()| draws.next());
        assert_eq!(drawn, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn all_permutations_of_four_are_about_equally_frequent() {
        let mut counts = std::collections::BTreeMap::new();
        for index in 0..24_000 {
            let mut values = [0, 1, 2, 3];
            Draws::new(7, 0, Stream::Files, index).shuffle(&mut values);
            *counts.entry(values).or_insert(0_u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        assert!(counts.values().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }

    #[test]
    fn seeds_epochs_streams_and_indexes_all_change_the_numbers() {
        let first = |seed, epoch, stream, index| Draws::new(seed, epoch, stream, index).next();
        let drawn = [
            first(0, 0, Stream::Chunks, 0),
            first(1, 0, Stream::Chunks, 0),
            first(0, 1, Stream::Chunks, 0),
            first(0, 0, Stream::Files, 0),
            first(0, 0, Stream::Chunks, 1),
        ];
        let distinct: std::collections::BTreeSet<_> = drawn.iter().collect();
        assert_eq!(distinct.len(), drawn.len());
    }
}

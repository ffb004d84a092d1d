//! The average result of a full shuffle, with all orders equally likely.
//!
//! Must hold: all numbers are exact except the longest run, which is an approximation.

use std::collections::BTreeMap;

use super::Randomness;

/// The limit of an expected number of runs; rarer runs don't count.
const RARE: f64 = 1e-9;

/// The number of files in each class.
#[derive(Debug)]
pub(super) struct Ideal {
    files: f64,
    /// A class size, with the number of classes of the size.
    sizes: Vec<(f64, f64)>,
}

impl Ideal {
    pub(super) fn new(sizes: &[u32]) -> Self {
        let mut found: BTreeMap<u32, u32> = BTreeMap::new();
        for size in sizes {
            *found.entry(*size).or_default() += 1;
        }
        let files = sizes.iter().map(|size| f64::from(*size)).sum();
        let sizes = found.into_iter().map(|(size, count)| (size.into(), count.into())).collect();
        Self { files, sizes }
    }

    /// For windows of a length, over the first `measured` shuffled files.
    pub(super) fn randomness(&self, window: u32, measured: u64) -> Randomness {
        let measured = measured as f64;
        let same = self.same();
        let length = f64::from(window);
        Randomness {
            moved: self.moved(measured),
            apart: (self.files > 1.0).then_some((self.files + 1.0) / 3.0),
            longest_run: self.longest_run(measured),
            mean_run: measured / (1.0 + (measured - 1.0) * (1.0 - same)),
            classes: self.classes(window),
            effective: length / (1.0 + (length - 1.0) * same),
        }
    }

    /// The probability that two files have the same class.
    fn same(&self) -> f64 {
        let pairs = self.files * (self.files - 1.0);
        let same: f64 = self.sizes.iter().map(|(size, count)| count * size * (size - 1.0)).sum();
        if pairs > 0.0 { same / pairs } else { 0.0 }
    }

    /// Mean distance between place i of the first `measured` and any place of all.
    fn moved(&self, measured: f64) -> f64 {
        let sum = |n: f64| (n - 1.0) * n * (n + 1.0) / 6.0;
        let (all, rest) = (self.files, self.files - measured);
        (sum(measured) + sum(all) - sum(rest)) / (all * measured)
    }

    /// The expected number of classes in a window: for each class, the probability of its presence.
    fn classes(&self, window: u32) -> f64 {
        let present = |size: f64| {
            let absent = (0..window)
                .map(f64::from)
                .map(|drawn| ((self.files - size - drawn) / (self.files - drawn)).max(0.0));
            1.0 - absent.product::<f64>()
        };
        self.sizes.iter().map(|(size, count)| count * present(*size)).sum()
    }

    /// The sum, over all lengths, of the probability of a run of at least the length. The expected
    /// number of such runs is exact. Their probability follows as if runs were independent, or
    /// exclusive if longer than half of the files.
    fn longest_run(&self, measured: f64) -> f64 {
        let classes: f64 = self.sizes.iter().map(|(_, count)| count).sum();
        if classes <= 1.0 {
            return measured;
        }
        // For each size, the probability that the first files all belong to a class of the size.
        let mut probabilities: Vec<f64> =
            self.sizes.iter().map(|(size, _)| size / self.files).collect();
        let (mut expected, mut length) = (1.0, 1.0);
        while length < measured {
            length += 1.0;
            let mut runs = 0.0;
            for ((size, count), probability) in self.sizes.iter().zip(&mut probabilities) {
                *probability *= ((size - length + 1.0) / (self.files - length + 1.0)).max(0.0);
                let starts =
                    1.0 + (measured - length) * (self.files - size) / (self.files - length);
                runs += count * *probability * starts;
            }
            if runs < RARE {
                break;
            }
            expected += if 2.0 * length > measured { runs.min(1.0) } else { 1.0 - (-runs).exp() };
        }
        expected
    }
}

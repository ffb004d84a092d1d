//! The part of a dataset that a task reads: all files, or a set of files.
//!
//! Must hold: memory is at most a bit for each file. The files of a chunk come in the order of
//! their numbers.

use std::ops::Range;

use dl_format::Crc32c;

use super::OrderError;

/// Files per word of the set.
const WORD: u32 = u64::BITS;

/// A set of files of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    files: u32,
    /// A bit for each file; none for all files.
    set: Option<Vec<u64>>,
}

impl Selection {
    /// All of `files` files.
    pub fn all(files: u32) -> Self {
        Self { files, set: None }
    }

    /// A set of numbers among `files` files, in any order, with repeated numbers allowed.
    ///
    /// # Errors
    /// [`OrderError::File`] for a number without a file.
    pub fn of(files: u32, numbers: impl IntoIterator<Item = u32>) -> Result<Self, OrderError> {
        let mut selection =
            Self { files, set: Some(vec![0; (files as usize).div_ceil(WORD as usize)]) };
        for number in numbers {
            if number >= files {
                return Err(OrderError::File { number, files });
            }
            selection.insert(number);
        }
        Ok(selection)
    }

    /// The number of files in the snapshot.
    pub fn files(&self) -> u32 {
        self.files
    }

    /// The name in a resume token: `all`, or the number of files with a checksum of the set.
    pub fn label(&self) -> String {
        let count = self.count(0..self.files);
        let Some(set) = self.set.as_ref().filter(|_| count < self.files) else {
            return "all".to_owned();
        };
        let bits: Vec<u8> = set.iter().flat_map(|word| word.to_le_bytes()).collect();
        let bits = bits.get(..(self.files as usize).div_ceil(8)).unwrap_or_default();
        format!("{count}-{:08x}", Crc32c::of(bits).value())
    }

    /// The beginning and end of each run of selected files; none for all files.
    pub(crate) fn runs(&self, most: usize) -> Result<Option<Vec<(u32, u32)>>, usize> {
        if self.set.is_none() {
            return Ok(None);
        }
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for number in self.numbers(0..self.files) {
            if let Some((_, end)) = runs.last_mut().filter(|(_, end)| *end == number) {
                *end += 1;
            } else if runs.len() == most {
                return Err(most);
            } else {
                runs.push((number, number + 1));
            }
        }
        Ok(Some(runs))
    }

    /// Whether a file is selected.
    pub fn contains(&self, number: u32) -> bool {
        match &self.set {
            None => number < self.files,
            Some(set) => set
                .get((number / WORD) as usize)
                .is_some_and(|word| word & (1 << (number % WORD)) != 0),
        }
    }

    /// The number of selected files in a range.
    pub fn count(&self, range: Range<u32>) -> u32 {
        match &self.set {
            None => range.end.min(self.files).saturating_sub(range.start),
            Some(_) => self.words(range).map(|(_, word)| word.count_ones()).sum(),
        }
    }

    /// The selected files in a range.
    pub fn numbers(&self, range: Range<u32>) -> impl Iterator<Item = u32> + '_ {
        let all = self.set.is_none().then(|| range.start..range.end.min(self.files));
        let some = self.words(range).flat_map(|(first, mut word)| {
            std::iter::from_fn(move || {
                (word != 0).then(|| {
                    let bit = word.trailing_zeros();
                    word &= word - 1;
                    first + bit
                })
            })
        });
        all.into_iter().flatten().chain(some)
    }

    fn insert(&mut self, number: u32) {
        let word = self.set.as_mut().and_then(|set| set.get_mut((number / WORD) as usize));
        if let Some(word) = word {
            *word |= 1 << (number % WORD);
        }
    }

    /// The words of the set in a range, without bits outside of the range, each with the number of
    /// its first file. None for all files.
    fn words(&self, range: Range<u32>) -> impl Iterator<Item = (u32, u64)> + '_ {
        let set = self.set.as_deref().unwrap_or_default();
        let (from, to) = (range.start / WORD, range.end.div_ceil(WORD).max(range.start / WORD));
        let touched = set.get(from as usize..(to as usize).min(set.len())).unwrap_or_default();
        touched.iter().zip(from..).map(move |(word, index)| {
            let first = index * WORD;
            let low = u64::MAX << range.start.saturating_sub(first).min(WORD - 1);
            let beyond = range.end.saturating_sub(first);
            let high = if beyond >= WORD { u64::MAX } else { (1_u64 << beyond) - 1 };
            (first, word & low & high)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_exactly_its_numbers() {
        let numbers = [0_u32, 3, 63, 64, 65, 127, 128, 299];
        let some = Selection::of(300, numbers).unwrap();
        for range in [0..300, 0..0, 3..64, 64..64, 64..65, 65..200, 128..129, 299..300, 40..290] {
            let expected: Vec<u32> =
                numbers.into_iter().filter(|number| range.contains(number)).collect();
            assert_eq!(some.numbers(range.clone()).collect::<Vec<_>>(), expected, "{range:?}");
            assert_eq!(some.count(range.clone()) as usize, expected.len(), "{range:?}");
            assert_eq!(Selection::all(300).numbers(range.clone()).count(), range.len());
            assert_eq!(Selection::all(300).count(range.clone()) as usize, range.len());
        }
        assert!((0..301).all(|number| some.contains(number) == numbers.contains(&number)));
        assert!(Selection::all(300).contains(299) && !Selection::all(300).contains(300));
        assert!(matches!(
            Selection::of(300, [300]),
            Err(OrderError::File { number: 300, files: 300 })
        ));
    }

    #[test]
    fn a_label_has_the_count_and_a_checksum_of_the_set() {
        let some = Selection::of(12, [0, 9, 10]).unwrap();
        assert_eq!(some.label(), format!("3-{:08x}", Crc32c::of(&[0b1, 0b110]).value()));
        let others = [Selection::of(12, [0, 9, 11]), Selection::of(20, [0, 9, 10])];
        assert!(others.iter().all(|other| other.as_ref().unwrap().label() != some.label()));
        assert_eq!(Selection::all(12).label(), "all");
        assert_eq!(Selection::of(12, 0..12).unwrap().label(), "all");
    }
}

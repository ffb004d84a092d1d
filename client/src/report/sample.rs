//! The measured part of an order: its first groups, for any size of groups.
//!
//! Must hold: the files of a group come in the order of a [`Cursor`](crate::order::Cursor).

use std::ops::Range;

use super::classes::Classes;
use super::mix::Tally;
use super::{Randomness, WINDOW, WINDOWS_LEAST};
use crate::order::{Order, Selection};

/// The first of the shuffled chunks.
#[derive(Debug)]
pub(super) struct Sample<'a> {
    order: &'a Order,
    /// For each chunk the place of its first file; at the end the number of files.
    starts: &'a [u64],
    /// For each chunk, the number of selected files in chunks written before.
    written: Vec<u64>,
    classes: &'a Classes,
    window: u32,
    is_all: bool,
}

impl<'a> Sample<'a> {
    pub(super) fn new(
        order: &'a Order,
        selection: &Selection,
        first_files: &[u32],
        (chunks, starts): (&[u32], &'a [u64]),
        classes: &'a Classes,
        window: Option<u32>,
    ) -> Self {
        let mut total = 0;
        let before: Vec<u64> = first_files
            .windows(2)
            .map(|ends| {
                let before = total;
                if let [first, end] = *ends {
                    total += u64::from(selection.count(first..end));
                }
                before
            })
            .collect();
        let written = |chunk: &u32| before.get(*chunk as usize).copied().unwrap_or_default();
        let files = starts.last().copied().unwrap_or(0);
        let most = u32::try_from(files).unwrap_or(u32::MAX);
        let usual = || WINDOW.min((most / WINDOWS_LEAST).max(2));
        let window = window.unwrap_or_else(usual).min(most);
        let is_all = chunks.len() == order.sequence().0.len();
        Self {
            order,
            starts,
            written: chunks.iter().map(written).collect(),
            classes,
            window,
            is_all,
        }
    }

    /// Whether the sample is the whole order.
    pub(super) fn is_all(&self) -> bool {
        self.is_all
    }

    /// Files in a window, at most all files.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    pub(super) fn files(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The randomness with groups of `group` chunks.
    pub(super) fn randomness(&self, group: u32) -> Randomness {
        let mix = self.tally(group).mix();
        let (mut moved, mut files, mut apart, mut pairs) = (0, 0, 0, 0);
        let (mut places, mut indexes): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        for chunks in self.groups(group) {
            let of_group = self.places(chunks.clone());
            let length = (of_group.end - of_group.start) as u32;
            places.clear();
            places.extend(0..length);
            self.order.shuffle_group(of_group.start, &mut places);
            // The index in the reading order, for each place of the group.
            indexes.resize(places.len(), 0);
            for (place, index) in places.iter().zip(0..) {
                if let Some(at) = indexes.get_mut(*place as usize) {
                    *at = index;
                }
            }
            for chunk in chunks {
                let of_chunk = self.places(chunk..chunk + 1);
                let [from, to] =
                    [of_chunk.start, of_chunk.end].map(|at| (at - of_group.start) as usize);
                let indexes = indexes.get(from..to).unwrap_or_default();
                let written = self.written.get(chunk).copied().unwrap_or_default();
                for (index, written) in indexes.iter().zip(written..) {
                    moved += (of_group.start + u64::from(*index)).abs_diff(written);
                }
                for two in indexes.windows(2) {
                    if let [one, other] = *two {
                        apart += u64::from(one.abs_diff(other));
                        pairs += 1;
                    }
                }
            }
            files += u64::from(length);
        }
        let mean = |sum: u64, count: u64| sum as f64 / count as f64;
        Randomness {
            moved: mean(moved, files),
            apart: (pairs > 0).then(|| mean(apart, pairs)),
            ..mix
        }
    }

    pub(super) fn effective(&self, group: u32) -> f64 {
        self.tally(group).mix().effective
    }

    fn tally(&self, group: u32) -> Tally {
        let mut tally = Tally::new(self.classes.sizes().len(), self.window as usize);
        let mut files = Vec::new();
        for chunks in self.groups(group) {
            let places = self.places(chunks);
            files.clear();
            files.extend_from_slice(self.classes.on(places.clone()));
            self.order.shuffle_group(places.start, &mut files);
            files.iter().for_each(|class| tally.push(*class));
        }
        tally
    }

    /// The chunks of each group, without a group that extends beyond the sample.
    fn groups(&self, group: u32) -> impl Iterator<Item = Range<usize>> + '_ {
        let (chunks, group) = (self.written.len(), group as usize);
        let groups =
            (0..chunks).step_by(group).map(move |first| first..first.saturating_add(group));
        groups.filter_map(move |group| match group.end <= chunks {
            true => Some(group),
            false => self.is_all.then_some(group.start..chunks),
        })
    }

    fn places(&self, chunks: Range<usize>) -> Range<u64> {
        let start = |chunk: usize| self.starts.get(chunk).copied().unwrap_or_default();
        start(chunks.start)..start(chunks.end)
    }
}

//! How random the order of an epoch is for a dataset: what a reader gets beside what a full shuffle
//! of the same files would give.
//!
//! Must hold: measured on the order itself, not guessed from its settings; memory and time go with
//! the files that are measured, and how many these were is said.

mod classes;
mod ideal;
mod mix;
mod sample;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use crate::error::{Error, Kind};
use crate::order::{DEFAULT_GROUP, Order, OrderSettings, Selection};
use crate::snapshot::Snapshot;
use classes::Classes;
use ideal::Ideal;
use sample::Sample;

/// Files of a window, unless somebody says otherwise, and windows that there are at least.
const WINDOW: u32 = 256;
const WINDOWS_LEAST: u32 = 8;

/// What is to be measured.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportOptions {
    /// Of the order.
    pub seed: u64,
    /// Of the order.
    pub epoch: u64,
    /// Chunks whose files are shuffled together, at least 1.
    pub group: u32,
    /// Files in a row that are looked at together, such as a batch; at least 1. None: 256, or an
    /// eighth of the files where that is less, as the classes of a few large windows are those of
    /// the dataset, however they come.
    pub window: Option<u32>,
    /// What the advised group reaches of a full shuffle's [`Randomness::effective`]: above 0, at
    /// most 1.
    pub share: f64,
    /// How many folders of a path, from the root, name the class of a file; none: all of them.
    pub class_depth: Option<u32>,
    /// Files of the order, from its beginning, that are measured at most. Chunks are taken whole,
    /// and one group at least.
    pub files_max: u32,
}

impl Default for ReportOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            epoch: 0,
            group: DEFAULT_GROUP,
            window: None,
            share: 0.9,
            class_depth: None,
            files_max: 1 << 24,
        }
    }
}

/// How far files move, and how well mixed the classes are that are read one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Randomness {
    /// Files between where a file was written and where it is read, on average.
    pub moved: f64,
    /// Files between two files that were written next to each other into one chunk, on average, once
    /// they are read; none when every chunk holds one file.
    pub apart: Option<f64>,
    /// Most files of one class in a row.
    pub longest_run: f64,
    /// Files of one class in a row, on average.
    pub mean_run: f64,
    /// Classes among the files of a window, on average.
    pub classes: f64,
    /// What these are worth: so many classes, all of them equally frequent, vary as much (the
    /// inverse of the mean Simpson index of the windows).
    pub effective: f64,
}

/// What a reader of whole chunks holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupBytes {
    /// Bytes of the largest group.
    pub one: u64,
    /// Bytes of two groups that follow each other, at most: one is read, the next one fetched.
    pub two: u64,
}

/// The smallest group found that reaches the share that was asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Advice {
    /// Chunks.
    pub group: u32,
    /// What it reaches.
    pub share: f64,
    /// What it takes.
    pub bytes: GroupBytes,
}

/// How random an order is.
#[derive(Debug, Clone, PartialEq)]
pub struct ShuffleReport {
    /// What was asked for.
    pub options: ReportOptions,
    /// Files of the selection.
    pub files: u32,
    /// Chunks that hold them.
    pub chunks: u32,
    /// Classes of these files: the folders that hold them, or as deep as was asked for.
    pub classes: u32,
    /// Files of the order, from its beginning, that were measured.
    pub measured: u32,
    /// Files in a row that were looked at together.
    pub window: u32,
    /// With groups of one chunk: shows how the files were written, as each chunk is read by itself.
    pub chunk_by_chunk: Randomness,
    /// With the groups that were asked for.
    pub order: Randomness,
    /// What a full shuffle gives on average. The longest run is an approximation.
    pub full: Randomness,
    /// Memory for the groups that were asked for.
    pub bytes: GroupBytes,
    /// None when no group among the measured files reaches that share, or there is one class.
    pub advice: Option<Advice>,
}

impl ShuffleReport {
    /// Measures the order that one rank reads by itself. Of several nodes in the local partition
    /// each reads a stretch of it.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for options that no order has and for a selection without files,
    /// [`Kind::Corrupt`] for a snapshot whose chunks don't hold each file once, and those of
    /// [`Snapshot::number`].
    pub fn of(
        snapshot: &Snapshot,
        selection: Arc<Selection>,
        options: ReportOptions,
    ) -> Result<Self, Error> {
        let invalid = |why: &str| Error::new(Kind::Invalid, "report on", "the order", why);
        if options.window == Some(0) || !(options.share > 0.0 && options.share <= 1.0) {
            return Err(invalid(
                "a window has at least one file, and the share is above 0, at most 1",
            ));
        }
        let files = selection.count(0..snapshot.files());
        if files == 0 {
            return Err(invalid("there are no files"));
        }
        let settings = OrderSettings::new(options.seed, options.epoch, options.group);
        let first_files = snapshot.first_files()?;
        let order = Order::new(Arc::clone(&first_files), Arc::clone(&selection), settings);
        let order = order.map_err(|why| Error::new(why.kind(), "report on", "the order", why))?;
        let (chunks, starts) = order.sequence();
        let measured = Self::measured_chunks(starts, &options);
        let (measured_chunks, measured_starts) = (
            chunks.get(..measured).unwrap_or_default(),
            starts.get(..=measured).unwrap_or_default(),
        );
        let depth = options.class_depth;
        let classes = Classes::of(
            snapshot,
            &selection,
            &first_files,
            (measured_chunks, measured_starts),
            depth,
        )?;
        let bytes = measured_chunks.iter().map(|chunk| {
            let [first, end] = [0, 1]
                .map(|step| first_files.get(*chunk as usize + step).copied().unwrap_or_default());
            snapshot.chunk_bytes(*chunk, first..end)
        });
        let bytes: Vec<u64> = bytes.collect::<Result<_, _>>()?;
        let sample = Sample::new(
            &order,
            &selection,
            &first_files,
            (measured_chunks, measured_starts),
            &classes,
            options.window,
        );
        let full = Ideal::new(classes.sizes()).randomness(sample.window(), sample.files());
        Ok(Self {
            files,
            chunks: chunks.len() as u32,
            classes: classes.sizes().len() as u32,
            measured: sample.files() as u32,
            window: sample.window(),
            chunk_by_chunk: sample.randomness(1),
            order: sample.randomness(options.group),
            bytes: group_bytes(&bytes, options.group),
            advice: match classes.sizes().len() {
                0 | 1 => None,
                _ => advise(&sample, &bytes, full.effective, options.share),
            },
            full,
            options,
        })
    }

    /// How many chunks of the sequence are measured: whole groups, unless it is all of them.
    fn measured_chunks(starts: &[u64], options: &ReportOptions) -> usize {
        let chunks = starts.len().saturating_sub(1);
        let enough = starts.partition_point(|start| *start < u64::from(options.files_max));
        enough.max(1).next_multiple_of(options.group as usize).min(chunks)
    }

    /// What the order reaches of a full shuffle's [`Randomness::effective`]; none for files of one
    /// class, of whose mix nothing is known.
    pub fn share(&self) -> Option<f64> {
        (self.classes > 1).then(|| self.order.effective / self.full.effective)
    }

    /// Whether files of one class were written together, and the groups are too small to make up
    /// for it: the order doesn't reach the share that was asked for. One group of all chunks is a
    /// full shuffle.
    pub fn is_too_small(&self) -> bool {
        let is_full = self.options.group >= self.chunks;
        !is_full && self.share().is_some_and(|share| share < self.options.share)
    }
}

/// Looks for the smallest group by halving: what a group reaches grows with it, but for chance.
fn advise(sample: &Sample<'_>, bytes: &[u64], full: f64, share: f64) -> Option<Advice> {
    let reached = |group: usize| sample.effective(group as u32) / full;
    let (mut below, mut enough) = (0, bytes.len());
    let mut best = reached(enough);
    // By chance a full shuffle of few files reaches less.
    if best < share && !sample.is_all() {
        return None;
    }
    while enough - below > 1 {
        let middle = below.midpoint(enough);
        let found = reached(middle);
        if found < share {
            below = middle;
        } else {
            (enough, best) = (middle, found);
        }
    }
    let group = enough as u32;
    Some(Advice { group, share: best, bytes: group_bytes(bytes, group) })
}

/// Memory for groups of so many of these chunks.
fn group_bytes(bytes: &[u64], group: u32) -> GroupBytes {
    let groups: Vec<u64> = bytes.chunks(group as usize).map(|group| group.iter().sum()).collect();
    let two = groups.windows(2).map(|two| two.iter().sum()).max();
    let one = groups.iter().copied().max().unwrap_or(0);
    GroupBytes { one, two: two.unwrap_or(one) }
}

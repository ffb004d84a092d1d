//! Measures the randomness of an epoch's order for a dataset, beside a full shuffle of the same
//! files.
//!
//! Must hold: the measurement uses the order itself, not a guess from its settings. Memory and time
//! grow with the measured files, and the report has their number.

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

/// The default number of files in a window, and the minimum number of windows.
const WINDOW: u32 = 256;
const WINDOWS_LEAST: u32 = 8;

/// The settings of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportOptions {
    /// The seed of the order.
    pub seed: u64,
    /// The epoch of the order.
    pub epoch: u64,
    /// Chunks whose files are shuffled together, at least 1.
    pub group: u32,
    /// Consecutive files of a window, such as a batch; at least 1. None: 256, or an eighth of the
    /// files if less. A few large windows would hold the classes of the whole dataset in any order.
    pub window: Option<u32>,
    /// The share of a full shuffle's [`Randomness::effective`] that the advised group must reach:
    /// above 0, at most 1.
    pub share: f64,
    /// The number of folders in a path, from the root, that name the class of a file; none: all
    /// folders.
    pub class_depth: Option<u32>,
    /// Measured files from the beginning of the order, at most. Chunks count whole, and at least a
    /// whole group is measured.
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

/// The movement of files, and the mixture of classes among consecutive files.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Randomness {
    /// The distance between the written place of a file and its read place, on average, in files.
    pub moved: f64,
    /// The read distance of two files written side by side in a chunk, on average, in files. None
    /// if every chunk holds a single file.
    pub apart: Option<f64>,
    /// The longest run of files of the same class.
    pub longest_run: f64,
    /// The mean length of runs of files of the same class.
    pub mean_run: f64,
    /// The number of classes in a window, on average.
    pub classes: f64,
    /// The effective number of classes: as many equally frequent classes vary as much (the inverse
    /// of the mean Simpson index of the windows).
    pub effective: f64,
}

/// The memory of a reader of whole chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupBytes {
    /// Bytes of the largest group.
    pub one: u64,
    /// Bytes of two consecutive groups, at most: the reader's group and the next group in fetching.
    pub two: u64,
}

/// The smallest group found that reaches the requested share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Advice {
    /// Chunks in the group.
    pub group: u32,
    /// The share that the group reaches.
    pub share: f64,
    /// The memory for the group.
    pub bytes: GroupBytes,
}

/// The randomness of an order.
#[derive(Debug, Clone, PartialEq)]
pub struct ShuffleReport {
    /// The settings of the measurement.
    pub options: ReportOptions,
    /// Files of the selection.
    pub files: u32,
    /// Chunks with these files.
    pub chunks: u32,
    /// Classes of these files: their folders, down to the requested depth.
    pub classes: u32,
    /// Measured files, from the beginning of the order.
    pub measured: u32,
    /// Consecutive files of a window.
    pub window: u32,
    /// With groups of a single chunk, which shows the written order of the files.
    pub chunk_by_chunk: Randomness,
    /// With the requested groups.
    pub order: Randomness,
    /// A full shuffle, on average. The longest run is an approximation.
    pub full: Randomness,
    /// Memory for the requested groups.
    pub bytes: GroupBytes,
    /// None if no group among the measured files reaches the share, or if there is a single class.
    pub advice: Option<Advice>,
}

impl ShuffleReport {
    /// Measures the order of a task with a single rank. In the local partition, each node reads a
    /// stretch of the order.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for invalid options and for a selection without files, [`Kind::Corrupt`]
    /// for a snapshot whose chunks don't hold each file once. Otherwise as for
    /// [`Snapshot::number`].
    pub fn of(
        snapshot: &Snapshot,
        selection: Arc<Selection>,
        options: ReportOptions,
    ) -> Result<Self, Error> {
        let files = checked(snapshot, &selection, &options)?;
        let settings = OrderSettings::new(options.seed, options.epoch, options.group);
        let first_files = snapshot.first_files()?;
        let order = Order::new(Arc::clone(&first_files), Arc::clone(&selection), settings);
        let order = order.map_err(|why| Error::new(why.kind(), "report on", "the order", why))?;
        let (chunks, starts) = order.sequence();
        let measured = measured_chunks(starts, &options);
        let sequence = (
            chunks.get(..measured).unwrap_or_default(),
            starts.get(..=measured).unwrap_or_default(),
        );
        let depth = options.class_depth;
        let classes = Classes::of(snapshot, &selection, &first_files, sequence, depth)?;
        let bytes = chunk_bytes(snapshot, &first_files, sequence.0)?;
        let sample =
            Sample::new(&order, &selection, &first_files, sequence, &classes, options.window);
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

    /// The part of a full shuffle's [`Randomness::effective`] that the order reaches; none for
    /// files of a single class.
    pub fn share(&self) -> Option<f64> {
        (self.classes > 1).then(|| self.order.effective / self.full.effective)
    }

    /// Whether the groups are too small for files written class by class: the order doesn't reach
    /// the requested share. A single group of all chunks is a full shuffle.
    pub fn is_too_small(&self) -> bool {
        let is_full = self.options.group >= self.chunks;
        !is_full && self.share().is_some_and(|share| share < self.options.share)
    }
}

/// Checks the options; gives the number of selected files.
fn checked(
    snapshot: &Snapshot,
    selection: &Selection,
    options: &ReportOptions,
) -> Result<u32, Error> {
    let invalid = |why: &str| Error::new(Kind::Invalid, "report on", "the order", why);
    if options.window == Some(0) || !(options.share > 0.0 && options.share <= 1.0) {
        return Err(invalid("a window has at least one file, and the share is above 0, at most 1"));
    }
    match selection.count(0..snapshot.files()) {
        0 => Err(invalid("there are no files")),
        files => Ok(files),
    }
}

/// The number of chunks of the sequence to measure: whole groups, or all chunks.
fn measured_chunks(starts: &[u64], options: &ReportOptions) -> usize {
    let chunks = starts.len().saturating_sub(1);
    let enough = starts.partition_point(|start| *start < u64::from(options.files_max));
    enough.max(1).next_multiple_of(options.group as usize).min(chunks)
}

fn chunk_bytes(
    snapshot: &Snapshot,
    first_files: &[u32],
    chunks: &[u32],
) -> Result<Vec<u64>, Error> {
    let bytes = chunks.iter().map(|chunk| {
        let [first, end] =
            [0, 1].map(|step| first_files.get(*chunk as usize + step).copied().unwrap_or_default());
        snapshot.chunk_bytes(*chunk, first..end)
    });
    bytes.collect()
}

/// Finds the smallest sufficient group by bisection: the share of a group grows with its size,
/// apart from chance.
fn advise(sample: &Sample<'_>, bytes: &[u64], full: f64, share: f64) -> Option<Advice> {
    let reached = |group: usize| sample.effective(group as u32) / full;
    let (mut below, mut enough) = (0, bytes.len());
    let mut best = reached(enough);
    // By chance, a full shuffle of few files may reach less.
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

/// Memory for groups of `group` chunks.
fn group_bytes(bytes: &[u64], group: u32) -> GroupBytes {
    let groups: Vec<u64> = bytes.chunks(group as usize).map(|group| group.iter().sum()).collect();
    let two = groups.windows(2).map(|two| two.iter().sum()).max();
    let one = groups.iter().copied().max().unwrap_or(0);
    GroupBytes { one, two: two.unwrap_or(one) }
}

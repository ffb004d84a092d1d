//! The order in which a task reads its files in an epoch (paper, 4.3), exactly as in docs/ORDER.md:
//! chunks are shuffled and cut into groups, and the files of each group are shuffled.
//!
//! Must hold: the order is a pure function of the chunks' file counts, the selection, the settings
//! and the resume token, on every machine and for ever. Memory holds the files of a single group. A
//! seek costs the set-up of a single group.

mod cursor;
mod draws;
mod plan;
mod selection;
mod spans;
#[cfg(test)]
mod tests;
mod token;
mod worker;

use std::ops::Range;
use std::sync::Arc;

use crate::error::Kind;
pub use cursor::Cursor;
use draws::{Draws, Stream};
pub use plan::ChunkPlan;
pub use selection::Selection;
use spans::{Intervals, stretch};
pub use token::{InvalidToken, ResumeToken, Stage};
pub use worker::Worker;

/// The version of docs/ORDER.md.
pub const ORDER_VERSION: u32 = 1;

/// The default number of chunks whose files are shuffled together; docs/SHUFFLING.md has the
/// evidence.
pub const DEFAULT_GROUP: u32 = 100;

/// The maximum number of ranks, and of nodes, in a task.
pub const RANKS_MAX: u32 = 1 << 20;

/// The limit for repeated resumption of an epoch: the earlier stages, times all their stretches and
/// skips. Memory holds at most as many intervals, of 24 bytes each.
const PIECES_MAX: u64 = 1 << 22;

/// The division of an epoch's files among the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partition {
    /// A single sequence, dealt to the ranks file by file. Global batches do not depend on the
    /// number of ranks. Every rank reads from every group.
    Global,
    /// A stretch of the shuffled chunks for each node, dealt to the ranks of the node. Two nodes
    /// share only the chunks at the ends of stretches. Ranks of a node have neighbouring numbers.
    Local {
        /// Divides the number of ranks.
        nodes: u32,
    },
}

/// The treatment of files left over by an equal division.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tail {
    /// Leave out the files in the epoch: fewer files than ranks.
    #[default]
    Drop,
    /// Read a few files twice, so no file is left out: fewer files than ranks.
    Pad,
}

/// The settings of an order, beside the dataset and the selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderSettings {
    /// The number of the task.
    pub seed: u64,
    /// Counted from 0; each epoch has another order.
    pub epoch: u64,
    /// Chunks whose files are shuffled together.
    pub group: u32,
    /// Ranks of the task, at most [`RANKS_MAX`].
    pub world: u32,
    /// The division of the files among the ranks.
    pub partition: Partition,
    /// The treatment of left-over files. All ranks have the same number of files.
    pub tail: Tail,
}

impl OrderSettings {
    /// For a single process with all files.
    pub fn new(seed: u64, epoch: u64, group: u32) -> Self {
        Self { seed, epoch, group, world: 1, partition: Partition::Global, tail: Tail::Drop }
    }

    /// The number of stretches of the sequence.
    fn nodes(&self) -> u32 {
        match self.partition {
            Partition::Global => 1,
            Partition::Local { nodes } => nodes,
        }
    }

    /// The number of ranks for each stretch.
    fn ranks_of_a_node(&self) -> u32 {
        self.world / self.nodes()
    }

    fn check(&self) -> Result<(), OrderError> {
        if self.group == 0 {
            return Err(OrderError::Group);
        }
        let nodes = self.nodes();
        if self.world == 0 || nodes == 0 || !self.world.is_multiple_of(nodes) {
            return Err(OrderError::World { world: self.world, nodes });
        }
        if self.world > RANKS_MAX {
            return Err(OrderError::Ranks(self.world));
        }
        Ok(())
    }
}

/// The cause of an invalid order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// A group of no chunks.
    #[error("a group has at least one chunk")]
    Group,
    /// Ranks that can't be spread over the nodes.
    #[error("{world} ranks can't be spread evenly over {nodes} nodes")]
    World {
        /// Ranks asked for.
        world: u32,
        /// Nodes asked for.
        nodes: u32,
    },
    /// Too many ranks.
    #[error("{0} ranks are too many: an order has {RANKS_MAX} at most")]
    Ranks(u32),
    /// An unknown rank.
    #[error("no rank {rank} among {world} ranks, counted from 0")]
    Rank {
        /// The rank.
        rank: u32,
        /// The number of ranks.
        world: u32,
    },
    /// An unknown worker, or an empty batch.
    #[error("no worker {number} among {workers}, counted from 0, with batches of {batch} files")]
    Worker {
        /// The worker.
        number: u32,
        /// The number of workers.
        workers: u32,
        /// Files in a batch.
        batch: u32,
    },
    /// A selected file missing in the snapshot.
    #[error("no file {number} among {files} files, counted from 0")]
    File {
        /// The selected number.
        number: u32,
        /// The number of files.
        files: u32,
    },
    /// A selection for another number of files.
    #[error("the selection is for {selected} files, and the snapshot has {files}")]
    Files {
        /// The number of files that the selection was made for.
        selected: u32,
        /// The number of files in the snapshot.
        files: u32,
    },
    /// Files in no chunk, or in two.
    #[error("the snapshot is damaged: the files of chunk {chunk} don't follow the files before")]
    Chunks {
        /// Counted from 0; the number of chunks for the end of the last chunk.
        chunk: usize,
    },
    /// An epoch resumed too often, with too many nodes.
    #[error(
        "the epoch was resumed with too many different numbers of nodes ({stages}, up to {nodes} nodes); begin the epoch again"
    )]
    Stages {
        /// The number of different node counts.
        stages: usize,
        /// The largest node count.
        nodes: u32,
    },
}

impl OrderError {
    /// The kind of error.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Chunks { .. } => Kind::Corrupt,
            Self::Group
            | Self::World { .. }
            | Self::Ranks(_)
            | Self::Rank { .. }
            | Self::Worker { .. }
            | Self::File { .. }
            | Self::Files { .. }
            | Self::Stages { .. } => Kind::Invalid,
        }
    }
}

/// The order of one epoch, for all of its ranks.
#[derive(Debug)]
pub struct Order {
    /// For each chunk the number of its first file; at the end the number of files.
    first_files: Arc<[u32]>,
    selection: Arc<Selection>,
    settings: OrderSettings,
    /// The chunks with selected files, shuffled.
    chunks: Vec<u32>,
    /// For each of these chunks the place of its first file among all selected files, in shuffled
    /// order; at the end the number of selected files.
    starts: Vec<u64>,
    /// The stages with earlier numbers of nodes, and the places left by them.
    earlier: Vec<Stage>,
    shared: Intervals,
    /// The reads of the current number of nodes.
    stage: Stage,
    /// Files left for each rank.
    length: u64,
}

impl Order {
    /// The order of an epoch from its beginning. `first_files` holds for each chunk the number of
    /// its first file; at the end the number of files.
    ///
    /// # Errors
    /// [`OrderError`] for invalid settings or files.
    pub fn new(
        first_files: Arc<[u32]>,
        selection: Arc<Selection>,
        settings: OrderSettings,
    ) -> Result<Self, OrderError> {
        Self::resumed(first_files, selection, settings, &[])
    }

    /// The rest of an epoch after `stages`. The task may have other numbers of ranks and nodes than
    /// before.
    ///
    /// # Errors
    /// As for [`Order::new`].
    pub fn resumed(
        first_files: Arc<[u32]>,
        selection: Arc<Selection>,
        settings: OrderSettings,
        stages: &[Stage],
    ) -> Result<Self, OrderError> {
        settings.check()?;
        let files = first_files.last().copied().unwrap_or(0);
        check_chunks(&first_files)?;
        if selection.files() != files {
            return Err(OrderError::Files { selected: selection.files(), files });
        }
        let mut chunks: Vec<(u32, u32)> = (0..)
            .zip(first_files.windows(2))
            .filter_map(|(chunk, ends)| match *ends {
                [first, end] => Some((chunk, selection.count(first..end))),
                _ => None,
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        Draws::new(settings.seed, settings.epoch, Stream::Chunks, 0).shuffle(&mut chunks);
        let mut starts = Vec::with_capacity(chunks.len() + 1);
        let mut total = 0;
        for (_, count) in &chunks {
            starts.push(total);
            total += u64::from(*count);
        }
        starts.push(total);
        let chunks = chunks.into_iter().map(|(chunk, _)| chunk).collect();
        let mut earlier = stages.to_vec();
        let stage = earlier.pop_if(|stage| stage.nodes() == settings.nodes());
        let stage = stage.unwrap_or_else(|| Stage::new(settings.nodes()));
        check_stages(&earlier)?;
        let all = Intervals::from_iter(std::iter::once(0..total));
        let shared = earlier.iter().fold(all, |shared, stage| stage.left_of(&shared));
        let length = length(shared.length(), &stage, &settings);
        Ok(Self {
            first_files,
            selection,
            settings,
            chunks,
            starts,
            earlier,
            shared,
            stage,
            length,
        })
    }

    /// The places of a rank.
    fn stride(&self, rank: u32) -> Stride {
        let (nodes, ranks) = (self.stage.nodes(), self.settings.ranks_of_a_node());
        let passed = u128::from(self.stage.passed());
        let share = |node| self.stage.share(&self.shared, node, 0);
        let own: Intervals = share(rank / ranks).collect();
        let (places, first, step) = if own.length() > 0 || self.length == 0 {
            (own, passed + u128::from(rank % ranks), ranks)
        } else {
            // A rank without places pads as if there were a single node.
            let all = (0..nodes).flat_map(share).collect();
            (all, passed * u128::from(nodes) + u128::from(rank), self.settings.world)
        };
        let first = (first % u128::from(places.length().max(1))) as u64;
        Stride { places, first, step: step.into() }
    }

    /// Files left for each rank.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The settings of the order.
    pub fn settings(&self) -> &OrderSettings {
        &self.settings
    }

    /// The selected files.
    pub(crate) fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Whether the order is the rest of an epoch.
    pub(crate) fn is_resumed(&self) -> bool {
        !self.earlier.is_empty() || self.stage.passed() > 0
    }

    /// The stages of the task after each rank has read `read` files.
    pub fn stages_after(&self, read: u64) -> Vec<Stage> {
        let mut stage = self.stage.clone();
        stage.advance(read.saturating_mul(self.settings.ranks_of_a_node().into()));
        self.earlier.iter().cloned().chain([stage]).collect()
    }

    /// The group with a place: its range of places, and its range of shuffled chunks.
    fn group_at(&self, place: u64) -> Group {
        let total = self.starts.last().copied().unwrap_or(0).max(1);
        let nodes = self.earlier.first().unwrap_or(&self.stage).nodes();
        let mut node = (u128::from(place) * u128::from(nodes) / u128::from(total)) as u32;
        while stretch(total, nodes, node).end <= place {
            node += 1;
        }
        let Range { start: from, end: to } = stretch(total, nodes, node);
        let (first, piece) = (self.piece_at(from), self.piece_at(place));
        let group = self.settings.group as usize;
        let start = first + (piece - first) / group * group;
        let end = start.saturating_add(group).min(self.piece_at(to - 1) + 1);
        let start_of = |piece: usize| self.starts.get(piece).copied().unwrap_or(total);
        Group { pieces: start..end, places: start_of(start).max(from)..start_of(end).min(to) }
    }

    /// The index of the shuffled chunk with a place.
    fn piece_at(&self, place: u64) -> usize {
        self.starts.partition_point(|start| *start <= place).saturating_sub(1)
    }

    /// The chunks of a group, in order, each with its places in the group.
    fn pieces(&self, group: &Group) -> impl Iterator<Item = (u32, Range<u64>)> + '_ {
        let Group { pieces, places } = group.clone();
        let chunks = self.chunks.get(pieces.clone()).unwrap_or_default().iter();
        let ends = self.starts.get(pieces.start..).unwrap_or_default().windows(2);
        chunks.zip(ends).filter_map(move |(chunk, ends)| match *ends {
            [start, end] => Some((*chunk, start.max(places.start)..end.min(places.end))),
            _ => None,
        })
    }

    /// Fills `files` with the shuffled files of a group.
    fn fill(&self, group: &Group, files: &mut Vec<u32>) {
        files.clear();
        for (piece, (chunk, places)) in group.pieces.clone().zip(self.pieces(group)) {
            let chunk = chunk as usize;
            let [first, end] = [chunk, chunk + 1]
                .map(|index| self.first_files.get(index).copied().unwrap_or_default());
            let start = self.starts.get(piece).copied().unwrap_or_default();
            let numbers = self.selection.numbers(first..end);
            let skipped = (places.start - start) as usize;
            files.extend(numbers.skip(skipped).take((places.end - places.start) as usize));
        }
        self.shuffle_group(group.places.start, files);
    }

    /// Shuffles the values on the places of a group, by its first place.
    pub(crate) fn shuffle_group<T>(&self, first_place: u64, values: &mut [T]) {
        let OrderSettings { seed, epoch, .. } = self.settings;
        Draws::new(seed, epoch, Stream::Files, first_place).shuffle(values);
    }

    /// The shuffled chunks with selected files, and for each chunk the place of its first file; at
    /// the end the number of selected files.
    pub(crate) fn sequence(&self) -> (&[u32], &[u64]) {
        (&self.chunks, &self.starts)
    }
}

/// Chunks whose files are shuffled together.
#[derive(Debug, Clone)]
struct Group {
    pieces: Range<usize>,
    places: Range<u64>,
}

/// The places of a rank: every `step`-th of `places`, from `first` on, with wrap-around.
#[derive(Debug, Clone)]
struct Stride {
    places: Intervals,
    first: u64,
    step: u64,
}

/// Files left for each rank, with `shared` places for all nodes.
fn length(shared: u64, stage: &Stage, settings: &OrderSettings) -> u64 {
    let (nodes, ranks) = (u64::from(stage.nodes()), u64::from(settings.ranks_of_a_node()));
    let left = |stretch| stage.kept_of(stretch).saturating_sub(stage.passed());
    match settings.tail {
        Tail::Drop => left(shared / nodes) / ranks,
        Tail::Pad => left(shared.div_ceil(nodes)).div_ceil(ranks),
    }
}

/// Checks for files in no chunk or in two.
fn check_chunks(first_files: &[u32]) -> Result<(), OrderError> {
    let before = std::iter::once(&0).chain(first_files);
    let mut both = first_files.iter().zip(before).enumerate();
    let wrong =
        both.find(|(chunk, (first, before))| first < before || (*chunk == 0 && **first > 0));
    wrong.map_or(Ok(()), |(chunk, _)| Err(OrderError::Chunks { chunk }))
}

/// Checks the stages against [`PIECES_MAX`].
fn check_stages(earlier: &[Stage]) -> Result<(), OrderError> {
    let pieces = |stage: &Stage| u64::from(stage.nodes()) * (stage.skips().len() as u64 + 1);
    let pieces: u64 = earlier.iter().map(pieces).sum();
    let nodes = || earlier.iter().map(Stage::nodes);
    let is_possible = nodes().all(|nodes| (1..=RANKS_MAX).contains(&nodes));
    match pieces.saturating_mul(earlier.len() as u64) <= PIECES_MAX && is_possible {
        true => Ok(()),
        false => {
            let nodes = nodes().max().unwrap_or_default();
            Err(OrderError::Stages { stages: earlier.len(), nodes })
        }
    }
}

//! The order in which a task reads its files in one epoch (paper, 4.3), exactly as docs/ORDER.md
//! says it: chunks are shuffled, cut into groups, and the files of each group are shuffled.
//!
//! Must hold: a pure function of the chunks' file counts, the selection, the settings and the
//! resume token; the same on every machine and for ever. Memory is that of one group, and reaching
//! any position costs the set-up of one group.

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

/// The version of docs/ORDER.md that this is.
pub const ORDER_VERSION: u32 = 1;

/// Chunks whose files are shuffled together, unless somebody says otherwise: docs/SHUFFLING.md has
/// the evidence for it.
pub const DEFAULT_GROUP: u32 = 100;

/// Most ranks of a task, and most nodes.
pub const RANKS_MAX: u32 = 1 << 20;

/// How much an epoch may have been gone on with: stages before the last one, times the stretches
/// and skips of all of these. So many intervals, of 24 bytes each, are in memory at most.
const PIECES_MAX: u64 = 1 << 22;

/// How a task shares the files of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partition {
    /// One sequence, dealt out to the ranks one file after the other: the same global batches for
    /// every number of ranks. Every rank reads from every group.
    Global,
    /// A stretch of the shuffled chunks for each node, dealt out to that node's ranks: only chunks
    /// at the ends of stretches are read by two nodes. Ranks of one node have neighbouring numbers.
    Local {
        /// Divides the number of ranks.
        nodes: u32,
    },
}

/// What becomes of files that can't be shared equally.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tail {
    /// They are left out of this epoch: fewer than there are ranks.
    #[default]
    Drop,
    /// Some files are read again, so that none is left out: fewer than there are ranks.
    Pad,
}

/// What decides an order, beside the dataset and the selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderSettings {
    /// The task's own number.
    pub seed: u64,
    /// Counted from 0; each one has another order.
    pub epoch: u64,
    /// Chunks whose files are shuffled together.
    pub group: u32,
    /// Ranks of the task, at most [`RANKS_MAX`].
    pub world: u32,
    /// How they share the files.
    pub partition: Partition,
    /// So that each rank has the same number of files.
    pub tail: Tail,
}

impl OrderSettings {
    /// For one process that reads everything.
    pub fn new(seed: u64, epoch: u64, group: u32) -> Self {
        Self { seed, epoch, group, world: 1, partition: Partition::Global, tail: Tail::Drop }
    }

    /// Stretches that the sequence is cut into.
    fn nodes(&self) -> u32 {
        match self.partition {
            Partition::Global => 1,
            Partition::Local { nodes } => nodes,
        }
    }

    /// Ranks that one stretch is dealt out to.
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

/// Why there is no such order.
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
    /// More ranks than an order has.
    #[error("{0} ranks are too many: an order has {RANKS_MAX} at most")]
    Ranks(u32),
    /// A rank that the task doesn't have.
    #[error("there is no rank {rank} among {world}: they count from 0")]
    Rank {
        /// Asked for.
        rank: u32,
        /// How many there are.
        world: u32,
    },
    /// A worker that the rank doesn't have, or batches of nothing.
    #[error(
        "there is no worker {number} among {workers}, which count from 0, with batches of {batch}"
    )]
    Worker {
        /// Asked for.
        number: u32,
        /// How many there are.
        workers: u32,
        /// Files of a batch.
        batch: u32,
    },
    /// A selected file that the snapshot doesn't have.
    #[error("there is no file {number} among {files}: they count from 0")]
    File {
        /// Selected.
        number: u32,
        /// How many there are.
        files: u32,
    },
    /// A selection for another number of files.
    #[error("the selection is one of {selected} files, and the snapshot has {files}")]
    Files {
        /// Files of the snapshot that the selection was made for.
        selected: u32,
        /// Files of this snapshot.
        files: u32,
    },
    /// Files that belong to no chunk, or to two.
    #[error(
        "the snapshot is damaged: the files of chunk {chunk} don't begin where those before it end"
    )]
    Chunks {
        /// Counted from 0; as many as there are chunks where it is the end of the last one.
        chunk: usize,
    },
    /// An epoch that was gone on with too often, by too many nodes.
    #[error(
        "the epoch can't be gone on with: it was by too many numbers of nodes, {stages} in all, of up to {nodes} nodes; begin it again"
    )]
    Stages {
        /// Numbers of nodes, one after the other.
        stages: usize,
        /// Most nodes of these.
        nodes: u32,
    },
}

impl OrderError {
    /// What the caller can do about it.
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
    /// For each chunk the number of its first file, and behind them the number of files.
    first_files: Arc<[u32]>,
    selection: Arc<Selection>,
    settings: OrderSettings,
    /// The chunks that hold selected files, shuffled.
    chunks: Vec<u32>,
    /// For each of these the place of its first file among all selected ones, in the order of the
    /// shuffled chunks; behind them the number of selected files.
    starts: Vec<u64>,
    /// What was read while the task had other numbers of nodes, and what these left, as places.
    earlier: Vec<Stage>,
    shared: Intervals,
    /// What was read of that by the task as it is.
    stage: Stage,
    /// Files that each rank has left to read.
    length: u64,
}

impl Order {
    /// The order of an epoch from its beginning. `first_files` holds for each chunk the number of
    /// its first file and, behind them, the number of files.
    ///
    /// # Errors
    /// Settings or files that no order has.
    pub fn new(
        first_files: Arc<[u32]>,
        selection: Arc<Selection>,
        settings: OrderSettings,
    ) -> Result<Self, OrderError> {
        Self::resumed(first_files, selection, settings, &[])
    }

    /// The rest of an epoch of which `stages` were read. The task may have another number of ranks
    /// and nodes than it had.
    ///
    /// # Errors
    /// As [`Order::new`].
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

    /// What a rank reads of the places.
    fn way(&self, rank: u32) -> Way {
        let (nodes, ranks) = (self.stage.nodes(), self.settings.ranks_of_a_node());
        let passed = u128::from(self.stage.passed());
        let share = |node| self.stage.share(&self.shared, node, 0);
        let own: Intervals = share(rank / ranks).collect();
        let (places, first, step) = if own.length() > 0 || self.length == 0 {
            (own, passed + u128::from(rank % ranks), ranks)
        } else {
            // Who has nothing pads as if there were one node.
            let all = (0..nodes).flat_map(share).collect();
            (all, passed * u128::from(nodes) + u128::from(rank), self.settings.world)
        };
        let first = (first % u128::from(places.length().max(1))) as u64;
        Way { places, first, step: step.into() }
    }

    /// Files that each rank has left to read.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &OrderSettings {
        &self.settings
    }

    /// The files that it reads.
    pub(crate) fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Whether it is the rest of an epoch.
    pub(crate) fn is_resumed(&self) -> bool {
        !self.earlier.is_empty() || self.stage.passed() > 0
    }

    /// What the last place is, and what was read before it, when each rank has read `read` files.
    pub fn stages_after(&self, read: u64) -> Vec<Stage> {
        let mut stage = self.stage.clone();
        stage.advance(read.saturating_mul(self.settings.ranks_of_a_node().into()));
        self.earlier.iter().cloned().chain([stage]).collect()
    }

    /// Places of the group that holds a place, and which of the shuffled chunks they lie in.
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

    /// Which of the shuffled chunks holds a place.
    fn piece_at(&self, place: u64) -> usize {
        self.starts.partition_point(|start| *start <= place).saturating_sub(1)
    }

    /// The chunks of a group, as they follow each other, each with the places it has in the group.
    fn pieces(&self, group: &Group) -> impl Iterator<Item = (u32, Range<u64>)> + '_ {
        let Group { pieces, places } = group.clone();
        let chunks = self.chunks.get(pieces.clone()).unwrap_or_default().iter();
        let ends = self.starts.get(pieces.start..).unwrap_or_default().windows(2);
        chunks.zip(ends).filter_map(move |(chunk, ends)| match *ends {
            [start, end] => Some((*chunk, start.max(places.start)..end.min(places.end))),
            _ => None,
        })
    }

    /// The files of a group, shuffled, into `files`.
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

    /// Shuffles what stands on the places of a group from its first place on.
    pub(crate) fn shuffle_group<T>(&self, first_place: u64, values: &mut [T]) {
        let OrderSettings { seed, epoch, .. } = self.settings;
        Draws::new(seed, epoch, Stream::Files, first_place).shuffle(values);
    }

    /// The chunks that hold selected files, shuffled, and for each of them the place of its first
    /// file; behind these the number of selected files.
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

/// What a rank reads: of these places each `step`-th, from the first one on, round and round.
#[derive(Debug, Clone)]
struct Way {
    places: Intervals,
    first: u64,
    step: u64,
}

/// Files that each rank has left to read, where the nodes share as many.
fn length(shared: u64, stage: &Stage, settings: &OrderSettings) -> u64 {
    let (nodes, ranks) = (u64::from(stage.nodes()), u64::from(settings.ranks_of_a_node()));
    let left = |stretch| stage.kept_of(stretch).saturating_sub(stage.passed());
    match settings.tail {
        Tail::Drop => left(shared / nodes) / ranks,
        Tail::Pad => left(shared.div_ceil(nodes)).div_ceil(ranks),
    }
}

/// Each file belongs to one chunk.
fn check_chunks(first_files: &[u32]) -> Result<(), OrderError> {
    let before = std::iter::once(&0).chain(first_files);
    let mut both = first_files.iter().zip(before).enumerate();
    let wrong =
        both.find(|(chunk, (first, before))| first < before || (*chunk == 0 && **first > 0));
    wrong.map_or(Ok(()), |(chunk, _)| Err(OrderError::Chunks { chunk }))
}

/// Going on takes no more than [`PIECES_MAX`] allows.
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

//! The part of a rank's order that is fetched ahead: the current groups, and the next groups.
//!
//! Must hold: groups come in the order of their positions, epoch by epoch; a group stays until the
//! slowest reader has passed.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use libdiesel::order::{ChunkPlan, Cursor, Order, OrderError, OrderSettings, Selection};

/// Number of groups fetched ahead of the current group, as far as there are slots. Kept chunks need
/// none.
const AHEAD: usize = 4;

/// A group of chunks, in the order of need.
#[derive(Debug)]
struct Group {
    epoch: u64,
    positions: Range<u64>,
    chunks: Vec<u32>,
}

/// The groups of one rank.
#[derive(Debug)]
pub struct Window {
    first_files: Arc<[u32]>,
    selection: Arc<Selection>,
    settings: OrderSettings,
    rank: u32,
    cursor: Cursor,
    groups: VecDeque<Group>,
    /// Chunks of all `groups`.
    chunks: HashSet<u32>,
    /// Chunks of the largest group up to now.
    pub largest: u32,
    /// Position of a fill beyond the groups.
    far: Option<FarCursor>,
    /// Epoch and number of chunks of each group passed by all readers.
    passed: Vec<(u64, u64)>,
}

/// Chunks of groups beyond the window.
#[derive(Debug)]
struct FarCursor {
    cursor: Cursor,
    chunks: VecDeque<u32>,
}

/// The position of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub epoch: u64,
    pub position: u64,
}

impl Window {
    pub fn new(
        first_files: Arc<[u32]>,
        selection: Arc<Selection>,
        settings: OrderSettings,
        rank: u32,
        position: u64,
    ) -> Result<Self, OrderError> {
        let order = Order::new(Arc::clone(&first_files), Arc::clone(&selection), settings)?;
        let mut cursor = Cursor::new(Arc::new(order), rank)?;
        cursor.seek(position);
        let (groups, chunks) = (VecDeque::new(), HashSet::new());
        let mut window = Self {
            first_files,
            selection,
            settings,
            rank,
            cursor,
            groups,
            chunks,
            largest: 0,
            far: None,
            passed: Vec::new(),
        };
        window.extend();
        Ok(window)
    }

    /// The next absent chunk of the epoch, in the order of first need. Chunks that are done are
    /// checked only once.
    pub fn next_after_window(&mut self, is_done: impl Fn(u32) -> bool) -> Option<u32> {
        let FarCursor { cursor, chunks } = self.far.get_or_insert_with(|| FarCursor {
            cursor: self.cursor.clone(),
            chunks: VecDeque::new(),
        });
        loop {
            while let Some(chunk) = chunks.front() {
                if !is_done(*chunk) {
                    return Some(*chunk);
                }
                chunks.pop_front();
            }
            chunks.extend(by_need(&ChunkPlan::next_of(cursor)?));
        }
    }

    /// Adds the next group; behind the last group follows the next epoch.
    fn extend(&mut self) {
        let plan = ChunkPlan::next_of(&mut self.cursor).or_else(|| {
            self.settings.epoch += 1;
            let (files, selection) = (Arc::clone(&self.first_files), Arc::clone(&self.selection));
            let order = Order::new(files, selection, self.settings).ok()?;
            self.cursor = Cursor::new(Arc::new(order), self.rank).ok()?;
            ChunkPlan::next_of(&mut self.cursor)
        });
        let Some(plan) = plan else { return };
        let chunks: Vec<u32> = by_need(&plan).collect();
        self.largest = self.largest.max(chunks.len() as u32);
        self.chunks.extend(&chunks);
        let group = Group { epoch: self.settings.epoch, positions: plan.positions(), chunks };
        self.groups.push_back(group);
    }

    /// Whether a position lies in one of the groups.
    pub fn holds(&self, at: Position) -> bool {
        self.groups
            .iter()
            .any(|group| group.epoch == at.epoch && group.positions.contains(&at.position))
    }

    /// Files of an epoch for the rank.
    pub fn length(&self) -> u64 {
        self.cursor.length()
    }

    /// Follows the readers: the slowest reader decides which groups leave, the fastest which groups
    /// come.
    pub fn follow(&mut self, slowest: Position, fastest: Position) {
        let is_behind =
            |group: &Group| (group.epoch, group.positions.end) <= (slowest.epoch, slowest.position);
        let mut has_changed = false;
        while self.groups.len() > 1 && self.groups.front().is_some_and(is_behind) {
            let passed = self.groups.pop_front();
            self.passed.extend(passed.map(|group| (group.epoch, group.chunks.len() as u64)));
            has_changed = true;
        }
        let is_reached = |group: &Group| {
            (group.epoch, group.positions.start) <= (fastest.epoch, fastest.position)
        };
        let reached = self.groups.iter().filter(|group| is_reached(group)).count();
        for _ in self.groups.len()..reached.max(1) + AHEAD {
            self.extend();
            has_changed = true;
        }
        if has_changed {
            self.chunks = self.groups.iter().flat_map(|group| &group.chunks).copied().collect();
        }
    }

    /// Epoch and number of chunks of the groups passed by all readers since the last call.
    pub fn take_passed(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.passed)
    }

    /// The first epoch in need of a chunk of the groups.
    pub fn epoch_of(&self, chunk: u32) -> Option<u64> {
        let group = self.groups.iter().find(|group| group.chunks.contains(&chunk));
        group.map(|group| group.epoch)
    }

    /// Whether a chunk is in one of the groups.
    pub fn needs(&self, chunk: u32) -> bool {
        self.chunks.contains(&chunk)
    }

    /// The chunks of the groups, each once.
    pub fn distinct(&self) -> Vec<u32> {
        self.chunks.iter().copied().collect()
    }

    /// The lateness of each chunk: the later the need, the larger the number. Groups needed only by
    /// readers behind the fastest reader come last.
    pub fn lateness(&self, fastest: Option<Position>) -> impl Iterator<Item = (u32, usize)> + '_ {
        let is_behind = move |group: &Group| {
            let end = Position { epoch: group.epoch, position: group.positions.end };
            fastest.is_some_and(|fastest| end <= fastest)
        };
        let chunks =
            self.groups.iter().flat_map(|group| group.chunks.iter().map(move |one| (group, *one)));
        chunks.enumerate().map(move |(index, (group, chunk))| {
            (chunk, if is_behind(group) { usize::MAX - index } else { index })
        })
    }

    /// The chunks of the groups, in the order of need.
    pub fn in_order(&self) -> impl Iterator<Item = u32> + '_ {
        self.groups.iter().flat_map(|group| &group.chunks).copied()
    }
}

fn by_need(plan: &ChunkPlan) -> impl Iterator<Item = u32> + '_ {
    plan.by_need().iter().filter_map(|index| plan.number_of(*index))
}

//! The directories of a snapshot: numbered level by level, so that those in one directory are
//! neighbours, and for each of them where its files are.

use std::collections::HashMap;

use crate::layout::{SNAPSHOT_DIRECTORY_LEN, SNAPSHOT_RUN_LEN};

/// Collects directories while files are written. Memory goes with directories, about a hundred bytes
/// and the path of each, and runs, twelve bytes.
#[derive(Debug, Default)]
pub(super) struct TreeWriter {
    /// The paths of directories, numbered as they come: the root first.
    numbers: HashMap<Box<[u8]>, u32>,
    runs: Vec<Run>,
}

/// Files of one directory that follow each other.
#[derive(Debug, Clone, Copy)]
struct Run {
    directory: u32,
    first: u32,
    count: u32,
}

/// The sections that say which directories there are.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// The root included.
    pub(super) directories: u32,
    pub(super) rows: Vec<u8>,
    pub(super) names: Vec<u8>,
    pub(super) runs: Vec<u8>,
}

impl TreeWriter {
    /// Adds files of one directory that follow each other and are sorted by name. Runs come in the
    /// order of their files.
    pub(super) fn run(&mut self, directory: &[u8], first: u32, count: u32) {
        let directory = self.number(directory);
        self.runs.push(Run { directory, first, count });
    }

    fn number(&mut self, path: &[u8]) -> u32 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        let mut add = |path: &[u8]| {
            let number = narrow(self.numbers.len());
            *self.numbers.entry(path.into()).or_insert(number)
        };
        add(&[]);
        for (end, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            add(path.get(..end).unwrap_or_default());
        }
        add(path)
    }

    /// Everything that was added.
    pub(super) fn encode(mut self) -> Tree {
        self.number(&[]);
        // By level, and there as their parents are: those in one directory become neighbours.
        let mut levels: Vec<(usize, &[u8], u32)> =
            self.numbers.iter().map(|(path, number)| (depth(path), &path[..], *number)).collect();
        levels.sort_unstable_by(|(depth, path, _), (other_depth, other, _)| {
            depth.cmp(other_depth).then_with(|| components(path).cmp(components(other)))
        });
        let mut places = vec![0_u32; levels.len()];
        for (place, (_, _, number)) in levels.iter().enumerate() {
            if let Some(of) = places.get_mut(*number as usize) {
                *of = narrow(place);
            }
        }
        let place = |number: u32| places.get(number as usize).copied().unwrap_or_default();
        self.runs.sort_unstable_by_key(|run| (place(run.directory), run.first));
        let mut children = vec![0_u32; levels.len()];
        for (_, path, _) in levels.iter().skip(1) {
            let parent = self.numbers.get(split(path).0).copied().unwrap_or_default();
            if let Some(children) = children.get_mut(place(parent) as usize) {
                *children = children.saturating_add(1);
            }
        }
        let mut tree = Tree { directories: narrow(levels.len()), ..Tree::default() };
        let mut runs = self.runs.iter().peekable();
        let mut next_child = 1_u32;
        for ((_, path, number), children) in levels.iter().zip(children) {
            tree.row(next_child);
            tree.names.extend_from_slice(split(path).1);
            while let Some(run) = runs.next_if(|run| run.directory == *number) {
                tree.runs.extend([run.first, run.count].into_iter().flat_map(u32::to_le_bytes));
            }
            next_child = next_child.saturating_add(children);
        }
        // Says where the last one's names, children and runs end.
        tree.row(next_child);
        tree
    }
}

impl Tree {
    /// How many runs there are.
    pub(super) fn run_count(&self) -> u32 {
        narrow(self.runs.len().checked_div(SNAPSHOT_RUN_LEN).unwrap_or_default())
    }

    fn row(&mut self, child: u32) {
        let fields = [narrow(self.names.len()), child, self.run_count()];
        self.rows.extend(fields.into_iter().flat_map(u32::to_le_bytes));
    }
}

/// Directories above one: none above the root.
fn depth(path: &[u8]) -> usize {
    if path.is_empty() { 0 } else { components(path).count() }
}

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
}

/// The directory that a path is in, and its name there.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => {
            let (directory, name) = path.split_at(slash);
            (directory, name.get(1..).unwrap_or_default())
        }
        None => (&[], path),
    }
}

/// Counts are below 2^32: a snapshot has no more files, and each directory has one below it.
fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A row of the directories.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectoryRow {
    pub(super) name: u32,
    pub(super) child: u32,
    pub(super) run: u32,
}

impl DirectoryRow {
    pub(super) fn at(rows: &[u8], number: u32) -> Option<Self> {
        let at = (number as usize).checked_mul(SNAPSHOT_DIRECTORY_LEN)?;
        let row: &[u8; SNAPSHOT_DIRECTORY_LEN] = rows.get(at..)?.first_chunk()?;
        let (fields, _) = row.as_chunks::<4>();
        let [name, child, run] = fields.first_chunk()?.map(u32::from_le_bytes);
        Some(Self { name, child, run })
    }
}

/// First file and number of files of a run.
pub(super) fn run_at(runs: &[u8], number: u32) -> Option<(u32, u32)> {
    let at = (number as usize).checked_mul(SNAPSHOT_RUN_LEN)?;
    let run: &[u8; SNAPSHOT_RUN_LEN] = runs.get(at..)?.first_chunk()?;
    let (first, count) = run.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*first), u32::from_le_bytes(*count.first_chunk()?)))
}

//! The directories of a snapshot: numbered level by level, so that the subdirectories of a
//! directory are neighbours. Each directory has the runs of its files.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;

use crate::layout::{SNAPSHOT_DIRECTORY_LEN, SNAPSHOT_RUN_LEN};

/// Collects directories while files are written. Memory: about seventy bytes and the name of each
/// directory.
#[derive(Debug)]
pub(super) struct TreeWriter {
    /// Each directory behind its parent; the root comes first.
    directories: Vec<Directory>,
    names: Vec<u8>,
    /// Numbers of directories by a hash of parent and name, or under the next free key.
    numbers: HashMap<u64, u32>,
    hasher: RandomState,
}

#[derive(Debug, Clone, Copy, Default)]
struct Directory {
    parent: u32,
    /// The number of runs of files.
    runs: u32,
    /// Offset of its name, and its length.
    name: usize,
    length: u16,
}

/// The sections of the tree.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Including the root.
    pub(super) directories: u32,
    /// Runs of all directories.
    pub(super) runs: u32,
    pub(super) rows: Vec<u8>,
    pub(super) names: Vec<u8>,
    /// The final number of each directory, in the order of addition.
    pub(super) numbers: Vec<u32>,
    /// The number of earlier runs, for each final number and the number behind the last.
    pub(super) runs_before: Vec<u32>,
}

impl Default for TreeWriter {
    fn default() -> Self {
        Self {
            directories: vec![Directory::default()],
            names: Vec::new(),
            numbers: HashMap::new(),
            hasher: RandomState::new(),
        }
    }
}

impl TreeWriter {
    /// The number of directories, including the root.
    pub(super) fn directories(&self) -> usize {
        self.directories.len()
    }

    /// Bytes of the names of all directories.
    pub(super) fn name_bytes(&self) -> usize {
        self.names.len()
    }

    /// Adds a run of files to a directory, and returns the directory's preliminary number.
    pub(super) fn run(&mut self, directory: &[u8]) -> u32 {
        let components = directory.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let number = components.fold(0, |parent, name| self.number(parent, name));
        if let Some(found) = self.directories.get_mut(number as usize) {
            found.runs = found.runs.saturating_add(1);
        }
        number
    }

    /// The number of a subdirectory, which is added if missing.
    fn number(&mut self, parent: u32, name: &[u8]) -> u32 {
        let mut key = self.hasher.hash_one((parent, name));
        while let Some(number) = self.numbers.get(&key) {
            let found = self.directories.get(*number as usize).copied().unwrap_or_default();
            if found.parent == parent && self.name(found) == name {
                return *number;
            }
            key = key.wrapping_add(1);
        }
        let number = narrow(self.directories.len());
        self.numbers.insert(key, number);
        // A path has at most 4096 bytes.
        let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
        self.directories.push(Directory { parent, runs: 0, name: self.names.len(), length });
        self.names.extend_from_slice(name);
        number
    }

    fn name(&self, directory: Directory) -> &[u8] {
        let end = directory.name.saturating_add(directory.length.into());
        self.names.get(directory.name..end).unwrap_or_default()
    }

    /// The tree of all added directories.
    pub(super) fn encode(mut self) -> Tree {
        self.numbers = HashMap::new();
        let children = self.children();
        let directories = self.directories.len();
        let mut tree = Tree { directories: narrow(directories), ..Tree::default() };
        tree.numbers = vec![0; directories];
        // Level by level, in the order of their parents: siblings become neighbours.
        let mut levels: Vec<u32> = Vec::with_capacity(self.directories.len());
        levels.push(0);
        for place in 0..self.directories.len() {
            let number = levels.get(place).copied().unwrap_or_default();
            tree.row(narrow(levels.len()));
            let directory = self.directories.get(number as usize).copied().unwrap_or_default();
            tree.names.extend_from_slice(self.name(directory));
            tree.runs = tree.runs.saturating_add(directory.runs);
            if let Some(placed) = tree.numbers.get_mut(number as usize) {
                *placed = narrow(place);
            }
            levels.extend_from_slice(children.of(number));
        }
        // The ends of the last directory's names, children and runs.
        tree.row(narrow(levels.len()));
        tree
    }

    /// The subdirectories of each directory, by name.
    fn children(&self) -> Children {
        let mut ends = vec![0_u32; self.directories.len()];
        let parents = || self.directories.iter().skip(1).map(|directory| directory.parent as usize);
        for parent in parents() {
            if let Some(count) = ends.get_mut(parent) {
                *count = count.saturating_add(1);
            }
        }
        let mut sum = 0_u32;
        for count in &mut ends {
            sum = sum.saturating_add(*count);
            *count = sum.saturating_sub(*count);
        }
        // The start of each directory's children; after filling, their end.
        let mut numbers = vec![0_u32; self.directories.len().saturating_sub(1)];
        for (number, parent) in (1..).zip(parents()) {
            if let Some(end) = ends.get_mut(parent)
                && let Some(place) = numbers.get_mut(*end as usize)
            {
                *place = number;
                *end = end.saturating_add(1);
            }
        }
        let mut children = Children { ends, numbers };
        for number in 0..narrow(self.directories.len()) {
            let place = children.place(number);
            let name = |number: &u32| {
                self.name(self.directories.get(*number as usize).copied().unwrap_or_default())
            };
            let own = children.numbers.get_mut(place).unwrap_or_default();
            own.sort_unstable_by(|one, other| name(one).cmp(name(other)));
        }
        children
    }
}

/// The subdirectories of each directory.
struct Children {
    ends: Vec<u32>,
    numbers: Vec<u32>,
}

impl Children {
    fn place(&self, directory: u32) -> Range<usize> {
        let end = |number: usize| self.ends.get(number).copied().unwrap_or_default() as usize;
        let number = directory as usize;
        number.checked_sub(1).map_or(0, end)..end(number)
    }

    fn of(&self, directory: u32) -> &[u32] {
        self.numbers.get(self.place(directory)).unwrap_or_default()
    }
}

impl Tree {
    fn row(&mut self, child: u32) {
        self.runs_before.push(self.runs);
        let fields = [narrow(self.names.len()), child, self.runs];
        self.rows.extend(fields.into_iter().flat_map(u32::to_le_bytes));
    }
}

/// The directory of a path, and its name in the directory.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => {
            let (directory, name) = path.split_at(slash);
            (directory, name.get(1..).unwrap_or_default())
        }
        None => (&[], path),
    }
}

/// Counts are below 2^32: a snapshot has fewer files, and each directory has a file below.
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

/// The first file and the number of files of a run.
pub(super) fn run_at(runs: &[u8], number: u32) -> Option<(u32, u32)> {
    let at = (number as usize).checked_mul(SNAPSHOT_RUN_LEN)?;
    let run: &[u8; SNAPSHOT_RUN_LEN] = runs.get(at..)?.first_chunk()?;
    let (first, count) = run.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*first), u32::from_le_bytes(*count.first_chunk()?)))
}

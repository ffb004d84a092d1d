//! The directories of a snapshot: numbered level by level, so that those in one directory are
//! neighbours, and for each of them where its files are.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::layout::{SNAPSHOT_DIRECTORY_LEN, SNAPSHOT_RUN_LEN};

/// Collects directories while files are written. Memory goes with directories and runs.
#[derive(Debug)]
pub(super) struct TreeWriter {
    numbers: HashMap<Vec<u8>, usize>,
    directories: Vec<Directory>,
}

#[derive(Debug, Default)]
struct Directory {
    /// By their names.
    children: BTreeMap<Vec<u8>, usize>,
    /// First file and number of files.
    runs: Vec<(u32, u32)>,
}

impl Default for TreeWriter {
    fn default() -> Self {
        Self { numbers: HashMap::from([(Vec::new(), 0)]), directories: vec![Directory::default()] }
    }
}

impl TreeWriter {
    /// Adds files of one directory that follow each other and are sorted by name. Runs come in the
    /// order of their files.
    pub(super) fn run(&mut self, directory: &[u8], first: u32, count: u32) {
        let number = self.number(directory);
        if let Some(directory) = self.directories.get_mut(number) {
            directory.runs.push((first, count));
        }
    }

    fn number(&mut self, path: &[u8]) -> usize {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (path.get(..slash), path.get(slash.saturating_add(1)..)),
            None => (Some(&[][..]), Some(path)),
        };
        let parent = self.number(parent.unwrap_or_default());
        let number = self.directories.len();
        self.directories.push(Directory::default());
        if let Some(parent) = self.directories.get_mut(parent) {
            parent.children.insert(name.unwrap_or_default().to_vec(), number);
        }
        self.numbers.insert(path.to_vec(), number);
        number
    }

    /// How many directories there are, the root included, and how many runs.
    pub(super) fn counts(&self) -> (u32, u32) {
        let runs = self.directories.iter().map(|directory| directory.runs.len()).sum();
        (narrow(self.directories.len()), narrow(runs))
    }

    /// Rows, names and runs.
    pub(super) fn encode(&self) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let (mut rows, mut names, mut runs) = (Vec::new(), Vec::new(), Vec::new());
        let mut row = |names: &[u8], child: u32, runs: &[u8]| {
            let run = runs.len().checked_div(SNAPSHOT_RUN_LEN).unwrap_or_default();
            let fields = [narrow(names.len()), child, narrow(run)];
            rows.extend(fields.into_iter().flat_map(u32::to_le_bytes));
        };
        let mut level = VecDeque::from([(&[][..], 0_usize)]);
        let mut next_child = 1_u32;
        while let Some((name, index)) = level.pop_front() {
            let Some(directory) = self.directories.get(index) else { continue };
            row(&names, next_child, &runs);
            names.extend_from_slice(name);
            for (first, count) in &directory.runs {
                runs.extend([*first, *count].into_iter().flat_map(u32::to_le_bytes));
            }
            let children = directory.children.iter();
            level.extend(children.map(|(name, index)| (name.as_slice(), *index)));
            next_child = next_child.saturating_add(narrow(directory.children.len()));
        }
        // Says where the last one's names, children and runs end.
        row(&names, next_child, &runs);
        (rows, names, runs)
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

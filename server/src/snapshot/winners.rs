//! Finds the live entries of a log by its headers, without all paths in memory.
//!
//! Must hold: the same files as `dl_format::Fold`. Two 64-bit hashes with secret random keys stand for a path.
//! Memory holds a bit for each entry, and never all paths.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;

use dl_format::snapshot::Observed;
use dl_format::{ChunkId, Committed, EntrySet, EntryVersion, FileRecord, ObjectKind, Stamp};
use dl_meta::ObjectRecord;

use crate::datasets::spill::{Partitions, Scratch, Sizes};

/// Two hashes of a path, which identify the path.
type PathHash = [u64; 2];

const ROW: usize = 40;

/// An entry. Pairs are a chunk and an entry; chunk numbers beyond the log stand for other chunks.
#[derive(Debug, Clone, Copy)]
struct Row {
    path: PathHash,
    stamp: u64,
    version: (u32, u32),
    holder: (u32, u32),
}

impl Row {
    fn to_bytes(self) -> [u8; ROW] {
        let ([high, low], pair) =
            (self.path, |(a, b): (u32, u32)| u64::from(a) << 32 | u64::from(b));
        let words = [high, low, self.stamp, pair(self.version), pair(self.holder)];
        let mut bytes = [0; ROW];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; ROW]) -> Self {
        let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut word = || words.next().unwrap_or_default();
        let path = [word(), word()];
        let stamp = word();
        let pair = |word: u64| ((word >> 32) as u32, word as u32);
        Self { path, stamp, version: pair(word()), holder: pair(word()) }
    }
}

/// Hashes paths, with random keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hasher(Arc<(RandomState, RandomState)>);

impl Hasher {
    fn of(&self, path: &[u8]) -> PathHash {
        let (one, other) = &*self.0;
        [one.hash_one(path), other.hash_one(path)]
    }

    /// Adds the folders of a path to `seen`; `before` is the folder of the previous path.
    fn folders(&self, path: &[u8], before: &mut Vec<u8>, seen: &mut HashSet<PathHash>) {
        let Some(slash) = path.iter().rposition(|byte| *byte == b'/') else { return };
        let mut folder = path.get(..slash).unwrap_or_default();
        if folder == before.as_slice() {
            return;
        }
        before.clear();
        before.extend_from_slice(folder);
        while seen.insert(self.of(folder)) {
            let Some(slash) = folder.iter().rposition(|byte| *byte == b'/') else { return };
            folder = folder.get(..slash).unwrap_or_default();
        }
    }
}

/// The entries of a batch of chunks.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    rows: Vec<Row>,
    /// Rows with a version of another chunk, and the chunk.
    origins: Vec<(usize, ChunkId)>,
    folders: HashSet<PathHash>,
    /// Valid if all entries are live.
    observed: Observed,
}

impl Scanned {
    /// Scans `chunks`, which come with their numbers in the log.
    pub(crate) fn of<'a>(
        hasher: &Hasher,
        chunks: impl IntoIterator<Item = (u32, &'a Committed)>,
    ) -> Self {
        let mut scanned = Self::default();
        let mut before = Vec::new();
        for (number, chunk) in chunks {
            scanned.observed.chunk();
            for entry in chunk.header().entries() {
                let path = entry.path.as_bytes();
                let record = FileRecord::of(chunk, &entry);
                scanned.observed.file(&record);
                hasher.folders(path, &mut before, &mut scanned.folders);
                let EntryVersion { stamp, chunk, entry: version } = record.version;
                if chunk != record.holder.chunk {
                    scanned.origins.push((scanned.rows.len(), chunk));
                }
                scanned.rows.push(Row {
                    path: hasher.of(path),
                    stamp: stamp.get(),
                    version: (number, version),
                    holder: (number, entry.number),
                });
            }
        }
        scanned
    }
}

/// The live entries of a log: a bit for each entry.
#[derive(Debug)]
pub(crate) struct Live {
    /// The number of the first entry of each object.
    first: Vec<u64>,
    bits: Vec<u64>,
}

impl Live {
    fn new(log: &[ObjectRecord]) -> Self {
        let mut entries = 0;
        let first = log.iter().map(|object| {
            let first = entries;
            entries += u64::from(object.entry_count);
            first
        });
        let first = first.collect();
        Self { first, bits: vec![0; entries.div_ceil(64) as usize] }
    }

    fn place(&self, (object, entry): (u32, u32)) -> Option<(usize, u64)> {
        let number = self.first.get(object as usize)? + u64::from(entry);
        Some(((number / 64) as usize, 1 << (number % 64)))
    }

    fn set(&mut self, holder: (u32, u32), is_live: bool) {
        if let Some((word, bit)) = self.place(holder)
            && let Some(word) = self.bits.get_mut(word)
        {
            *word = if is_live { *word | bit } else { *word & !bit };
        }
    }

    /// Whether an entry is live, by the numbers of object and entry.
    pub(crate) fn contains(&self, holder: (u32, u32)) -> bool {
        self.place(holder)
            .is_some_and(|(word, bit)| self.bits.get(word).is_some_and(|word| word & bit != 0))
    }
}

/// Collects the entries of all chunks.
#[derive(Debug)]
pub(crate) struct Scan {
    log: Arc<[ObjectRecord]>,
    rows: Partitions,
    others: Vec<ChunkId>,
    numbers: HashMap<ChunkId, u32>,
    folders: HashSet<PathHash>,
    observed: Observed,
}

/// The live entries of a dataset.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) live: Live,
    /// Statistics of the live files; none where entries are dead or doubted.
    pub(crate) observed: Option<Observed>,
    /// Live files with paths of folders: hidden if the folders have live files.
    pub(crate) doubted: Vec<Doubted>,
}

/// A live file with the path of a folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Doubted {
    path: PathHash,
    holder: (u32, u32),
}

impl Scan {
    pub(crate) fn new(log: &Arc<[ObjectRecord]>, scratch: Scratch) -> Self {
        let entries: u64 = log.iter().map(|object| u64::from(object.entry_count)).sum();
        Self {
            log: Arc::clone(log),
            rows: Partitions::new(scratch, entries * ROW as u64, Sizes::USUAL),
            others: Vec::new(),
            numbers: HashMap::new(),
            folders: HashSet::new(),
            observed: Observed::default(),
        }
    }

    pub(crate) fn add(&mut self, mut scanned: Scanned) -> io::Result<()> {
        for (row, chunk) in scanned.origins {
            let number = self.number(chunk);
            if let Some(row) = scanned.rows.get_mut(row) {
                row.version.0 = number;
            }
        }
        for row in scanned.rows {
            let [high, _] = row.path;
            self.rows.push(high, &row.to_bytes())?;
        }
        self.folders.extend(scanned.folders);
        self.observed.merge(scanned.observed);
        Ok(())
    }

    /// The original chunks of versions, outside of the log.
    pub(crate) fn others(&self) -> HashSet<ChunkId> {
        self.others.iter().copied().collect()
    }

    /// The number of the original chunk of a version.
    fn number(&mut self, chunk: ChunkId) -> u32 {
        if let Ok(number) = self.log.binary_search_by_key(&chunk, |object| object.id) {
            return number as u32;
        }
        let next = (self.log.len() + self.others.len()) as u32;
        let number = *self.numbers.entry(chunk).or_insert(next);
        if number == next {
            self.others.push(chunk);
        }
        number
    }

    fn chunk(&self, number: u32) -> ChunkId {
        let behind = (number as usize).checked_sub(self.log.len());
        let id = match behind {
            None => self.log.get(number as usize).map(|object| object.id),
            Some(place) => self.others.get(place).copied(),
        };
        id.unwrap_or(ChunkId::from_bytes([0; 16]))
    }

    /// The order of [`FileRecord::supersedes`].
    fn rank(&self, row: &Row) -> (Stamp, ChunkId, u32, Stamp, u32, u32) {
        let (object, entry) = row.holder;
        let holder = self.log.get(object as usize).map(|object| object.stamp);
        let ((chunk, version), stamp) = (row.version, Stamp::new(row.stamp));
        // Numbers in the log are in the order of the ids.
        (stamp, self.chunk(chunk), version, holder.unwrap_or_default(), object, entry)
    }

    /// Finds the live entries; `deleted` has the entries of the tombstones.
    pub(crate) fn find(mut self, deleted: &HashMap<ChunkId, EntrySet>) -> io::Result<Found> {
        let mut live = Live::new(&self.log);
        let (mut are_all_live, mut doubted) = (true, Vec::new());
        for partition in 0..self.rows.count() {
            let records = self.rows.take(partition).read()?;
            let mut rows: Vec<Row> = records.as_chunks().0.iter().map(Row::from_bytes).collect();
            drop(records);
            rows.sort_unstable_by_key(|row| row.path);
            for rows in rows.chunk_by(|a, b| a.path == b.path) {
                are_all_live &= rows.len() == 1;
                let Some(winner) = rows.iter().max_by_key(|row| self.rank(row)) else { continue };
                let (chunk, entry) = winner.version;
                let is_deleted = !deleted.is_empty()
                    && deleted.get(&self.chunk(chunk)).is_some_and(|set| set.contains(entry));
                if is_deleted {
                    are_all_live = false;
                    continue;
                }
                live.set(winner.holder, true);
                if self.folders.contains(&winner.path) {
                    doubted.push(Doubted { path: winner.path, holder: winner.holder });
                }
            }
        }
        let observed = (are_all_live && doubted.is_empty()).then_some(self.observed);
        Ok(Found { live, observed, doubted })
    }
}

/// The folders with live files.
#[derive(Debug, Default)]
pub(crate) struct Folders(HashSet<PathHash>);

impl Folders {
    /// The folders of the live files in `chunks`.
    pub(crate) fn of<'a>(
        hasher: &Hasher,
        live: &Live,
        chunks: impl IntoIterator<Item = (u32, &'a Committed)>,
    ) -> Self {
        let (mut seen, mut before) = (HashSet::new(), Vec::new());
        for (number, chunk) in chunks {
            for entry in chunk.header().entries() {
                if live.contains((number, entry.number)) {
                    hasher.folders(entry.path.as_bytes(), &mut before, &mut seen);
                }
            }
        }
        Self(seen)
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

impl Live {
    /// Hides doubted files whose folders have live files: the folder holds.
    pub(crate) fn hide(&mut self, doubted: &[Doubted], folders: &Folders) {
        for file in doubted.iter().filter(|file| folders.0.contains(&file.path)) {
            self.set(file.holder, false);
        }
    }
}

/// Statistics of the live files in `chunks`, for [`super::emit`].
pub(crate) fn observe<'a>(
    live: &Live,
    chunks: impl IntoIterator<Item = (u32, &'a Committed)>,
) -> Observed {
    let mut observed = Observed::default();
    for (number, chunk) in chunks {
        let mut has_files = false;
        let entries = chunk.header().entries();
        for entry in entries.filter(|entry| live.contains((number, entry.number))) {
            observed.file(&FileRecord::of(chunk, &entry));
            has_files = true;
        }
        if has_files {
            observed.chunk();
        }
    }
    observed
}

/// The numbers of a log's objects of a kind.
pub(crate) fn of_kind(log: &[ObjectRecord], kind: ObjectKind) -> Vec<u32> {
    let numbered = (0..).zip(log);
    numbered.filter(|(_, object)| object.kind == kind).map(|(number, _)| number).collect()
}

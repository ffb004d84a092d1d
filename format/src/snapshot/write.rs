//! Writing a snapshot, chunk by chunk, with memory proportional to the directories.
//!
//! Must hold: the bytes are a pure function of the added files, independent of the caller's
//! buffering.

use xxhash_rust::xxh3::xxh3_64;

use crate::encode::FieldWriter;
use crate::entry::Extent as FileExtent;
use crate::fold::FileRecord;
use crate::id::{ChunkId, DatasetId, Stamp};
use crate::layout::{FORMAT_VERSION, SNAPSHOT_MAGIC};
use crate::path::FilePath;
use crate::shape::ChunkShape;
use crate::version::Version;

use super::columns::{Columns, Observed, Row};
use super::index::IndexWriter;
use super::names::NameWriter;
use super::section::{Extent, HEAD_LEN, SnapshotSection, snapshot_padding};
use super::tree::{TreeWriter, split};
use crate::checksum::Crc32c;
use crate::layout::{SNAPSHOT_CHECKSUM_OFFSET, SNAPSHOT_PRELUDE_LEN, SNAPSHOT_RECORD_PAD};

/// The identity of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotOf {
    /// The dataset.
    pub dataset: DatasetId,
    /// The version of the dataset.
    pub version: Version,
    /// The shape of its chunks.
    pub shape: ChunkShape,
}

/// A chunk with live files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotChunk {
    /// Its id.
    pub id: ChunkId,
    /// The stamp of its commit.
    pub stamp: Stamp,
    /// Bytes of the whole object.
    pub object_length: u32,
}

/// A live file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveFile {
    /// Its path.
    pub path: FilePath,
    /// Its record in the chunk.
    pub record: FileRecord,
    /// The parts before the part in its chunk.
    pub extents: Vec<FileExtent>,
}

/// Files of one directory in one chunk; they are neighbours, sorted by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotRun {
    /// The number of the directory: in the order of addition, until
    /// [placed](SnapshotWriter::placed).
    pub directory: u32,
    /// The number of the first file.
    pub first: u32,
    /// The number of files.
    pub count: u32,
}

/// The hash of a path in the index.
pub fn snapshot_hash(path: &[u8]) -> u64 {
    xxh3_64(path)
}

/// Writes a snapshot. Call [`SnapshotWriter::chunk`] for each chunk, by id, then
/// [`SnapshotWriter::end_files`]. Then call [`SnapshotWriter::run`] for each run of files, placed
/// and sorted, and [`SnapshotWriter::index`] for each file, by hash and number.
/// [`SnapshotWriter::finish`] ends the snapshot. [`SnapshotWriter::drain`] returns the bytes
/// written in between, and [`SnapshotWriter::runs`] the runs of the added chunks.
#[derive(Debug)]
pub struct SnapshotWriter {
    of: SnapshotOf,
    observed: Observed,
    columns: Columns,
    origins: Vec<Stamp>,
    names: NameWriter,
    tree: TreeWriter,
    runs: Vec<SnapshotRun>,
    /// The final number of each directory, in the order of addition.
    places: Vec<u32>,
    /// The number of earlier runs, for each final number and the number behind the last.
    runs_before: Vec<u32>,
    /// The number of directories, and of runs in them.
    counts: (u32, u32),
    index: Option<IndexWriter>,
    chunks: u32,
    files: u32,
    extents: [Extent; SnapshotSection::ALL.len()],
    pending: [Vec<u8>; SnapshotSection::ALL.len()],
}

impl SnapshotWriter {
    /// For the observed files; none if there are more files than numbers.
    pub fn new(of: SnapshotOf, observed: Observed) -> Option<Self> {
        let files = u32::try_from(observed.files()).ok().filter(|files| *files < u32::MAX)?;
        Some(Self {
            of,
            columns: observed.columns(),
            origins: observed.origins(),
            observed,
            names: NameWriter::default(),
            tree: TreeWriter::default(),
            runs: Vec::new(),
            places: Vec::new(),
            runs_before: Vec::new(),
            counts: (0, 0),
            index: Some(IndexWriter::new(files)),
            chunks: 0,
            files: 0,
            extents: Default::default(),
            pending: Default::default(),
        })
    }

    /// Adds a chunk with its live files. Returns hash and number of each file.
    pub fn chunk(
        &mut self,
        chunk: &SnapshotChunk,
        mut files: Vec<LiveFile>,
    ) -> impl Iterator<Item = (u64, u32)> {
        files.sort_unstable_by(|a, b| {
            let key = |file: &LiveFile| split(file.path.as_bytes()).0.len();
            let (one, other) = (a.path.as_bytes(), b.path.as_bytes());
            let folders = (one.get(..key(a)), other.get(..key(b)));
            folders.0.cmp(&folders.1).then_with(|| one.cmp(other))
        });
        let first = self.files;
        let row = [chunk.id.as_bytes(), &chunk.stamp.get().to_le_bytes()[..]].concat();
        self.put(SnapshotSection::Chunks, &row);
        self.put(SnapshotSection::Chunks, &first.to_le_bytes());
        self.put(SnapshotSection::Chunks, &chunk.object_length.to_le_bytes());
        for file in &files {
            self.file(file);
        }
        let mut start = first;
        for run in files.chunk_by(|a, b| split(a.path.as_bytes()).0 == split(b.path.as_bytes()).0) {
            let count = u32::try_from(run.len()).unwrap_or(u32::MAX);
            if let Some(file) = run.first() {
                let directory = self.tree.run(split(file.path.as_bytes()).0);
                self.runs.push(SnapshotRun { directory, first: start, count });
            }
            start = start.saturating_add(count);
        }
        self.chunks = self.chunks.saturating_add(1);
        (first..).zip(files).map(|(number, file)| (snapshot_hash(file.path.as_bytes()), number))
    }

    fn file(&mut self, file: &LiveFile) {
        let record = &file.record;
        let origin = if record.version.stamp == record.holder.stamp {
            0
        } else {
            let place = self.origins.partition_point(|stamp| *stamp < record.version.stamp);
            u32::try_from(place.saturating_add(1)).unwrap_or(u32::MAX)
        };
        let row = Row {
            chunk: self.chunks,
            offset: record.offset,
            length: record.length,
            crc: record.crc,
            attributes: record.attributes,
            origin,
        };
        let [_, records, blocks, names, ..] = &mut self.pending;
        self.columns.encode(&row, records);
        self.names.push(file.path.as_bytes(), names, blocks);
        for extent in &file.extents {
            let numbers = [self.files, extent.length, extent.crc.value(), 0];
            let numbers: Vec<u8> = numbers.into_iter().flat_map(u32::to_le_bytes).collect();
            self.put(SnapshotSection::Extents, &numbers);
            self.put(SnapshotSection::Extents, extent.part.as_bytes());
        }
        self.files = self.files.saturating_add(1);
    }

    fn put(&mut self, section: SnapshotSection, bytes: &[u8]) {
        if let Some(pending) = self.pending.get_mut(section.place()) {
            pending.extend_from_slice(bytes);
        }
    }

    /// The number of directories of the files up to now, including the root: each takes about
    /// seventy bytes of memory and its name.
    pub fn directories(&self) -> usize {
        self.tree.directories()
    }

    /// Bytes of the names of all directories.
    pub fn directory_name_bytes(&self) -> usize {
        self.tree.name_bytes()
    }

    /// The runs of files in chunks added since the last call.
    pub fn runs(&mut self) -> Vec<SnapshotRun> {
        std::mem::take(&mut self.runs)
    }

    /// Ends the list of chunks.
    pub fn end_files(&mut self) {
        self.put(SnapshotSection::Records, &[0; SNAPSHOT_RECORD_PAD]);
        let mut end = Vec::new();
        self.names.end(&mut end);
        self.put(SnapshotSection::Blocks, &end);
        let tree = std::mem::take(&mut self.tree).encode();
        self.counts = (tree.directories, tree.runs);
        self.places = tree.numbers;
        self.runs_before = tree.runs_before;
        self.put(SnapshotSection::Directories, &tree.rows);
        self.put(SnapshotSection::DirectoryNames, &tree.names);
        let stamps: Vec<u8> =
            self.origins.iter().flat_map(|stamp| stamp.get().to_le_bytes()).collect();
        self.put(SnapshotSection::Stamps, &stamps);
    }

    /// A run with the final number of its directory, which is known when all chunks were added.
    pub fn placed(&self, run: SnapshotRun) -> SnapshotRun {
        let place = self.places.get(run.directory as usize).copied();
        SnapshotRun { directory: place.unwrap_or(u32::MAX), ..run }
    }

    /// A sort key for a placed run: later runs have greater keys, and the keys are evenly
    /// distributed.
    pub fn key(&self, run: SnapshotRun) -> u64 {
        let before = |number: usize| self.runs_before.get(number).copied().unwrap_or_default();
        let number = run.directory as usize;
        let (first, end) = (before(number), before(number.saturating_add(1)));
        let (_, all) = self.counts;
        let step = u64::MAX.checked_div(all.into()).unwrap_or_default();
        // Files of a directory may lie anywhere among all files.
        let room = u128::from(end.saturating_sub(first)).saturating_mul(step.into());
        let within = room.saturating_mul(run.first.into()).checked_div(self.files.into());
        let within = u64::try_from(within.unwrap_or_default()).unwrap_or(u64::MAX);
        u64::from(first).saturating_mul(step).saturating_add(within)
    }

    /// Adds a placed run; runs must be sorted.
    pub fn run(&mut self, run: SnapshotRun) {
        let row = [run.first, run.count].into_iter().flat_map(u32::to_le_bytes);
        if let Some(pending) = self.pending.get_mut(SnapshotSection::Runs.place()) {
            pending.extend(row);
        }
    }

    /// Adds a file to the index, in the order of hashes, then of numbers.
    pub fn index(&mut self, hash: u64, number: u32) {
        if let Some(pending) = self.pending.get_mut(SnapshotSection::Index.place())
            && let Some(index) = &mut self.index
        {
            index.push(hash, number, pending);
        }
    }

    /// The bytes written since the last call, by section.
    pub fn drain(&mut self) -> impl Iterator<Item = (SnapshotSection, Vec<u8>)> {
        let sections = SnapshotSection::ALL.into_iter().zip(&mut self.pending);
        let drained = sections.zip(&mut self.extents).map(|((section, pending), extent)| {
            extent.add(pending);
            (section, std::mem::take(pending))
        });
        drained.filter(|(_, bytes)| !bytes.is_empty()).collect::<Vec<_>>().into_iter()
    }

    /// Ends the index. Returns the last bytes of the sections, and the beginning of the snapshot.
    /// The sections follow the beginning, each with [`snapshot_padding`] zeroes behind.
    pub fn finish(mut self) -> (Vec<(SnapshotSection, Vec<u8>)>, Vec<u8>) {
        if let Some(pending) = self.pending.get_mut(SnapshotSection::Index.place())
            && let Some(index) = self.index.take()
        {
            index.end(pending);
        }
        let rest = self.drain().collect();
        (rest, self.head())
    }

    fn head(&self) -> Vec<u8> {
        let mut table = Vec::new();
        let mut offset = HEAD_LEN as u64;
        for (section, extent) in SnapshotSection::ALL.into_iter().zip(&self.extents) {
            table.extend((section as u32).to_le_bytes());
            table.extend(extent.crc.value().to_le_bytes());
            table.extend(offset.to_le_bytes());
            table.extend(extent.length.to_le_bytes());
            table.extend([0; 8]);
            let padding = snapshot_padding(extent.length) as u64;
            offset = offset.saturating_add(extent.length).saturating_add(padding);
        }
        let (directories, runs) = self.counts;
        let mut prelude = [0; SNAPSHOT_CHECKSUM_OFFSET];
        let mut put = FieldWriter(&mut prelude);
        put.field(&SNAPSHOT_MAGIC);
        put.field(&FORMAT_VERSION.to_le_bytes());
        put.field(&[0; 2]);
        put.field(&(SnapshotSection::ALL.len() as u32).to_le_bytes());
        put.field(self.of.dataset.as_bytes());
        put.field(&self.of.version.to_bytes());
        put.field(&self.of.shape.size().to_le_bytes());
        put.field(&self.of.shape.alignment().to_le_bytes());
        put.field(&offset.to_le_bytes());
        for count in [self.files, self.chunks, directories, runs] {
            put.field(&count.to_le_bytes());
        }
        put.field(&self.observed.file_bytes().to_le_bytes());
        put.field(&self.columns.to_bytes());
        let crc = Crc32c::of_two(&prelude, &table);
        let mut head = prelude.to_vec();
        head.extend(crc.value().to_le_bytes());
        debug_assert_eq!(head.len(), SNAPSHOT_PRELUDE_LEN);
        head.extend(table);
        head.resize(HEAD_LEN, 0);
        head
    }
}

//! Encodes live files, chunk by chunk, as the bytes of a snapshot.
//!
//! Must hold: the bytes follow `dl_format::snapshot`, also after a way through a disk. Memory goes with the
//! directories and their names, which are limited.

use std::io::{self, Read};

use dl_format::snapshot::{
    LiveFile, Observed, SnapshotChunk, SnapshotOf, SnapshotRun, SnapshotSection, SnapshotWriter,
    snapshot_padding,
};

use crate::datasets::spill::{Partitions, Scratch, Sizes, Spool};

/// Bytes of a section in memory.
const SECTION: usize = 1 << 20;

/// Bytes of an index entry before the sort: hash and number.
const INDEXED: usize = 12;

/// Bytes of a run before the sort: directory, first file, files.
const RUN: usize = 12;

/// Entries of the index, or runs, between two drains of the writer.
const DRAIN_EVERY: usize = 64 << 10;

/// The most directories of a dataset: more than a gigabyte of memory would go with them.
const DIRECTORIES: usize = 16 << 20;
/// The most bytes of directory names.
const DIRECTORY_NAMES: usize = 1 << 30;

/// Chunks with their live files.
pub(crate) type Chunks = Vec<(SnapshotChunk, Vec<LiveFile>)>;

/// Writes a snapshot.
#[derive(Debug)]
pub(crate) struct Emitter {
    writer: SnapshotWriter,
    sections: Vec<Spool>,
    hashes: Partitions,
    runs: Spool,
    scratch: Scratch,
    sizes: Sizes,
}

impl Emitter {
    /// None for more files than a snapshot has numbers.
    pub(crate) fn new(
        of: SnapshotOf,
        observed: Observed,
        scratch: Scratch,
        sizes: Sizes,
    ) -> Option<Self> {
        let files = observed.files();
        let writer = SnapshotWriter::new(of, observed)?;
        let spool = || Spool::new(scratch.clone(), SECTION);
        let sections = SnapshotSection::ALL.iter().map(|_| spool()).collect();
        let hashes = Partitions::new(scratch.clone(), files * INDEXED as u64, sizes);
        let runs = spool();
        Some(Self { writer, sections, hashes, runs, scratch, sizes })
    }

    /// Adds chunks, by id.
    pub(crate) fn add(&mut self, chunks: Chunks) -> io::Result<()> {
        for (chunk, files) in chunks {
            for (hash, number) in self.writer.chunk(&chunk, files) {
                let mut record = [0; INDEXED];
                let (first, last) = record.split_at_mut(8);
                first.copy_from_slice(&hash.to_le_bytes());
                last.copy_from_slice(&number.to_le_bytes());
                self.hashes.push(hash, &record)?;
            }
            for run in self.writer.runs() {
                self.runs.push(&run_to_bytes(run))?;
            }
            let too_much = if self.writer.directories() > DIRECTORIES {
                format!("more folders than a snapshot can have, {DIRECTORIES}")
            } else if self.writer.directory_name_bytes() > DIRECTORY_NAMES {
                format!("names of folders of more than {DIRECTORY_NAMES} bytes together")
            } else {
                continue;
            };
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it has {too_much}")));
        }
        self.drain()
    }

    fn drain(&mut self) -> io::Result<()> {
        let Self { writer, sections, .. } = self;
        writer.drain().try_for_each(|(section, bytes)| push(sections, section, &bytes))
    }

    /// Writes the runs of all chunks, sorted by the final numbers of the directories.
    fn end_runs(&mut self) -> io::Result<()> {
        let mut spool = std::mem::replace(&mut self.runs, Spool::new(self.scratch.clone(), 0));
        let mut sorted = Partitions::new(self.scratch.clone(), spool.length(), self.sizes);
        let mut some = vec![0; DRAIN_EVERY * RUN];
        loop {
            let length = fill(&mut spool, &mut some)?;
            let read = some.get(..length).unwrap_or_default();
            for run in read.as_chunks().0 {
                let run = self.writer.placed(run_of_bytes(*run));
                sorted.push(self.writer.key(run), &run_to_bytes(run))?;
            }
            if length < some.len() {
                break;
            }
        }
        for partition in 0..sorted.count() {
            let records = sorted.take(partition).read()?;
            let mut runs: Vec<_> =
                records.as_chunks().0.iter().map(|run| run_of_bytes(*run)).collect();
            drop(records);
            runs.sort_unstable();
            for some in runs.chunks(DRAIN_EVERY) {
                some.iter().for_each(|run| self.writer.run(*run));
                self.drain()?;
            }
        }
        Ok(())
    }

    /// The bytes of the whole snapshot, and its length.
    pub(crate) fn finish(mut self) -> io::Result<(Box<dyn Read + Send>, u64)> {
        self.writer.end_files();
        self.end_runs()?;
        for partition in 0..self.hashes.count() {
            let records = self.hashes.take(partition).read()?;
            let record = |bytes: &[u8; INDEXED]| {
                let (hash, number) = bytes.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
                let number = number.first_chunk().copied().unwrap_or_default();
                (u64::from_le_bytes(*hash), u32::from_le_bytes(number))
            };
            let mut files: Vec<(u64, u32)> = records.as_chunks().0.iter().map(record).collect();
            drop(records);
            files.sort_unstable();
            for some in files.chunks(DRAIN_EVERY) {
                some.iter().for_each(|(hash, number)| self.writer.index(*hash, *number));
                self.drain()?;
            }
        }
        let Self { writer, mut sections, .. } = self;
        let (rest, head) = writer.finish();
        rest.into_iter().try_for_each(|(section, bytes)| push(&mut sections, section, &bytes))?;
        let mut length = head.len() as u64;
        let mut whole: Box<dyn Read + Send> = Box::new(io::Cursor::new(head));
        for section in sections {
            let padding = snapshot_padding(section.length()) as u64;
            length += section.length() + padding;
            whole = Box::new(whole.chain(section).chain(io::repeat(0).take(padding)));
        }
        Ok((whole, length))
    }
}

fn push(sections: &mut [Spool], section: SnapshotSection, bytes: &[u8]) -> io::Result<()> {
    let place = SnapshotSection::ALL.iter().position(|other| *other == section);
    match place.and_then(|place| sections.get_mut(place)) {
        Some(spool) => spool.push(bytes),
        None => Ok(()),
    }
}

/// Reads until the input ends or the buffer is full; gives the length.
fn fill(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = into.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match from.read(rest)? {
            0 => break,
            read => length += read,
        }
    }
    Ok(length)
}

fn run_to_bytes(run: SnapshotRun) -> [u8; RUN] {
    let mut bytes = [0; RUN];
    let fields = [run.directory, run.first, run.count];
    for (place, field) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(fields) {
        *place = field.to_le_bytes();
    }
    bytes
}

fn run_of_bytes(bytes: [u8; RUN]) -> SnapshotRun {
    let fields = bytes.as_chunks::<4>().0.iter().map(|field| u32::from_le_bytes(*field));
    let mut fields = fields.chain(std::iter::repeat(0));
    let mut next = || fields.next().unwrap_or_default();
    SnapshotRun { directory: next(), first: next(), count: next() }
}

#[cfg(test)]
mod tests {
    use dl_format::snapshot::Snapshot;
    use dl_format::{
        Attributes, ChunkId, ChunkShape, Crc32c, DatasetId, EntryVersion, FilePath, FileRecord,
        Stamp, Version,
    };

    use super::*;

    const FILES: u32 = 20_000;
    const PER_CHUNK: u32 = 5_000;

    /// Files in folders in no order, so that each is a run of its own.
    fn chunks() -> Chunks {
        let chunk = |number: u32| {
            let id = ChunkId::from_bytes([number as u8 + 1; 16]);
            let stamp = Stamp::new(u64::from(number) + 1_000);
            let file = |entry: u32| {
                let file = (number * PER_CHUNK + entry).wrapping_mul(2_654_435_761) >> 8;
                let path = format!("{}/{}/{file}", file % 7, file % 4_001);
                let version = EntryVersion { stamp, chunk: id, entry };
                let record = FileRecord {
                    version,
                    holder: version,
                    attributes: Attributes { mode: 0o644, mtime: 7 },
                    length: 1,
                    crc: Crc32c::from_value(file),
                    offset: entry * 64,
                    stored: 1,
                    has_extents: false,
                };
                let path = FilePath::new(path.into_bytes()).unwrap();
                LiveFile { path, record, extents: Vec::new() }
            };
            let files = (0..PER_CHUNK).map(file).collect();
            (SnapshotChunk { id, stamp, object_length: 4 << 20 }, files)
        };
        (0..FILES / PER_CHUNK).map(chunk).collect()
    }

    fn built(sizes: Sizes) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let of = SnapshotOf {
            dataset: DatasetId::from_bytes([7; 16]),
            version: Version::default(),
            shape: ChunkShape::default(),
        };
        let mut observed = Observed::default();
        for (_, files) in chunks() {
            observed.chunk();
            files.iter().for_each(|file| observed.file(&file.record));
        }
        let mut emitter = Emitter::new(of, observed, Scratch::new(folder.path()), sizes).unwrap();
        for chunk in chunks() {
            emitter.add(vec![chunk]).unwrap();
        }
        let (mut whole, length) = emitter.finish().unwrap();
        let mut bytes = Vec::new();
        whole.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, length);
        bytes
    }

    #[test]
    fn what_went_through_a_disk_is_the_same_to_the_byte() {
        let in_memory = built(Sizes::USUAL);
        assert!(built(Sizes { memory: 32 << 10, partition: 16 << 10 }) == in_memory);
        let snapshot = Snapshot::open(in_memory).unwrap();
        snapshot.verify().unwrap();
        assert_eq!(snapshot.files(), FILES);
    }
}

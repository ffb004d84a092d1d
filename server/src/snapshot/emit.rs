//! From live files, chunk by chunk, to the bytes of a snapshot.
//!
//! Must hold: the bytes are those that `dl_format::snapshot` says, whatever went through a disk on
//! the way; memory goes with the directories, of which there are not too many, and with the runs: files
//! of one directory in one chunk.

use std::io::{self, Read};

use dl_format::snapshot::{
    LiveFile, Observed, SnapshotChunk, SnapshotOf, SnapshotSection, SnapshotWriter,
    snapshot_padding,
};

use crate::spill::{Partitions, Scratch, Sizes, Spool};

/// Bytes of a section that are in memory.
const SECTION: usize = 1 << 20;

/// Bytes of an index entry before it is sorted: hash and number.
const INDEXED: usize = 12;

/// Entries of the index after which what was written is taken over.
const DRAIN_EVERY: usize = 64 << 10;

/// Directories of one dataset, at most: more than a gigabyte of memory would go with them.
const DIRECTORIES: usize = 16 << 20;

/// Chunks with their live files.
pub(super) type Chunks = Vec<(SnapshotChunk, Vec<LiveFile>)>;

/// Writes a snapshot.
#[derive(Debug)]
pub(super) struct Emitter {
    writer: SnapshotWriter,
    sections: Vec<Spool>,
    hashes: Partitions,
}

impl Emitter {
    /// None for more files than a snapshot has numbers.
    pub(super) fn new(of: SnapshotOf, observed: Observed, scratch: Scratch) -> Option<Self> {
        let files = observed.files();
        let writer = SnapshotWriter::new(of, observed)?;
        let spool = || Spool::new(scratch.clone(), SECTION);
        let sections = SnapshotSection::ALL.iter().map(|_| spool()).collect();
        let hashes = Partitions::new(scratch.clone(), files * INDEXED as u64, Sizes::USUAL);
        Some(Self { writer, sections, hashes })
    }

    /// Adds chunks, by id.
    pub(super) fn add(&mut self, chunks: Chunks) -> io::Result<()> {
        for (chunk, files) in chunks {
            for (hash, number) in self.writer.chunk(&chunk, files) {
                let mut record = [0; INDEXED];
                let (first, last) = record.split_at_mut(8);
                first.copy_from_slice(&hash.to_le_bytes());
                last.copy_from_slice(&number.to_le_bytes());
                self.hashes.push(hash, &record)?;
            }
            if self.writer.directories() > DIRECTORIES {
                let why = format!("it has more folders than a snapshot can have, {DIRECTORIES}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        }
        self.drain()
    }

    fn drain(&mut self) -> io::Result<()> {
        let Self { writer, sections, .. } = self;
        writer.drain().try_for_each(|(section, bytes)| push(sections, section, &bytes))
    }

    /// All of it, to be read from its beginning, and its length.
    pub(super) fn finish(mut self) -> io::Result<(Box<dyn Read + Send>, u64)> {
        self.writer.end_files();
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

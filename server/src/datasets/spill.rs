//! Data beyond memory: spilled to files without a name, which end with the process.
//!
//! Must hold: memory stays within bounds; small data touches no disk; a disk gives back written bytes, or an
//! error.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::PathBuf;
use std::sync::Arc;

use dl_format::{Crc32c, DatasetId};
use dl_proto::Kind;
use dl_runtime::blocking;

use crate::error::Error;

const PARTITIONS_MAX: u64 = 4_096;
/// The least bytes of a write of a partition.
const BLOCK_MIN: u64 = 4 << 10;

/// The memory for partitioned data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Unwritten bytes of all partitions; data of no more bytes is a single partition.
    pub(crate) memory: u64,
    /// Bytes of a partition, which is processed in memory.
    pub(crate) partition: u64,
}

impl Sizes {
    /// For small records that take little more memory once read again.
    pub(crate) const USUAL: Self = Self { memory: 24 << 20, partition: 8 << 20 };
}

/// Runs work that may write to the disk; errors name the remedy.
pub(crate) async fn thread<T: Send + 'static>(
    action: &'static str,
    dataset: DatasetId,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let done = blocking::run(work).await;
    let done = done.map_err(|stopped| Error::new(Kind::Unavailable, action, dataset, stopped))?;
    done.map_err(|error| {
        let (kind, advice) = match error.kind() {
            io::ErrorKind::InvalidInput => {
                return Error::new(Kind::Invalid, action, dataset, error);
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => (
                Kind::Full,
                "the scratch folder of the server (--scratch) has to take what doesn't fit into \
                 memory: make room there, or name one that has it, and try again",
            ),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => (
                Kind::Corrupt,
                "nothing was made of it: look at the disk and the memory of the server's scratch \
                 folder (--scratch), and try again",
            ),
            _ => (Kind::Unavailable, "look at the scratch folder of the server (--scratch)"),
        };
        Error::new(kind, action, dataset, format!("{error}; {advice}"))
    })
}

fn rotten() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a scratch file gave back other bytes than were written",
    )
}

/// The folder of files without a name.
#[derive(Debug, Clone)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    fn file(&self) -> io::Result<File> {
        let made = tempfile::tempfile_in(&self.0);
        if !made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return made;
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        tempfile::tempfile_in(&self.0)
    }
}

/// Records in partitions by 64-bit numbers: all numbers of a partition are lower than those of the next.
#[derive(Debug)]
pub(crate) struct Partitions {
    scratch: Scratch,
    file: Option<Arc<File>>,
    /// Bytes of the file.
    end: u64,
    block: usize,
    partitions: Vec<Partition>,
}

#[derive(Debug, Default)]
struct Partition {
    memory: Vec<u8>,
    /// The starts of the blocks in the file, and their checksums.
    blocks: Vec<(u64, Crc32c)>,
}

/// A partition taken out, with most bytes still on the disk.
#[derive(Debug)]
pub(crate) struct Taken {
    file: Option<Arc<File>>,
    block: usize,
    partition: Partition,
}

impl Partitions {
    /// For about so many bytes.
    pub(crate) fn new(scratch: Scratch, bytes: u64, sizes: Sizes) -> Self {
        let Sizes { memory, partition } = sizes;
        let count = if bytes <= memory { 1 } else { bytes.div_ceil(partition.max(1)) };
        let count = count.clamp(1, PARTITIONS_MAX);
        let block = if bytes <= memory { memory } else { memory / count };
        let block = block.max(BLOCK_MIN);
        let mut partitions = Vec::new();
        partitions.resize_with(count as usize, Partition::default);
        Self { scratch, file: None, end: 0, block: block as usize, partitions }
    }

    /// The number of partitions.
    pub(crate) fn count(&self) -> usize {
        self.partitions.len()
    }

    pub(crate) fn push(&mut self, number: u64, record: &[u8]) -> io::Result<()> {
        let count = self.partitions.len() as u128;
        let place = ((u128::from(number) * count) >> 64) as usize;
        let Some(partition) = self.partitions.get_mut(place) else { return Ok(()) };
        partition.memory.extend_from_slice(record);
        // All blocks have the same length, so that a start gives the end.
        while partition.memory.len() >= self.block {
            let file = match &mut self.file {
                Some(file) => file,
                none => none.insert(Arc::new(self.scratch.file()?)),
            };
            let rest = partition.memory.split_off(self.block);
            file.write_all_at(&partition.memory, self.end)?;
            partition.blocks.push((self.end, Crc32c::of(&partition.memory)));
            self.end += self.block as u64;
            partition.memory = rest;
        }
        Ok(())
    }

    /// Takes a partition out, and leaves the partition empty.
    pub(crate) fn take(&mut self, number: usize) -> Taken {
        let partition = self.partitions.get_mut(number).map(std::mem::take).unwrap_or_default();
        Taken { file: self.file.clone(), block: self.block, partition }
    }
}

impl Taken {
    /// All records of the partition, one after the other.
    pub(crate) fn read(self) -> io::Result<Vec<u8>> {
        let Partition { memory, blocks } = self.partition;
        let Some(file) = self.file.filter(|_| !blocks.is_empty()) else { return Ok(memory) };
        let length = blocks.len().saturating_mul(self.block);
        let mut records = Vec::with_capacity(length.saturating_add(memory.len()));
        records.resize(length, 0);
        for (block, (start, crc)) in records.chunks_mut(self.block).zip(blocks) {
            file.read_exact_at(block, start)?;
            if Crc32c::of(block) != crc {
                return Err(rotten());
            }
        }
        records.extend_from_slice(&memory);
        Ok(records)
    }
}

/// A sequence of bytes.
#[derive(Debug)]
pub(crate) struct Spool {
    scratch: Scratch,
    memory: Vec<u8>,
    bound: usize,
    file: Option<File>,
    /// Bytes of the file.
    written: u64,
    written_crc: Crc32c,
    read: u64,
    read_crc: Crc32c,
}

impl Spool {
    /// Keeps at most so many bytes in memory.
    pub(crate) fn new(scratch: Scratch, bound: usize) -> Self {
        let (memory, crc) = (Vec::new(), Crc32c::default());
        let (written_crc, read_crc) = (crc, crc);
        Self { scratch, memory, bound, file: None, written: 0, written_crc, read: 0, read_crc }
    }

    pub(crate) fn length(&self) -> u64 {
        self.written + self.memory.len() as u64
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.memory.is_empty() && self.file.is_none() {
            self.memory.reserve(bytes.len());
        }
        self.memory.extend_from_slice(bytes);
        if self.memory.len() < self.bound {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.scratch.file()?),
        };
        file.write_all(&self.memory)?;
        let length = self.memory.len() as u64;
        self.written += length;
        self.written_crc = self.written_crc.then(Crc32c::of(&self.memory), length);
        self.memory.clear();
        Ok(())
    }
}

impl Read for Spool {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = match &self.file {
            Some(file) if self.read < self.written => {
                let left = usize::try_from(self.written - self.read).unwrap_or(usize::MAX);
                let most = into.len().min(left);
                let into = into.get_mut(..most).unwrap_or_default();
                let length = file.read_at(into, self.read)?;
                let read = into.get(..length).unwrap_or_default();
                self.read_crc = self.read_crc.then(Crc32c::of(read), length as u64);
                let is_all = self.read + length as u64 == self.written;
                let is_cut_short = length == 0 && !into.is_empty();
                if is_cut_short || (is_all && self.read_crc != self.written_crc) {
                    return Err(rotten());
                }
                length
            }
            _ => {
                let from = usize::try_from(self.read - self.written).unwrap_or(usize::MAX);
                let mut rest = self.memory.get(from..).unwrap_or_default();
                rest.read(into)?
            }
        };
        self.read += length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { memory: 1 << 20, partition: 100 << 10 };

    #[test]
    fn partitions_come_out_in_the_order_of_numbers() {
        let folder = tempfile::tempdir().unwrap();
        for bytes in [100, 3 * SIZES.memory] {
            // A folder that is not there yet.
            let scratch = Scratch::new(folder.path().join("scratch"));
            let mut partitions = Partitions::new(scratch, bytes, SIZES);
            let mut expected = Vec::new();
            let mut number = 1_u64;
            for _ in 0..if bytes == 100 { 10 } else { 400_000 } {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                partitions.push(number, &number.to_le_bytes()).unwrap();
                expected.push(number);
            }
            assert_eq!((partitions.count() > 1, partitions.end > 0), (bytes > 100, bytes > 100));
            let mut found = Vec::new();
            for place in 0..partitions.count() {
                let records = partitions.take(place).read().unwrap();
                let mut some: Vec<u64> =
                    records.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
                some.sort_unstable();
                found.extend(some);
            }
            expected.sort_unstable();
            assert!(found == expected);
        }
        let left = std::fs::read_dir(folder.path().join("scratch")).unwrap().count();
        assert_eq!(left, 0, "files without a name");
    }

    #[test]
    fn a_spool_reads_what_was_pushed() {
        let folder = tempfile::tempdir().unwrap();
        for bound in [1, 10, 1_000] {
            let mut spool = Spool::new(Scratch::new(folder.path()), bound);
            let pushed: Vec<Vec<u8>> = (0..50).map(|n| vec![n; usize::from(n % 7)]).collect();
            pushed.iter().for_each(|bytes| spool.push(bytes).unwrap());
            assert_eq!(spool.length(), pushed.concat().len() as u64);
            let mut read = Vec::new();
            spool.read_to_end(&mut read).unwrap();
            assert_eq!(read, pushed.concat(), "{bound}");
        }
    }

    #[test]
    fn changed_and_cut_bytes_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(folder.path());
        for is_cut in [true, false] {
            let harm = |file: &File, at: u64| {
                if is_cut { file.set_len(at) } else { file.write_all_at(b"!", at) }
            };
            let mut partitions = Partitions::new(scratch.clone(), 10 * SIZES.memory, SIZES);
            (0..1_000_000_u64).for_each(|n| partitions.push(n << 44, &[7; 8]).unwrap());
            harm(partitions.file.as_ref().unwrap(), partitions.end - 10).unwrap();
            let read = (0..partitions.count()).map(|place| partitions.take(place).read());
            assert_eq!(read.filter(Result::is_err).count(), 1, "of the last block alone");

            let mut spool = Spool::new(scratch.clone(), 10);
            (0..100).for_each(|_| spool.push(&[7; 8]).unwrap());
            harm(spool.file.as_ref().unwrap(), 500).unwrap();
            assert_eq!(spool.read_to_end(&mut Vec::new()).unwrap_err().kind(), rotten().kind());
        }
    }

    #[tokio::test]
    async fn a_full_disk_is_told_with_what_to_do() {
        let full = || Err::<(), _>(io::ErrorKind::StorageFull.into());
        let dataset = DatasetId::from_bytes([1; 16]);
        let error = thread("fold dataset", dataset, full).await.unwrap_err();
        assert_eq!(error.kind, Kind::Full);
        assert!(error.chain().contains("--scratch") && error.chain().contains("make room there"));
    }
}

//! Bytes that may not fit into memory: in files without a name, which end with the process.
//!
//! Must hold: memory is bounded by what is said at the start, whatever comes; small things never
//! touch a disk.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::PathBuf;

/// Bytes of all partitions together that are in memory.
const MEMORY: u64 = 24 << 20;
/// Bytes of one partition, which are sorted in memory.
const PARTITION: u64 = 8 << 20;
const PARTITIONS_MAX: u64 = 4_096;
/// Bytes of a partition that are written at once, at least.
const BLOCK_MIN: u64 = 4 << 10;

/// Where files without a name are made.
#[derive(Debug, Clone)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new(folder: impl Into<PathBuf>) -> Self {
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

/// Records that are told apart by numbers of 64 bits, in the order of these as far as partitions
/// go: all records of a partition have lower ones than those of the next.
#[derive(Debug)]
pub(super) struct Partitions {
    scratch: Scratch,
    file: Option<File>,
    /// Bytes of the file.
    end: u64,
    block: usize,
    partitions: Vec<Partition>,
}

#[derive(Debug, Default)]
struct Partition {
    memory: Vec<u8>,
    /// Where the blocks of it begin in the file.
    blocks: Vec<u64>,
}

impl Partitions {
    /// For so many bytes, or about so many.
    pub(super) fn new(scratch: Scratch, bytes: u64) -> Self {
        let count = if bytes <= MEMORY { 1 } else { bytes.div_ceil(PARTITION) };
        let count = count.min(PARTITIONS_MAX);
        let block = if bytes <= MEMORY { MEMORY } else { (MEMORY / count).max(BLOCK_MIN) };
        let mut partitions = Vec::new();
        partitions.resize_with(count as usize, Partition::default);
        Self { scratch, file: None, end: 0, block: block as usize, partitions }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.partitions.len()
    }

    pub(super) fn push(&mut self, number: u64, record: &[u8]) -> io::Result<()> {
        let count = self.partitions.len() as u128;
        let place = ((u128::from(number) * count) >> 64) as usize;
        let Some(partition) = self.partitions.get_mut(place) else { return Ok(()) };
        partition.memory.extend_from_slice(record);
        if partition.memory.len() < self.block {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.scratch.file()?),
        };
        // All blocks are equally long, so that their beginnings say where they end.
        let rest = partition.memory.split_off(self.block);
        file.write_all_at(&partition.memory, self.end)?;
        partition.blocks.push(self.end);
        self.end += self.block as u64;
        partition.memory = rest;
        Ok(())
    }

    /// All records of a partition, which is empty then.
    pub(super) fn take(&mut self, number: usize) -> io::Result<Vec<u8>> {
        let Some(partition) = self.partitions.get_mut(number) else { return Ok(Vec::new()) };
        let Partition { memory, blocks } = std::mem::take(partition);
        let Some(file) = &self.file else { return Ok(memory) };
        let mut records = vec![0; blocks.len() * self.block];
        for (block, start) in records.chunks_mut(self.block).zip(blocks) {
            file.read_exact_at(block, start)?;
        }
        records.extend_from_slice(&memory);
        Ok(records)
    }
}

/// Bytes one after the other.
#[derive(Debug)]
pub(super) struct Spool {
    scratch: Scratch,
    memory: Vec<u8>,
    bound: usize,
    file: Option<File>,
    /// Bytes of the file.
    written: u64,
    /// Bytes that were read again.
    read: u64,
}

impl Spool {
    /// Keeps at most so many bytes in memory.
    pub(super) fn new(scratch: Scratch, bound: usize) -> Self {
        Self { scratch, memory: Vec::new(), bound, file: None, written: 0, read: 0 }
    }

    pub(super) fn length(&self) -> u64 {
        self.written + self.memory.len() as u64
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
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
        self.written += self.memory.len() as u64;
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
                file.read_at(into.get_mut(..most).unwrap_or_default(), self.read)?
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

    #[test]
    fn what_went_into_partitions_comes_out_in_the_order_of_its_numbers() {
        let folder = tempfile::tempdir().unwrap();
        for bytes in [100, 3 * MEMORY] {
            // A folder that is not there yet.
            let scratch = Scratch::new(folder.path().join("scratch"));
            let mut partitions = Partitions::new(scratch, bytes);
            let mut expected = Vec::new();
            let mut number = 1_u64;
            for _ in 0..if bytes == 100 { 10 } else { 4_000_000 } {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                partitions.push(number, &number.to_le_bytes()).unwrap();
                expected.push(number);
            }
            assert_eq!((partitions.count() > 1, partitions.end > 0), (bytes > 100, bytes > 100));
            let mut found = Vec::new();
            for place in 0..partitions.count() {
                let records = partitions.take(place).unwrap();
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
    fn a_spool_reads_what_was_pushed_whether_it_is_in_memory_or_not() {
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
}

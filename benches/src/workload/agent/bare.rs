//! Plain memcpy out of memory that is made and mapped as the agent makes its arena.
//!
//! Must hold: every page was written before a copy is timed; files have the length and the number of
//! those that the other side reads.

use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use libdiesel::agent::{Arena, Shape};

/// Bytes of a segment of an arena at most.
const SEGMENT: usize = 1 << 30;

/// Bytes of one write.
const STEP: usize = 4 << 20;

/// A memfd as large as a dataset, and where in it the files lie.
#[derive(Debug)]
pub(super) struct Bare {
    arena: Arena,
    length: usize,
    /// For each file its address and its length.
    records: Vec<[u64; 2]>,
}

impl Bare {
    /// Memory for files of `length` bytes, a power of two. Record `n` has the address of file `order[n]`.
    pub(super) fn new(order: &[u32], length: usize) -> Result<Self> {
        ensure!(length.is_power_of_two() && length <= STEP, "files of {length} bytes");
        let all = order.len() * length;
        let shape = Shape { slot_bytes: SEGMENT as u32, slots: all.div_ceil(SEGMENT) as u32 };
        let (arena, _) = Arena::create(shape)?;
        let data = vec![1; STEP];
        for at in (0..all).step_by(STEP) {
            let is_written = arena.write((at / SEGMENT) as u32, (at % SEGMENT) as u32, &data);
            ensure!(is_written, "the memory is shorter than {all} bytes");
        }
        let record = |file: &u32| [u64::from(*file) * length as u64, length as u64];
        let records = order.iter().map(record).collect();
        Ok(Self { arena, length, records })
    }

    /// The segments of the memory.
    fn segments(&self) -> Result<Vec<&[u8]>> {
        let segment = |slot| self.arena.written(slot, 0, SEGMENT).context("a segment is mapped");
        (0..self.arena.shape().slots).map(segment).collect()
    }

    /// Lets `work` copy files, whose addresses follow from their numbers.
    pub(super) fn by_number<T>(&self, work: impl FnOnce(&Copying<'_>) -> Result<T>) -> Result<T> {
        let Self { length, records, .. } = self;
        work(&Copying { segments: self.segments()?, length: *length, records })
    }
}

/// Copies files.
#[derive(Debug)]
pub(super) struct Copying<'a> {
    segments: Vec<&'a [u8]>,
    length: usize,
    records: &'a [[u64; 2]],
}

impl Copying<'_> {
    /// Copies files one behind the other, from the beginning of `buffer` again when it is full.
    #[inline]
    pub(super) fn by_number(&self, numbers: &[u32], buffer: &mut [u8]) {
        let mut to = 0;
        for number in numbers {
            self.copy(*number as usize * self.length, self.length, &mut buffer[to..]);
            to += self.length;
            if to >= buffer.len() {
                to = 0;
                black_box(&mut *buffer);
            }
        }
    }

    /// Copies files whose addresses and lengths stand in their records to the beginning of `buffer`.
    #[inline]
    pub(super) fn by_record(&self, numbers: &[u32], buffer: &mut [u8]) {
        for number in numbers {
            let [at, length] = self.records[*number as usize];
            self.copy(at as usize, length as usize, buffer);
            black_box(&mut *buffer);
        }
    }

    #[inline]
    fn copy(&self, at: usize, length: usize, buffer: &mut [u8]) {
        let from = &self.segments[at / SEGMENT][at % SEGMENT..][..length];
        buffer[..length].copy_from_slice(from);
    }
}

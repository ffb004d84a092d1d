//! Plain memcpy from memory created and mapped like the agent's arena.
//!
//! Must hold: every page is written before a timed copy. Both sides have the same number and length of files.

use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use libdiesel::agent::{Arena, Shape};

/// Limit of a segment of an arena in bytes.
const SEGMENT: usize = 1 << 30;

const STEP: usize = 4 << 20;

/// A memfd as large as a dataset, with the positions of the files.
#[derive(Debug)]
pub(super) struct Plain {
    arena: Arena,
    length: usize,
    /// Address and length of each file.
    records: Vec<[u64; 2]>,
}

impl Plain {
    /// Memory for files of `length` bytes, a power of two. Record `n` has the address of file
    /// `order[n]`.
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

    /// A copier of the files.
    pub(super) fn copying(&self) -> Result<Copying<'_>> {
        let segment = |slot| self.arena.written(slot, 0, SEGMENT).context("a segment is mapped");
        let segments = (0..self.arena.shape().slots).map(segment).collect::<Result<_>>()?;
        Ok(Copying { segments, length: self.length, records: &self.records })
    }
}

/// A copier of files.
#[derive(Debug)]
pub(super) struct Copying<'a> {
    segments: Vec<&'a [u8]>,
    length: usize,
    records: &'a [[u64; 2]],
}

impl Copying<'_> {
    /// Copies files in sequence into `buffer`; a full buffer starts again at its beginning.
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

    /// Copies each file to the beginning of `buffer`; addresses and lengths come from the records.
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

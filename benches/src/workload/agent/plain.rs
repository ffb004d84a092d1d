//! Plain copies from memory created and mapped like the agent's arena, by the product's copy loop.
//!
//! Must hold: every page is written before a timed copy. Both sides have the same number and length of files.

use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use dl_node::{Arena, Shape, copy_bytes};

/// Bytes of a slot, as of the agent's slots.
const SLOT: usize = 4 << 20;

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
        ensure!(length.is_power_of_two() && length <= SLOT, "files of {length} bytes");
        let slots = (order.len() * length).div_ceil(SLOT) as u32;
        let (arena, _) = Arena::create(Shape { slot_bytes: SLOT as u32, slots })?;
        let data = vec![1; SLOT];
        for slot in 0..slots {
            arena.populate(slot);
            ensure!(arena.write(slot, 0, &data), "there is no slot {slot}");
        }
        for page in 0..arena.huge_pages() {
            // A kernel without huge pages refuses all.
            if arena.collapse(page).is_err() {
                break;
            }
        }
        let record = |file: &u32| [u64::from(*file) * length as u64, length as u64];
        let records = order.iter().map(record).collect();
        Ok(Self { arena, length, records })
    }

    /// A copier of the files.
    pub(super) fn copying(&self) -> Result<Copying<'_>> {
        let slot = |slot| self.arena.written(slot, 0, SLOT).context("a slot is mapped");
        let slots = (0..self.arena.shape().slots).map(slot).collect::<Result<_>>()?;
        Ok(Copying { slots, length: self.length, records: &self.records })
    }
}

/// A copier of files.
#[derive(Debug)]
pub(super) struct Copying<'a> {
    slots: Vec<&'a [u8]>,
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
        let from = &self.slots[at / SLOT][at % SLOT..][..length];
        copy_bytes(from, &mut buffer[..length]);
    }
}

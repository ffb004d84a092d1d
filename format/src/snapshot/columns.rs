//! The record of a file in a snapshot: fields of fixed width, each as wide as the dataset needs.
//!
//! Must hold: all observed values encode without loss, and each field is read without branching on
//! its neighbours.

use std::collections::BTreeSet;

use crate::checksum::Crc32c;
use crate::decode::Cursor;
use crate::entry::Attributes;
use crate::error::DecodeError;
use crate::fold::FileRecord;
use crate::id::Stamp;

/// The width of each field in bytes, and the base of its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Columns {
    chunk: u8,
    offset: u8,
    length: u8,
    mtime: u8,
    mode: u8,
    origin: u8,
    mode_base: u16,
    offset_step: u32,
    mtime_base: i64,
    mtime_step: u64,
}

/// Bytes of the prelude fields that describe the records.
pub(super) const COLUMNS_LEN: usize = 28;

/// A stored record: indexes into tables instead of ids and stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) chunk: u32,
    pub(super) offset: u32,
    pub(super) length: u64,
    pub(super) crc: Crc32c,
    pub(super) attributes: Attributes,
    /// 0 for a file first committed in its chunk, else an index into the stamps plus one.
    pub(super) origin: u32,
}

/// Statistics of a dataset's records, collected before the first record is written.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    files: u64,
    file_bytes: u64,
    chunks: u32,
    offset_max: u32,
    offset_step: u32,
    length_max: u64,
    mtime_first: i64,
    mtime_min: i64,
    mtime_max: i64,
    mtime_step: u64,
    mode: u16,
    has_modes: bool,
    origins: BTreeSet<Stamp>,
}

impl Observed {
    /// Observes a chunk with live files.
    pub fn chunk(&mut self) {
        self.chunks = self.chunks.saturating_add(1);
    }

    /// Observes a live file, in any order.
    pub fn file(&mut self, record: &FileRecord) {
        let Attributes { mode, mtime } = record.attributes;
        if self.files == 0 {
            (self.mtime_first, self.mtime_min, self.mtime_max) = (mtime, mtime, mtime);
            self.mode = mode;
        }
        self.files = self.files.saturating_add(1);
        self.file_bytes = self.file_bytes.saturating_add(record.length);
        self.offset_max = self.offset_max.max(record.offset);
        self.offset_step = gcd(self.offset_step.into(), record.offset.into()) as u32;
        self.length_max = self.length_max.max(record.length);
        self.mtime_min = self.mtime_min.min(mtime);
        self.mtime_max = self.mtime_max.max(mtime);
        self.mtime_step = gcd(self.mtime_step, self.mtime_first.abs_diff(mtime));
        self.has_modes |= mode != self.mode;
        if record.version.stamp != record.holder.stamp {
            self.origins.insert(record.version.stamp);
        }
    }

    /// Adds the observations of `other`.
    pub fn merge(&mut self, other: Self) {
        self.chunks = self.chunks.saturating_add(other.chunks);
        if other.files == 0 {
            return;
        }
        if self.files == 0 {
            *self = Self { chunks: self.chunks, ..other };
            return;
        }
        self.files = self.files.saturating_add(other.files);
        self.file_bytes = self.file_bytes.saturating_add(other.file_bytes);
        self.offset_max = self.offset_max.max(other.offset_max);
        self.offset_step = gcd(self.offset_step.into(), other.offset_step.into()) as u32;
        self.length_max = self.length_max.max(other.length_max);
        self.mtime_min = self.mtime_min.min(other.mtime_min);
        self.mtime_max = self.mtime_max.max(other.mtime_max);
        let apart = self.mtime_first.abs_diff(other.mtime_first);
        self.mtime_step = gcd(gcd(self.mtime_step, other.mtime_step), apart);
        self.has_modes |= other.has_modes || other.mode != self.mode;
        self.origins.extend(other.origins);
    }

    /// The number of observed files.
    pub fn files(&self) -> u64 {
        self.files
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Stamps of files moved into other chunks, in order.
    pub(super) fn origins(&self) -> Vec<Stamp> {
        self.origins.iter().copied().collect()
    }

    pub(super) fn columns(&self) -> Columns {
        let offset_step = self.offset_step.max(1);
        let mtime_step = self.mtime_step.max(1);
        let mtimes = self.mtime_max.abs_diff(self.mtime_min).checked_div(mtime_step);
        let offsets = self.offset_max.checked_div(offset_step).unwrap_or_default();
        Columns {
            chunk: width(self.chunks.saturating_sub(1).into()),
            offset: width(offsets.into()),
            length: width(self.length_max),
            mtime: width(mtimes.unwrap_or_default()),
            mode: if self.has_modes { 2 } else { 0 },
            origin: width(self.origins.len() as u64),
            mode_base: if self.has_modes { 0 } else { self.mode },
            offset_step,
            mtime_base: self.mtime_min,
            mtime_step,
        }
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

/// Bytes needed for a number.
fn width(largest: u64) -> u8 {
    let bits = u64::BITS.saturating_sub(largest.leading_zeros());
    bits.div_ceil(8) as u8
}

/// The positions of the fields of a record, computed once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    columns: Columns,
    places: [Field; 7],
    /// Bytes of a record.
    pub(super) stride: usize,
}

#[derive(Debug, Clone, Copy)]
struct Field {
    place: usize,
    /// The bits of the field among the eight bytes at its position.
    mask: u64,
}

impl Field {
    #[inline]
    fn of(self, record: &[u8]) -> Option<u64> {
        let word = record.get(self.place..)?.first_chunk()?;
        Some(u64::from_le_bytes(*word) & self.mask)
    }
}

impl Fields {
    /// Decodes the record at an offset, if eight bytes follow.
    #[inline]
    pub(super) fn decode(&self, records: &[u8], at: usize) -> Option<Row> {
        let record = records.get(at..at.checked_add(self.stride)?.checked_add(8)?)?;
        let [chunk, offset, length, crc, mtime, mode, origin] = self.places;
        let Columns { mode_base, offset_step, mtime_base, mtime_step, .. } = self.columns;
        let mtime = mtime.of(record)?.wrapping_mul(mtime_step);
        let mode = mode.of(record)? as u16 | mode_base;
        Some(Row {
            chunk: chunk.of(record)? as u32,
            offset: (offset.of(record)? as u32).wrapping_mul(offset_step),
            length: length.of(record)?,
            crc: Crc32c::from_value(crc.of(record)? as u32),
            attributes: Attributes { mode, mtime: mtime_base.wrapping_add_unsigned(mtime) },
            origin: origin.of(record)? as u32,
        })
    }
}

/// The bit mask of a field of the given width.
fn mask(width: u8) -> u64 {
    u64::MAX.checked_shr(u64::BITS.saturating_sub(u32::from(width).saturating_mul(8))).unwrap_or(0)
}

impl Columns {
    pub(super) fn encode(&self, row: &Row, records: &mut Vec<u8>) {
        let mtime = row.attributes.mtime.abs_diff(self.mtime_base);
        let fields = [
            (row.chunk.into(), self.chunk),
            (row.offset.checked_div(self.offset_step).unwrap_or_default().into(), self.offset),
            (row.length, self.length),
            (row.crc.value().into(), 4),
            (mtime.checked_div(self.mtime_step).unwrap_or_default(), self.mtime),
            (row.attributes.mode.into(), self.mode),
            (row.origin.into(), self.origin),
        ];
        for (value, width) in fields {
            let value: u64 = value;
            records.extend_from_slice(value.to_le_bytes().get(..width.into()).unwrap_or_default());
        }
    }

    /// The positions of the fields of a record.
    pub(super) fn fields(self) -> Fields {
        let widths = [self.chunk, self.offset, self.length, 4, self.mtime, self.mode, self.origin];
        let mut next = 0_usize;
        let places = widths.map(|width| {
            let place = next;
            next = next.saturating_add(width.into());
            Field { place, mask: mask(width) }
        });
        Fields { columns: self, places, stride: next }
    }

    pub(super) fn to_bytes(self) -> [u8; COLUMNS_LEN] {
        let mut bytes = [0; COLUMNS_LEN];
        let widths = [self.chunk, self.offset, self.length, self.mtime, self.mode, self.origin];
        let fields = [
            &self.mtime_base.to_le_bytes()[..],
            &self.mtime_step.to_le_bytes(),
            &self.offset_step.to_le_bytes(),
            &widths,
            &self.mode_base.to_le_bytes(),
        ];
        for (byte, stored) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *byte = *stored;
        }
        bytes
    }

    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let mtime_base = cursor.i64("mtime base")?;
        let mtime_step = cursor.u64("mtime step")?;
        let offset_step = cursor.u32("offset step")?;
        let at = cursor.offset();
        let [chunk, offset, length, mtime, mode, origin] = cursor.array("field widths")?;
        let mode_base = cursor.u16("mode")?;
        let wide = [(chunk, 4), (offset, 4), (length, 8), (mtime, 8), (mode, 2), (origin, 4)];
        if wide.into_iter().any(|(width, most)| width > most) {
            return Err(DecodeError::new("field widths", at, "wider than the field can be"));
        }
        Ok(Self {
            chunk,
            offset,
            length,
            mtime,
            mode,
            origin,
            mode_base,
            offset_step,
            mtime_base,
            mtime_step,
        })
    }
}

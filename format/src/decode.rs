//! A cursor over unchecked bytes: every read is bounded, every failure has an offset.
//!
//! Must hold: a length in the bytes is not used before as many bytes were found.

use crate::error::{DecodeError, NEWER_VERSION};
use crate::layout::FORMAT_VERSION;

/// Reads little-endian fields one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    /// Offset of `bytes` in the object.
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self { bytes, offset }
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.bytes.split_first_chunk::<N>().ok_or(DecodeError::new(
            field,
            self.offset,
            "the bytes end here",
        ))?;
        self.bytes = rest;
        self.offset = self.offset.saturating_add(N);
        Ok(*array)
    }

    pub(crate) fn slice(
        &mut self,
        length: usize,
        field: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        let (slice, rest) = self.bytes.split_at_checked(length).ok_or(DecodeError::new(
            field,
            self.offset,
            "the bytes end here",
        ))?;
        self.bytes = rest;
        self.offset = self.offset.saturating_add(length);
        Ok(slice)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.array(field).map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        self.array(field).map(i64::from_le_bytes)
    }

    /// Reads a field written as zero by this version.
    pub(crate) fn zero<const N: usize>(&mut self, field: &'static str) -> Result<(), DecodeError> {
        let offset = self.offset;
        if self.array::<N>(field)? == [0; N] {
            Ok(())
        } else {
            Err(DecodeError::new(field, offset, "must be zero"))
        }
    }
}

/// Reads the version, which follows the magic of every object.
pub(crate) fn check_version(cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
    let offset = cursor.offset();
    match cursor.u16("version")? {
        FORMAT_VERSION => Ok(()),
        0 => Err(DecodeError::new("version", offset, "no version has this number")),
        _ => Err(DecodeError::new("version", offset, NEWER_VERSION)),
    }
}

/// `bytes[start..][..length]`, if present.
pub(crate) fn range(bytes: &[u8], start: usize, length: usize) -> Option<&[u8]> {
    bytes.get(start..)?.get(..length)
}

/// Whether all bytes are zero. Checks words first, because padding may be a page.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| *word == [0; 16]) && rest.iter().all(|byte| *byte == 0)
}

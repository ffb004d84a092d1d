//! Ranges of bytes of objects.
//!
//! Must hold: no range is empty. An exact range is given whole or not at all. A range up to a length is
//! cut at the end of its object.

use crate::Key;

/// Bytes of an object; checked not to be empty when made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange(pub(crate) Span);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Span {
    /// `start..end`, `start < end`.
    Exact { start: u64, end: u64 },
    /// At least 1.
    UpTo(u64),
}

/// A range without a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the byte range {start}..{end} is empty")]
pub struct InvalidRange {
    start: u64,
    end: u64,
}

impl ByteRange {
    /// The whole object, of any size.
    pub const WHOLE: Self = Self(Span::UpTo(u64::MAX));

    /// Exactly the bytes `start..end`.
    ///
    /// # Errors
    /// The range is empty.
    pub fn exact(start: u64, end: u64) -> Result<Self, InvalidRange> {
        if start < end {
            Ok(Self(Span::Exact { start, end }))
        } else {
            Err(InvalidRange { start, end })
        }
    }

    /// The first `length` bytes, or the whole of a shorter object.
    ///
    /// # Errors
    /// `length` is zero.
    pub fn up_to(length: u64) -> Result<Self, InvalidRange> {
        if length > 0 {
            Ok(Self(Span::UpTo(length)))
        } else {
            Err(InvalidRange { start: 0, end: 0 })
        }
    }

    /// The most bytes that a read of the range can give.
    pub fn max_len(self) -> u64 {
        match self.0 {
            Span::Exact { start, end } => end - start,
            Span::UpTo(length) => length,
        }
    }

    /// The end of an exact range.
    pub(crate) fn exact_end(self) -> Option<u64> {
        match self.0 {
            Span::Exact { end, .. } => Some(end),
            Span::UpTo(_) => None,
        }
    }

    /// The bytes to read of an object of `size` bytes; none when the object ends before the range.
    pub fn within(self, size: u64) -> Option<std::ops::Range<u64>> {
        match self.0 {
            Span::Exact { end, .. } if end > size => None,
            Span::Exact { start, end } => Some(start..end),
            Span::UpTo(length) => Some(0..length.min(size)),
        }
    }
}

/// Bytes of a named object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectRange {
    /// The object.
    pub key: Key,
    /// Its bytes.
    pub range: ByteRange,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_range_cannot_be_made() {
        assert!(ByteRange::exact(4, 4).is_err());
        assert!(ByteRange::exact(5, 4).is_err());
        assert!(ByteRange::up_to(0).is_err());
    }

    #[test]
    fn an_exact_range_is_never_cut_and_up_to_is() {
        assert_eq!(ByteRange::exact(2, 5).unwrap().within(5), Some(2..5));
        assert_eq!(ByteRange::exact(2, 5).unwrap().within(4), None);
        assert_eq!(ByteRange::up_to(5).unwrap().within(4), Some(0..4));
        assert_eq!(ByteRange::WHOLE.within(0), Some(0..0));
    }
}

//! The damage of an object, by its checksums.
//!
//! Must hold: for an object with a whole header, each file with changed bytes is named.

use bytes::Bytes;
use dl_format::{Crc32c, DecodeError, Entry, FilePath, Header};

/// The damage of an object with a whole header.
#[derive(Debug)]
pub(super) enum Damaged {
    Nothing,
    Part,
    Files(Vec<FilePath>),
}

impl Damaged {
    /// # Errors
    /// The damage of the header.
    pub(super) fn of(object: &Bytes) -> Result<Self, DecodeError> {
        let length = Header::length(object)?;
        let header = Header::decode(&object.slice(..length.min(object.len())))?;
        let bytes = |start: usize, length: u32| {
            object.get(start..start.checked_add(length as usize)?).map(Crc32c::of)
        };
        if let Some((length, crc)) = header.part() {
            let is_whole = bytes(header.header_length(), length) == Some(crc);
            return Ok(if is_whole { Self::Nothing } else { Self::Part });
        }
        let mut extents = header.extents().iter();
        let earlier = extents.next().map(|first| {
            extents.fold(first.crc, |whole, next| whole.then(next.crc, next.length.into()))
        });
        let is_damaged = |entry: &Entry| {
            let own = bytes(entry.offset as usize, entry.stored);
            let whole = own.map(|own| match earlier {
                Some(earlier) => earlier.then(own, entry.stored.into()),
                None => own,
            });
            whole != Some(entry.crc)
        };
        let paths: Vec<_> = header.entries().filter(is_damaged).map(|entry| entry.path).collect();
        Ok(if paths.is_empty() { Self::Nothing } else { Self::Files(paths) })
    }
}

//! The received bytes of a range of a chunk, and the files within.
//!
//! Must hold: a file within a single piece is never copied, and keeps only the piece in memory. A
//! range is at most twice as long as the wanted files within.

use std::ops::Range;

use bytes::Bytes;
use dl_format::{Crc32c, FileRecord};
use dl_proto::ChunkRange;

/// The inverse share of wanted bytes in a range, at most.
const WANTED_PART: u64 = 2;

/// The range of a file in its chunk.
fn place(record: &FileRecord) -> Range<u64> {
    let start = u64::from(record.offset);
    start..start.saturating_add(record.stored.into())
}

/// The range of a chunk from the first to the last of the files; none if less than half of these
/// bytes are wanted.
pub(super) fn range_of<'a>(files: impl IntoIterator<Item = &'a FileRecord>) -> Option<ChunkRange> {
    let (mut chunk, mut start, mut end, mut wanted) = (None, u64::MAX, 0, 0u64);
    for record in files {
        if *chunk.get_or_insert(record.holder.chunk) != record.holder.chunk {
            return None;
        }
        if record.stored > 0 {
            let place = place(record);
            (start, end) = (start.min(place.start), end.max(place.end));
            wanted = wanted.saturating_add(record.stored.into());
        }
    }
    let length = u64::checked_sub(end, start)?;
    let range = ChunkRange {
        chunk: chunk?,
        offset: u32::try_from(start).ok()?,
        length: u32::try_from(length).ok()?,
    };
    let is_worth_it = wanted.saturating_mul(WANTED_PART) >= length;
    (is_worth_it && range.check().is_ok()).then_some(range)
}

/// Consecutive bytes of a chunk.
#[derive(Debug)]
pub(super) struct ChunkBytes {
    /// The offset of the first byte in the chunk.
    start: u64,
    /// The pieces, each with the offset of its end.
    pieces: Vec<(u64, Bytes)>,
}

impl ChunkBytes {
    /// An empty range.
    pub(super) fn of(range: &ChunkRange) -> Self {
        Self { start: range.offset.into(), pieces: Vec::new() }
    }

    pub(super) fn push(&mut self, piece: Bytes) {
        let end = self.end().saturating_add(piece.len() as u64);
        self.pieces.push((end, piece));
    }

    fn end(&self) -> u64 {
        self.pieces.last().map_or(self.start, |(end, _)| *end)
    }

    /// A file, if complete and with its checksum.
    pub(super) fn file(&self, record: &FileRecord) -> Option<Bytes> {
        let bytes = self.slice(place(record))?;
        (Crc32c::of(&bytes) == record.crc).then_some(bytes)
    }

    fn slice(&self, wanted: Range<u64>) -> Option<Bytes> {
        if wanted.is_empty() {
            return Some(Bytes::new());
        }
        if wanted.start < self.start || wanted.end > self.end() {
            return None;
        }
        let first = self.pieces.partition_point(|(end, _)| *end <= wanted.start);
        let part = |(end, piece): &(u64, Bytes)| {
            let start = end.checked_sub(piece.len() as u64)?;
            let from = usize::try_from(wanted.start.saturating_sub(start)).ok()?;
            let to = usize::try_from(wanted.end.min(*end).checked_sub(start)?).ok()?;
            Some(piece.slice(from..to))
        };
        let mut pieces = self.pieces.get(first..)?.iter();
        let begun = part(pieces.next()?)?;
        let length = usize::try_from(wanted.end - wanted.start).ok()?;
        if begun.len() == length {
            return Some(begun);
        }
        let mut joined = Vec::with_capacity(length);
        joined.extend_from_slice(&begun);
        while joined.len() < length {
            joined.extend_from_slice(&part(pieces.next()?)?);
        }
        Some(joined.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::testing::{data, record};

    fn file(offset: u32, bytes: &[u8]) -> FileRecord {
        FileRecord { offset, ..record(bytes) }
    }

    #[test]
    fn good_files_are_cut_from_pieces_of_any_length() {
        let bytes = data(1_000, 1);
        for cut in [1, 7, 100, 999, 1_000] {
            let first = file(500, &bytes);
            let mut came = ChunkBytes::of(&range_of([&first]).unwrap());
            for piece in bytes.chunks(cut) {
                assert_eq!(came.file(&first), None);
                came.push(Bytes::copy_from_slice(piece));
            }
            for part in [0..1_000, 0..1, 999..1_000, 99..101, 350..700, 500..500] {
                let found = came.file(&file(500 + part.start as u32, &bytes[part.clone()]));
                assert!(found.unwrap() == bytes[part.clone()], "{part:?} of {cut}");
            }
            let damaged = FileRecord { crc: Crc32c::of(b"other"), ..file(500, &bytes[..10]) };
            for none in [damaged, file(499, &bytes[..10]), file(1_499, &bytes[..2])] {
                assert_eq!(came.file(&none), None);
            }
        }
        let piece = Bytes::from(bytes.clone());
        let mut came = ChunkBytes::of(&range_of([&file(0, &bytes)]).unwrap());
        came.push(piece.clone());
        let shared = came.file(&file(10, &bytes[10..20])).unwrap();
        assert_eq!(shared.as_ptr(), piece[10..].as_ptr());
    }

    #[test]
    fn a_range_is_requested_if_at_least_half_is_wanted() {
        let range = |files: &[(u32, usize)]| {
            let files: Vec<_> =
                files.iter().map(|(at, length)| file(*at, &data(*length, 1))).collect();
            range_of(&files).map(|range| (range.offset, range.length))
        };
        assert_eq!(range(&[(4_096, 10), (4_116, 10), (9, 0)]), Some((4_096, 30)));
        assert_eq!(range(&[(4_116, 10), (4_096, 10)]), Some((4_096, 30)));
        assert_eq!(range(&[(0, 10), (30, 10)]), Some((0, 40)));
        assert_eq!(range(&[(0, 10), (31, 10)]), None);
        assert_eq!(range(&[(7, 0)]), None);
        assert_eq!(range(&[]), None);
        assert_eq!(range(&[(u32::MAX, 10)]), None);
    }
}

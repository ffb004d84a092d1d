//! The pieces of large files, which are cut into several objects.
//!
//! Must hold: the pieces of a file, in their order, are all of its bytes. Each piece has its own
//! checksum.

use std::ops::Range;

use dl_format::snapshot::FileNumber;
use dl_format::{ChunkId, ChunkShape, Crc32c, Extent};

use crate::error::Error;
use crate::snapshot::{FilePlace, Snapshot};

impl Snapshot {
    /// The number of objects with bytes of files: the chunks, and behind them the parts of large
    /// files.
    pub fn holders(&self) -> u32 {
        self.chunks().saturating_add(self.format().parts())
    }

    /// The id of a holder behind the chunks, and the piece in it with the number of its file.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) when there is no such holder, or its row is damaged.
    pub fn part(&self, holder: u32) -> Result<(ChunkId, u32, FilePlace), Error> {
        let none = || self.lacks("a part");
        let number = holder.checked_sub(self.chunks()).ok_or_else(none)?;
        let (FileNumber(file), extent) = self.format().part(number).map_err(self.damaged())?;
        Ok((extent.part, file, place_of(holder, extent)))
    }

    /// The pieces of a large file with bytes in a range, and the offset of each in the file. The
    /// checksum of the last piece is that of the file.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) when the rows are damaged.
    pub(crate) fn pieces_within(
        &self,
        number: u32,
        range: &Range<u64>,
    ) -> Result<Vec<(u64, FilePlace)>, Error> {
        let (mut pieces, mut start) = (Vec::new(), 0_u64);
        for part in self.format().parts_of(FileNumber(number)) {
            if start >= range.end {
                return Ok(pieces);
            }
            let (_, extent) = self.format().part(part).map_err(self.damaged())?;
            let end = start.saturating_add(extent.length.into());
            if end > range.start {
                pieces.push((start, place_of(self.chunks().saturating_add(part), extent)));
            }
            start = end;
        }
        let whole = self.place(number)?;
        let left = whole.length.checked_sub(start);
        let length = left.ok_or_else(|| self.lacks("the last part of a file"))?;
        if start < range.end {
            pieces.push((start, FilePlace { length, ..whole }));
        }
        Ok(pieces)
    }

    /// The pieces of a large file; none of a file that lies in its chunk as a whole. The `chunk` of a piece
    /// is its holder.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::Kind::Corrupt) when the rows are damaged.
    pub fn pieces(&self, number: u32) -> Result<Vec<FilePlace>, Error> {
        let parts = self.format().parts_of(FileNumber(number));
        let mut pieces = Vec::with_capacity(parts.len().saturating_add(1));
        let (mut length, mut crc, mut join) = (0_u64, Crc32c::of(&[]), Join::default());
        for part in parts {
            let (_, extent) = self.format().part(part).map_err(self.damaged())?;
            length = length.saturating_add(extent.length.into());
            crc = join.then(crc, extent.crc, extent.length.into());
            pieces.push(place_of(self.chunks().saturating_add(part), extent));
        }
        if pieces.is_empty() {
            return Ok(pieces);
        }
        let whole = self.place(number)?;
        let too_short = || self.lacks("the last part of a file");
        let left = whole.length.checked_sub(length).ok_or_else(too_short)?;
        // The checksum of the last piece is the difference between the checksums of the whole and
        // the rest.
        let before = crc.then(Crc32c::from_value(0), left);
        let crc = Crc32c::from_value(whole.crc.value() ^ before.value());
        pieces.push(FilePlace { length: left, crc, ..whole });
        Ok(pieces)
    }
}

/// Joins checksums of pieces, which mostly have the same length. The checksum of a piece and what
/// precedes it is linear in the latter, so a few joins give the answers of all others of this length.
#[derive(Debug, Default)]
struct Join {
    length: u64,
    joined: u32,
    /// What becomes of each bit.
    bits: Option<[u32; 32]>,
}

impl Join {
    /// A table pays off from this number of pieces on.
    const TABLE_MIN: u32 = 40;

    /// The checksum of what `first` and then `next` are of, the latter with a length.
    fn then(&mut self, first: Crc32c, next: Crc32c, length: u64) -> Crc32c {
        if self.length != length {
            *self = Self { length, ..Self::default() };
        }
        self.joined += 1;
        if self.joined < Self::TABLE_MIN {
            return first.then(next, length);
        }
        let none = Crc32c::from_value(0);
        let of_bit = |bit: usize| Crc32c::from_value(1 << bit).then(none, length).value();
        let bits = self.bits.get_or_insert_with(|| std::array::from_fn(of_bit));
        let set = bits.iter().enumerate().filter(|(bit, _)| first.value() >> bit & 1 == 1);
        Crc32c::from_value(set.fold(next.value(), |all, (_, of)| all ^ of))
    }
}

fn place_of(holder: u32, extent: Extent) -> FilePlace {
    let (length, crc) = (extent.length.into(), extent.crc);
    FilePlace { chunk: holder, offset: ChunkShape::PART_START, length, crc }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_many_pieces_are_joined_as_those_of_few() {
        let (mut join, mut crc, mut whole) = (Join::default(), Crc32c::of(&[]), Vec::new());
        for number in 0..200_u32 {
            let length = if number % 90 == 89 { 100 } else { 777 };
            let piece: Vec<u8> = (0..length).map(|at| (number * 31 + at * 7) as u8).collect();
            crc = join.then(crc, Crc32c::of(&piece), u64::from(length));
            whole.extend(piece);
            assert_eq!(crc.value(), Crc32c::of(&whole).value(), "{number}");
        }
    }

    #[test]
    fn the_checksum_of_the_last_piece_follows_from_the_others() {
        let whole = [7_u8; 5_000];
        let (head, tail) = whole.split_at(3_333);
        let before = Crc32c::of(head).then(Crc32c::from_value(0), tail.len() as u64);
        assert_eq!(Crc32c::of(&whole).value() ^ before.value(), Crc32c::of(tail).value());
    }
}

//! Reads of a range of a file.
//!
//! Must hold: each byte belongs to a piece whose checksum was compared. Memory holds a piece for each
//! reader, and the few of [`Pieces`].

use std::io::{self, Write};
use std::ops::Range;

use bytes::Bytes;

use super::Dataset;
use super::cached::{AsFile, FileKey};
use super::pieces::Pieces;
use crate::error::{Error, Kind};
use crate::remote::ReadItem;
use crate::snapshot::{FilePlace, Snapshot};

impl Dataset {
    /// Reads a range of a file: at most `length` bytes from the byte `offset` on, fewer at the end of
    /// the file. Of a large file, only the parts with bytes of the range are read; without a
    /// snapshot, the whole file is.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn get_range(&self, file: impl AsFile, offset: u64, length: u64) -> Result<Bytes, Error> {
        let number = match file.as_file()? {
            FileKey::Number(number) => Some(number),
            FileKey::Path(path) => match self.snapshot() {
                Some(snapshot) => snapshot.number(&path)?,
                None => return self.range_without_snapshot(&path, offset, length),
            },
        };
        let Some(number) = number else {
            // The usual read reports the missing file.
            return self.get_of_servers(&file.as_file()?);
        };
        let there = self.numbering()?.place(number)?.length.saturating_sub(offset);
        let length = usize::try_from(there.min(length)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        self.read_range(number, offset, &mut bytes)?;
        Ok(bytes.into())
    }

    /// Reads a range of a file, by its number in the snapshot, to the beginning of `buffer`: as many
    /// bytes as the buffer and the file have. Gives their number.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a handle without a snapshot; otherwise as for [`get`](Self::get).
    pub fn read_range(&self, number: u32, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let snapshot = self.numbering()?;
        let left = snapshot.place(number)?.length.saturating_sub(offset);
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let buffer = buffer.get_mut(..length).unwrap_or_default();
        if length == 0 {
            return Ok(0);
        }
        let Some((worker, _)) = self.worker() else {
            self.range_of_servers(snapshot, number, offset, buffer)?;
            return Ok(length);
        };
        if worker.read_range(number, offset, buffer).is_none() {
            worker.uncached(number, || self.range_of_servers(snapshot, number, offset, buffer))?;
        }
        Ok(length)
    }

    /// Lends the bytes of a range of a file in the memory of the node, in order, without waiting.
    /// None if a byte is absent, or beyond the end of the file.
    pub fn lend_range_present<T>(
        &self,
        number: u32,
        range: Range<u64>,
        take: impl FnOnce(&[&[u8]]) -> T,
    ) -> Option<T> {
        self.worker()?.0.lend_range_present(number, range, take)
    }

    fn range_of_servers(
        &self,
        snapshot: &Snapshot,
        number: u32,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let mut pieces = snapshot.pieces(number)?;
        if pieces.is_empty() {
            pieces.push(snapshot.place(number)?);
        }
        let end = offset.saturating_add(buffer.len() as u64);
        let (mut start, mut left) = (0_u64, buffer);
        for piece in pieces {
            let (first, behind) = (start, start.saturating_add(piece.length));
            start = behind;
            let (from, to) = (offset.max(first), end.min(behind));
            if from >= to {
                continue;
            }
            let bytes = match self.piece(snapshot, piece) {
                // A purge may have moved the file.
                Err(error) if error.kind() == Kind::NotFound => {
                    return self.moved_range(snapshot, number, from..end, left);
                }
                read => read?,
            };
            let bytes = bytes.slice((from - first) as usize..(to - first) as usize);
            let Some((into, rest)) = left.split_at_mut_checked(bytes.len()) else { break };
            into.copy_from_slice(&bytes);
            left = rest;
        }
        Ok(())
    }

    /// A whole piece, kept or from the servers.
    fn piece(&self, snapshot: &Snapshot, place: FilePlace) -> Result<Bytes, Error> {
        let pieces = self.0.pieces.get_or_make(|| Ok::<_, Error>(Pieces::default()))?;
        let chunk = match place.chunk < snapshot.chunks() {
            true => snapshot.chunk(place.chunk)?.0,
            false => snapshot.part(place.chunk)?.0,
        };
        pieces.get((place.chunk, place.offset), || self.0.remote.read_piece(chunk, place))
    }

    /// A range of a file whose chunk is gone, by a read of the whole file.
    fn moved_range(
        &self,
        snapshot: &Snapshot,
        number: u32,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<(), Error> {
        let record = snapshot.record(number)?;
        let item = ReadItem::from((snapshot.path(number)?, record));
        let mut part = RangeOf { skip: range.start, into };
        let read = self.0.remote.read_to(&item, record, &mut part);
        if part.into.is_empty() { Ok(()) } else { read.map(|_| ()) }
    }

    fn range_without_snapshot(
        &self,
        path: &dl_format::FilePath,
        offset: u64,
        length: u64,
    ) -> Result<Bytes, Error> {
        let record = self.find(path)?;
        let length = record.length.saturating_sub(offset).min(length);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        let item = ReadItem::from((path.clone(), record));
        let mut part = RangeOf { skip: offset, into: &mut bytes };
        let read = self.0.remote.read_to(&item, record, &mut part);
        if !part.into.is_empty() {
            read?;
        }
        Ok(bytes.into())
    }
}

/// Keeps a range of the written bytes; refuses more once the range is full.
struct RangeOf<'a> {
    /// Bytes before the range.
    skip: u64,
    /// The rest of the range.
    into: &'a mut [u8],
}

impl Write for RangeOf<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.into.is_empty() {
            return Err(io::Error::other("the range is full"));
        }
        let before = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
        self.skip -= before as u64;
        let wanted = bytes.get(before..).unwrap_or_default();
        let taken = wanted.len().min(self.into.len());
        let (now, later) = std::mem::take(&mut self.into).split_at_mut(taken);
        now.copy_from_slice(wanted.get(..taken).unwrap_or_default());
        self.into = later;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

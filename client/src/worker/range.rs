//! Reads of a range of a file, also of a file cut into several objects.
//!
//! Must hold: only pieces with bytes of the range are pinned or requested. A copy pins a single piece
//! at a time, so a file of any size needs a single slot.

use std::ops::Range;

use dl_node::{Gauge, Pinned, copy_bytes};

use super::attach::Attached;
use super::read::AgentReader;
use crate::snapshot::FilePlace;

/// Pieces fetched during the copy of a piece.
const AHEAD: usize = 4;

/// The bytes of a range in a holder.
struct Part {
    place: FilePlace,
    /// The offset of the bytes in the holder, and their number.
    offset: u32,
    length: usize,
}

impl AgentReader {
    /// Lends the bytes of a range in memory, in order, without waiting; none if a byte is absent, or
    /// beyond the end of the file.
    pub(crate) fn lend_range_present<T>(
        &self,
        number: u32,
        range: Range<u64>,
        take: impl FnOnce(&[&[u8]]) -> T,
    ) -> Option<T> {
        let attached = self.attached_now()?;
        if let Some(place) = self.place(number) {
            let pinned = attached.maps.pin(place.chunk)?;
            let part = part_of(place, 0, &range)?;
            if part.length as u64 != range.end.checked_sub(range.start)? {
                return None;
            }
            let taken = take(&[pinned.bytes(part.offset, part.length)?]);
            count(&attached, &range);
            return Some(taken);
        }
        let parts = self.parts(number, &range)?;
        let pinned: Option<Vec<Pinned<'_>>> =
            parts.iter().map(|part| attached.maps.pin(part.place.chunk)).collect();
        let pinned = pinned?;
        let bytes = pinned.iter().zip(&parts);
        let bytes: Option<Vec<&[u8]>> =
            bytes.map(|(pinned, part)| pinned.bytes(part.offset, part.length)).collect();
        let taken = take(&bytes?);
        count(&attached, &range);
        Some(taken)
    }

    /// Copies a range of a file to a buffer of its length; none if the caller must read from the
    /// servers.
    pub(crate) fn read_range(&self, number: u32, from: u64, buffer: &mut [u8]) -> Option<()> {
        let range = from..from.checked_add(buffer.len() as u64)?;
        let parts = match self.place(number) {
            Some(place) => vec![part_of(place, 0, &range)?],
            None => self.parts(number, &range)?,
        };
        let mut left = buffer;
        for (index, part) in parts.iter().enumerate() {
            let (into, rest) = left.split_at_mut_checked(part.length)?;
            let attached = self.attached();
            let attached = attached.as_ref()?;
            let place = part.place;
            let pinned = attached.maps.pin(place.chunk).or_else(|| {
                let next = parts.iter().skip(index + 1).take(AHEAD);
                let hints: Vec<_> = next.map(|part| part.place.chunk).collect();
                self.miss(attached, number, place, &hints)
            })?;
            copy_bytes(pinned.bytes(part.offset, part.length)?, into);
            left = rest;
        }
        if let Some(attached) = self.attached_now() {
            count(&attached, &range);
        }
        Some(())
    }

    /// A file cut into pieces; none if the caller must read from the servers.
    #[cold]
    pub(super) fn read_large(&self, number: u32) -> Option<Vec<u8>> {
        let length = self.snapshot().place(number).ok()?.length;
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.read_range(number, 0, &mut bytes)?;
        Some(bytes)
    }

    /// Copies such a file to the beginning of `buffer`; gives its length. None if the buffer is too
    /// short, or if the caller must read from the servers.
    #[cold]
    pub(super) fn read_large_into(&self, number: u32, buffer: &mut [u8]) -> Option<usize> {
        let length = usize::try_from(self.snapshot().place(number).ok()?.length).ok()?;
        self.read_range(number, 0, buffer.get_mut(..length)?)?;
        Some(length)
    }

    /// The parts of a range of a file cut into pieces.
    fn parts(&self, number: u32, range: &Range<u64>) -> Option<Vec<Part>> {
        let pieces = self.snapshot().pieces_within(number, range).ok()?;
        let parts = pieces.into_iter().map(|(start, piece)| part_of(piece, start, range));
        let parts: Vec<Part> = parts.collect::<Option<_>>()?;
        let length: u64 = parts.iter().map(|part| part.length as u64).sum();
        (length == range.end.checked_sub(range.start)?).then_some(parts)
    }
}

/// The bytes of a range in a piece that starts at `start` of the file; none without such bytes.
fn part_of(piece: FilePlace, start: u64, range: &Range<u64>) -> Option<Part> {
    let end = start.checked_add(piece.length)?.min(range.end);
    let from = range.start.max(start);
    let length = end.checked_sub(from)?;
    let offset = u64::from(piece.offset).checked_add(from.checked_sub(start)?)?;
    Some(Part { place: piece, offset: u32::try_from(offset).ok()?, length: length as usize })
}

/// Counts a read; a file in several reads counts once.
fn count(attached: &Attached, range: &Range<u64>) {
    let pins = &attached.maps.pins;
    pins.add(Gauge::Hits, u64::from(range.start == 0));
    pins.add(Gauge::HitBytes, range.end.saturating_sub(range.start));
}

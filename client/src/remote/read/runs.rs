//! Files that lie next to each other in one chunk are asked for as one range of it: a request
//! costs both ends by the range, and not by the file.
//!
//! Must hold: each file of a run is still verified by itself; what a run's failure says is said of
//! each of its files, and what is asked for once more is asked for alone.

use std::ops::Range;

use dl_format::{Crc32c, FileRecord};
use dl_proto::{REPLY_BYTES, ReadSource};

use crate::remote::read::wanted::Wanted;

/// Most bytes of a run: what a server sends in one piece.
const RUN_BYTES: u32 = REPLY_BYTES as u32;
/// Bytes between two files that are worth less than another item.
const GAP_BYTES: u32 = 2 << 10;

/// One item of a request.
#[derive(Debug)]
pub(super) struct Run {
    /// Its files, by their places in the order in which all were asked for.
    pub(super) files: Range<usize>,
    /// Where they lie in their chunk; not of a file that is alone.
    bytes: Option<Range<u32>>,
}

/// A file that may be part of a run, as far as that depends on where it lies.
fn place<'a>(wanted: &Wanted<'a>) -> Option<&'a FileRecord> {
    let record = wanted.item.record.as_ref()?;
    let is_whole = wanted.offset == 0 && wanted.length.is_none();
    let is_here = !record.has_extents && u64::from(record.stored) == record.length;
    (is_whole && is_here && record.stored > 0).then_some(record)
}

fn is_in_one_chunk(a: &FileRecord, b: &FileRecord) -> bool {
    (a.holder.chunk, a.holder.stamp) == (b.holder.chunk, b.holder.stamp)
}

impl Run {
    /// Cuts what is asked for into items, after `asked`, numbers of the wanted, was sorted by where
    /// their bytes lie. `is_alone` tells which are not to be part of a larger range.
    pub(super) fn of(
        wanted: &[Wanted<'_>],
        asked: &mut [usize],
        is_alone: impl Fn(usize) -> bool,
    ) -> Vec<Self> {
        let placed = |number: usize| wanted.get(number).and_then(place);
        asked.sort_by_cached_key(|number| {
            placed(*number).map(|record| (record.holder.chunk, record.offset))
        });
        let mut runs: Vec<Self> = Vec::new();
        let mut last: Option<&FileRecord> = None;
        for (index, number) in asked.iter().enumerate() {
            let record = placed(*number).filter(|_| !is_alone(*number));
            let end = record.map_or(0, |record| record.offset.saturating_add(record.stored));
            if let (Some(record), Some(before)) = (record, last)
                && let Some(Self { files, bytes: Some(bytes) }) = runs.last_mut()
                && is_in_one_chunk(record, before)
                && record.offset >= bytes.end
                && record.offset - bytes.end <= GAP_BYTES
                && end - bytes.start <= RUN_BYTES
            {
                files.end = index + 1;
                bytes.end = end;
            } else {
                let bytes = record.map(|record| record.offset..end);
                runs.push(Self { files: index..index + 1, bytes });
            }
            last = record;
        }
        runs
    }

    /// As it is asked for; `first` is its first file.
    pub(super) fn request(&self, first: &Wanted<'_>) -> dl_proto::ReadItem {
        match (&first.item.record, &self.bytes) {
            (Some(record), Some(bytes)) if self.files.len() > 1 => {
                let stored = bytes.end - bytes.start;
                let range =
                    FileRecord { length: stored.into(), crc: Crc32c::default(), stored, ..*record };
                dl_proto::ReadItem { source: ReadSource::File(range), offset: 0, length: None }
            }
            _ => first.request(),
        }
    }

    /// Bytes that are to come, where that is known.
    pub(super) fn expected(&self, first: &Wanted<'_>) -> Option<usize> {
        match &self.bytes {
            Some(bytes) => Some(bytes.len()),
            None => first.expected(),
        }
    }

    /// Where the bytes of one of its files lie among its own; `None` of a file that is alone.
    pub(super) fn part(&self, wanted: &Wanted<'_>) -> Option<Range<usize>> {
        let run = self.bytes.as_ref().filter(|_| self.files.len() > 1)?;
        let record = place(wanted)?;
        let start = record.offset.checked_sub(run.start)? as usize;
        Some(start..start.checked_add(record.stored as usize)?)
    }
}

#[cfg(test)]
mod tests;

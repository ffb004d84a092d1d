//! Neighbouring files in a chunk are requested as one range, because a request costs by the range,
//! not by the file.
//!
//! Must hold: each file of a run is verified separately. The failure of a run counts for each of
//! its files, and each repeated file is requested alone.

use std::ops::Range;

use dl_format::{Crc32c, FileRecord};
use dl_proto::{REPLY_BYTES, ReadSource};

use crate::remote::read::wanted::Wanted;

/// Bytes of a run, at most: the largest piece of a server.
const RUN_BYTES: u32 = REPLY_BYTES as u32;
/// A gap between two files that costs less than another item.
const GAP_BYTES: u32 = 2 << 10;

/// An item of a request.
#[derive(Debug)]
pub(super) struct Run {
    /// The files, by their indices in the order of the request.
    pub(super) files: Range<usize>,
    /// The range in the chunk; none for some single files.
    bytes: Option<Range<u32>>,
}

/// The record of a file that may be part of a run.
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
    /// Cuts the requested files into items. Sorts `asked`, indices of `wanted`, by the position of
    /// the bytes. `is_alone` marks files that must not share a range.
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

    /// The item for the request; `first` is the first file of the run.
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

    /// The number of bytes to expect, if known.
    pub(super) fn expected(&self, first: &Wanted<'_>) -> Option<usize> {
        match &self.bytes {
            Some(bytes) => Some(bytes.len()),
            None => first.expected(),
        }
    }

    /// The range of a file within the run; `None` for a single file.
    pub(super) fn part(&self, wanted: &Wanted<'_>) -> Option<Range<usize>> {
        let run = self.bytes.as_ref().filter(|_| self.files.len() > 1)?;
        let record = place(wanted)?;
        let start = record.offset.checked_sub(run.start)? as usize;
        Some(start..start.checked_add(record.stored as usize)?)
    }
}

#[cfg(test)]
mod tests;

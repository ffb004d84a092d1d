//! Small chunks: chunks of which two fit into one. A node's cache gives each of them the memory of a full chunk.
//!
//! Must hold: a counted chunk is one that a purge merges. The log alone is read, no header. Chunks of which the
//! log can't tell whether they still have files, or the end of a large file, are not counted.

use dl_format::ObjectKind;
use dl_format::layout::{ENTRY_LEN, HEADER_MAX, ID_LEN, ORIGIN_LEN, PAGE};
use dl_meta::ObjectRecord;
use dl_proto::{Counts, Dataset, SmallChunks};

use crate::error::{Doing, Error};
use crate::shared::context::ServerContext;

/// Bytes of an entry in a header that the move to another chunk adds.
pub(crate) const MOVED_MORE: usize = ORIGIN_LEN + ID_LEN;

/// Bytes of a moved entry in the header of its new chunk, beside the path.
pub(crate) const MOVED_ENTRY: usize = ENTRY_LEN + MOVED_MORE;

const LOG_PAGE: usize = 10_000;

/// Whether two chunks with such moved files fit into a chunk of `size` bytes; `bytes` includes the `header`.
pub(crate) fn fits_twice(bytes: u64, header: u64, size: u64) -> bool {
    let half = |whole: u64| (whole / 2).saturating_sub(PAGE as u64);
    bytes < half(size) && header < half(HEADER_MAX as u64)
}

/// The small chunks of a dataset with counted files. Where the chunks are full on average, the log is not read.
pub(crate) async fn count(
    context: &ServerContext,
    dataset: &Dataset,
) -> Result<SmallChunks, Error> {
    let Counts::Known { bytes, .. } = dataset.counts else { return Ok(SmallChunks::default()) };
    let size = u64::from(dataset.shape.size());
    if dataset.objects.saturating_mul(size / 2) <= bytes {
        return Ok(SmallChunks::default());
    }
    let (mut tally, mut after) = (Tally::default(), None);
    loop {
        let page = context.meta.objects(dataset.id, after, LOG_PAGE).await;
        let page = page.doing("read the log of dataset", dataset.id)?;
        page.iter().for_each(|object| tally.add(object, size));
        after = page.last().map(|object| object.id);
        if page.len() < LOG_PAGE {
            return Ok(tally.end(bytes));
        }
    }
}

/// Sums over a log.
#[derive(Debug, Default)]
struct Tally {
    /// Bytes of files in all objects.
    stored: u64,
    /// Bytes of files in each small chunk.
    small: Vec<u32>,
    /// Small chunks with a single entry, of which a large file may be.
    single: usize,
    parts: usize,
}

impl Tally {
    fn add(&mut self, object: &ObjectRecord, size: u64) {
        self.stored = self.stored.saturating_add(object.file_bytes);
        self.parts += usize::from(object.kind == ObjectKind::Part);
        let more = u64::from(object.entry_count) * MOVED_MORE as u64;
        let (bytes, header) = (object.object_length, u64::from(object.header_length));
        if object.kind == ObjectKind::Chunk && fits_twice(bytes + more, header + more, size) {
            self.small.push(u32::try_from(object.file_bytes).unwrap_or(u32::MAX));
            self.single += usize::from(object.entry_count == 1);
        }
    }

    /// The small chunks that are left if all dead bytes are in the smallest of them.
    fn end(mut self, live: u64) -> SmallChunks {
        let mut dead = self.stored.saturating_sub(live);
        self.small.sort_unstable();
        let tails = self.single.min(self.parts);
        let sizes = self.small.into_iter().skip(tails).map(|bytes| u64::from(bytes).max(1));
        let left = sizes.skip_while(|bytes| {
            let is_dead = dead >= *bytes;
            dead = dead.saturating_sub(*bytes);
            is_dead
        });
        let (chunks, bytes) = left.fold((0, 0), |(chunks, sum), bytes| (chunks + 1, sum + bytes));
        SmallChunks { chunks, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(live: u64, single: usize, parts: usize, sizes: &[u32]) -> (u64, u64) {
        let stored = sizes.iter().copied().map(u64::from).sum();
        let SmallChunks { chunks, bytes } =
            Tally { stored, small: sizes.to_vec(), single, parts }.end(live);
        (chunks, bytes)
    }

    #[test]
    fn dead_chunks_and_ends_of_large_files_do_not_count() {
        let sizes = [30, 10, 20, 40];
        assert_eq!(small(100, 0, 0, &sizes), (4, 100));
        assert_eq!(small(95, 0, 0, &sizes), (4, 100));
        assert_eq!(small(70, 0, 0, &sizes), (2, 70));
        assert_eq!(small(0, 0, 0, &sizes), (0, 0));
        assert_eq!(small(100, 1, 5, &sizes), (3, 90));
        assert_eq!(small(100, 4, 2, &sizes), (2, 70));
    }
}

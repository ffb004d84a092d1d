//! The parts of large files, as the header in each file's last chunk lists them.
//!
//! Must hold: a header is read once for neighbouring items. Its memory is bounded whatever it claims, and a
//! layout keeps 32 bytes for each part.

use dl_format::layout::PAGE;
use dl_format::{ChunkId, DatasetId, Extent, Header, ObjectKind};
use dl_proto::Kind;
use dl_store::{ByteRange, Key, ObjectRange};
use tokio::sync::OwnedSemaphorePermit;

pub(super) use crate::datasets::headers::FIRST_READ;
use crate::datasets::headers::{read_header, read_headers};
use crate::error::Error;
use crate::shared::context::{Budget, ServerContext, object_key};

/// Most headers read at once.
const AT_ONCE: u64 = 32;

/// Bytes of [`AT_ONCE`] headers of usual length.
pub(super) const BYTES_AT_ONCE: u64 = AT_ONCE * FIRST_READ;

/// Headers read at once in a wave of so many bytes: up to half of the bytes.
pub(super) fn at_once(wave_bytes: u64) -> usize {
    (wave_bytes / 2 / FIRST_READ).clamp(1, AT_ONCE) as usize
}

/// The parts of a file.
#[derive(Debug)]
pub(super) struct Layout {
    /// End of each part in the file.
    ends: Vec<u64>,
    extents: Vec<Extent>,
}

/// Bytes of a part from a given byte of the file on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) extent: Extent,
    /// Place of the given byte in the object.
    pub(super) start: u64,
    /// End of the part in the file.
    pub(super) end: u64,
}

impl Layout {
    fn of(header: &Header) -> Self {
        let mut end = 0u64;
        let extents = header.extents().to_vec();
        let ends = extents.iter().map(|extent| {
            end = end.saturating_add(extent.length.into());
            end
        });
        Self { ends: ends.collect(), extents }
    }

    /// Bytes of all parts.
    pub(super) fn length(&self) -> u64 {
        self.ends.last().copied().unwrap_or_default()
    }

    /// The part with a byte of the file; none behind the last part.
    pub(super) fn part(&self, at: u64) -> Option<Part> {
        let index = self.ends.partition_point(|end| *end <= at);
        let (extent, end) = (*self.extents.get(index)?, *self.ends.get(index)?);
        let before = index.checked_sub(1).and_then(|index| self.ends.get(index)).copied();
        let start = (PAGE as u64).saturating_add(at.saturating_sub(before.unwrap_or_default()));
        Some(Part { extent, start, end })
    }
}

/// Why a layout is unknown.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) key: Key,
    pub(super) kind: Kind,
    pub(super) why: String,
}

impl Failure {
    fn of(key: Key, error: &Error) -> Self {
        Self { key, kind: error.kind, why: error.chain() }
    }
}

/// Layouts of the next large files.
#[derive(Debug, Default)]
pub(super) struct Layouts {
    known: Vec<(ChunkId, Result<Layout, Failure>)>,
    /// Memory of headers longer than usual.
    rooms: Vec<OwnedSemaphorePermit>,
}

impl Layouts {
    pub(super) fn have(&self, chunk: ChunkId) -> bool {
        self.get(chunk).is_some()
    }

    pub(super) fn get(&self, chunk: ChunkId) -> Option<Result<&Layout, &Failure>> {
        self.known.iter().find(|(of, _)| *of == chunk).map(|(_, layout)| layout.as_ref())
    }

    /// Bytes of a wave that the layouts take.
    pub(super) fn bytes(&self) -> u64 {
        let each = size_of::<Extent>() + size_of::<u64>();
        let parts = |layout: &Result<Layout, _>| layout.as_ref().map_or(0, |all| all.ends.len());
        let parts: usize = self.known.iter().map(|(_, layout)| parts(layout)).sum();
        (parts * each) as u64
    }

    /// Replaces the known layouts by the layouts of `chunks`. `to_their_ends` also detects objects cut short.
    pub(super) async fn read(
        &mut self,
        parts: &ServerContext,
        budget: &Budget,
        dataset: DatasetId,
        chunks: &[ChunkId],
        to_their_ends: bool,
    ) {
        *self = Self::default();
        let keys: Vec<Key> =
            chunks.iter().map(|chunk| object_key(dataset, *chunk, ObjectKind::Chunk)).collect();
        let headers = read_headers(parts, &keys).await;
        let mut ends = Vec::new();
        for ((chunk, key), header) in chunks.iter().zip(keys).zip(headers) {
            let header = match header {
                Ok(Ok(header)) => Ok(header),
                Ok(Err(length)) => self.read_long(parts, budget, &key, length).await,
                Err(error) => Err(error),
            };
            if let (true, Ok(header)) = (to_their_ends, &header) {
                let length = header.object_length();
                if let Ok(range) = ByteRange::exact(length.saturating_sub(1), length) {
                    ends.push((self.known.len(), ObjectRange { key: key.clone(), range }));
                }
            }
            let layout = header.map(|header| Layout::of(&header));
            self.known.push((*chunk, layout.map_err(|error| Failure::of(key, &error))));
        }
        let ranges: Vec<_> = ends.iter().map(|(_, range)| range.clone()).collect();
        let last_bytes =
            if ranges.is_empty() { Vec::new() } else { parts.store.read(&ranges).await };
        for ((number, ObjectRange { key, .. }), last_byte) in ends.into_iter().zip(last_bytes) {
            if let (Err(error), Some((_, layout))) = (last_byte, self.known.get_mut(number)) {
                let error = Error::store("read the end of", &key, error);
                *layout = Err(Failure::of(key, &error));
            }
        }
    }

    /// Reads a header of `length` bytes, if memory is free now.
    async fn read_long(
        &mut self,
        parts: &ServerContext,
        budget: &Budget,
        key: &Key,
        length: u64,
    ) -> Result<Header, Error> {
        // For its pieces and their concatenation; the layout needs less.
        let room = budget.try_take(length.saturating_mul(2), 0).ok_or_else(|| {
            let why = format!("{length} bytes, for which there is no memory now; try again");
            Error::new(Kind::Unavailable, "read header", key, why)
        })?;
        let header = read_header(parts, key).await?;
        // A header without parts keeps no memory.
        if !header.extents().is_empty() {
            self.rooms.push(room);
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use dl_format::Crc32c;

    use super::*;

    #[test]
    fn a_byte_is_found_in_its_part_and_what_is_behind_them_in_none() {
        let extent = |byte, length| {
            let part = ChunkId::from_bytes([byte; 16]);
            Extent { part, length, crc: Crc32c::default() }
        };
        let extents = vec![extent(1, 10), extent(2, 0), extent(3, 20)];
        let layout = Layout { ends: vec![10, 10, 30], extents: extents.clone() };
        let part =
            |number: usize, start, end| Some(Part { extent: extents[number - 1], start, end });
        let page = PAGE as u64;
        assert_eq!(layout.part(0), part(1, page, 10));
        assert_eq!(layout.part(9), part(1, page + 9, 10));
        assert_eq!(layout.part(10), part(3, page, 30), "the empty one has none");
        assert_eq!(layout.part(29), part(3, page + 19, 30));
        assert_eq!((layout.part(30), layout.length()), (None, 30));
    }
}

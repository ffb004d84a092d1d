//! Domain types of reads of whole chunks, with checked conversion to and from the wire.
//!
//! Must hold: a request has at least one range and at most [`CHUNK_RANGES_MAX`]. A range is not
//! empty and lies within the size of the largest chunk. Otherwise the error names the field, and
//! the whole request is refused.

use bytes::Bytes;
use dl_format::layout::CHUNK_SIZE_MAX;
use dl_format::{ChunkId, DatasetId};

use crate::convert::{chunk_id, dataset_id, failure_of, id_bytes, item_status};
use crate::error::WireError;
use crate::kind::Kind;
use crate::limits::CHUNK_RANGES_MAX;
use crate::pb;

/// Ranges of chunks to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetChunksRequest {
    /// The dataset.
    pub dataset: DatasetId,
    /// At least one, at most [`CHUNK_RANGES_MAX`].
    pub ranges: Vec<ChunkRange>,
    /// Whether to bypass copies in a fast store and read the objects.
    pub pass_copies: bool,
}

/// Bytes of the object of one chunk; never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRange {
    /// The chunk.
    pub chunk: ChunkId,
    /// Bytes of the object to skip.
    pub offset: u32,
    /// Bytes to return.
    pub length: u32,
}

impl ChunkRange {
    /// Checks that the range fits into a chunk.
    ///
    /// # Errors
    /// For an empty range, or a range beyond the largest chunk.
    pub fn check(&self) -> Result<(), WireError> {
        if self.length == 0 {
            return Err(WireError::invalid("length", "a range has at least one byte"));
        }
        if u64::from(self.offset) + u64::from(self.length) > u64::from(CHUNK_SIZE_MAX) {
            let why = format!("the range ends behind {CHUNK_SIZE_MAX} bytes, the largest chunk");
            return Err(WireError::invalid("length", why));
        }
        Ok(())
    }
}

impl From<GetChunksRequest> for pb::GetChunksRequest {
    fn from(request: GetChunksRequest) -> Self {
        let ranges = request.ranges.into_iter().map(|range| pb::ChunkRange {
            chunk: id_bytes(range.chunk.as_bytes()),
            offset: range.offset,
            length: range.length,
        });
        Self {
            dataset: id_bytes(request.dataset.as_bytes()),
            ranges: ranges.collect(),
            pass_copies: request.pass_copies,
        }
    }
}

impl TryFrom<pb::GetChunksRequest> for GetChunksRequest {
    type Error = WireError;

    fn try_from(wire: pb::GetChunksRequest) -> Result<Self, WireError> {
        if wire.ranges.is_empty() {
            return Err(WireError::Missing("ranges"));
        }
        if wire.ranges.len() > CHUNK_RANGES_MAX {
            return Err(WireError::invalid("ranges", format!("more than {CHUNK_RANGES_MAX}")));
        }
        let range = |wire: pb::ChunkRange| {
            let chunk = chunk_id(&wire.chunk)?;
            let range = ChunkRange { chunk, offset: wire.offset, length: wire.length };
            range.check().map(|()| range)
        };
        let ranges = wire.ranges.into_iter().map(range).collect::<Result<_, _>>()?;
        Ok(Self { dataset: dataset_id(&wire.dataset)?, ranges, pass_copies: wire.pass_copies })
    }
}

/// Bytes of a range, or the reason for their absence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkPiece {
    /// The index of the range in the request.
    pub range: u32,
    /// The next bytes; or the kind of failure and the reason in words, which end the range.
    pub data: Result<Bytes, (Kind, String)>,
}

impl From<ChunkPiece> for pb::ChunkPiece {
    fn from(piece: ChunkPiece) -> Self {
        let (status, problem, data) = match piece.data {
            Ok(data) => (pb::ItemStatus::Ok, String::new(), data),
            Err((kind, problem)) => (item_status(kind), problem, Bytes::new()),
        };
        Self { range: piece.range, status: status.into(), problem, data }
    }
}

impl From<pb::ChunkPiece> for ChunkPiece {
    fn from(wire: pb::ChunkPiece) -> Self {
        let data = match failure_of(wire.status()) {
            None => Ok(wire.data),
            Some(kind) => Err((kind, wire.problem)),
        };
        Self { range: wire.range, data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(ranges: Vec<(u32, u32)>) -> GetChunksRequest {
        let chunk = ChunkId::from_bytes([3; 16]);
        let range = |(offset, length)| ChunkRange { chunk, offset, length };
        let ranges = ranges.into_iter().map(range).collect();
        GetChunksRequest { dataset: DatasetId::from_bytes([9; 16]), ranges, pass_copies: true }
    }

    #[test]
    fn requests_with_valid_ranges_survive_the_wire() {
        let most = vec![(5, 7); CHUNK_RANGES_MAX];
        for ranges in [vec![(0, 1)], vec![(0, CHUNK_SIZE_MAX)], vec![(CHUNK_SIZE_MAX - 1, 1)], most]
        {
            let request = request(ranges);
            let wire = pb::GetChunksRequest::from(request.clone());
            assert_eq!(GetChunksRequest::try_from(wire).unwrap(), request);
        }
        for ranges in [
            vec![],
            vec![(5, 7); CHUNK_RANGES_MAX + 1],
            vec![(0, 1), (4096, 0)],
            vec![(0, CHUNK_SIZE_MAX + 1)],
            vec![(CHUNK_SIZE_MAX, 1)],
            vec![(1, u32::MAX)],
            vec![(u32::MAX, u32::MAX)],
        ] {
            GetChunksRequest::try_from(pb::GetChunksRequest::from(request(ranges))).unwrap_err();
        }
    }

    #[test]
    fn ids_of_another_length_are_refused() {
        let wrong: [fn(&mut pb::GetChunksRequest); 2] =
            [|wire| wire.dataset.truncate(15), |wire| wire.ranges[0].chunk.truncate(15)];
        for shorten in wrong {
            let mut wire = pb::GetChunksRequest::from(request(vec![(0, 1)]));
            shorten(&mut wire);
            GetChunksRequest::try_from(wire).unwrap_err();
        }
    }

    #[test]
    fn pieces_and_failures_survive_the_wire() {
        let failed = |kind| Err((kind, "on purpose".to_owned()));
        for data in [
            Ok(Bytes::from_static(b"abc")),
            failed(Kind::NotFound),
            failed(Kind::Corrupt),
            failed(Kind::Unavailable),
        ] {
            let piece = ChunkPiece { range: 7, data };
            assert_eq!(ChunkPiece::from(pb::ChunkPiece::from(piece.clone())), piece);
        }
    }
}

//! Reads ranges of chunks, without a look at the files in them (paper, 4.3).
//!
//! Must hold: a range is answered in the order of its bytes, and fails alone. No metadata is read. Memory for
//! the ranges and two waves is reserved before the first read. Every key has the request's dataset.

use std::collections::VecDeque;

use bytes::Bytes;
use dl_format::{DatasetId, ObjectKind};
use dl_proto::{ChunkPiece, ChunkRange, GetChunksRequest, Kind};
use dl_store::Key;
use tokio::sync::mpsc;

use crate::answers::answer::{Reply, hand_over_all, in_messages};
use crate::answers::reservation::Reservation;
use crate::error::Error;
use crate::read::executor::{Executor, Failure, Span, cost};
use crate::read::files::{COST_MAX, WAVES, memory, shared};
use crate::read::plan::WaveSize;
use crate::shared::context::{Budget, ServerContext, object_key};

/// Most bytes of a piece, which must fit a processor's cache.
const PIECE_BYTES: u64 = 128 << 10;

/// Memory of a range or piece beside its bytes.
const PIECE_COST: u64 = 256;

/// Pieces on their way to the client.
pub(crate) type Pieces = Vec<ChunkPiece>;

/// The unread part of a range.
#[derive(Debug)]
struct UnreadRange {
    number: u32,
    key: Key,
    span: Span,
}

/// Unread ranges in the order of the request; the first may be read in part.
#[derive(Debug)]
struct UnreadRanges(VecDeque<UnreadRange>);

/// Answers a request through `replies`, with its memory in `reserved`.
pub(crate) async fn get(
    context: &ServerContext,
    executor: &Executor,
    (budget, reserved): (&Budget, &Reservation),
    request: GetChunksRequest,
    replies: mpsc::Sender<Reply<Pieces>>,
) -> Result<(), Error> {
    let mut unread = UnreadRanges::of(request.dataset, &request.ranges);
    let cost = unread.cost();
    let taken = reserved.reserve(context, budget, &WAVES.map(|wave| memory(cost, wave))).await?;
    let size = WaveSize::of(WAVES.get(taken).copied().unwrap_or(WAVES[0]));
    while !unread.0.is_empty() {
        let (numbers, wanted) = unread.next(size);
        if request.pass_copies {
            for (key, _) in wanted.chunk_by(|(a, _), (b, _)| a == b).filter_map(<[_]>::first) {
                context.store.invalidate(key);
            }
        }
        let bodies = executor.read(&wanted).await;
        let mut pieces = Pieces::with_capacity(numbers.len());
        let mut failed = None;
        for ((range, (key, _)), body) in numbers.into_iter().zip(&wanted).zip(bodies) {
            if failed == Some(range) {
                continue;
            }
            let data = body.map_err(|failure| problem(key, &failure));
            if data.is_err() {
                failed = Some(range);
            }
            pieces.push(ChunkPiece { range, data });
        }
        if let Some(range) = failed {
            unread.skip(range);
        }
        let said =
            |piece: &ChunkPiece| piece.data.as_ref().map_or_else(|(_, w)| w.len(), Bytes::len);
        let messages = in_messages(pieces, said, size.piece as usize);
        hand_over_all(context, &replies, messages, unread.0.is_empty()).await?;
    }
    Ok(())
}

fn problem(key: &Key, failure: &Failure) -> (Kind, String) {
    let error = Error::store("read", key, shared(failure));
    (error.kind, error.chain())
}

impl UnreadRanges {
    fn of(dataset: DatasetId, ranges: &[ChunkRange]) -> Self {
        let unread = |(number, range): (u32, &ChunkRange)| UnreadRange {
            number,
            key: object_key(dataset, range.chunk, ObjectKind::Chunk),
            span: Span {
                start: range.offset.into(),
                end: u64::from(range.offset).saturating_add(range.length.into()),
            },
        };
        Self((0..).zip(ranges).map(unread).collect())
    }

    /// Memory for the reads of all ranges, at most [`COST_MAX`].
    fn cost(&self) -> u64 {
        let mut sum = 0u64;
        let mut last: Option<&UnreadRange> = None;
        for range in &self.0 {
            let end = last.filter(|last| last.key == range.key).map(|last| last.span.end);
            sum = sum.saturating_add(cost(end, range.span)).saturating_add(PIECE_COST);
            last = Some(range);
        }
        sum.min(COST_MAX)
    }

    /// Takes the next pieces: the range number of each, and its place.
    fn next(&mut self, size: WaveSize) -> (Vec<u32>, Vec<(Key, Span)>) {
        let piece = size.piece.min(PIECE_BYTES);
        let (mut numbers, mut wanted): (Vec<u32>, Vec<(Key, Span)>) = (Vec::new(), Vec::new());
        let mut bytes = 0u64;
        while let Some(range) = self.0.front_mut() {
            let end = range.span.end.min(range.span.start.saturating_add(piece));
            let span = Span { start: range.span.start, end };
            let before = wanted.last().filter(|(key, _)| *key == range.key);
            bytes = bytes.saturating_add(cost(before.map(|(_, span)| span.end), span));
            if !wanted.is_empty() && bytes > size.bytes {
                break;
            }
            numbers.push(range.number);
            wanted.push((range.key.clone(), span));
            range.span.start = end;
            if range.span.start == range.span.end {
                self.0.pop_front();
            }
        }
        (numbers, wanted)
    }

    /// Leaves out the rest of a range that failed.
    fn skip(&mut self, number: u32) {
        self.0.pop_front_if(|range| range.number == number);
    }
}

#[cfg(test)]
mod tests;

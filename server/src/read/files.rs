//! Reads files: requests in, pieces of answers out (paper, 4, Figure 4).
//!
//! Must hold: each item gets a single answer, in pieces in byte order; a bad item fails alone. A request
//! holds its items and two waves, however large the request and however slow the client. Memory is reserved
//! before the first read; with little memory, waves are smaller. No request waits for memory for grown files.

use std::sync::Arc;

use bytes::Bytes;
use dl_proto::{Kind, REPLY_BYTES, ReadPiece, ReadRequest};
use tokio::sync::mpsc;

use crate::answers::answer::{Reply, hand_over_all, in_messages};
use crate::answers::reservation::Reservation;
use crate::error::Error;
use crate::read::executor::{Executor, Failure};
use crate::read::moved::{Again, Next};
pub(crate) use crate::read::plan::Pieces;
use crate::read::plan::{Plan, Segment, Wave, WaveSize, problem};
use crate::shared::context::{Budget, ServerContext};

/// Bytes of a wave; smaller when memory is short. A request has two waves in memory: a wave being read, and the
/// earlier wave being sent.
pub(crate) const WAVES: [u64; 3] = [4 << 20, 1 << 20, 256 << 10];

/// Largest cost with an effect on a request's memory.
pub(crate) const COST_MAX: u64 = 2 * WAVES[0];

/// Most bytes of an answer in its connection: a message, and the message being written.
const SENT_BYTES: u64 = 2 * REPLY_BYTES as u64;

/// Bytes of memory for a request whose reads have this `cost`.
pub(crate) fn memory(cost: u64, wave: u64) -> u64 {
    cost.min(wave.saturating_mul(2)).saturating_add(cost.min(SENT_BYTES))
}

/// Answers a request through `replies`, with its memory in `reserved`.
pub(crate) async fn read(
    context: &ServerContext,
    executor: &Executor,
    budget: &Budget,
    reserved: &Reservation,
    request: ReadRequest,
    replies: mpsc::Sender<Reply<Pieces>>,
) -> Result<(), Error> {
    let dataset = request.dataset;
    let mut plan = Plan::new(context, request).await?;
    let mut cost = plan.cost(COST_MAX);
    let taken = reserved.reserve(context, budget, &WAVES.map(|wave| memory(cost, wave))).await?;
    let size = WaveSize::of(WAVES.get(taken).copied().unwrap_or(WAVES[0]));
    let mut again = Again::default();
    while !plan.is_empty() {
        let mut wave = plan.next(context, budget, size).await;
        let segments = std::mem::take(&mut wave.segments);
        read_segments(context, executor, &mut plan, &mut wave, segments).await;
        let Wave { done: mut pieces, begun, missing, .. } = wave;
        if !missing.is_empty() {
            let mut numbers = Vec::new();
            let has_path = |item| plan.is_named(item);
            for next in again.next(context, dataset, missing, has_path, begun).await? {
                match next {
                    Next::LookUp(number) => numbers.push(number),
                    Next::Tell(number, kind, why) => pieces.push(problem(number, kind, why)),
                }
            }
            let has_room = |more: u64| {
                let whole = cost.saturating_add(more).min(COST_MAX);
                let more = memory(whole, size.bytes).saturating_sub(memory(cost, size.bytes));
                let has_room = reserved.grow(budget, more);
                if has_room {
                    cost = whole;
                }
                has_room
            };
            if !plan.look_up_again(context, &numbers, COST_MAX, has_room).await? {
                let why = "it was moved or replaced meanwhile, and memory is short; try again";
                let told = |number| problem(number, Kind::Unavailable, why.to_owned());
                pieces.extend(numbers.into_iter().map(told));
            }
        }
        send(context, &replies, pieces, size, plan.is_empty()).await?;
    }
    Ok(())
}

/// Reads the segments of a wave; adds their pieces, and items whose object is missing, to the wave.
async fn read_segments(
    context: &ServerContext,
    executor: &Executor,
    plan: &mut Plan,
    wave: &mut Wave,
    segments: Vec<Segment>,
) {
    if segments.is_empty() {
        return;
    }
    let wanted: Vec<_> =
        segments.iter().map(|segment| (segment.key.clone(), segment.span)).collect();
    for (key, _) in wanted.chunk_by(|(a, _), (b, _)| a == b).filter_map(<[_]>::first) {
        plan.pass_copy(context, key);
    }
    let bodies = executor.read(&wanted).await;
    let mut failed = None;
    for (segment, body) in segments.into_iter().zip(bodies) {
        if failed == Some(segment.item) {
            continue;
        }
        let piece = match body {
            Err(failure) if failure.kind == dl_store::Kind::Missing => {
                failed = Some(segment.item);
                while wave.done.pop_if(|piece| piece.item == segment.item).is_some() {}
                wave.missing.push((segment.item, segment.key));
                continue;
            }
            body => piece(segment, body),
        };
        // A failure is the last piece of its item.
        if piece.data.is_err() {
            failed = Some(piece.item);
        }
        wave.done.push(piece);
    }
    if let Some(item) = failed {
        plan.skip(item);
    }
}

async fn send(
    context: &ServerContext,
    replies: &mpsc::Sender<Reply<Pieces>>,
    pieces: Pieces,
    size: WaveSize,
    are_last: bool,
) -> Result<(), Error> {
    let said =
        |piece: &ReadPiece| piece.data.as_ref().map_or_else(|(_, why)| why.len(), Bytes::len);
    let messages = in_messages(pieces, said, size.piece as usize);
    hand_over_all(context, replies, messages, are_last).await
}

fn piece(segment: Segment, body: Result<Bytes, Failure>) -> ReadPiece {
    let Segment { item, key, last, length, crc, extent, .. } = segment;
    let data = body.map_err(|failure| {
        let error = Error::store("read", &key, shared(&failure));
        // The index named the object, so its absence is damage and not an answer.
        let kind = if error.kind == Kind::NotFound { Kind::Corrupt } else { error.kind };
        (kind, error.chain())
    });
    ReadPiece { item, last: last || data.is_err(), data, length, crc, extent }
}

/// A copy of a failure shared by several callers.
pub(crate) fn shared(failure: &Failure) -> dl_store::Error {
    dl_store::Error::because(failure.kind, failure.action, &failure.what, Arc::clone(failure))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dl_format::{ChunkIdMaker, DatasetId, ObjectKind};
    use dl_proto::{ReadItem, ReadSource};
    use dl_runtime::fault::Fault;
    use dl_store::Key;

    use super::*;
    use crate::shared::context::object_key;
    use crate::testing::{Rig, chunk, path, rig};

    const BUDGET: u32 = 4 << 20;
    const SECOND: Duration = Duration::from_secs(1);

    async fn put(rig: &Rig, dataset: DatasetId, number: u8, bytes: &[u8]) -> Key {
        let id = ChunkIdMaker::new([number; 9]).next(rig.context.clock.now());
        let object = chunk(id, dataset, ["a".to_owned()], bytes).as_slice().to_vec();
        crate::testing::commit(&rig.context, dataset, object, rig.context.clock.now())
            .await
            .unwrap();
        object_key(dataset, id, ObjectKind::Chunk)
    }

    /// Reads a file of ten bytes that is replaced by a long one after it was looked up; its last
    /// piece, and how much memory it takes then. Others may have the rest of the memory.
    async fn replaced(others: bool) -> (ReadPiece, u64) {
        let rig = rig().await;
        let dataset = rig.create("ds").await;
        let short = put(&rig, dataset, 1, &[1; 10]).await;
        rig.store.script("read", [Some(Fault::Delay(SECOND))]);
        let (budget, reserved) = (Budget::new(BUDGET, "test"), Arc::<Reservation>::default());
        let (replies, mut came) = mpsc::channel(16);
        let path = ReadSource::Path(path("a"));
        let request = ReadRequest {
            dataset,
            items: vec![ReadItem { source: path, offset: 0, length: None }],
            pass_copies: false,
            check_headers: false,
        };
        let (context, executor) =
            (rig.context.clone(), Executor::new(Arc::clone(&rig.context.store)));
        let reading = {
            let (budget, reserved) = (budget.clone(), Arc::clone(&reserved));
            dl_runtime::spawn(async move {
                read(&context, &executor, &budget, &reserved, request, replies).await.unwrap();
            })
        };
        while budget.total_and_used().1 == 0 {
            tokio::task::yield_now().await;
        }
        put(&rig, dataset, 2, &[2; 600_000]).await;
        rig.context.store.delete(&short).await.unwrap();
        let (total, used) = budget.total_and_used();
        let _others = others.then(|| budget.try_take(total - used, 0).unwrap());
        let (done, _) = rig.run(reading).await;
        done.unwrap();
        let mut last = None;
        while let Some(Reply::More(pieces) | Reply::Last(pieces)) = came.recv().await {
            last = pieces.into_iter().next_back().or(last);
        }
        (last.unwrap(), budget.total_and_used().1)
    }

    #[tokio::test]
    async fn a_grown_file_is_read_within_memory_or_refused() {
        let (piece, used) = replaced(false).await;
        assert_eq!((piece.length, piece.data.is_ok()), (600_000, true));
        assert!(used > 600_000, "{used} bytes");
        let (piece, used) = replaced(true).await;
        assert_eq!(piece.data.unwrap_err().0, Kind::Unavailable);
        assert_eq!(used, u64::from(BUDGET));
    }
}

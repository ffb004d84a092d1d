//! Reading files: from what a client asked for to pieces of answers (paper, 4, Figure 4).
//!
//! Must hold: each item is answered exactly once, in pieces whose order is that of its bytes; a bad
//! item fails alone. A request holds its items and two waves of what it reads, whatever it asks for
//! and however slowly its client takes it: its memory is taken once, before the first read, and a
//! request that gets little of it reads in small waves.

use std::sync::Arc;

use bytes::Bytes;
use dl_proto::{Kind, REPLY_BYTES, ReadPiece, ReadRequest};
use tokio::sync::mpsc;

use crate::answer::{Reply, hand_over};
use crate::catalog;
use crate::error::Error;
use crate::executor::{Executor, Failure};
use crate::lease::Lease;
use crate::moved::{Again, Next};
use crate::parts::{Budget, Parts};
pub(crate) use crate::plan::Pieces;
use crate::plan::{Plan, Segment, Wave, WaveSize, problem};

/// Bytes that one request reads at a time; the fewer, the more others read. Two such waves of a
/// request are in memory: one that is read while the one before it is sent.
const WAVES: [u64; 3] = [4 << 20, 1 << 20, 256 << 10];

/// Bytes of an answer in its connection, at most: a message and what is being written.
const SENT_BYTES: u64 = 2 * REPLY_BYTES as u64;

/// Memory of a request whose reads cost so much.
fn memory(cost: u64, wave: u64) -> u64 {
    cost.min(wave.saturating_mul(2)).saturating_add(cost.min(SENT_BYTES))
}

/// Answers a request through `replies`, with its memory in `lease`.
pub(crate) async fn read(
    parts: &Parts,
    executor: &Executor,
    budget: &Budget,
    lease: &Lease,
    request: ReadRequest,
    replies: mpsc::Sender<Reply<Pieces>>,
) -> Result<(), Error> {
    let dataset = request.dataset;
    catalog::by_id(parts, dataset).await?;
    let mut plan = Plan::new(parts, request).await?;
    let cost = plan.cost(2 * WAVES[0]);
    let taken = lease.reserve(parts, budget, &WAVES.map(|wave| memory(cost, wave))).await?;
    let size = WaveSize::of(WAVES.get(taken).copied().unwrap_or(WAVES[0]));
    let mut again = Again::default();
    while !plan.is_empty() {
        let Wave { segments, done: mut pieces, begun, mut missing } =
            plan.next(parts, budget, size).await;
        let mut failed = None;
        if !segments.is_empty() {
            let wanted: Vec<_> =
                segments.iter().map(|segment| (segment.key.clone(), segment.span)).collect();
            let bodies = executor.read(&wanted).await;
            for (segment, body) in segments.into_iter().zip(bodies) {
                if failed == Some(segment.item) {
                    continue;
                }
                let piece = match body {
                    Err(failure) if failure.kind == dl_store::Kind::Missing => {
                        failed = Some(segment.item);
                        while pieces.pop_if(|piece| piece.item == segment.item).is_some() {}
                        missing.push((segment.item, segment.key));
                        continue;
                    }
                    body => piece(segment, body),
                };
                // An item's failure is its last piece.
                if piece.data.is_err() {
                    failed = Some(piece.item);
                }
                pieces.push(piece);
            }
        }
        if let Some(item) = failed {
            plan.skip(item);
        }
        if !missing.is_empty() {
            let mut numbers = Vec::new();
            let has_path = |item| plan.is_named(item);
            for next in again.next(parts, dataset, missing, has_path, begun).await? {
                match next {
                    Next::LookUp(number) => numbers.push(number),
                    Next::Tell(number, kind, why) => pieces.push(problem(number, kind, why)),
                }
            }
            plan.look_up_again(parts, &numbers).await?;
        }
        send(parts, &replies, pieces, size, plan.is_empty()).await?;
    }
    Ok(())
}

/// Sends pieces in messages of a bounded size; the last ones end the answer.
async fn send(
    parts: &Parts,
    replies: &mpsc::Sender<Reply<Pieces>>,
    pieces: Pieces,
    size: WaveSize,
    are_last: bool,
) -> Result<(), Error> {
    let mut messages = in_replies(pieces, size.piece as usize).into_iter().peekable();
    while let Some(message) = messages.next() {
        let is_last = are_last && messages.peek().is_none();
        let reply = if is_last { Reply::Last(message) } else { Reply::More(message) };
        hand_over(parts, replies, reply).await?;
    }
    Ok(())
}

fn piece(segment: Segment, body: Result<Bytes, Failure>) -> ReadPiece {
    let Segment { item, key, last, length, crc, .. } = segment;
    let data = body.map_err(|failure| {
        let error = Error::store("read", &key, shared(&failure));
        // The index named the object, so its absence is damage and not an answer.
        let kind = if error.kind == Kind::NotFound { Kind::Corrupt } else { error.kind };
        (kind, error.chain())
    });
    ReadPiece { item, last: last || data.is_err(), data, length, crc }
}

/// The same failure for one of those who share it.
fn shared(failure: &Failure) -> dl_store::Error {
    dl_store::Error::because(failure.kind, failure.action, &failure.key, Arc::clone(failure))
}

/// Messages of about so many bytes each.
fn in_replies(pieces: Pieces, message_bytes: usize) -> Vec<Pieces> {
    let mut replies = Vec::new();
    let (mut reply, mut bytes) = (Pieces::new(), 0);
    for piece in pieces {
        let said = piece.data.as_ref().map_or_else(|(_, why)| why.len(), Bytes::len);
        let more = said.saturating_add(64);
        if bytes + more > message_bytes + message_bytes / 4 && !reply.is_empty() {
            replies.push(std::mem::take(&mut reply));
            bytes = 0;
        }
        bytes += more;
        reply.push(piece);
    }
    if !reply.is_empty() {
        replies.push(reply);
    }
    replies
}

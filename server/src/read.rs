//! Reading files: from what a client asked for to pieces of answers (paper, 4, Figure 4).
//!
//! Must hold: each item is answered exactly once, in pieces whose order is that of its bytes;
//! memory is bounded by what is in flight, whatever the sizes of the files; a bad item fails
//! alone.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use dl_format::{ChunkId, DatasetId, Extent, FileRecord, ObjectKind, layout::PAGE};
use dl_meta::Found;
use dl_proto::{Kind, REPLY_BYTES, ReadItem, ReadPiece, ReadRequest, ReadSource};
use dl_store::Key;
use futures::future::try_join;
use futures::{StreamExt, stream};
use tokio::sync::mpsc;
use tokio::task::yield_now;

use crate::catalog;
use crate::error::Error;
use crate::executor::{Executor, Failure, Span};
use crate::headers::read_headers;
use crate::parts::{Budget, Parts, hand_over, object_key};

/// Bytes that one request reads at a time. Two such waves of a request are in memory: one that is
/// read while the one before it is sent.
const WAVE_BYTES: u64 = 4 << 20;

/// Bytes of a wave that are read and sent together, unless they lie in one object: few enough to
/// be in a processor's cache when they are sent.
const STEP_BYTES: u64 = 256 << 10;

/// Steps that are read at the same time: all of a wave, for stores whose answers take their time.
const STEPS_AT_ONCE: usize = (WAVE_BYTES / STEP_BYTES) as usize;

/// Ranges that one wave reads at most, for files of a few bytes.
const WAVE_RANGES: usize = 4_096;

/// Reads are done; pieces are on their way to the client.
pub(crate) type Pieces = Vec<ReadPiece>;

/// A run of bytes of one item, inside one object.
#[derive(Debug)]
struct Segment {
    item: u32,
    key: Key,
    span: Span,
    /// Set on the item's last segment.
    last: bool,
    length: u64,
    crc: dl_format::Crc32c,
}

impl Segment {
    fn bytes(&self) -> u64 {
        self.span.end - self.span.start
    }
}

/// Answers a request through `replies`.
pub(crate) async fn read(
    parts: &Parts,
    executor: &Executor,
    budget: &Budget,
    request: ReadRequest,
    replies: mpsc::Sender<Pieces>,
) -> Result<(), Error> {
    catalog::by_id(parts, request.dataset).await?;
    let (segments, done) = plan(parts, request).await?;
    for pieces in in_replies(done) {
        hand_over(parts, &replies, pieces).await?;
    }
    let mut segments = VecDeque::from(segments);
    let mut failed = HashSet::new();
    while !segments.is_empty() {
        let wave = next_wave(&mut segments);
        let bytes = wave.iter().map(Segment::bytes).sum();
        let _room = budget.take(bytes, parts).await?;
        // Both at once: a slow client holds up nobody who waits for a chunk that is read here.
        let (done, mut read) = mpsc::unbounded_channel();
        let reading = async move {
            let steps = stream::iter(in_steps(wave)).map(|step| read_step(executor, step));
            let mut steps = pin!(steps.buffered(STEPS_AT_ONCE));
            while let Some(step) = steps.next().await {
                if done.send(step).is_err() {
                    break;
                }
                // What is read is sent while the next is read.
                yield_now().await;
            }
            Ok(())
        };
        let sending = async {
            while let Some(pieces) = read.recv().await {
                let pieces = pieces.into_iter().filter(|piece: &ReadPiece| match piece.data {
                    // An item's failure is its last piece.
                    Ok(_) => !failed.contains(&piece.item),
                    Err(_) => failed.insert(piece.item),
                });
                for pieces in in_replies(pieces.collect()) {
                    hand_over(parts, &replies, pieces).await?;
                }
            }
            Ok(())
        };
        try_join(reading, sending).await?;
    }
    Ok(())
}

async fn read_step(executor: &Executor, step: Vec<Segment>) -> Pieces {
    let wanted: Vec<_> = step.iter().map(|segment| (segment.key.clone(), segment.span)).collect();
    let bodies = executor.read(&wanted).await;
    step.into_iter().zip(bodies).map(|(segment, body)| piece(segment, body)).collect()
}

/// What to read, sorted by object and offset but in the order of each item's bytes; and the
/// answers that need no reading.
async fn plan(parts: &Parts, request: ReadRequest) -> Result<(Vec<Segment>, Pieces), Error> {
    let ReadRequest { dataset, items } = request;
    let mut done = Pieces::new();
    let mut files: Vec<(u32, ReadItem, FileRecord)> = Vec::with_capacity(items.len());
    let mut paths = Vec::new();
    let mut by_path = Vec::new();
    for (number, item) in (0u32..).zip(items) {
        match &item.source {
            ReadSource::File(file) => {
                let file = *file;
                files.push((number, item, file));
            }
            ReadSource::Path(path) => {
                paths.push(path.clone());
                by_path.push((number, item));
            }
        }
    }
    if !paths.is_empty() {
        let found = parts.meta.lookup(dataset, &paths).await;
        let found =
            found.map_err(|error| Error::meta("look up files of dataset", dataset, error))?;
        for (((number, item), found), path) in by_path.into_iter().zip(found).zip(paths) {
            match found {
                Found::File(file) => files.push((number, item, file)),
                Found::Folder => {
                    done.push(problem(number, Kind::Conflict, format!("{path} is a folder")));
                }
                Found::Missing => {
                    done.push(problem(number, Kind::NotFound, format!("there is no file {path}")));
                }
            }
        }
    }
    let mut extents = read_extents(parts, dataset, &files).await;
    // In the order in which the bytes lie, so that neighbours are read together.
    files.sort_by_key(|(_, _, file)| (file.holder.chunk, file.offset));
    let mut segments = Vec::with_capacity(files.len());
    let mut keys = Keys { dataset, last: None };
    for (number, item, file) in files {
        let earlier = match extents.remove(&number) {
            None => Vec::new(),
            Some(Ok(earlier)) => earlier,
            Some(Err(error)) => {
                done.push(problem(number, error.kind, error.chain()));
                continue;
            }
        };
        let from = segments.len();
        cut_item(&mut keys, number, &item, &file, &earlier, &mut segments);
        match segments.get_mut(from..).and_then(<[Segment]>::last_mut) {
            Some(segment) => segment.last = true,
            None => done.push(ReadPiece {
                item: number,
                data: Ok(Bytes::new()),
                last: true,
                length: file.length,
                crc: file.crc,
            }),
        }
    }
    Ok((segments, done))
}

/// The earlier parts of those files that have some.
async fn read_extents(
    parts: &Parts,
    dataset: DatasetId,
    files: &[(u32, ReadItem, FileRecord)],
) -> HashMap<u32, Result<Vec<Extent>, Error>> {
    let large: Vec<_> = files.iter().filter(|(_, _, file)| file.has_extents).collect();
    if large.is_empty() {
        return HashMap::new();
    }
    let keys: Vec<_> = large
        .iter()
        .map(|(_, _, file)| object_key(dataset, file.holder.chunk, ObjectKind::Chunk))
        .collect();
    let headers = read_headers(parts, &keys).await;
    let extents = headers.into_iter().map(|header| Ok(header?.extents().to_vec()));
    large.iter().map(|(number, _, _)| *number).zip(extents).collect()
}

/// Spells the key of a chunk once for all files of it that come one after the other.
struct Keys {
    dataset: DatasetId,
    last: Option<(ChunkId, Key)>,
}

impl Keys {
    fn of(&mut self, chunk: ChunkId) -> Key {
        match &self.last {
            Some((last, key)) if *last == chunk => key.clone(),
            _ => {
                let key = object_key(self.dataset, chunk, ObjectKind::Chunk);
                self.last.insert((chunk, key)).1.clone()
            }
        }
    }
}

/// Adds the segments that hold the wanted bytes of one item.
fn cut_item(
    keys: &mut Keys,
    number: u32,
    item: &ReadItem,
    file: &FileRecord,
    earlier: &[Extent],
    segments: &mut Vec<Segment>,
) {
    let end = item.length.map_or(u64::MAX, |length| item.offset.saturating_add(length));
    let parts = earlier.iter().map(|extent| (extent.part, PAGE as u64, u64::from(extent.length)));
    let tail = (file.holder.chunk, u64::from(file.offset), u64::from(file.stored));
    let mut at = 0u64;
    for (object, offset, length) in parts.chain([tail]) {
        let (from, to) = (item.offset.max(at), end.min(at.saturating_add(length)));
        let mut next = from;
        while next < to {
            // Pieces, so that no answer and no wave is larger than its bound.
            let stop = to.min(next.saturating_add(REPLY_BYTES as u64));
            let start = offset.saturating_add(next - at);
            segments.push(Segment {
                item: number,
                key: keys.of(object),
                span: Span { start, end: start.saturating_add(stop - next) },
                last: false,
                length: file.length,
                crc: file.crc,
            });
            next = stop;
        }
        at = at.saturating_add(length);
    }
}

fn next_wave(segments: &mut VecDeque<Segment>) -> Vec<Segment> {
    let mut bytes = 0;
    let mut count = 0;
    while let Some(segment) = segments.get(count) {
        bytes += segment.bytes();
        if count > 0 && (bytes > WAVE_BYTES || count >= WAVE_RANGES) {
            break;
        }
        count += 1;
    }
    segments.drain(..count).collect()
}

/// Cuts a wave between objects, so that a run of small reads is sent while the next is read.
fn in_steps(wave: Vec<Segment>) -> Vec<Vec<Segment>> {
    let mut steps: Vec<Vec<Segment>> = Vec::new();
    let mut bytes = 0;
    for segment in wave {
        let more = segment.bytes();
        match steps.last_mut() {
            Some(step)
                if bytes < STEP_BYTES
                    || step.last().is_some_and(|before| before.key == segment.key) =>
            {
                step.push(segment);
            }
            _ => {
                steps.push(vec![segment]);
                bytes = 0;
            }
        }
        bytes += more;
    }
    steps
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

fn problem(item: u32, kind: Kind, why: String) -> ReadPiece {
    ReadPiece {
        item,
        data: Err((kind, why)),
        last: true,
        length: 0,
        crc: dl_format::Crc32c::default(),
    }
}

/// Messages of about [`REPLY_BYTES`] each.
fn in_replies(pieces: Pieces) -> Vec<Pieces> {
    let mut replies = Vec::new();
    let (mut reply, mut bytes) = (Pieces::new(), 0);
    for piece in pieces {
        let more = piece.data.as_ref().map_or(0, Bytes::len).saturating_add(64);
        if bytes + more > REPLY_BYTES + REPLY_BYTES / 4 && !reply.is_empty() {
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

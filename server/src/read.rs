//! Reading files: from what a client asked for to pieces of answers (paper, 4, Figure 4).
//!
//! Must hold: each item is answered exactly once, in pieces whose order is that of its bytes;
//! memory is bounded by what is in flight, whatever the sizes of the files; a bad item fails
//! alone.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use dl_format::{ChunkId, DatasetId, Extent, FileRecord, ObjectKind, layout::PAGE};
use dl_meta::Found;
use dl_proto::{Kind, REPLY_BYTES, ReadItem, ReadPiece, ReadRequest, ReadSource};
use dl_store::Key;
use tokio::sync::mpsc;

use crate::answer::{Reply, hand_over};
use crate::catalog;
use crate::error::Error;
use crate::executor::{Executor, Failure, Span};
use crate::headers::read_headers;
use crate::moved::{Again, Next};
use crate::parts::{Budget, Parts, object_key};

/// Bytes that one request reads at a time. Two such waves of a request are in memory: one that is
/// read while the one before it is sent.
const WAVE_BYTES: u64 = 4 << 20;

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

/// Answers a request through `replies`.
pub(crate) async fn read(
    parts: &Parts,
    executor: &Executor,
    budget: &Budget,
    request: ReadRequest,
    replies: mpsc::Sender<Reply<Pieces>>,
) -> Result<(), Error> {
    let ReadRequest { dataset, items } = request;
    catalog::by_id(parts, dataset).await?;
    let items: Vec<(u32, ReadItem)> = (0u32..).zip(items).collect();
    let mut again = Again::new(items.iter());
    let (segments, done) = plan(parts, dataset, items).await?;
    let mut segments = VecDeque::from(segments);
    send(parts, &replies, done, segments.is_empty()).await?;
    let mut failed = HashSet::new();
    while !segments.is_empty() {
        let wave = next_wave(&mut segments);
        let bytes = wave.iter().map(|segment| segment.span.end - segment.span.start).sum();
        // Not until the client has them: it asks for the next wave only when it has this one.
        let _room = budget.take(bytes, parts).await?;
        let wanted: Vec<_> =
            wave.iter().map(|segment| (segment.key.clone(), segment.span)).collect();
        let bodies = executor.read(&wanted).await;
        let mut pieces = Pieces::with_capacity(wave.len());
        let mut missing = HashMap::new();
        for (segment, body) in wave.into_iter().zip(bodies) {
            if failed.contains(&segment.item) {
                continue;
            }
            if matches!(&body, Err(failure) if failure.kind == dl_store::Kind::Missing) {
                missing.entry(segment.item).or_insert(segment.key);
                continue;
            }
            let piece = piece(segment, body);
            // An item's failure is its last piece.
            if piece.data.is_err() {
                failed.insert(piece.item);
            }
            pieces.push(piece);
        }
        if !missing.is_empty() {
            failed.retain(|item| !missing.contains_key(item));
            pieces.retain(|piece| !missing.contains_key(&piece.item));
            segments.retain(|segment| !missing.contains_key(&segment.item));
            let mut items = Vec::new();
            for next in again.next(parts, dataset, missing).await? {
                match next {
                    Next::LookUp(number, item) => items.push((number, item)),
                    Next::Tell(number, kind, why) => pieces.push(problem(number, kind, why)),
                }
            }
            let (found, done) = plan(parts, dataset, items).await?;
            segments.extend(found);
            pieces.extend(done);
        }
        pieces.iter().filter(|piece| !piece.last).for_each(|piece| again.began(piece.item));
        send(parts, &replies, pieces, segments.is_empty()).await?;
    }
    Ok(())
}

/// Sends pieces in messages of a bounded size; the last ones end the answer.
async fn send(
    parts: &Parts,
    replies: &mpsc::Sender<Reply<Pieces>>,
    pieces: Pieces,
    are_last: bool,
) -> Result<(), Error> {
    let mut messages = in_replies(pieces).into_iter().peekable();
    while let Some(message) = messages.next() {
        let is_last = are_last && messages.peek().is_none();
        let reply = if is_last { Reply::Last(message) } else { Reply::More(message) };
        hand_over(parts, replies, reply).await?;
    }
    Ok(())
}

/// What to read, sorted by object and offset but in the order of each item's bytes; and the
/// answers that need no reading.
async fn plan(
    parts: &Parts,
    dataset: DatasetId,
    items: Vec<(u32, ReadItem)>,
) -> Result<(Vec<Segment>, Pieces), Error> {
    let mut done = Pieces::new();
    let mut files: Vec<(u32, ReadItem, FileRecord)> = Vec::with_capacity(items.len());
    let mut paths = Vec::new();
    let mut by_path = Vec::new();
    for (number, item) in items {
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
        bytes += segment.span.end - segment.span.start;
        if count > 0 && (bytes > WAVE_BYTES || count >= WAVE_RANGES) {
            break;
        }
        count += 1;
    }
    segments.drain(..count).collect()
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

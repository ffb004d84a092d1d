//! Plans a read in waves, with a few bytes for each item; a wave is planned right before its read.
//!
//! Must hold: memory grows with the items, not with their files. Headers of large or checked files are read
//! once for neighbours, a few at a time, and dropped with their items. A wave keeps to its bounds on reads and
//! memory.

mod layout;

use std::collections::VecDeque;

use bytes::Bytes;
use dl_format::{ChunkId, Crc32c, DatasetId, Extent, FilePath, FileRecord, ObjectKind};
use dl_meta::Found;
use dl_proto::{Kind, REPLY_BYTES, ReadItem, ReadPiece, ReadRequest, ReadSource};
use dl_store::Key;

use self::layout::{Layout, Layouts, Part};
use crate::error::Error;
use crate::read::browse::look_up as look_up_paths;
use crate::read::executor::{Span, cost};
use crate::shared::context::{Budget, ServerContext, object_key};

/// Bytes of a wave for each of its ranges, which bounds the ranges of tiny files.
const RANGE_BYTES: u64 = 1_024;

/// Items searched for the next large files.
const ITEMS_AHEAD: usize = 4_096;

const PATHS_AT_ONCE: usize = 4_096;

/// Memory of a range beside its bytes.
const RANGE_COST: u64 = 256;

/// Pieces of answers, on their way to the client.
pub(crate) type Pieces = Vec<ReadPiece>;

/// Neighbouring bytes of an item in an object.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) item: u32,
    pub(crate) key: Key,
    pub(crate) span: Span,
    /// Set on the item's last segment.
    pub(crate) last: bool,
    pub(crate) length: u64,
    pub(crate) crc: Crc32c,
    /// The part of a large file that ends with the segment.
    pub(crate) extent: Option<Extent>,
}

/// Segments that are read together; segments of an item stand next to each other.
#[derive(Debug, Default)]
pub(crate) struct Wave {
    pub(crate) segments: Vec<Segment>,
    /// Answers without reads.
    pub(crate) done: Pieces,
    /// The item with bytes in an earlier wave.
    pub(crate) begun: Option<u32>,
    /// Items whose holder was not found, each with the key.
    pub(crate) missing: Vec<(u32, Key)>,
    /// Cost of the segments, and bytes of the answers.
    bytes: u64,
    /// The last segment's object, and the end of its range.
    end: Option<(ChunkId, u64)>,
}

impl Wave {
    fn fail(&mut self, number: u32, failure: &layout::Failure) {
        match failure.kind {
            Kind::NotFound => self.missing.push((number, failure.key.clone())),
            kind => self.done.push(problem(number, kind, failure.why.clone())),
        }
    }

    /// Adds a segment. False when its cost exceeds `room`; the first segment always fits.
    fn add(&mut self, segment: Segment, object: ChunkId, room: u64) -> bool {
        let bytes = self.bytes.saturating_add(cost(end_of(self.end, object), segment.span));
        if !self.segments.is_empty() && bytes > room {
            return false;
        }
        self.end = Some(later(self.end, object, segment.span));
        self.bytes = bytes;
        self.segments.push(segment);
        true
    }
}

/// Bounds of a wave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaveSize {
    /// Bytes of the reads.
    pub(crate) bytes: u64,
    /// Most bytes of a segment, and of a message.
    pub(crate) piece: u64,
    /// Most ranges and other answers.
    ranges: usize,
}

impl WaveSize {
    pub(crate) fn of(bytes: u64) -> Self {
        let ranges = usize::try_from(bytes / RANGE_BYTES).unwrap_or(usize::MAX);
        Self { bytes, piece: (bytes / 4).min(REPLY_BYTES as u64), ranges }
    }
}

/// An unanswered item of a request.
#[derive(Debug)]
struct Item {
    number: u32,
    /// Wanted bytes of the file; `to` may lie past its end.
    from: u64,
    to: u64,
    found: Lookup,
}

#[derive(Debug)]
enum Lookup {
    Missing,
    Folder,
    File(Place),
}

#[derive(Debug, Clone, Copy)]
struct Place {
    chunk: ChunkId,
    offset: u32,
    stored: u32,
    has_extents: bool,
    length: u64,
    crc: Crc32c,
}

/// An item asked for by path.
#[derive(Debug)]
struct Named {
    number: u32,
    path: FilePath,
    from: u64,
    to: u64,
}

/// The unanswered items of a request.
#[derive(Debug)]
pub(crate) struct Plan {
    dataset: DatasetId,
    /// Sorted by location; the first item may be answered in part.
    items: VecDeque<Item>,
    /// Bytes of the first item in earlier waves.
    taken: u64,
    layouts: Layouts,
    /// By number.
    named: Vec<Named>,
    keys: Keys,
    /// Whether reads bypass copies of the objects.
    pass_copies: bool,
    /// Whether headers of all files and of all parts are read.
    check_headers: bool,
    /// The layout of the last part.
    part: Layouts,
}

impl Plan {
    /// Drops the copy of an object before its read, where the request bypasses copies.
    pub(crate) fn pass_copy(&self, parts: &ServerContext, key: &Key) {
        if self.pass_copies {
            parts.store.invalidate(key);
        }
    }

    /// Looks up all items with paths.
    pub(crate) async fn new(parts: &ServerContext, request: ReadRequest) -> Result<Self, Error> {
        let ReadRequest { dataset, items, pass_copies, check_headers } = request;
        let mut named = Vec::new();
        let mut found = Vec::with_capacity(items.len());
        for (number, item) in (0u32..).zip(items) {
            let ReadItem { source, offset: from, length } = item;
            let to = length.map_or(u64::MAX, |length| from.saturating_add(length));
            match source {
                ReadSource::File(file) => found.push(Item::of(number, from, to, &file)),
                ReadSource::Path(path) => named.push(Named { number, path, from, to }),
            }
        }
        look_up(parts, dataset, &named.iter().collect::<Vec<_>>(), &mut found).await?;
        sort(&mut found);
        Ok(Self {
            dataset,
            items: found.into(),
            taken: 0,
            layouts: Layouts::default(),
            named,
            keys: Keys { dataset, last: None },
            pass_copies,
            check_headers,
            part: Layouts::default(),
        })
    }

    /// Looks items with paths up again, as files may have grown. Gives whether `has_room` for [`Plan::cost`] of
    /// the reads.
    pub(crate) async fn look_up_again(
        &mut self,
        parts: &ServerContext,
        numbers: &[u32],
        most: u64,
        has_room: impl FnOnce(u64) -> bool,
    ) -> Result<bool, Error> {
        let mut found = Vec::with_capacity(numbers.len());
        let named: Vec<_> = numbers.iter().filter_map(|number| self.named(*number)).collect();
        look_up(parts, self.dataset, &named, &mut found).await?;
        sort(&mut found);
        if !has_room(cost_of(&found, most)) {
            return Ok(false);
        }
        self.items.extend(found);
        Ok(true)
    }

    fn named(&self, number: u32) -> Option<&Named> {
        let at = self.named.binary_search_by_key(&number, |named| named.number).ok()?;
        self.named.get(at)
    }

    /// Whether an item was asked for by its path.
    pub(crate) fn is_named(&self, number: u32) -> bool {
        self.named(number).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Drops the first item if it has this number.
    pub(crate) fn skip(&mut self, number: u32) {
        if self.items.front().is_some_and(|item| item.number == number) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        self.items.pop_front();
        self.taken = 0;
    }

    /// Memory for the reads of all items, at most `most`.
    pub(crate) fn cost(&self, most: u64) -> u64 {
        let headers = if self.check_headers { layout::BYTES_AT_ONCE } else { 0 };
        cost_of(&self.items, most).saturating_add(headers).min(most)
    }

    /// The next wave; empty when all items are answered.
    pub(crate) async fn next(
        &mut self,
        parts: &ServerContext,
        budget: &Budget,
        size: WaveSize,
    ) -> Wave {
        let mut wave = Wave::default();
        if self.taken > 0 {
            wave.begun = self.items.front().map(|item| item.number);
        }
        while wave.segments.len() + wave.done.len() + wave.missing.len() < size.ranges {
            let Some(item) = self.items.front() else { break };
            let (number, from, to) = (item.number, item.from, item.to);
            let Lookup::File(place) = item.found else {
                let (kind, why) = self.why(item);
                wave.bytes = wave.bytes.saturating_add(why.len() as u64);
                wave.done.push(problem(number, kind, why));
                self.pop();
                if wave.bytes >= size.bytes {
                    break;
                }
                continue;
            };
            let needs_layout = place.has_extents || self.check_headers;
            if needs_layout && !self.layouts.have(place.chunk) {
                self.read_layouts(parts, budget, size).await;
            }
            let layout = match self.layouts.get(place.chunk) {
                _ if !needs_layout => None,
                Some(Ok(layout)) => Some(layout).filter(|_| place.has_extents),
                Some(Err(failure)) => {
                    wave.fail(number, failure);
                    self.pop();
                    continue;
                }
                None => {
                    let why = "the store gave no answer".to_owned();
                    wave.done.push(problem(number, Kind::Internal, why));
                    self.pop();
                    continue;
                }
            };
            let next = from.saturating_add(self.taken);
            let Some(run) = place.run(layout, next, to, size.piece) else {
                wave.done.push(place.nothing(number));
                self.pop();
                continue;
            };
            if self.check_headers && run.object != place.chunk && !self.part.have(run.object) {
                if !wave.segments.is_empty() {
                    break;
                }
                let key = self.keys.of(run.object);
                self.pass_copy(parts, &key);
                self.part.read(parts, budget, self.dataset, &[run.object], true).await;
            }
            if let Some(Err(failure)) = self.part.get(run.object) {
                wave.fail(number, failure);
                self.pop();
                continue;
            }
            let room = size.bytes.saturating_sub(self.layouts.bytes());
            if !wave.add(place.segment(number, self.keys.of(run.object), &run), run.object, room) {
                break;
            }
            if run.is_last {
                self.pop();
            } else {
                self.taken = self.taken.saturating_add(run.span.end - run.span.start);
            }
        }
        wave
    }

    /// The failure of an item without bytes.
    fn why(&self, item: &Item) -> (Kind, String) {
        let path = self.named(item.number).map(|named| &named.path);
        let path = path.map(ToString::to_string).unwrap_or_default();
        match &item.found {
            Lookup::Folder => (Kind::Conflict, format!("{path} is a folder")),
            Lookup::Missing | Lookup::File(_) => {
                (Kind::NotFound, format!("there is no file {path}"))
            }
        }
    }

    async fn read_layouts(&mut self, parts: &ServerContext, budget: &Budget, size: WaveSize) {
        let mut chunks: Vec<ChunkId> = Vec::new();
        let ahead = layout::at_once(size.bytes);
        for item in self.items.iter().take(ITEMS_AHEAD) {
            if let Lookup::File(Place { chunk, has_extents, .. }) = &item.found
                && (*has_extents || self.check_headers)
                && chunks.last() != Some(chunk)
            {
                if chunks.len() >= ahead {
                    break;
                }
                chunks.push(*chunk);
            }
        }
        for chunk in &chunks {
            let key = self.keys.of(*chunk);
            self.pass_copy(parts, &key);
        }
        self.layouts.read(parts, budget, self.dataset, &chunks, self.check_headers).await;
    }
}

/// Sorts by location, so that neighbours are read together.
fn sort(items: &mut [Item]) {
    items.sort_unstable_by_key(|item| (item.place(), item.number));
}

/// Memory for the reads of sorted items, at most `most`.
fn cost_of<'a>(items: impl IntoIterator<Item = &'a Item>, most: u64) -> u64 {
    let mut sum = 0u64;
    let (mut last, mut large) = (None, None);
    for item in items {
        let more = match &item.found {
            Lookup::Missing | Lookup::Folder => 0,
            Lookup::File(place) if place.has_extents => {
                let is_same = large.replace(place.chunk) == Some(place.chunk);
                let header = if is_same { 0 } else { layout::FIRST_READ };
                item.to.min(place.length).saturating_sub(item.from).saturating_add(header)
            }
            Lookup::File(place) => match place.span(item.from, item.to) {
                Some(span) => {
                    let more = cost(end_of(last, place.chunk), span);
                    last = Some(later(last, place.chunk, span));
                    more
                }
                None => 0,
            },
        };
        sum = sum.saturating_add(more).saturating_add(RANGE_COST);
        if sum >= most {
            return most;
        }
    }
    sum
}

async fn look_up(
    parts: &ServerContext,
    dataset: DatasetId,
    named: &[&Named],
    into: &mut Vec<Item>,
) -> Result<(), Error> {
    for group in named.chunks(PATHS_AT_ONCE) {
        let paths: Vec<_> = group.iter().map(|named| named.path.clone()).collect();
        let found = look_up_paths(parts, dataset, &paths).await?;
        for (Named { number, from, to, .. }, found) in group.iter().zip(found) {
            let (number, from, to) = (*number, *from, *to);
            into.push(match found {
                Found::File(file) => Item::of(number, from, to, &file),
                Found::Folder => Item { number, from, to, found: Lookup::Folder },
                Found::Missing => Item { number, from, to, found: Lookup::Missing },
            });
        }
    }
    Ok(())
}

/// The end of the reads of `object`, if it was read last.
fn end_of(last: Option<(ChunkId, u64)>, object: ChunkId) -> Option<u64> {
    last.filter(|(of, _)| *of == object).map(|(_, end)| end)
}

fn later(last: Option<(ChunkId, u64)>, object: ChunkId, span: Span) -> (ChunkId, u64) {
    (object, end_of(last, object).map_or(span.end, |end| end.max(span.end)))
}

impl Item {
    fn of(number: u32, from: u64, to: u64, file: &FileRecord) -> Self {
        let place = Place {
            chunk: file.holder.chunk,
            offset: file.offset,
            stored: file.stored,
            has_extents: file.has_extents,
            length: file.length,
            crc: file.crc,
        };
        Self { number, from, to, found: Lookup::File(place) }
    }

    /// The sort key.
    fn place(&self) -> Option<(ChunkId, u64)> {
        match &self.found {
            Lookup::File(place) => {
                Some((place.chunk, u64::from(place.offset).saturating_add(self.from)))
            }
            Lookup::Missing | Lookup::Folder => None,
        }
    }
}

/// Neighbouring bytes of a file in an object.
struct Run {
    object: ChunkId,
    span: Span,
    /// Whether no wanted bytes follow.
    is_last: bool,
    /// The part that ends with the run.
    extent: Option<Extent>,
}

impl Place {
    /// The bytes of a file without extents.
    fn span(&self, from: u64, to: u64) -> Option<Span> {
        let (offset, to) = (u64::from(self.offset), to.min(u64::from(self.stored)));
        let span = Span { start: offset.saturating_add(from), end: offset.saturating_add(to) };
        (from < to).then_some(span)
    }

    /// The next run from `next` on, with at most `piece` bytes; none at the end of the wanted bytes.
    fn run(&self, layout: Option<&Layout>, next: u64, to: u64, piece: u64) -> Option<Run> {
        let parts = layout.map_or(0, Layout::length);
        // The request paid for the length in the index, and the header may name more.
        let to = to.min(parts.saturating_add(u64::from(self.stored))).min(self.length);
        if next >= to {
            return None;
        }
        let part = layout.and_then(|layout| layout.part(next));
        let extent = part.as_ref().map(|part| part.extent);
        let (object, start, end) = match part {
            Some(Part { extent, start, end }) => (extent.part, start, end),
            None => {
                let offset = u64::from(self.offset).saturating_add(next.saturating_sub(parts));
                (self.chunk, offset, to)
            }
        };
        let stop = to.min(end).min(next.saturating_add(piece));
        let span = Span { start, end: start.saturating_add(stop.saturating_sub(next)) };
        Some(Run { object, span, is_last: stop == to, extent: extent.filter(|_| stop == end) })
    }

    fn segment(&self, item: u32, key: Key, run: &Run) -> Segment {
        let Run { span, is_last: last, extent, .. } = *run;
        Segment { item, key, span, last, length: self.length, crc: self.crc, extent }
    }

    /// The empty last answer to an item.
    fn nothing(&self, item: u32) -> ReadPiece {
        let (length, crc) = (self.length, self.crc);
        ReadPiece { item, data: Ok(Bytes::new()), last: true, length, crc, extent: None }
    }
}

/// Builds the key of a chunk once for neighbouring files.
#[derive(Debug)]
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

/// The answer to a failed item.
pub(crate) fn problem(item: u32, kind: Kind, why: String) -> ReadPiece {
    let data = Err((kind, why));
    ReadPiece { item, data, last: true, length: 0, crc: Crc32c::default(), extent: None }
}

#[cfg(test)]
mod tests;

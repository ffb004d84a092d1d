//! The entries of a dataset's chunks as rows, in shares of the paths.
//!
//! Must hold: all rows of a path are in the same share, and a single share is in memory; the other shares are
//! in a file without a name.

use std::cmp::Reverse;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use dl_format::layout::ENTRY_LEN;
use dl_format::{
    Attributes, ChunkId, ChunkShape, Committed, Crc32c, DatasetId, EntryVersion, FileRecord,
    ObjectKind, Stamp,
};
use dl_meta::ObjectRecord;

use crate::error::Error;
use crate::spill::{Partitions, Scratch, Sizes, thread};

/// Bytes of an encoded row, beside its path.
const ROW: usize = 69;

const ACTION: &str = "fold the files of dataset";

/// The rows of all paths, share by share.
#[derive(Debug)]
pub(crate) struct Shares {
    dataset: DatasetId,
    /// The log.
    objects: Arc<[ObjectRecord]>,
    shape: ChunkShape,
    rows: Partitions,
    hasher: RandomState,
    next: usize,
}

/// The rows of a share of the paths.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// The encoded rows, which hold the paths.
    bytes: Vec<u8>,
    rows: Vec<Row>,
}

/// An entry of a chunk.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    name: Range<usize>,
    /// The number of the chunk in the log.
    pub(crate) object: usize,
    /// Bytes in its chunk, header included.
    pub(crate) cost: u64,
    pub(crate) record: FileRecord,
}

impl Shares {
    /// Empty shares, with room for the entries of the log.
    pub(super) fn new(
        dataset: DatasetId,
        objects: &Arc<[ObjectRecord]>,
        shape: ChunkShape,
        scratch: Scratch,
        sizes: Sizes,
    ) -> Self {
        // A header holds the path and ENTRY_LEN bytes more for each entry.
        let expected = |object: &ObjectRecord| {
            let more = u64::from(object.entry_count) * (ROW - ENTRY_LEN) as u64;
            more.saturating_add(object.header_length.into())
        };
        let chunks = objects.iter().filter(|object| object.kind == ObjectKind::Chunk);
        let bytes = chunks.map(expected).fold(0, u64::saturating_add);
        let rows = Partitions::new(scratch, bytes, sizes);
        let (objects, hasher) = (Arc::clone(objects), RandomState::new());
        Self { dataset, objects, shape, rows, hasher, next: 0 }
    }

    /// The same rows, with the stamps of this log.
    pub(super) fn with_log(self, objects: &Arc<[ObjectRecord]>) -> Self {
        Self { objects: Arc::clone(objects), ..self }
    }

    /// Adds the entries of chunks with their numbers in the log.
    pub(super) async fn add(mut self, chunks: Vec<(usize, Committed)>) -> Result<Self, Error> {
        let dataset = self.dataset;
        let work = move || {
            let mut row = Vec::new();
            for (number, chunk) in chunks {
                for entry in chunk.header().entries() {
                    let path = entry.path.as_bytes();
                    row.clear();
                    encode(&mut row, path, number, &FileRecord::of(&chunk, &entry))?;
                    self.rows.push(self.hasher.hash_one(path), &row)?;
                }
            }
            Ok(self)
        };
        thread(ACTION, dataset, work).await
    }

    /// The next share of the paths.
    pub(crate) async fn next(&mut self) -> Result<Option<Rows>, Error> {
        if self.next >= self.rows.count() {
            return Ok(None);
        }
        let share = self.rows.take(self.next);
        self.next += 1;
        let (objects, shape) = (Arc::clone(&self.objects), self.shape);
        let rows = move || Rows::of(share.read()?, &objects, shape);
        thread(ACTION, self.dataset, rows).await.map(Some)
    }
}

impl Rows {
    /// The paths, in order, each with its rows: the winner first.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&[u8], &Row, &[Row])> {
        let same = |a: &Row, b: &Row| self.name(a) == self.name(b);
        self.rows.chunk_by(same).filter_map(|rows| {
            let (winner, others) = rows.split_first()?;
            Some((self.name(winner), winner, others))
        })
    }

    fn name(&self, row: &Row) -> &[u8] {
        self.bytes.get(row.name.clone()).unwrap_or_default()
    }

    fn of(bytes: Vec<u8>, objects: &[ObjectRecord], shape: ChunkShape) -> io::Result<Self> {
        let mut rows = Vec::with_capacity(count(&bytes));
        let mut rest = Fields(&bytes);
        while !rest.0.is_empty() {
            let row = rest.row(bytes.len(), objects, shape);
            rows.push(row.ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "a row of a share makes no sense")
            })?);
        }
        let name = |row: &Row| bytes.get(row.name.clone()).unwrap_or_default();
        let key = |row: &Row| Reverse((row.record.version, row.record.holder));
        rows.sort_unstable_by(|a, b| name(a).cmp(name(b)).then_with(|| key(a).cmp(&key(b))));
        Ok(Self { bytes, rows })
    }
}

/// Appends a row, without the fields that the log has.
fn encode(to: &mut Vec<u8>, path: &[u8], number: usize, record: &FileRecord) -> io::Result<()> {
    let FileRecord { version, holder, attributes, length, crc, offset, stored, has_extents } =
        *record;
    let name = u16::try_from(path.len()).map_err(io::Error::other)?;
    let number = u32::try_from(number).map_err(io::Error::other)?;
    to.extend_from_slice(&name.to_le_bytes());
    to.extend_from_slice(&number.to_le_bytes());
    to.extend_from_slice(&holder.entry.to_le_bytes());
    to.extend_from_slice(&version.stamp.get().to_le_bytes());
    to.extend_from_slice(version.chunk.as_bytes());
    to.extend_from_slice(&version.entry.to_le_bytes());
    to.extend_from_slice(&attributes.mode.to_le_bytes());
    to.extend_from_slice(&attributes.mtime.to_le_bytes());
    to.extend_from_slice(&length.to_le_bytes());
    to.extend_from_slice(&crc.value().to_le_bytes());
    to.extend_from_slice(&offset.to_le_bytes());
    to.extend_from_slice(&stored.to_le_bytes());
    to.push(has_extents.into());
    to.extend_from_slice(path);
    Ok(())
}

/// The number of rows, for an allocation of the right length.
fn count(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some((name, _)) = bytes.split_first_chunk() {
        let length = ROW.saturating_add(u16::from_le_bytes(*name).into());
        bytes = bytes.get(length..).unwrap_or_default();
        count += 1;
    }
    count
}

/// The bytes that are left to be decoded.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    /// The next row; `of` is the length of all bytes, of which these are the last.
    fn row(&mut self, of: usize, objects: &[ObjectRecord], shape: ChunkShape) -> Option<Row> {
        let name = usize::from(u16::from_le_bytes(self.take()?));
        let object = u32::from_le_bytes(self.take()?) as usize;
        let in_log = objects.get(object)?;
        let entry = u32::from_le_bytes(self.take()?);
        let holder = EntryVersion { stamp: in_log.stamp, chunk: in_log.id, entry };
        let version = EntryVersion {
            stamp: Stamp::new(u64::from_le_bytes(self.take()?)),
            chunk: ChunkId::from_bytes(self.take()?),
            entry: u32::from_le_bytes(self.take()?),
        };
        let mode = u16::from_le_bytes(self.take()?);
        let attributes = Attributes { mode, mtime: i64::from_le_bytes(self.take()?) };
        let length = u64::from_le_bytes(self.take()?);
        let crc = Crc32c::from_value(u32::from_le_bytes(self.take()?));
        let offset = u32::from_le_bytes(self.take()?);
        let stored = u32::from_le_bytes(self.take()?);
        let [has_extents] = self.take()?;
        let has_extents = has_extents != 0;
        let start = of.checked_sub(self.0.len())?;
        self.0 = self.0.get(name..)?;
        let padded = stored.next_multiple_of(shape.alignment_of(stored.into()));
        let cost = u64::from(padded) + (ENTRY_LEN + name) as u64;
        let record =
            FileRecord { version, holder, attributes, length, crc, offset, stored, has_extents };
        Some(Row { name: start..start + name, object, cost, record })
    }
}

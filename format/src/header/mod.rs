//! The header of an object: all metadata of a chunk, part or tombstone, before its payload.
//!
//! Must hold: a [`Header`] exists only for bytes whose magic, version, checksums and bounds were
//! checked, in this order, before any allocation for them. A [`Committed`] header carries the stamp
//! given by a server; only committed headers take part in the fold.

mod commit;
mod decode;
mod row;
mod verify;

use std::ops::Range;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use crate::checksum::Crc32c;
use crate::decode::range;
use crate::entry::{Entry, Extent};
use crate::error::DecodeError;
use crate::id::{ChunkId, DatasetId, Stamp};
use crate::kind::ObjectKind;
use crate::layout::{COMMIT_OFFSET, ENTRY_LEN, PRELUDE_LEN};
use crate::path::FilePath;
use crate::tombstone::Deletions;

use row::{Row, origin_at};
pub use verify::Verified;

/// A hash of 128 bits over all client-written bytes of a header. The same id with the same digest
/// means the same put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(u128);

/// A checked header. Its entries are views into one buffer.
#[derive(Debug, Clone)]
pub struct Header {
    raw: Bytes,
    kind: ObjectKind,
    id: ChunkId,
    dataset: DatasetId,
    entry_count: u32,
    object_length: u64,
    file_bytes: u64,
    stamp: Option<Stamp>,
    /// Positions of the entries, the names and the origins in `raw`; empty if missing.
    entries: Range<usize>,
    names: Range<usize>,
    origins: Range<usize>,
    replaces: Vec<ChunkId>,
    extents: Vec<Extent>,
    deletions: Deletions,
    part: Option<(u32, Crc32c)>,
}

impl Header {
    /// The kind of the object.
    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Its id.
    pub fn id(&self) -> ChunkId {
        self.id
    }

    /// Its dataset.
    pub fn dataset(&self) -> DatasetId {
        self.dataset
    }

    /// Bytes of the header: the offset of the payload.
    pub fn header_length(&self) -> usize {
        self.raw.len()
    }

    /// Bytes of the whole object.
    pub fn object_length(&self) -> u64 {
        self.object_length
    }

    /// Bytes of files in the payload.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The number of entries.
    pub fn entry_count(&self) -> u32 {
        self.entry_count
    }

    /// The bytes of the header.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The stamp, after a server has committed the object.
    pub fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }

    /// The entries, in the order of their numbers.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..self.entry_count).filter_map(|number| self.entry(number))
    }

    /// The entry of a number; `None` if missing.
    pub fn entry(&self, number: u32) -> Option<Entry> {
        let row = self.row(number)?;
        let path = self.names.start.checked_add(row.name_offset as usize)?;
        let path = path..path.checked_add(row.name_length.into())?;
        // Each name was checked when the header was decoded.
        let path = (path.end <= self.names.end).then(|| self.raw.slice(path))?;
        Some(Entry {
            number,
            path: FilePath::from_checked(path),
            attributes: row.attributes,
            length: row.length,
            crc: row.crc,
            offset: row.offset,
            stored: row.stored,
            has_extents: row.has_extents,
            origin: origin_at(self.slice(&self.origins), number, row.origin_stamp),
        })
    }

    /// Whether the object moves entries of other chunks: only servers create such chunks.
    pub fn is_rewrite(&self) -> bool {
        !self.origins.is_empty() || !self.replaces.is_empty()
    }

    /// Ids of the chunks replaced by this chunk.
    pub fn replaces(&self) -> &[ChunkId] {
        &self.replaces
    }

    /// The earlier parts of its only file, in order.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The entries deleted by this object.
    pub fn deletions(&self) -> &Deletions {
        &self.deletions
    }

    /// Length and checksum of a part's bytes, which start behind the header.
    pub fn part(&self) -> Option<(u32, Crc32c)> {
        self.part
    }

    /// The digest of everything but the commit block.
    pub fn digest(&self) -> Digest {
        let mut hasher = Xxh3::new();
        hasher.update(range(&self.raw, 0, COMMIT_OFFSET).unwrap_or_default());
        hasher.update(self.raw.get(PRELUDE_LEN..).unwrap_or_default());
        Digest(hasher.digest128())
    }

    /// The header as a committed header.
    ///
    /// # Errors
    /// When the header has no stamp.
    pub fn committed(self) -> Result<Committed, DecodeError> {
        match self.stamp {
            Some(stamp) => Ok(Committed { header: self, stamp }),
            None => Err(DecodeError::new("stamp", COMMIT_OFFSET, "the object was never committed")),
        }
    }

    fn slice(&self, place: &Range<usize>) -> &[u8] {
        self.raw.get(place.clone()).unwrap_or_default()
    }

    /// Decodes a row, which was checked when the header was decoded.
    fn row(&self, number: u32) -> Option<Row> {
        let at = (number as usize).checked_mul(ENTRY_LEN)?;
        let row = self.slice(&self.entries).get(at..)?.first_chunk()?;
        Row::decode(row, at).ok()
    }

    fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        (0..self.entry_count).filter_map(|number| self.row(number))
    }
}

/// A header with its stamp.
#[derive(Debug, Clone)]
pub struct Committed {
    header: Header,
    stamp: Stamp,
}

impl Committed {
    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The time of the commit.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }
}

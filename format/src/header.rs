//! The header of an object: everything a chunk, part or tombstone says before its payload.
//!
//! Must hold: a [`Header`] exists only for bytes whose magic, version, checksums and bounds were
//! checked, in that order, before anything was allocated for them. A [`Committed`] one carries the
//! stamp that a server gave it; only such headers take part in the fold.

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use crate::checksum::Crc32c;
use crate::decode::{Cursor, range};
use crate::entry::{Attributes, Entry, Extent, Origin};
use crate::error::{DecodeError, NEWER_FEATURE, NEWER_VERSION};
use crate::id::{ChunkId, DatasetId, Stamp};
use crate::layout::{
    CHUNK_SIZE_MAX, CODEC_NONE, COMMIT_LEN, COMMIT_OFFSET, ENTRIES_MAX, ENTRY_LEN, EXTENT_LEN,
    FLAG_EXTENTS, FORMAT_VERSION, HEADER_MAX, KIND_CHUNK, KIND_PART, KIND_TOMBSTONE, MAGIC, PAGE,
    PRELUDE_LEN, SECTION_DELETIONS, SECTION_ENTRIES, SECTION_EXTENTS, SECTION_LEN, SECTION_NAMES,
    SECTION_ORIGINS, SECTION_PAYLOAD, SECTION_REPLACES, SECTIONS_MAX, TYPE_FILE,
};
use crate::path::FilePath;
use crate::tombstone::Deletions;

/// What an object holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// Files: their entries and their bytes.
    Chunk,
    /// An earlier part of a large file, without a name of its own.
    Part,
    /// Which entries of which chunks are deleted.
    Tombstone,
}

/// 128 bits over all that a client wrote into a header. Same id, same digest: the same put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(u128);

#[derive(Debug, Clone, Copy)]
struct Section {
    kind: u32,
    offset: usize,
    length: usize,
    crc: Crc32c,
}

/// A checked header. Cheap to clone; its entries are views into one buffer.
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
    entries: Bytes,
    names: Bytes,
    origins: Vec<Origin>,
    replaces: Vec<ChunkId>,
    extents: Vec<Extent>,
    deletions: Deletions,
    payload: Option<(u32, Crc32c)>,
}

impl Header {
    /// How many bytes the header has, from the first [`PRELUDE_LEN`] bytes of an object: what to
    /// read before [`Header::decode`]. The number is bounded but not yet verified.
    ///
    /// # Errors
    /// When these can't be the first bytes of an object that this version reads.
    pub fn length(prelude: &[u8]) -> Result<usize, DecodeError> {
        let mut cursor = Cursor::new(prelude, 0);
        if cursor.array::<8>("magic")? != MAGIC {
            return Err(DecodeError::new("magic", 0, "not an object of a dataset"));
        }
        if cursor.u16("version")? != FORMAT_VERSION {
            return Err(DecodeError::new("version", 8, NEWER_VERSION));
        }
        let length = range(prelude, 56, 4).ok_or(DecodeError::new(
            "header length",
            56,
            "the bytes end here",
        ))?;
        let length = Cursor::new(length, 56).u32("header length")? as usize;
        if !(PRELUDE_LEN..=HEADER_MAX).contains(&length) || !length.is_multiple_of(PAGE) {
            return Err(DecodeError::new(
                "header length",
                56,
                "not a multiple of 4096 up to 524288",
            ));
        }
        Ok(length)
    }

    /// Checks and reads the header at the start of `object`; bytes behind it are not looked at.
    ///
    /// # Errors
    /// The first field that is not what docs/FORMAT.md says.
    pub fn decode(object: &Bytes) -> Result<Self, DecodeError> {
        let length = Self::length(object)?;
        if object.len() < length {
            return Err(DecodeError::new("header length", 56, "the bytes end before the header"));
        }
        let raw = object.slice(..length);
        let mut cursor = Cursor::new(range(&raw, 10, 86).unwrap_or_default(), 10);

        let kind = cursor.u16("kind")?;
        let _compatible = cursor.u32("compatible features")?;
        let incompatible = cursor.u32("incompatible features")?;
        let section_count = cursor.u32("section count")? as usize;
        let id = ChunkId::from_bytes(cursor.array("chunk id")?);
        let dataset = DatasetId::from_bytes(cursor.array("dataset id")?);
        let _header_length = cursor.u32("header length")?;
        let entry_count = cursor.u32("entry count")?;
        let object_length = cursor.u64("object length")?;
        let file_bytes = cursor.u64("file bytes")?;
        cursor.zero::<12>("reserved")?;
        let crc = Crc32c::from_value(cursor.u32("prelude checksum")?);

        if section_count > SECTIONS_MAX {
            return Err(DecodeError::new("section count", 20, "more than 16"));
        }
        let table_length = section_count.saturating_mul(SECTION_LEN);
        let table = range(&raw, PRELUDE_LEN, table_length).ok_or(DecodeError::new(
            "section table",
            PRELUDE_LEN,
            "the bytes end here",
        ))?;
        let covered = Crc32c::of(range(&raw, 0, 92).unwrap_or_default())
            .then(Crc32c::of(table), table_length as u64);
        if covered != crc {
            return Err(DecodeError::new("prelude checksum", 92, "does not match the bytes"));
        }
        if incompatible != 0 {
            return Err(DecodeError::new("incompatible features", 16, NEWER_FEATURE));
        }
        let kind = match kind {
            KIND_CHUNK => ObjectKind::Chunk,
            KIND_PART => ObjectKind::Part,
            KIND_TOMBSTONE => ObjectKind::Tombstone,
            _ => return Err(DecodeError::new("kind", 10, NEWER_FEATURE)),
        };
        if object_length < length as u64 || object_length > u64::from(CHUNK_SIZE_MAX) {
            return Err(DecodeError::new(
                "object length",
                64,
                "shorter than its header or over 64 MiB",
            ));
        }
        let stamp = decode_commit(&raw)?;
        let sections = decode_sections(&raw, table, object_length)?;

        let mut header = Self {
            entries: Bytes::new(),
            names: Bytes::new(),
            origins: Vec::new(),
            replaces: Vec::new(),
            extents: Vec::new(),
            deletions: Deletions::default(),
            payload: None,
            raw,
            kind,
            id,
            dataset,
            entry_count,
            object_length,
            file_bytes,
            stamp,
        };
        header.read_sections(&sections)?;
        header.check_entries()?;
        Ok(header)
    }

    fn read_sections(&mut self, sections: &[Section]) -> Result<(), DecodeError> {
        for section in sections {
            let body = |field| {
                let end = section.offset.saturating_add(section.length);
                if end > self.raw.len() {
                    return Err(DecodeError::new(
                        field,
                        section.offset,
                        "reaches behind the header",
                    ));
                }
                Ok(self.raw.slice(section.offset..end))
            };
            match section.kind {
                SECTION_ENTRIES => self.entries = body("entries")?,
                SECTION_NAMES => self.names = body("names")?,
                SECTION_ORIGINS => {
                    self.origins =
                        decode_origins(&body("origins")?, section.offset, self.entry_count)?;
                }
                SECTION_REPLACES => {
                    let bytes = body("replaces")?;
                    let mut cursor = Cursor::new(&bytes, section.offset);
                    while !cursor.is_empty() {
                        self.replaces.push(ChunkId::from_bytes(cursor.array("replaced chunk")?));
                    }
                }
                SECTION_EXTENTS => {
                    self.extents = decode_extents(&body("extents")?, section.offset)?
                }
                SECTION_DELETIONS => {
                    self.deletions = Deletions::decode(&body("deletions")?, section.offset)?;
                }
                SECTION_PAYLOAD => {
                    let length = u32::try_from(section.length).unwrap_or(u32::MAX);
                    self.payload = Some((length, section.crc));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Bounds, order and names of all entries, and that each kind holds what it may.
    fn check_entries(&self) -> Result<(), DecodeError> {
        let count = self.entry_count as usize;
        if count > ENTRIES_MAX || count.saturating_mul(ENTRY_LEN) != self.entries.len() {
            return Err(DecodeError::new("entry count", 60, "does not match the entries section"));
        }
        let is_chunk = self.kind == ObjectKind::Chunk;
        let fits = match self.kind {
            ObjectKind::Chunk => self.deletions.is_empty() && self.payload.is_none() && count > 0,
            ObjectKind::Part => self.deletions.is_empty() && self.payload.is_some(),
            ObjectKind::Tombstone => {
                !self.deletions.is_empty()
                    && self.payload.is_none()
                    && self.object_length == self.raw.len() as u64
            }
        };
        if !fits || (!is_chunk && (count > 0 || !self.extents.is_empty())) {
            return Err(DecodeError::new("kind", 10, "holds what an object of this kind can't"));
        }
        let mut names_end = 0usize;
        let mut payload_end = self.raw.len() as u64;
        let mut bytes = self.payload.map_or(0, |(length, _)| u64::from(length));
        for number in 0..self.entry_count {
            let row = self.row(number)?;
            let entry = self.entry_of(number, &row)?;
            let at = self.row_offset(number);
            if row.name_offset as usize != names_end {
                return Err(DecodeError::new(
                    "entry name",
                    at,
                    "names are not one after the other",
                ));
            }
            names_end = names_end.saturating_add(entry.path.as_bytes().len());
            if u64::from(entry.offset) < payload_end {
                return Err(DecodeError::new("entry offset", at, "overlaps what precedes it"));
            }
            payload_end = u64::from(entry.offset).saturating_add(entry.stored.into());
            if payload_end > self.object_length {
                return Err(DecodeError::new("entry offset", at, "reaches behind the object"));
            }
            let earlier = if entry.has_extents {
                self.extents.iter().map(|extent| u64::from(extent.length)).sum()
            } else {
                0u64
            };
            if entry.has_extents && (count != 1 || self.extents.is_empty()) {
                return Err(DecodeError::new("entry flags", at, "a file in parts stands alone"));
            }
            if entry.length != earlier.saturating_add(entry.stored.into()) {
                return Err(DecodeError::new("entry length", at, "is not what is stored"));
            }
            bytes = bytes.saturating_add(entry.stored.into());
        }
        if names_end != self.names.len() {
            return Err(DecodeError::new("names", 0, "longer than the entries' names"));
        }
        if bytes != self.file_bytes {
            return Err(DecodeError::new("file bytes", 72, "is not the sum of the entries"));
        }
        Ok(())
    }

    fn row_offset(&self, number: u32) -> usize {
        (number as usize).saturating_mul(ENTRY_LEN)
    }

    fn row(&self, number: u32) -> Result<Row, DecodeError> {
        let at = self.row_offset(number);
        let bytes = range(&self.entries, at, ENTRY_LEN).ok_or(DecodeError::new(
            "entry",
            at,
            "no entry of this number",
        ))?;
        Row::decode(&mut Cursor::new(bytes, at))
    }

    fn entry_of(&self, number: u32, row: &Row) -> Result<Entry, DecodeError> {
        let at = self.row_offset(number);
        let start = row.name_offset as usize;
        let end = start.saturating_add(row.name_length.into());
        if end > self.names.len() {
            return Err(DecodeError::new("entry name", at, "reaches behind the names"));
        }
        let path = FilePath::new(self.names.slice(start..end))
            .map_err(|_| DecodeError::new("entry name", at, "is not a path in a dataset"))?;
        Ok(Entry {
            number,
            path,
            attributes: row.attributes,
            length: row.length,
            crc: row.crc,
            offset: row.offset,
            stored: row.stored,
            has_extents: row.flags & FLAG_EXTENTS != 0,
            origin: self
                .origins
                .get(number as usize)
                .copied()
                .filter(|_| row.origin_stamp != Stamp::default())
                .map(|origin| Origin { stamp: row.origin_stamp, ..origin }),
        })
    }

    /// What the object holds.
    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Its name.
    pub fn id(&self) -> ChunkId {
        self.id
    }

    /// The dataset it belongs to.
    pub fn dataset(&self) -> DatasetId {
        self.dataset
    }

    /// Bytes of the header: where the payload begins.
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

    /// How many entries it has.
    pub fn entry_count(&self) -> u32 {
        self.entry_count
    }

    /// The header's own bytes.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The stamp, once a server has committed the object.
    pub fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }

    /// Its entries, in the order of their numbers.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..self.entry_count).filter_map(|number| self.entry(number))
    }

    /// One entry.
    pub fn entry(&self, number: u32) -> Option<Entry> {
        let row = self.row(number).ok()?;
        self.entry_of(number, &row).ok()
    }

    /// Ids of the chunks that this one replaces.
    pub fn replaces(&self) -> &[ChunkId] {
        &self.replaces
    }

    /// The earlier parts of the one file in it, in order.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The entries that it deletes.
    pub fn deletions(&self) -> &Deletions {
        &self.deletions
    }

    /// Length and checksum of a part's bytes, which begin behind the header.
    pub fn part(&self) -> Option<(u32, Crc32c)> {
        self.payload
    }

    /// Over everything but the commit block.
    pub fn digest(&self) -> Digest {
        let mut hasher = Xxh3::new();
        hasher.update(range(&self.raw, 0, COMMIT_OFFSET).unwrap_or_default());
        hasher.update(self.raw.get(PRELUDE_LEN..).unwrap_or_default());
        Digest(hasher.digest128())
    }

    /// The header as one that a server has committed.
    ///
    /// # Errors
    /// When it carries no stamp.
    pub fn committed(self) -> Result<Committed, DecodeError> {
        match self.stamp {
            Some(stamp) => Ok(Committed { header: self, stamp }),
            None => Err(DecodeError::new("stamp", COMMIT_OFFSET, "the object was never committed")),
        }
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

    /// When it was committed.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }
}

/// A whole object of which every byte was checked: header, payload checksums, zero padding.
#[derive(Debug)]
pub struct Verified {
    header: Header,
    object: Vec<u8>,
}

impl Verified {
    /// Checks all of `object`.
    ///
    /// # Errors
    /// The first field that is wrong; a file whose bytes don't match is named by its entry.
    pub fn check(object: Vec<u8>) -> Result<Self, DecodeError> {
        let length = Header::length(&object)?;
        let head = range(&object, 0, length).ok_or(DecodeError::new(
            "header length",
            56,
            "the bytes end before the header",
        ))?;
        let header = Header::decode(&Bytes::copy_from_slice(head))?;
        if header.object_length != object.len() as u64 {
            return Err(DecodeError::new("object length", 64, "is not the number of bytes"));
        }
        header.check_payload(&object)?;
        Ok(Self { header, object })
    }

    /// The header, as the client sealed it.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Writes `stamp` into the commit block and gives the object as it will be stored.
    ///
    /// # Errors
    /// Never for a stamp above zero.
    pub fn commit(mut self, stamp: Stamp) -> Result<(Committed, Bytes), DecodeError> {
        let block = commit_block(stamp);
        if let Some(slot) = self.object.get_mut(COMMIT_OFFSET..PRELUDE_LEN) {
            slot.copy_from_slice(&block);
        }
        let length = self.header.raw.len();
        // A copy, so that the header doesn't keep the payload's memory alive.
        let head = Bytes::copy_from_slice(range(&self.object, 0, length).unwrap_or_default());
        let header = Header::decode(&head)?;
        Ok((header.committed()?, Bytes::from(self.object)))
    }
}

impl Header {
    fn check_payload(&self, object: &[u8]) -> Result<(), DecodeError> {
        let mut end = self.raw.len();
        let zero_until = |from: usize, to: usize| match object.get(from..to) {
            Some(gap) if gap.iter().all(|byte| *byte == 0) => Ok(()),
            _ => Err(DecodeError::new("padding", from, "must be zero")),
        };
        if let Some((length, crc)) = self.payload {
            let bytes = range(object, end, length as usize).unwrap_or_default();
            if Crc32c::of(bytes) != crc {
                return Err(DecodeError::new("part", end, "its bytes don't match their checksum"));
            }
            end = end.saturating_add(length as usize);
        }
        let earlier = self.extents.iter().fold(None, |whole: Option<Crc32c>, extent| {
            Some(whole.map_or(extent.crc, |whole| whole.then(extent.crc, extent.length.into())))
        });
        for entry in self.entries() {
            let start = entry.offset as usize;
            zero_until(end, start)?;
            let bytes = range(object, start, entry.stored as usize).unwrap_or_default();
            let own = Crc32c::of(bytes);
            let whole = match earlier {
                Some(earlier) if entry.has_extents => earlier.then(own, entry.stored.into()),
                _ => own,
            };
            if whole != entry.crc {
                return Err(DecodeError::new(
                    "file",
                    start,
                    "its bytes don't match their checksum",
                ));
            }
            end = start.saturating_add(entry.stored as usize);
        }
        zero_until(end, object.len())
    }
}

/// The 32 bytes that a server writes: stamp, zeroes, checksum.
pub(crate) fn commit_block(stamp: Stamp) -> [u8; COMMIT_LEN] {
    let mut block = [0; COMMIT_LEN];
    if stamp == Stamp::default() {
        return block;
    }
    let (body, crc) = block.split_at_mut(COMMIT_LEN.saturating_sub(4));
    if let Some((number, _)) = body.split_first_chunk_mut::<8>() {
        *number = stamp.get().to_le_bytes();
    }
    crc.copy_from_slice(&Crc32c::of(body).value().to_le_bytes());
    block
}

fn decode_commit(raw: &[u8]) -> Result<Option<Stamp>, DecodeError> {
    let block = range(raw, COMMIT_OFFSET, COMMIT_LEN).unwrap_or_default();
    let stamp = Stamp::new(Cursor::new(block, COMMIT_OFFSET).u64("stamp")?);
    if block != commit_block(stamp) {
        return Err(DecodeError::new("commit block", COMMIT_OFFSET, "does not match its checksum"));
    }
    Ok((stamp != Stamp::default()).then_some(stamp))
}

/// The table's rows; sections of the header lie one after the other behind the table.
fn decode_sections(
    raw: &[u8],
    table: &[u8],
    object_length: u64,
) -> Result<Vec<Section>, DecodeError> {
    let mut cursor = Cursor::new(table, PRELUDE_LEN);
    let mut sections = Vec::new();
    let mut end = PRELUDE_LEN.saturating_add(table.len());
    let mut seen = 0u32;
    while !cursor.is_empty() {
        let at = cursor.offset();
        let section = Section {
            kind: cursor.u32("section type")?,
            offset: cursor.u32("section offset")? as usize,
            length: cursor.u32("section length")? as usize,
            crc: Crc32c::from_value(cursor.u32("section checksum")?),
        };
        let bit = 1u32.checked_shl(section.kind).unwrap_or(0);
        if seen & bit != 0 {
            return Err(DecodeError::new("section type", at, "stands twice"));
        }
        seen |= bit;
        if section.kind == SECTION_PAYLOAD {
            let whole = (section.offset as u64).saturating_add(section.length as u64);
            if section.offset != raw.len() || whole > object_length {
                return Err(DecodeError::new("section offset", at, "is not where the payload is"));
            }
        } else {
            let body = range(raw, section.offset, section.length)
                .filter(|_| section.offset == end)
                .ok_or(DecodeError::new(
                    "section offset",
                    at,
                    "is not behind the section before",
                ))?;
            if Crc32c::of(body) != section.crc {
                return Err(DecodeError::new(
                    "section",
                    section.offset,
                    "does not match its checksum",
                ));
            }
            end = end.saturating_add(section.length);
        }
        sections.push(section);
    }
    match raw.get(end..) {
        Some(padding) if padding.iter().all(|byte| *byte == 0) => Ok(sections),
        _ => Err(DecodeError::new("header padding", end, "must be zero")),
    }
}

fn decode_origins(bytes: &[u8], at: usize, entries: u32) -> Result<Vec<Origin>, DecodeError> {
    let mut cursor = Cursor::new(bytes, at);
    let count = cursor.u32("origin count")? as usize;
    let ids = cursor.slice(count.saturating_mul(16), "origin ids")?;
    let mut origins = Vec::with_capacity(entries.min(ENTRIES_MAX as u32) as usize);
    for _ in 0..entries {
        let index = cursor.u32("origin index")? as usize;
        let entry = cursor.u32("origin entry")?;
        let id = range(ids, index.saturating_mul(16), 16).ok_or(DecodeError::new(
            "origin index",
            at,
            "names no origin id",
        ))?;
        let chunk = ChunkId::from_bytes(Cursor::new(id, at).array("origin id")?);
        if entry as usize >= ENTRIES_MAX {
            return Err(DecodeError::new("origin entry", at, "not below 65536"));
        }
        origins.push(Origin { stamp: Stamp::default(), chunk, entry });
    }
    if cursor.is_empty() { Ok(origins) } else { Err(DecodeError::new("origins", at, "too long")) }
}

fn decode_extents(bytes: &[u8], at: usize) -> Result<Vec<Extent>, DecodeError> {
    let mut cursor = Cursor::new(bytes, at);
    let mut extents = Vec::with_capacity(bytes.len() / EXTENT_LEN);
    while !cursor.is_empty() {
        let part = ChunkId::from_bytes(cursor.array("extent part")?);
        let length = cursor.u32("extent length")?;
        let crc = Crc32c::from_value(cursor.u32("extent checksum")?);
        extents.push(Extent { part, length, crc });
    }
    Ok(extents)
}

/// One row of the entries section; the order of the fields is the order of the bytes.
#[derive(Debug)]
struct Row {
    name_length: u16,
    flags: u16,
    name_offset: u32,
    crc: Crc32c,
    offset: u32,
    stored: u32,
    length: u64,
    attributes: Attributes,
    origin_stamp: Stamp,
}

impl Row {
    fn decode(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let at = cursor.offset();
        if cursor.u8("entry type")? != TYPE_FILE {
            return Err(DecodeError::new("entry type", at, NEWER_FEATURE));
        }
        if cursor.u8("entry codec")? != CODEC_NONE {
            return Err(DecodeError::new("entry codec", at, NEWER_FEATURE));
        }
        let mode = cursor.u16("entry mode")?;
        let name_length = cursor.u16("entry name length")?;
        let flags = cursor.u16("entry flags")?;
        let name_offset = cursor.u32("entry name offset")?;
        let crc = Crc32c::from_value(cursor.u32("entry checksum")?);
        let offset = cursor.u32("entry offset")?;
        let stored = cursor.u32("entry stored length")?;
        let length = cursor.u64("entry length")?;
        let mtime = cursor.i64("entry mtime")?;
        let origin_stamp = Stamp::new(cursor.u64("entry origin stamp")?);
        if mode > 0o7777 {
            return Err(DecodeError::new("entry mode", at, "not permission bits"));
        }
        if flags & !FLAG_EXTENTS != 0 {
            return Err(DecodeError::new("entry flags", at, NEWER_FEATURE));
        }
        let attributes = Attributes { mode, mtime };
        Ok(Self {
            name_length,
            flags,
            name_offset,
            crc,
            offset,
            stored,
            length,
            attributes,
            origin_stamp,
        })
    }
}

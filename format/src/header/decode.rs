//! Decoding of unchecked bytes into a [`Header`].
//!
//! Must hold: magic, version, checksums and bounds are checked first, in this order. Lists are
//! allocated only for bytes found in the input. Every error has the field's distance from the start
//! of the object.

use std::ops::Range;

use bytes::Bytes;

use super::Header;
use super::commit::decode_commit;
use super::row::{Row, check_origins};
use crate::checksum::Crc32c;
use crate::decode::{Cursor, check_version, is_zero, range};
use crate::entry::Extent;
use crate::error::{DecodeError, NEWER_FEATURE};
use crate::id::{ChunkId, DatasetId};
use crate::kind::ObjectKind;
use crate::layout::{
    CHUNK_SIZE_MAX, ENTRIES_MAX, ENTRY_LEN, EXTENT_LEN, HEADER_LENGTH_OFFSET, HEADER_MAX, ID_LEN,
    MAGIC, PAGE, PRELUDE_CHECKSUM_OFFSET, PRELUDE_LEN, SECTION_DELETIONS, SECTION_ENTRIES,
    SECTION_EXTENTS, SECTION_LEN, SECTION_NAMES, SECTION_ORIGINS, SECTION_PAYLOAD,
    SECTION_REPLACES, SECTIONS_MAX, round_up,
};
use crate::path;
use crate::tombstone::Deletions;

const ENDS: &str = "the bytes end here";

impl Header {
    /// The number of header bytes, from the first [`PRELUDE_LEN`] bytes of an object: the length to
    /// read before [`Header::decode`]. The number is bounded but not yet verified.
    ///
    /// # Errors
    /// When these bytes can't start an object of this version.
    pub fn length(prelude: &[u8]) -> Result<usize, DecodeError> {
        const AT: usize = HEADER_LENGTH_OFFSET;
        let mut cursor = Cursor::new(prelude, 0);
        if cursor.array::<8>("magic")? != MAGIC {
            return Err(DecodeError::new("magic", 0, "not an object of a dataset"));
        }
        check_version(&mut cursor)?;
        let field = range(prelude, AT, 4).ok_or(DecodeError::new("header length", AT, ENDS))?;
        let length = Cursor::new(field, AT).u32("header length")? as usize;
        if !(PAGE..=HEADER_MAX).contains(&length) || !length.is_multiple_of(PAGE) {
            let problem = "not a multiple of 4096 up to 524288";
            return Err(DecodeError::new("header length", AT, problem));
        }
        Ok(length)
    }

    /// Decodes the header at the start of `object`; later bytes are ignored. The header shares the
    /// memory of `object`.
    ///
    /// # Errors
    /// The first field that violates docs/FORMAT.md.
    pub fn decode(object: &Bytes) -> Result<Self, DecodeError> {
        let length = Self::length(object)?;
        if object.len() < length {
            let problem = "the bytes end before the header";
            return Err(DecodeError::new("header length", HEADER_LENGTH_OFFSET, problem));
        }
        let raw = object.slice(..length);
        let (prelude, table) = Prelude::decode(&raw)?;
        let stamp = decode_commit(&raw)?;
        let sections = decode_sections(&raw, table, &prelude)?;

        let place = |kind| find(&sections, kind).map_or(0..0, Section::place);
        let (entries, names) = (place(SECTION_ENTRIES), place(SECTION_NAMES));
        let origins = place(SECTION_ORIGINS);
        let body = |kind| {
            let place = place(kind);
            (range(&raw, place.start, place.len()).unwrap_or_default(), place.start)
        };
        let replaces = decode_replaces(body(SECTION_REPLACES))?;
        let extents = decode_extents(body(SECTION_EXTENTS))?;
        let deletions = match find(&sections, SECTION_DELETIONS) {
            Some(section) => {
                let (bytes, at) = body(section.kind);
                Deletions::decode(bytes, at)?
            }
            None => Deletions::default(),
        };
        let part = find(&sections, SECTION_PAYLOAD).map(|section| (section.length, section.crc));
        let header = Self {
            kind: prelude.kind,
            id: prelude.id,
            dataset: prelude.dataset,
            entry_count: prelude.entry_count,
            object_length: prelude.object_length,
            file_bytes: prelude.file_bytes,
            raw,
            stamp,
            entries,
            names,
            origins,
            replaces,
            extents,
            deletions,
            part,
        };
        header.check_content(find(&sections, SECTION_ORIGINS).is_some())?;
        Ok(header)
    }

    /// Checks that the sections agree with each other and with the prelude.
    fn check_content(&self, has_origins: bool) -> Result<(), DecodeError> {
        let count = self.entry_count as usize;
        let rows = self.slice(&self.entries);
        if count > ENTRIES_MAX || count.saturating_mul(ENTRY_LEN) != rows.len() {
            return Err(DecodeError::new("entry count", 60, "does not match the entries section"));
        }
        let holds = match self.kind {
            ObjectKind::Chunk => count > 0,
            ObjectKind::Part => self.part.is_some(),
            ObjectKind::Tombstone => !self.deletions.is_empty(),
        };
        if !holds {
            return Err(DecodeError::new("kind", 10, "lacks what an object of this kind holds"));
        }
        let (payload_end, bytes) = match self.part {
            Some((length, _)) => {
                ((self.raw.len() as u64).saturating_add(length.into()), u64::from(length))
            }
            None => self.check_rows(rows, has_origins)?,
        };
        if payload_end != self.object_length {
            return Err(DecodeError::new("object length", 64, "is not where the payload ends"));
        }
        if bytes != self.file_bytes {
            return Err(DecodeError::new("file bytes", 72, "is not the sum of what is stored"));
        }
        if has_origins {
            let stamps = self.rows().map(|row| row.origin_stamp);
            let section = self.slice(&self.origins);
            check_origins(section, self.origins.start, self.entry_count, stamps)?;
        }
        Ok(())
    }

    /// Checks bounds, order and names of all entries. Returns the end of the payload, and its
    /// stored bytes.
    fn check_rows(&self, rows: &[u8], has_origins: bool) -> Result<(u64, u64), DecodeError> {
        let names = self.slice(&self.names);
        let earlier: u64 = self.extents.iter().map(|extent| u64::from(extent.length)).sum();
        let in_parts = !self.extents.is_empty();
        let mut names_end = 0usize;
        let mut payload_end = self.raw.len() as u64;
        let mut bytes = 0u64;
        let mut at = self.entries.start;
        for row in rows.as_chunks::<ENTRY_LEN>().0 {
            let row = Row::decode(row, at)?;
            let wrong = |field, place, problem| {
                Err(DecodeError::new(field, at.saturating_add(place), problem))
            };
            if row.name_offset as usize != names_end {
                return wrong("entry name offset", 8, "names are not one after the other");
            }
            let Some(name) = range(names, names_end, row.name_length.into()) else {
                return wrong("entry name length", 4, "reaches behind the names");
            };
            if path::check(name).is_err() {
                let start = self.names.start.saturating_add(names_end);
                return Err(DecodeError::new("entry name", start, "is not a path in a dataset"));
            }
            names_end = names_end.saturating_add(name.len());
            if u64::from(row.offset) < payload_end {
                return wrong("entry offset", 16, "overlaps what precedes it");
            }
            payload_end = u64::from(row.offset).saturating_add(row.stored.into());
            if payload_end > self.object_length {
                return wrong("entry stored length", 20, "reaches behind the object");
            }
            if row.has_extents != in_parts || (in_parts && self.entry_count != 1) {
                return wrong("entry flags", 6, "a file in parts has extents and stands alone");
            }
            if in_parts && earlier == 0 {
                return wrong("entry flags", 6, "nothing is in the parts of a file");
            }
            if row.length != earlier.saturating_add(row.stored.into()) {
                return wrong("entry length", 24, "is not what is stored");
            }
            if row.origin_stamp.get() != 0 && !has_origins {
                return wrong("entry origin stamp", 40, "has no origin beside it");
            }
            bytes = bytes.saturating_add(row.stored.into());
            at = at.saturating_add(ENTRY_LEN);
        }
        if names_end != names.len() {
            let end = self.names.start.saturating_add(names_end);
            return Err(DecodeError::new("names", end, "longer than the entries' names"));
        }
        Ok((payload_end, bytes))
    }
}

/// The fields of the prelude, after its checksum was verified.
#[derive(Debug)]
struct Prelude {
    kind: ObjectKind,
    id: ChunkId,
    dataset: DatasetId,
    entry_count: u32,
    object_length: u64,
    file_bytes: u64,
}

impl Prelude {
    /// Also returns the section table.
    fn decode(raw: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let mut cursor = Cursor::new(range(raw, 10, 86).unwrap_or_default(), 10);
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
        let reserved = cursor.array::<12>("reserved")?;
        let crc = Crc32c::from_value(cursor.u32("prelude checksum")?);

        if section_count > SECTIONS_MAX {
            return Err(DecodeError::new("section count", 20, "more than 16"));
        }
        let table_length = section_count.saturating_mul(SECTION_LEN);
        let table = range(raw, PRELUDE_LEN, table_length).ok_or(DecodeError::new(
            "section table",
            PRELUDE_LEN,
            ENDS,
        ))?;
        let before = range(raw, 0, PRELUDE_CHECKSUM_OFFSET).unwrap_or_default();
        if Crc32c::of_two(before, table) != crc {
            let problem = "does not match the bytes";
            return Err(DecodeError::new("prelude checksum", PRELUDE_CHECKSUM_OFFSET, problem));
        }
        if incompatible != 0 {
            return Err(DecodeError::new("incompatible features", 16, NEWER_FEATURE));
        }
        if reserved != [0; 12] {
            return Err(DecodeError::new("reserved", 80, "must be zero"));
        }
        let kind =
            ObjectKind::from_number(kind).ok_or(DecodeError::new("kind", 10, NEWER_FEATURE))?;
        if object_length < raw.len() as u64 || object_length > u64::from(CHUNK_SIZE_MAX) {
            let problem = "shorter than its header or over 64 MiB";
            return Err(DecodeError::new("object length", 64, problem));
        }
        Ok((Self { kind, id, dataset, entry_count, object_length, file_bytes }, table))
    }
}

#[derive(Debug, Clone, Copy)]
struct Section {
    kind: u32,
    offset: u32,
    length: u32,
    crc: Crc32c,
}

impl Section {
    fn place(&self) -> Range<usize> {
        let start = self.offset as usize;
        start..start.saturating_add(self.length as usize)
    }
}

fn find(sections: &[Section], kind: u32) -> Option<&Section> {
    sections.iter().find(|section| section.kind == kind)
}

/// Whether an object of this kind may have this section. Unknown sections are ignored: mandatory
/// sections come with an incompatible feature.
fn has_place(kind: ObjectKind, section: u32) -> bool {
    match section {
        SECTION_ENTRIES | SECTION_NAMES | SECTION_ORIGINS | SECTION_REPLACES | SECTION_EXTENTS => {
            kind == ObjectKind::Chunk
        }
        SECTION_DELETIONS => kind == ObjectKind::Tombstone,
        SECTION_PAYLOAD => kind == ObjectKind::Part,
        _ => true,
    }
}

/// Decodes the rows of the table. Sections of the header lie one after the other behind the table,
/// followed only by padding to the next page.
fn decode_sections(
    raw: &[u8],
    table: &[u8],
    prelude: &Prelude,
) -> Result<Vec<Section>, DecodeError> {
    let mut cursor = Cursor::new(table, PRELUDE_LEN);
    let mut sections = Vec::with_capacity(table.len() / SECTION_LEN);
    let mut end = PRELUDE_LEN.saturating_add(table.len());
    while !cursor.is_empty() {
        let at = cursor.offset();
        let section = Section {
            kind: cursor.u32("section type")?,
            offset: cursor.u32("section offset")?,
            length: cursor.u32("section length")?,
            crc: Crc32c::from_value(cursor.u32("section checksum")?),
        };
        if find(&sections, section.kind).is_some() {
            return Err(DecodeError::new("section type", at, "stands twice"));
        }
        if !has_place(prelude.kind, section.kind) {
            let problem = "has no place in an object of this kind";
            return Err(DecodeError::new("section type", at, problem));
        }
        let start = if section.kind == SECTION_PAYLOAD { raw.len() } else { end };
        let place = section.place();
        if place.start != start {
            let problem = "is not behind the section before";
            return Err(DecodeError::new("section offset", at.saturating_add(4), problem));
        }
        if section.kind != SECTION_PAYLOAD {
            let body = range(raw, place.start, place.len()).ok_or(DecodeError::new(
                "section length",
                at.saturating_add(8),
                "reaches behind the header",
            ))?;
            if Crc32c::of(body) != section.crc {
                return Err(DecodeError::new("section", start, "does not match its checksum"));
            }
            end = place.end;
        }
        sections.push(section);
    }
    if round_up(end, PAGE) != raw.len() {
        let problem = "is not where the sections end";
        return Err(DecodeError::new("header length", HEADER_LENGTH_OFFSET, problem));
    }
    match raw.get(end..) {
        Some(padding) if is_zero(padding) => Ok(sections),
        _ => Err(DecodeError::new("header padding", end, "must be zero")),
    }
}

fn decode_replaces((bytes, at): (&[u8], usize)) -> Result<Vec<ChunkId>, DecodeError> {
    let mut cursor = Cursor::new(bytes, at);
    let mut replaces = Vec::with_capacity(bytes.len() / ID_LEN);
    while !cursor.is_empty() {
        replaces.push(ChunkId::from_bytes(cursor.array("replaced chunk")?));
    }
    Ok(replaces)
}

fn decode_extents((bytes, at): (&[u8], usize)) -> Result<Vec<Extent>, DecodeError> {
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

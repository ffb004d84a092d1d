//! The rows of the entries and the origins sections.
//!
//! Must hold: an unknown type, codec or flag is refused, never ignored. The origin of an entry
//! without a stamp is zeros.

use crate::checksum::Crc32c;
use crate::decode::{Cursor, range};
use crate::entry::{Attributes, Origin};
use crate::error::{DecodeError, NEWER_FEATURE};
use crate::id::{ChunkId, Stamp};
use crate::layout::{
    CODEC_NONE, ENTRIES_MAX, ENTRY_LEN, FLAG_EXTENTS, ID_LEN, ORIGIN_COUNT_LEN, ORIGIN_LEN,
    TYPE_FILE,
};

/// A row of the entries section; the order of the fields is the order of the bytes.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name_length: u16,
    pub(super) has_extents: bool,
    pub(super) name_offset: u32,
    pub(super) crc: Crc32c,
    pub(super) offset: u32,
    pub(super) stored: u32,
    pub(super) length: u64,
    pub(super) attributes: Attributes,
    pub(super) origin_stamp: Stamp,
}

impl Row {
    /// Reads the row at byte `at` of the object.
    #[inline]
    pub(super) fn decode(bytes: &[u8; ENTRY_LEN], at: usize) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes, at);
        if cursor.u8("entry type")? != TYPE_FILE {
            return Err(DecodeError::new("entry type", at, NEWER_FEATURE));
        }
        if cursor.u8("entry codec")? != CODEC_NONE {
            return Err(DecodeError::new("entry codec", at.saturating_add(1), NEWER_FEATURE));
        }
        let mode = cursor.u16("entry mode")?;
        if mode > 0o7777 {
            return Err(DecodeError::new(
                "entry mode",
                at.saturating_add(2),
                "not permission bits",
            ));
        }
        let name_length = cursor.u16("entry name length")?;
        let flags = cursor.u16("entry flags")?;
        if flags & !FLAG_EXTENTS != 0 {
            return Err(DecodeError::new("entry flags", at.saturating_add(6), NEWER_FEATURE));
        }
        Ok(Self {
            name_length,
            has_extents: flags & FLAG_EXTENTS != 0,
            name_offset: cursor.u32("entry name offset")?,
            crc: Crc32c::from_value(cursor.u32("entry checksum")?),
            offset: cursor.u32("entry offset")?,
            stored: cursor.u32("entry stored length")?,
            length: cursor.u64("entry length")?,
            attributes: Attributes { mode, mtime: cursor.i64("entry mtime")? },
            origin_stamp: Stamp::new(cursor.u64("entry origin stamp")?),
        })
    }
}

/// The ids and the rows of an origins section, if its length matches the number of `entries`.
fn origin_rows(section: &[u8], entries: u32) -> Option<(&[u8], &[u8])> {
    let count = Cursor::new(section, 0).u32("origin count").ok()? as usize;
    let ids = range(section, ORIGIN_COUNT_LEN, count.checked_mul(ID_LEN)?)?;
    let rows = section.get(ORIGIN_COUNT_LEN.checked_add(ids.len())?..)?;
    (rows.len() == (entries as usize).checked_mul(ORIGIN_LEN)?).then_some((ids, rows))
}

/// Checks a whole origins section, which begins at byte `at` of the object. `stamps` are the stamps
/// of the entries.
pub(super) fn check_origins(
    section: &[u8],
    at: usize,
    entries: u32,
    stamps: impl Iterator<Item = Stamp>,
) -> Result<(), DecodeError> {
    let (ids, rows) = origin_rows(section, entries).ok_or(DecodeError::new(
        "origins",
        at,
        "length does not match its counts",
    ))?;
    let base = at.saturating_add(ORIGIN_COUNT_LEN).saturating_add(ids.len());
    let mut cursor = Cursor::new(rows, base);
    for stamp in stamps {
        let offset = cursor.offset();
        let index = cursor.u32("origin index")? as usize;
        let entry = cursor.u32("origin entry")? as usize;
        let legal = if stamp == Stamp::default() {
            index == 0 && entry == 0
        } else {
            index.saturating_mul(ID_LEN) < ids.len() && entry < ENTRIES_MAX
        };
        if !legal {
            return Err(DecodeError::new("origin", offset, "is not one that an entry can have"));
        }
    }
    Ok(())
}

/// The origin of an entry, from a checked section, if any.
pub(super) fn origin_at(section: &[u8], number: u32, stamp: Stamp) -> Option<Origin> {
    if stamp == Stamp::default() {
        return None;
    }
    let count = Cursor::new(section, 0).u32("origin count").ok()? as usize;
    let rows = ORIGIN_COUNT_LEN.checked_add(count.checked_mul(ID_LEN)?)?;
    let row = rows.checked_add((number as usize).checked_mul(ORIGIN_LEN)?)?;
    let mut row = Cursor::new(section.get(row..)?, row);
    let index = row.u32("origin index").ok()? as usize;
    let entry = row.u32("origin entry").ok()?;
    let id = ORIGIN_COUNT_LEN.checked_add(index.checked_mul(ID_LEN)?)?;
    let chunk = ChunkId::from_bytes(*section.get(id..)?.first_chunk()?);
    Some(Origin { stamp, chunk, entry })
}

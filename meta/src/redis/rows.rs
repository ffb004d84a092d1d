//! The members of a folder's sorted sets: the contents of the folder, each as a string of bytes.
//!
//! Must hold: bytes sort like listings, by name, with a slash at the end of folder names. For each name, the
//! folder's marker comes first, then the versions of the file, superseding versions first. So the first rows
//! of a name tell its meaning, and Redis never has to read a row.

use dl_format::{Attributes, ChunkId, Crc32c, EntryVersion, FileRecord, Stamp};

use super::failure::Failure;

/// Sorts first: the folder has rows in hashed buckets too.
pub(super) const LARGE: &[u8] = &[0];

const MARKER: u8 = 0;
const FILE: u8 = 1;

/// How the holder of a file compares with its version. For each version, the last written row comes first.
const MOVED_LATER: u8 = 0;
const NOT_MOVED: u8 = 1;
const MOVED_EARLIER: u8 = 2;

const HAS_EXTENTS: u8 = 1;
/// The holder has another number of bytes than the file.
const HAS_STORED: u8 = 2;
const FLAGS: u8 = HAS_EXTENTS | HAS_STORED;

/// A decoded member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Member<'a> {
    /// [`LARGE`].
    Large,
    /// The name is a folder; sorts before a file of the same name.
    Marker(&'a [u8]),
    /// A version of a file.
    File(&'a [u8], FileRecord),
    /// The name is a folder; sorts as in listings.
    Folder(&'a [u8]),
}

impl<'a> Member<'a> {
    pub(super) fn decode(member: &'a [u8]) -> Result<Self, Failure> {
        if let [name @ .., b'/'] = member
            && !name.contains(&0)
        {
            return Ok(Self::Folder(name));
        }
        let end = member.iter().position(|byte| *byte == 0);
        let (name, row) = end.and_then(|end| member.split_at_checked(end)).ok_or_else(damaged)?;
        match row {
            [_] if name.is_empty() => Ok(Self::Large),
            [_, MARKER] => Ok(Self::Marker(name)),
            [_, FILE, row @ ..] => Ok(Self::File(name, decode(row).ok_or_else(damaged)?)),
            _ => Err(damaged()),
        }
    }
}

fn damaged() -> Failure {
    Failure::corrupt("a row of a folder can't be read")
}

/// The rows of a folder `name`: its marker, and its row in listings.
pub(super) fn folder(name: &[u8]) -> [Vec<u8>; 2] {
    [[name, &[0, MARKER]].concat(), [name, b"/"].concat()]
}

/// The range of all rows of `name` for a lookup with ZRANGEBYLEX.
pub(super) fn range_of(name: &[u8]) -> [Vec<u8>; 2] {
    let mut range = Vec::new();
    spell_range(name, &mut range).map(<[u8]>::to_vec)
}

/// [`range_of`] into a buffer, for many names.
pub(super) fn spell_range<'a>(name: &[u8], into: &'a mut Vec<u8>) -> [&'a [u8]; 2] {
    into.clear();
    for (before, behind) in [(b'[', 0), (b'(', 1)] {
        into.push(before);
        into.extend_from_slice(name);
        into.push(behind);
    }
    into.split_at(name.len() + 2).into()
}

/// The row of a version of a file.
pub(super) fn file(name: &[u8], record: &FileRecord) -> Vec<u8> {
    let mut row = Vec::with_capacity(name.len() + 92);
    row.extend_from_slice(name);
    row.extend_from_slice(&[0, FILE]);
    version(&mut row, &record.version);
    match record.holder.cmp(&record.version) {
        std::cmp::Ordering::Equal => row.push(NOT_MOVED),
        moved => {
            row.push(if moved.is_gt() { MOVED_LATER } else { MOVED_EARLIER });
            version(&mut row, &record.holder);
        }
    }
    let has_stored = u64::from(record.stored) != record.length;
    let extents = if record.has_extents { HAS_EXTENTS } else { 0 };
    row.push(extents | if has_stored { HAS_STORED } else { 0 });
    row.extend_from_slice(&record.attributes.mode.to_le_bytes());
    row.extend_from_slice(&record.attributes.mtime.to_le_bytes());
    row.extend_from_slice(&record.crc.value().to_le_bytes());
    row.extend_from_slice(&record.offset.to_le_bytes());
    if has_stored {
        row.extend_from_slice(&record.stored.to_le_bytes());
    }
    row.extend_from_slice(&record.length.to_le_bytes());
    row
}

/// Big-endian and inverted: the greater version has the smaller bytes.
#[expect(clippy::big_endian_bytes, reason = "rows sort by it")]
fn version(row: &mut Vec<u8>, version: &EntryVersion) {
    let start = row.len();
    row.extend_from_slice(&version.stamp.get().to_be_bytes());
    row.extend_from_slice(version.chunk.as_bytes());
    row.extend_from_slice(&version.entry.to_be_bytes());
    for byte in row.iter_mut().skip(start) {
        *byte = !*byte;
    }
}

/// Splits a row from its front.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    #[expect(clippy::big_endian_bytes, reason = "rows sort by it")]
    fn version(&mut self) -> Option<EntryVersion> {
        let stamp = Stamp::new(u64::from_be_bytes(self.take()?.map(|byte| !byte)));
        let chunk = ChunkId::from_bytes(self.take::<16>()?.map(|byte| !byte));
        Some(EntryVersion {
            stamp,
            chunk,
            entry: u32::from_be_bytes(self.take()?.map(|byte| !byte)),
        })
    }
}

fn decode(row: &[u8]) -> Option<FileRecord> {
    let mut fields = Fields(row);
    let version = fields.version()?;
    let holder = match fields.take::<1>()? {
        [NOT_MOVED] => version,
        [MOVED_LATER | MOVED_EARLIER] => fields.version()?,
        _ => return None,
    };
    let [flags] = fields.take::<1>()?;
    let mode = u16::from_le_bytes(fields.take()?);
    let mtime = i64::from_le_bytes(fields.take()?);
    let crc = Crc32c::from_value(u32::from_le_bytes(fields.take()?));
    let offset = u32::from_le_bytes(fields.take()?);
    let stored = match flags & HAS_STORED {
        0 => None,
        _ => Some(u32::from_le_bytes(fields.take()?)),
    };
    let length = u64::from_le_bytes(fields.take()?);
    let stored = stored.or_else(|| u32::try_from(length).ok())?;
    (fields.0.is_empty() && flags & !FLAGS == 0).then_some(FileRecord {
        version,
        holder,
        attributes: Attributes { mode, mtime },
        length,
        crc,
        offset,
        stored,
        has_extents: flags & HAS_EXTENTS != 0,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn versions() -> impl Strategy<Value = EntryVersion> {
        (0..3u64, 0..3u8, prop_oneof![0..3u32, Just(65_535)]).prop_map(|(stamp, chunk, entry)| {
            EntryVersion {
                stamp: Stamp::new(stamp),
                chunk: ChunkId::from_bytes([chunk; 16]),
                entry,
            }
        })
    }

    prop_compose! {
        fn records()(
            version in versions(),
            holder in prop_oneof![Just(None), versions().prop_map(Some)],
            mode in any::<u16>(), mtime in any::<i64>(), crc in any::<u32>(),
            length in prop_oneof![0..9u64, any::<u64>()],
            offset in any::<u32>(), stored in 0..9u32, has_extents in any::<bool>(),
        ) -> FileRecord {
            FileRecord {
                version,
                holder: holder.unwrap_or(version),
                attributes: Attributes { mode, mtime },
                length,
                crc: Crc32c::from_value(crc),
                offset,
                stored,
                has_extents,
            }
        }
    }

    proptest! {
        #[test]
        fn a_row_reads_back(record in records(), name in "[a-z\u{1}-]{1,9}") {
            let row = file(name.as_bytes(), &record);
            prop_assert_eq!(Member::decode(&row).unwrap(), Member::File(name.as_bytes(), record));
            for end in 0..row.len() {
                let cut = Member::decode(&row[..end]);
                prop_assert!(!matches!(cut, Ok(Member::File(..))), "cut at {}", end);
            }
        }

        #[test]
        fn of_one_name_the_row_that_supersedes_sorts_first(a in records(), b in records()) {
            if a.supersedes(&b) {
                prop_assert!(file(b"x", &a) < file(b"x", &b));
            }
            let [marker, place] = folder(b"x");
            prop_assert!(LARGE < marker.as_slice() && marker < file(b"x", &a));
            prop_assert!(file(b"x", &a) < place);
        }

        #[test]
        fn rows_sort_as_their_keys_in_a_listing(
            (a, b) in ("[a-c\u{1}.0-]{1,4}", "[a-c\u{1}.0-]{1,4}"),
            (first, second) in (any::<bool>(), any::<bool>()),
            record in records(),
        ) {
            let key = |name: &str, is_folder| format!("{name}{}", if is_folder { "/" } else { "" });
            let row = |name: &str, is_folder: bool| {
                let [_, place] = folder(name.as_bytes());
                if is_folder { place } else { file(name.as_bytes(), &record) }
            };
            let (keys, rows) = ((key(&a, first), key(&b, second)), (row(&a, first), row(&b, second)));
            prop_assert_eq!(keys.0.cmp(&keys.1), rows.0.cmp(&rows.1));
        }

        #[test]
        fn any_bytes_are_a_row_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = Member::decode(&bytes);
        }
    }

    #[test]
    fn folders_and_the_sign_of_a_large_one_read_back() {
        let [marker, place] = folder(b"s");
        assert_eq!(Member::decode(&marker).unwrap(), Member::Marker(b"s"));
        assert_eq!(Member::decode(&place).unwrap(), Member::Folder(b"s"));
        assert_eq!(Member::decode(LARGE).unwrap(), Member::Large);
    }
}

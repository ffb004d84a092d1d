//! Functions for fuzz targets, also called by format's tests with seeded mutations.
//!
//! Must hold: each function takes any bytes, returns, and asserts the promises of a decoder for
//! accepted bytes. [`repaired_object`] repairs checksums over damaged fields first, to reach the
//! checks behind the checksums.

use bytes::Bytes;
use dl_format::layout::{
    COMMIT_LEN, COMMIT_OFFSET, ENTRY_LEN, PRELUDE_CHECKSUM_OFFSET, PRELUDE_LEN, SECTION_ENTRIES,
    SECTION_LEN, SECTIONS_MAX, SNAPSHOT_CHECKSUM_OFFSET, SNAPSHOT_PRELUDE_LEN,
    SNAPSHOT_SECTION_LEN,
};
use dl_format::snapshot::{FileNumber, Manifest, Snapshot, SnapshotSection};
use dl_format::{
    ChunkId, Crc32c, DatasetName, DirPath, EntrySet, FilePath, Fold, Header, IdentityRecord, Lease,
    NameRecord, ObjectKind, Stamp, Verified, name_key, object_key, parse_name_key,
    parse_object_key, parse_snapshot_key, snapshot_key,
};

/// A function for any bytes.
pub type Decoder = fn(&[u8]);

/// Every decoder, by the name of its fuzz target.
pub const DECODERS: [(&str, Decoder); 9] = [
    ("object", object),
    ("repaired_object", repaired_object),
    ("name_record", name_record),
    ("identity_record", identity_record),
    ("entry_set", entry_set),
    ("text", text),
    ("snapshot", snapshot),
    ("manifest", manifest),
    ("lease", lease),
];

/// The header, the whole object, and its commit.
pub fn object(bytes: &[u8]) {
    let decoded = Header::decode(&Bytes::copy_from_slice(bytes));
    if let Err(error) = &decoded {
        // Missing bytes of the prelude are reported at their own offset.
        assert!(error.offset <= bytes.len().max(PRELUDE_LEN) as u64, "{error} lies outside");
    }
    if let Ok(header) = &decoded {
        check_header(header);
    }
    let Ok(verified) = Verified::check(bytes.to_vec()) else { return };
    let header = decoded.expect("a whole object has a good header");
    assert_eq!(verified.header().digest(), header.digest());
    assert_eq!(verified.object(), bytes);
    let stamp = Stamp::new(1_700_000_000_000_000);
    let (committed, stored) = verified.commit(stamp).expect("the stamp is above zero");
    assert_eq!(committed.header().digest(), header.digest(), "a commit changes no client's byte");
    let again = Verified::check(stored.to_vec()).expect("a committed object is a good one");
    assert_eq!(again.header().stamp(), Some(stamp));
    assert_eq!(again.header().raw(), committed.header().raw());
    let mut fold = Fold::default();
    fold.add(&committed);
    assert!(fold.live().count() <= header.entry_count() as usize);
}

/// As [`object`], after repairing checksums.
pub fn repaired_object(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair(&mut bytes);
    object(&bytes);
}

/// The name object of a dataset.
pub fn name_record(bytes: &[u8]) {
    record(bytes, NameRecord::decode, NameRecord::encode);
}

/// The manifest of a stored snapshot.
pub fn manifest(bytes: &[u8]) {
    for manifest in record(bytes, Manifest::decode, Manifest::encode) {
        let last = manifest.checksums.len() as u64;
        assert!(manifest.piece(last).is_none());
        let end = last.checked_sub(1).and_then(|last| manifest.piece(last));
        assert_eq!(end.map_or(0, |(range, _)| range.end), manifest.length);
    }
}

/// The lease of a training job.
pub fn lease(bytes: &[u8]) {
    record(bytes, Lease::decode, Lease::encode);
}

/// The identity object.
pub fn identity_record(bytes: &[u8]) {
    record(bytes, IdentityRecord::decode, IdentityRecord::encode);
}

/// The records in the bytes, as given and with a repaired checksum. A record has one encoding.
fn record<R, E>(
    bytes: &[u8],
    decode: fn(&[u8]) -> Result<R, E>,
    encode: fn(&R) -> Vec<u8>,
) -> Vec<R> {
    let (mut bytes, mut records) = (bytes.to_vec(), Vec::new());
    for _ in 0..2 {
        if let Ok(record) = decode(&bytes) {
            assert_eq!(encode(&record), bytes, "a record has one encoding");
            records.push(record);
        }
        repair_record(&mut bytes);
    }
    records
}

/// A bitmap of entries.
pub fn entry_set(bytes: &[u8]) {
    let Ok(set) = EntrySet::from_bits(bytes) else { return };
    assert_eq!(set.iter().count(), set.count() as usize);
    assert!(set.iter().all(|entry| set.contains(entry)));
    let mut again = EntrySet::default();
    assert!(set.iter().all(|entry| again.insert(entry)));
    assert_eq!(again, set, "a set has one bitmap");
    assert!(!again.union(&set));
}

/// A snapshot, unchanged and after repairing checksums.
pub fn snapshot(bytes: &[u8]) {
    read_snapshot(bytes);
    let mut bytes = bytes.to_vec();
    repair_snapshot(&mut bytes);
    read_snapshot(&bytes);
}

fn read_snapshot(bytes: &[u8]) {
    let Ok(snapshot) = Snapshot::open(bytes) else { return };
    let is_whole = snapshot.verify().is_ok();
    let mut path = Vec::new();
    for number in (0..snapshot.files().min(100)).map(FileNumber) {
        let file = snapshot.file(number);
        let named = snapshot.path(number, &mut path);
        let found = snapshot.lookup(&path);
        let extents = snapshot.extents(number);
        if is_whole {
            assert!(file.is_ok() && named.is_ok() && extents.is_ok());
            assert_eq!(found, Ok(Some(number)), "a whole snapshot finds its files");
        }
    }
    let mut found = Vec::new();
    let asked = [&path[..], b"none", b""];
    let looked = snapshot.lookup_many(asked, &mut found, |_| {});
    assert!(looked.is_ok() || !is_whole);
    for directory in 0..snapshot.directories().min(100) {
        let (runs, below) = (snapshot.runs_of(directory), snapshot.subdirectories(directory));
        assert!(runs.is_ok() && below.is_ok() || !is_whole);
        if let Ok(mut entries) = snapshot.entries(directory, b"a/b") {
            while let Ok(Some(_)) = entries.next(&snapshot) {}
        }
    }
    let folder = b"train/n01440764";
    if let Ok(Some(directory)) = snapshot.directory(folder) {
        let listed = snapshot.entries(directory, folder).and_then(|mut entries| {
            while entries.next(&snapshot)?.is_some() {}
            Ok(())
        });
        assert!(listed.is_ok() || !is_whole);
    }
}

/// Writes the length and valid checksums of the given bytes of a snapshot.
pub fn repair_snapshot(bytes: &mut [u8]) {
    let length = (bytes.len() as u64).to_le_bytes();
    if let Some(place) = bytes.get_mut(64..72) {
        place.copy_from_slice(&length);
    }
    for section in 0..SnapshotSection::ALL.len() {
        let row = SNAPSHOT_PRELUDE_LEN + section * SNAPSHOT_SECTION_LEN;
        let (Some(start), Some(length)) = (number(bytes, row + 8), number(bytes, row + 16)) else {
            return;
        };
        let Some(body) = bytes.get(start..).and_then(|rest| rest.get(..length)) else { continue };
        put(bytes, row + 4, Crc32c::of(body));
    }
    let rows = SnapshotSection::ALL.len() * SNAPSHOT_SECTION_LEN;
    let table = bytes.get(SNAPSHOT_PRELUDE_LEN..).and_then(|rest| rest.get(..rows));
    if let (Some(prelude), Some(table)) = (bytes.get(..SNAPSHOT_CHECKSUM_OFFSET), table) {
        let crc = Crc32c::of(&[prelude, table].concat());
        put(bytes, SNAPSHOT_CHECKSUM_OFFSET, crc);
    }
}

/// Paths, names, printed ids and keys.
pub fn text(bytes: &[u8]) {
    if let Ok(path) = FilePath::new(bytes.to_vec()) {
        assert!(!path.to_string().contains(['\0', '\n', '\x1b']));
        let name = FilePath::new(path.name().to_vec()).expect("a component is a path");
        assert_eq!(name.under(&path.parent()), Ok(path.clone()));
        assert_eq!(DirPath::new(bytes.to_vec()), Ok(DirPath::from(path)));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(id) = text.parse::<ChunkId>() {
        assert_eq!(id.to_string(), text, "an id has one printed form");
    }
    if let Some((dataset, id, is_tombstone)) = parse_object_key(text) {
        let kind = if is_tombstone { ObjectKind::Tombstone } else { ObjectKind::Chunk };
        assert_eq!(object_key(dataset, id, kind), text, "an object has one key");
    }
    if let Some((dataset, version, object)) = parse_snapshot_key(text) {
        assert_eq!(snapshot_key(dataset, version, object), text, "an object has one key");
    }
    if let Some((name, generation)) = parse_name_key(text) {
        assert_eq!(name_key(&name, generation), text, "a generation has one key");
        assert_eq!(DatasetName::new(name.as_str()), Ok(name));
    }
}

/// The promises of every decoded header.
fn check_header(header: &Header) {
    assert_eq!(header.entries().count(), header.entry_count() as usize);
    assert!(header.header_length() as u64 <= header.object_length());
    let mut end = header.header_length() as u64;
    for entry in header.entries() {
        assert!(u64::from(entry.offset) >= end, "entries overlap");
        end = u64::from(entry.offset) + u64::from(entry.stored);
        assert!(end <= header.object_length(), "an entry reaches behind the object");
        assert_eq!(FilePath::new(entry.path.as_bytes().to_vec()), Ok(entry.path.clone()));
        assert_eq!(header.entry(entry.number), Some(entry));
    }
    assert_eq!(header.entry(header.entry_count()), None);
    assert_eq!(header.deletions().is_empty(), header.kind() != ObjectKind::Tombstone);
    assert_eq!(header.part().is_some(), header.kind() == ObjectKind::Part);
}

/// Writes valid checksums for the given fields of an object.
pub fn repair(object: &mut [u8]) {
    let rows = number(object, 20).unwrap_or(0).min(SECTIONS_MAX);
    for row in (0..rows).map(|row| PRELUDE_LEN + row * SECTION_LEN) {
        let (Some(kind), Some(start), Some(length)) =
            (number(object, row), number(object, row + 4), number(object, row + 8))
        else {
            return;
        };
        if kind == SECTION_ENTRIES as usize {
            repair_entries(object, start, length);
        }
        let Some(body) = object.get(start..).and_then(|rest| rest.get(..length)) else { continue };
        put(object, row + 12, Crc32c::of(body));
    }
    let commit = COMMIT_OFFSET..COMMIT_OFFSET + COMMIT_LEN - 4;
    if let Some(block) = object.get(commit.clone())
        && block.iter().any(|byte| *byte != 0)
    {
        put(object, commit.end, Crc32c::of(block));
    }
    let table = object.get(PRELUDE_LEN..).and_then(|rest| rest.get(..rows * SECTION_LEN));
    if let (Some(prelude), Some(table)) = (object.get(..PRELUDE_CHECKSUM_OFFSET), table) {
        let crc = Crc32c::of(&[prelude, table].concat());
        put(object, PRELUDE_CHECKSUM_OFFSET, crc);
    }
}

fn repair_entries(object: &mut [u8], start: usize, length: usize) {
    for row in (0..length.min(object.len()) / ENTRY_LEN).map(|row| start + row * ENTRY_LEN) {
        let (Some(offset), Some(stored)) = (number(object, row + 16), number(object, row + 20))
        else {
            return;
        };
        if let Some(file) = object.get(offset..).and_then(|rest| rest.get(..stored)) {
            put(object, row + 12, Crc32c::of(file));
        }
    }
}

fn repair_record(record: &mut [u8]) {
    if let Some((body, _)) = record.split_last_chunk::<4>() {
        let crc = Crc32c::of(body);
        put(record, record.len() - 4, crc);
    }
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize)
}

fn put(bytes: &mut [u8], at: usize, crc: Crc32c) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&crc.value().to_le_bytes());
    }
}

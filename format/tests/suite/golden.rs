//! Golden files: bytes readable by every later version, and written by this version.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;
use dl_format::snapshot::{Manifest, Snapshot};
use dl_format::{
    Attributes, ChunkShape, ChunkWriter, Crc32c, Deletions, Entry, EntryVersion, FilePath, Header,
    IdentityRecord, Lease, NameRecord, NameState, Sealed, Stamp, StoreId, Verified,
    encode_tombstone,
};

use crate::build::{DATASET, bytes_of, committed, data, id, path, small};

/// The files of the chunk: an ordinary file, an empty file, and difficult names.
const FILES: [(&[u8], Attributes, usize); 6] = [
    (b"train/n01440764/n01440764_10026.JPEG", Attributes { mode: 0o644, mtime: 1 }, 1_000),
    (b"empty", Attributes { mode: 0, mtime: 0 }, 0),
    (b"a b/new\nline", Attributes { mode: 0o7777, mtime: -1 }, 64),
    ("größe/猫.txt".as_bytes(), Attributes { mode: 0o600, mtime: i64::MIN }, 1),
    (b"not utf-8 \xFF\xFE/\\", Attributes { mode: 0o755, mtime: i64::MAX }, 65),
    (b"..a/b../...", Attributes { mode: 0o644, mtime: 1_700_000_000_123_456_789 }, 7),
];

const STAMP: u64 = 1_700_000_000_000_001;
const ORIGINS: [EntryVersion; 2] = [origin(1, 3), origin(2, 65_535)];

const fn origin(chunk: u8, entry: u32) -> EntryVersion {
    let chunk = dl_format::ChunkId::from_bytes([chunk; 16]);
    EntryVersion { stamp: Stamp::new(1_600_000_000_000_000 + entry as u64), chunk, entry }
}

const BARE: Attributes = Attributes { mode: 0, mtime: 0 };

fn chunk() -> Vec<u8> {
    let mut writer = ChunkWriter::new(small(), Vec::new());
    for (number, (name, attributes, length)) in FILES.iter().enumerate() {
        let content = data(number as u64, *length);
        writer.append(&path(name), *attributes, &content).expect("it has room");
    }
    bytes_of(&writer.seal(id(1), DATASET))
}

fn rewritten() -> Vec<u8> {
    let shape = ChunkShape::new(1 << 20, 4_096).expect("a legal shape");
    let mut writer = ChunkWriter::new(shape, Vec::new());
    writer.append(&path("fresh"), BARE, b"new").expect("it has room");
    for (number, origin) in ORIGINS.into_iter().enumerate() {
        let name = path(format!("old/{number}"));
        let content = data(number as u64, 100);
        writer.rewrite(&name, BARE, &content, origin).expect("it has room");
    }
    for origin in ORIGINS {
        writer.replace(origin.chunk).expect("it has room");
    }
    bytes_of(&writer.seal(id(2), DATASET))
}

fn large_file() -> (Vec<u8>, Vec<u8>) {
    let first = data(1, 300);
    let (part, extent) = Sealed::part(small(), id(3), DATASET, &first).expect("it has room");
    let mut writer = ChunkWriter::new(small(), Vec::new());
    writer.append_tail(&path("large"), BARE, vec![extent], &data(2, 50)).expect("it has room");
    (bytes_of(&part), bytes_of(&writer.seal(id(4), DATASET)))
}

fn deletions() -> Deletions {
    let mut deletions = Deletions::default();
    for version in [origin(9, 0), origin(9, 8), origin(8, 65_535), ORIGINS[0]] {
        assert!(deletions.insert(&version));
    }
    deletions
}

fn name(state: NameState) -> Vec<u8> {
    let shape = ChunkShape::default();
    NameRecord { state, dataset: DATASET, shape, created: Stamp::new(STAMP) }.encode()
}

/// Of the dataset of the committed golden files.
fn snapshot() -> Vec<u8> {
    let tombstone = encode_tombstone(DATASET, id(5), &deletions()).expect("they fit");
    let objects = [chunk(), rewritten(), large_file().1, tombstone];
    let stamps = [STAMP, STAMP + 1, STAMP + 2, STAMP + 3];
    let objects = objects.into_iter().zip(stamps).map(|(object, stamp)| committed(object, stamp).0);
    crate::snapshot::of(&objects.collect::<Vec<_>>())
}

/// More files than a bucket of the index, a block of names or a run holds, some with long paths;
/// each with its bytes.
fn many() -> Vec<(FilePath, Attributes, usize)> {
    let file = |number: usize| {
        let (folder, long) = (number % 7, "long".repeat(50));
        let text = match number % 10 {
            0 => format!("{folder}/{long}/{number}"),
            _ => format!("{folder}/n{folder:08}_{number}.JPEG"),
        };
        let mtime = 1_700_000_000_000_000_000 + 40 * i64::try_from(number).expect("few");
        (path(text), Attributes { mode: 0o644, mtime }, number)
    };
    (0..300).map(file).collect()
}

fn snapshot_many() -> Vec<u8> {
    let files = many();
    let chunks = files.chunks(150).zip(6..).map(|(files, number)| {
        let mut writer = ChunkWriter::new(small(), Vec::new());
        for (path, attributes, length) in files {
            let content = data(*length as u64, *length);
            writer.append(path, *attributes, &content).expect("it has room");
        }
        committed(bytes_of(&writer.seal(id(number), DATASET)), STAMP + u64::from(number)).0
    });
    crate::snapshot::of(&chunks.collect::<Vec<_>>())
}

/// The stored form of the first snapshot.
fn manifest() -> Manifest {
    let snapshot = snapshot();
    let opened = Snapshot::open(&snapshot).expect("a good snapshot");
    Manifest {
        dataset: DATASET,
        version: opened.of().version,
        length: opened.length(),
        built: Stamp::new(STAMP + 4),
        checksums: vec![Crc32c::of(&snapshot)],
    }
}

/// For the version of the first snapshot.
fn lease() -> Lease {
    let Manifest { dataset, version, .. } = manifest();
    let (user, task) = ("ada".to_owned(), "resnet-50:2".parse().expect("a legal name"));
    Lease { dataset, version, until: Stamp::new(STAMP + 5), user, task }
}

/// Every golden file with the bytes written by the current code.
pub(crate) fn files() -> Vec<(&'static str, Vec<u8>)> {
    let (part, tail) = large_file();
    let tombstone = encode_tombstone(DATASET, id(5), &deletions()).expect("they fit");
    let identity = IdentityRecord { store: StoreId::from_bytes(*b"a random store\0\xFF") };
    let stored = |object: Vec<u8>| committed(object, STAMP).1.to_vec();
    vec![
        ("chunk.bin", chunk()),
        ("chunk-committed.bin", stored(chunk())),
        ("identity.bin", identity.encode()),
        ("large-file-part.bin", part),
        ("large-file-tail.bin", tail),
        ("lease.bin", lease().encode()),
        ("manifest.bin", manifest().encode()),
        ("name-deleted.bin", name(NameState::Deleted)),
        ("name-live.bin", name(NameState::Live)),
        ("rewritten.bin", rewritten()),
        ("rewritten-committed.bin", stored(rewritten())),
        ("snapshot.bin", snapshot()),
        ("snapshot-many.bin", snapshot_many()),
        ("tombstone.bin", tombstone.clone()),
        ("tombstone-committed.bin", stored(tombstone)),
    ]
}

/// The objects of a dataset among [`files`].
pub(crate) fn objects() -> Vec<(&'static str, Vec<u8>)> {
    let is_other = |name: &str| {
        ["name", "identity", "snapshot", "manifest", "lease"].iter().any(|of| name.starts_with(of))
    };
    files().into_iter().filter(|(name, _)| !is_other(name)).collect()
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/v1")
}

#[test]
fn the_bytes_written_today_are_those_of_the_golden_files() {
    if std::env::var_os("DIESEL_WRITE_GOLDEN").is_some() {
        for (name, bytes) in files() {
            std::fs::write(folder().join(name), bytes).unwrap();
        }
    }
    for (name, bytes) in files() {
        let golden = std::fs::read(folder().join(name)).unwrap();
        assert!(golden == bytes, "{name} would be written in other bytes; see golden/README.md");
    }
    let there: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let known = files().into_iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(there, known, "every golden file is checked");
}

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).expect("a golden file")
}

fn header(name: &str) -> Header {
    let bytes = golden(name);
    let verified = Verified::check(bytes.clone()).expect("a good object");
    let header = Header::decode(&Bytes::from(bytes)).expect("a good header");
    assert_eq!(header.digest(), verified.header().digest());
    assert_eq!(header.dataset(), DATASET);
    header
}

#[test]
fn the_golden_chunk_reads_as_what_went_in() {
    let (chunk, stored) = (header("chunk.bin"), header("chunk-committed.bin"));
    assert_eq!((chunk.stamp(), stored.stamp()), (None, Some(Stamp::new(STAMP))));
    assert_eq!(chunk.digest(), stored.digest());
    let raw = chunk.raw();
    let hashed = xxhash_rust::xxh3::xxh3_128(&[&raw[..96], &raw[128..]].concat());
    assert_eq!(format!("{:?}", stored.digest()), format!("Digest({hashed})"));
    assert_eq!(chunk.id(), id(1));
    let mut offset = 4_096;
    for (number, (name, attributes, length)) in FILES.iter().enumerate() {
        let content = data(number as u64, *length);
        let stored = u32::try_from(*length).unwrap();
        let expected = Entry {
            number: u32::try_from(number).unwrap(),
            path: path(name),
            attributes: *attributes,
            length: stored.into(),
            crc: Crc32c::of(&content),
            offset,
            stored,
            has_extents: false,
            origin: None,
        };
        assert_eq!(chunk.entry(expected.number), Some(expected));
        offset = (offset + stored).next_multiple_of(64);
    }
    assert_eq!(chunk.entry_count() as usize, FILES.len());
}

#[test]
fn the_golden_rewritten_chunk_keeps_the_versions_of_its_files() {
    let header = header("rewritten.bin");
    let origins: Vec<_> = header.entries().map(|entry| entry.origin).collect();
    assert_eq!(origins, [None, Some(ORIGINS[0]), Some(ORIGINS[1])]);
    assert_eq!(header.replaces(), ORIGINS.map(|origin| origin.chunk));
    assert!(header.entries().all(|entry| entry.offset % 4_096 == 0));
}

#[test]
fn the_golden_large_file_is_its_part_and_its_tail() {
    let (part, tail) = (header("large-file-part.bin"), header("large-file-tail.bin"));
    let whole = [data(1, 300), data(2, 50)].concat();
    let (length, crc) = part.part().unwrap();
    assert_eq!((length, crc), (300, Crc32c::of(&whole[..300])));
    let [extent] = tail.extents() else { panic!("one part") };
    assert_eq!((extent.part, extent.length, extent.crc), (part.id(), length, crc));
    let entry = tail.entry(0).unwrap();
    assert_eq!((entry.length, entry.stored, entry.crc), (350, 50, Crc32c::of(&whole)));
    assert!(entry.has_extents);
}

#[test]
fn the_golden_snapshots_read_as_what_went_in() {
    let few = FILES.iter().map(|(name, attributes, length)| (path(name), *attributes, *length));
    for (name, files) in [("snapshot.bin", few.collect()), ("snapshot-many.bin", many())] {
        let bytes = golden(name);
        let snapshot = Snapshot::open(&bytes).unwrap();
        snapshot.verify().unwrap();
        for (path, attributes, length) in files {
            let number = snapshot.lookup(path.as_bytes()).unwrap().expect("it is there");
            let file = snapshot.file(number).unwrap();
            assert_eq!((file.attributes, file.length), (attributes, length as u64), "{path}");
            let mut found = Vec::new();
            snapshot.path(number, &mut found).unwrap();
            assert_eq!(found, path.as_bytes());
        }
        assert_eq!(snapshot.lookup(b"0/none").unwrap(), None);
    }
    assert_eq!(Snapshot::open(&golden("snapshot-many.bin")).unwrap().files(), 300);
}

#[test]
fn the_golden_tombstone_and_records_read_as_what_went_in() {
    assert_eq!(header("tombstone.bin").deletions(), &deletions());
    assert_eq!(header("tombstone-committed.bin").stamp(), Some(Stamp::new(STAMP)));
    for (file, state) in
        [("name-live.bin", NameState::Live), ("name-deleted.bin", NameState::Deleted)]
    {
        let record = NameRecord::decode(&golden(file)).unwrap();
        assert_eq!((record.state, record.dataset), (state, DATASET));
        assert_eq!((record.shape, record.created), (ChunkShape::default(), Stamp::new(STAMP)));
    }
    assert_eq!(Manifest::decode(&golden("manifest.bin")).unwrap(), manifest());
    assert_eq!(Lease::decode(&golden("lease.bin")).unwrap(), lease());
    let store = IdentityRecord::decode(&golden("identity.bin")).unwrap().store;
    assert_eq!(store.as_bytes(), b"a random store\0\xFF");
}

//! Snapshots compared with their files, and damaged snapshots.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use dl_format::layout::SNAPSHOT_PRELUDE_LEN;
use dl_format::snapshot::{
    FileNumber, LiveFile, Observed, Snapshot, SnapshotChunk, SnapshotEntry, SnapshotOf,
    SnapshotSection,
};
use dl_format::{
    Attributes, ChunkId, ChunkShape, Crc32c, DatasetId, DecodeError, EntryVersion, Extent,
    FilePath, FileRecord, Stamp, Version,
};
use proptest::prelude::*;

use crate::build::path;
use crate::entry_points::repair_snapshot;
use crate::snapshot::lay_out;

type Chunks = Vec<(SnapshotChunk, Vec<LiveFile>)>;

fn of() -> SnapshotOf {
    SnapshotOf {
        dataset: DatasetId::from_bytes([7; 16]),
        version: Version::default(),
        shape: ChunkShape::default(),
    }
}

/// A snapshot in memory, from observations of parts in another order.
fn build(chunks: &Chunks) -> Vec<u8> {
    let mut observed = Observed::default();
    for (_, files) in chunks.iter().rev() {
        let mut part = Observed::default();
        part.chunk();
        files.iter().for_each(|file| part.file(&file.record));
        observed.merge(part);
    }
    lay_out(of(), observed, chunks.iter().cloned())
}

/// Chunks of some files, each path once.
fn chunks(paths: &[Vec<Vec<u8>>], seed: u64) -> Chunks {
    let mut seen = BTreeSet::new();
    let mut chunks = Chunks::new();
    for (number, paths) in (1_u8..).zip(paths) {
        let id = ChunkId::from_bytes([number; 16]);
        let stamp = Stamp::new(1_000 + u64::from(number));
        let chunk = SnapshotChunk { id, stamp, object_length: 4 << 20 };
        let mut files = Vec::new();
        for (entry, path) in (0_u32..).zip(paths) {
            let Ok(path) = FilePath::new(path.clone()) else { continue };
            if !seen.insert(path.clone()) {
                continue;
            }
            let holder = EntryVersion { stamp, chunk: id, entry };
            let draw = seed.wrapping_mul(u64::from(entry) + 1);
            let moved = EntryVersion { stamp: Stamp::new(1 + draw % 5), ..holder };
            let record = FileRecord {
                version: if draw.is_multiple_of(3) { moved } else { holder },
                holder,
                attributes: Attributes {
                    mode: if seed.is_multiple_of(2) { 0o644 } else { (draw % 0o777) as u16 },
                    mtime: (draw as i64).wrapping_mul(if seed.is_multiple_of(5) {
                        1_000_000_000
                    } else {
                        1
                    }),
                },
                length: draw % 1_000,
                crc: Crc32c::from_value(draw as u32),
                offset: 64 * (entry + 1),
                stored: (draw % 1_000) as u32,
                has_extents: false,
            };
            files.push(LiveFile { path, record, extents: Vec::new() });
        }
        if !files.is_empty() {
            chunks.push((chunk, files));
        }
    }
    without_conflicts(chunks)
}

/// Drops files whose paths are also folders, like the fold.
fn without_conflicts(mut chunks: Chunks) -> Chunks {
    let paths: BTreeSet<Vec<u8>> = chunks
        .iter()
        .flat_map(|(_, files)| files.iter().map(|file| file.path.as_bytes().to_vec()))
        .collect();
    let is_folder = |path: &[u8]| {
        let inside = [path, b"/"].concat();
        paths.range(inside.clone()..).next().is_some_and(|next| next.starts_with(&inside))
    };
    for (_, files) in &mut chunks {
        files.retain(|file| !is_folder(file.path.as_bytes()));
    }
    chunks.retain(|(_, files)| !files.is_empty());
    chunks
}

fn compare(snapshot: &Snapshot<Bytes>, chunks: &Chunks) -> Result<(), DecodeError> {
    let mut all: BTreeMap<&[u8], &LiveFile> = BTreeMap::new();
    for (_, files) in chunks {
        all.extend(files.iter().map(|file| (file.path.as_bytes(), file)));
    }
    assert_eq!(snapshot.files() as usize, all.len());
    let mut found = Vec::new();
    snapshot.lookup_many(all.keys().copied(), &mut found, |_| ())?;
    for ((path, file), many) in all.iter().zip(found) {
        let number = snapshot.lookup(path)?.expect("it is there");
        assert_eq!(many, Some(number));
        let mut back = Vec::new();
        snapshot.path(number, &mut back)?;
        assert_eq!(back, *path);
        let read = snapshot.file(number)?;
        let record = &file.record;
        assert_eq!(
            snapshot.chunk(read.chunk).map(|(chunk, _)| chunk.id),
            Some(record.holder.chunk)
        );
        assert_eq!(
            (read.offset, read.length, read.crc, read.attributes, read.stamp),
            (record.offset, record.length, record.crc, record.attributes, record.version.stamp)
        );
        let strange = [path, &b"~"[..]].concat();
        assert_eq!(snapshot.lookup(&strange), Ok(None));
    }
    let mut walked = Vec::new();
    walk(snapshot, 0, b"", &mut walked)?;
    let expected: Vec<Vec<u8>> = all.keys().map(|path| path.to_vec()).collect();
    assert_eq!(walked, expected, "a walk gives all paths in byte order");
    Ok(())
}

fn walk(
    snapshot: &Snapshot<Bytes>,
    directory: u32,
    path: &[u8],
    walked: &mut Vec<Vec<u8>>,
) -> Result<(), DecodeError> {
    assert_eq!(snapshot.directory(path), Ok(Some(directory)));
    let mut entries = snapshot.entries(directory, path)?;
    while let Some(entry) = entries.next(snapshot)? {
        match entry {
            SnapshotEntry::File(number, path) => {
                assert_eq!(snapshot.lookup(path), Ok(Some(number)));
                walked.push(path.to_vec());
            }
            SnapshotEntry::Directory(number, path) => walk(snapshot, number, path, walked)?,
        }
    }
    Ok(())
}

fn paths() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    let component = prop::sample::select(vec![
        &b"a"[..],
        b"b",
        b"ab",
        b"a.b",
        b"a-b",
        b"n01440764",
        b"train",
        b"\xFF",
        b"x0",
        b"x1",
        b"x2",
    ]);
    let path = prop::collection::vec(component, 1..4).prop_map(|parts| parts.join(&b'/'));
    prop::collection::vec(prop::collection::vec(path, 0..60), 0..6)
}

proptest! {
    #[test]
    fn a_snapshot_says_what_was_put_into_it(paths in paths(), seed in any::<u64>()) {
        let chunks = chunks(&paths, seed);
        let bytes = Bytes::from(build(&chunks));
        let snapshot = Snapshot::open(bytes.clone()).unwrap();
        prop_assert_eq!(snapshot.verify(), Ok(()));
        compare(&snapshot, &chunks).unwrap();
    }

    #[test]
    fn the_order_in_which_files_come_does_not_show(paths in paths(), seed in any::<u64>()) {
        let chunks = chunks(&paths, seed);
        let mut turned = chunks.clone();
        turned.iter_mut().for_each(|(_, files)| files.reverse());
        prop_assert_eq!(build(&chunks), build(&turned));
    }
}

#[test]
fn what_is_damaged_is_told_with_its_place_in_the_snapshot() {
    let paths: Vec<Vec<u8>> = (0..40).map(|n| format!("train/{n:02}").into_bytes()).collect();
    let bytes = build(&chunks(&[paths], 1));
    let start = |section: SnapshotSection| {
        let row = SNAPSHOT_PRELUDE_LEN + 32 * (section as usize - 1);
        u64::from_le_bytes(bytes[row + 8..row + 16].try_into().unwrap()) as usize
    };
    let damaged = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].fill(0xFF);
        Snapshot::open(Bytes::from(bytes)).unwrap()
    };
    let second = start(SnapshotSection::Blocks) + 8;
    let block = u64::from_le_bytes(bytes[second..second + 8].try_into().unwrap()) as usize;
    let at = start(SnapshotSection::Names) + block;
    let snapshot = damaged(at);
    let place = |error: DecodeError| error.offset as usize;
    assert_eq!(place(snapshot.path(FileNumber(20), &mut Vec::new()).unwrap_err()), at);
    assert_eq!(place(snapshot.lookup(b"train/20").unwrap_err()), at);
    let mut entries = snapshot.entries(1, b"train").unwrap();
    let listed = std::iter::from_fn(|| match entries.next(&snapshot) {
        Ok(entry) => entry.map(|_| Ok(())),
        Err(error) => Some(Err(error)),
    });
    let listed: Vec<_> = listed.take(17).collect();
    assert_eq!(listed.into_iter().find_map(Result::err).map(place), Some(at));
    let row = start(SnapshotSection::Directories) + 12;
    assert_eq!(place(damaged(row + 8).runs_of(1).unwrap_err()), row);
    assert_eq!(place(damaged(row + 4).subdirectories(1).unwrap_err()), row);
    let run = start(SnapshotSection::Runs);
    assert_eq!(place(damaged(run).runs_of(1).unwrap_err()), run);
    assert_eq!(place(damaged(second).names(17..18).unwrap_err()), second);
}

#[test]
fn a_large_file_has_its_parts_and_others_have_none() {
    let mut chunks = chunks(&[vec![b"small".to_vec(), b"large".to_vec()]], 1);
    let extent = Extent {
        part: ChunkId::from_bytes([9; 16]),
        length: 4_000_000,
        crc: Crc32c::from_value(5),
    };
    let large = &mut chunks[0].1[1];
    large.extents = vec![extent, extent];
    large.record.length = 8_000_000 + u64::from(large.record.stored);
    let snapshot = Snapshot::open(Bytes::from(build(&chunks))).unwrap();
    snapshot.verify().unwrap();
    let extents = |path: &[u8]| snapshot.extents(snapshot.lookup(path).unwrap().unwrap()).unwrap();
    assert_eq!(extents(b"large"), [extent, extent]);
    assert_eq!(extents(b"small"), []);
}

#[test]
fn files_named_like_imagenet_take_less_than_40_bytes_each() {
    let mut chunks = Chunks::new();
    let (mut number, mut left) = (0_u32, 30_000_u32);
    while left > 0 {
        let count = left.min(1_000);
        let id = ChunkId::from_bytes([(number / 1_000) as u8; 16]);
        let stamp = Stamp::new(1_000_000 + u64::from(number));
        let files = (0..count).map(|entry| {
            let file = u64::from(number + entry);
            let (class, image) = (file / 1_300, file.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 45);
            let class = class * 7_919;
            let name = format!("train/n{class:08}/n{class:08}_{image}{}.JPEG", file % 10);
            let holder = EntryVersion { stamp, chunk: id, entry };
            let mtime = 1_700_000_000_000_000_000 + (file as i64) * 40_003;
            LiveFile {
                path: path(name),
                record: FileRecord {
                    version: holder,
                    holder,
                    attributes: Attributes { mode: 0o644, mtime },
                    length: 4_096,
                    crc: Crc32c::from_value(file as u32),
                    offset: 65_536 + entry * 4_096,
                    stored: 4_096,
                    has_extents: false,
                },
                extents: Vec::new(),
            }
        });
        let chunk = SnapshotChunk { id, stamp, object_length: 4 << 20 };
        chunks.push((chunk, files.collect()));
        (number, left) = (number + count, left - count);
    }
    let bytes = Bytes::from(build(&chunks));
    let snapshot = Snapshot::open(bytes.clone()).unwrap();
    snapshot.verify().unwrap();
    let each = bytes.len() as f64 / f64::from(snapshot.files());
    assert!(each < 40.0, "{each} bytes a file");
}

#[test]
fn a_path_that_is_a_file_and_a_folder_is_refused() {
    let mut chunks = chunks(&[vec![b"a".to_vec(), b"b/c".to_vec()]], 1);
    for (other, is_whole) in [(&b"a/x"[..], false), (b"aa/x", true), (b"b/c/d", false)] {
        let (chunk, files) = &mut chunks[0];
        let record = FileRecord { offset: 4_096, ..files[0].record };
        let file = LiveFile { path: path(other), record, extents: Vec::new() };
        let mut all = files.clone();
        all.push(file);
        let snapshot = Snapshot::open(Bytes::from(build(&vec![(*chunk, all)]))).unwrap();
        assert_eq!(snapshot.verify().is_ok(), is_whole, "{}", path(other));
    }
}

#[test]
fn an_index_that_goes_on_where_there_is_room_is_refused() {
    let paths: Vec<Vec<u8>> = (0..100).map(|n| format!("file{n}").into_bytes()).collect();
    let mut bytes = build(&chunks(&[paths], 1));
    let row = SNAPSHOT_PRELUDE_LEN + (SnapshotSection::Index as usize - 1) * 32;
    let index = u64::from_le_bytes(bytes[row + 8..row + 16].try_into().unwrap()) as usize;
    assert!(Snapshot::open(&bytes[..]).unwrap().verify().is_ok());
    bytes[index + 13] = 1;
    repair_snapshot(&mut bytes);
    let problem = Snapshot::open(&bytes[..]).unwrap().verify().unwrap_err();
    assert!(problem.to_string().contains("has room"), "{problem}");
}

#[test]
fn the_beginning_says_what_a_snapshot_is_of_and_how_long_it_is() {
    let bytes = build(&chunks(&[vec![b"one".to_vec(), b"two".to_vec()]], 1));
    let (head, length) = (&bytes[..SnapshotOf::HEAD_LENGTH], bytes.len() as u64);
    assert_eq!(SnapshotOf::read(head, length), Ok(of()));
    let wrong = SnapshotOf::read(head, length + 1).unwrap_err();
    assert_eq!(wrong.field, "snapshot length");
    for end in [0, 7, 100, 200, 447] {
        assert!(SnapshotOf::read(&head[..end], length).is_err(), "{end}");
    }
    for at in [0, 8, 20, 40, 64, 150] {
        let mut damaged = head.to_vec();
        damaged[at] ^= 1;
        assert!(SnapshotOf::read(&damaged, length).is_err(), "{at}");
    }
}

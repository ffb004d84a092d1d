//! Snapshots compared with their files, and damaged snapshots.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::checksum::Crc32c;
use crate::entry::{Attributes, EntryVersion, Extent};
use crate::error::DecodeError;
use crate::fold::FileRecord;
use crate::id::{ChunkId, DatasetId, Stamp};
use crate::path::FilePath;
use crate::shape::ChunkShape;
use crate::version::Version;

type Chunks = Vec<(SnapshotChunk, Vec<LiveFile>)>;

fn of() -> SnapshotOf {
    SnapshotOf {
        dataset: DatasetId::from_bytes([7; 16]),
        version: Version::default(),
        shape: ChunkShape::default(),
    }
}

/// A snapshot in memory.
fn build(chunks: &Chunks) -> Vec<u8> {
    let mut observed = Observed::default();
    for (_, files) in chunks {
        observed.chunk();
        files.iter().for_each(|file| observed.file(&file.record));
    }
    // Merged observations give the same result.
    let mut parts = Observed::default();
    for (_, files) in chunks.iter().rev() {
        let mut part = Observed::default();
        part.chunk();
        files.iter().for_each(|file| part.file(&file.record));
        parts.merge(part);
    }
    parts.merge(Observed::default());
    assert_eq!((parts.columns(), parts.files()), (observed.columns(), observed.files()));
    assert_eq!(parts.file_bytes(), observed.file_bytes());
    assert_eq!(parts.origins(), observed.origins());
    let mut writer = SnapshotWriter::new(of(), observed).unwrap();
    let mut sections: BTreeMap<SnapshotSection, Vec<u8>> = BTreeMap::new();
    let mut hashes = Vec::new();
    for (chunk, files) in chunks {
        hashes.extend(writer.chunk(chunk, files.clone()));
        for (section, bytes) in writer.drain() {
            sections.entry(section).or_default().extend(bytes);
        }
    }
    writer.end_files();
    let runs = writer.runs().into_iter();
    let runs: BTreeSet<_> = runs.map(|run| writer.placed(run)).collect();
    runs.into_iter().for_each(|run| writer.run(run));
    hashes.sort_unstable();
    hashes.into_iter().for_each(|(hash, number)| writer.index(hash, number));
    let (rest, mut snapshot) = writer.finish();
    for (section, bytes) in rest {
        sections.entry(section).or_default().extend(bytes);
    }
    for section in SnapshotSection::ALL {
        let bytes = sections.remove(&section).unwrap_or_default();
        let padding = snapshot_padding(bytes.len() as u64);
        snapshot.extend(bytes);
        snapshot.extend(vec![0; padding]);
    }
    snapshot
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

fn compare(snapshot: &Snapshot<Bytes>, chunks: &Chunks) {
    let mut all: BTreeMap<&[u8], &LiveFile> = BTreeMap::new();
    for (_, files) in chunks {
        all.extend(files.iter().map(|file| (file.path.as_bytes(), file)));
    }
    assert_eq!(snapshot.files() as usize, all.len());
    let mut found = Vec::new();
    snapshot.lookup_many(all.keys().copied(), &mut found, |_| ()).unwrap();
    for ((path, file), many) in all.iter().zip(found) {
        let number = snapshot.lookup(path).unwrap().expect("it is there");
        assert_eq!(many, Some(number));
        let mut back = Vec::new();
        snapshot.path(number, &mut back).unwrap();
        assert_eq!(back, *path);
        let read = snapshot.file(number).unwrap();
        let record = &file.record;
        assert_eq!(snapshot.chunk(read.chunk).unwrap().0.id, record.holder.chunk);
        assert_eq!(
            (read.offset, read.length, read.crc, read.attributes, read.stamp),
            (record.offset, record.length, record.crc, record.attributes, record.version.stamp)
        );
        let strange = [path, &b"~"[..]].concat();
        assert_eq!(snapshot.lookup(&strange).unwrap(), None);
    }
    let mut walked = Vec::new();
    walk(snapshot, 0, b"", &mut walked);
    let expected: Vec<Vec<u8>> = all.keys().map(|path| path.to_vec()).collect();
    assert_eq!(walked, expected, "a walk gives all paths in byte order");
}

fn walk(snapshot: &Snapshot<Bytes>, directory: u32, path: &[u8], walked: &mut Vec<Vec<u8>>) {
    assert_eq!(snapshot.directory(path).unwrap(), Some(directory));
    let mut entries = snapshot.entries(directory, path).unwrap();
    while let Some(entry) = entries.next(snapshot).unwrap() {
        match entry {
            SnapshotEntry::File(number, path) => {
                assert_eq!(snapshot.lookup(path), Ok(Some(number)));
                walked.push(path.to_vec());
            }
            SnapshotEntry::Directory(number, path) => walk(snapshot, number, path, walked),
        }
    }
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
        compare(&snapshot, &chunks);
    }

    #[test]
    fn the_order_in_which_files_come_does_not_show(paths in paths(), seed in any::<u64>()) {
        let chunks = chunks(&paths, seed);
        let mut turned = chunks.clone();
        turned.iter_mut().for_each(|(_, files)| files.reverse());
        prop_assert_eq!(build(&chunks), build(&turned));
    }

    #[test]
    fn no_bytes_make_a_snapshot_panic(
        paths in paths(),
        seed in any::<u64>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        repair in any::<bool>(),
    ) {
        let chunks = chunks(&paths, seed);
        let mut bytes = build(&chunks);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let cut = cut.index(bytes.len() * 4).max(1);
        bytes.truncate(cut);
        if repair {
            mend(&mut bytes);
        }
        let Ok(snapshot) = Snapshot::open(Bytes::from(bytes)) else { return Ok(()) };
        let is_whole = snapshot.verify().is_ok();
        for (_, files) in &chunks {
            for file in files {
                let found = snapshot.lookup(file.path.as_bytes());
                if let Ok(Some(number)) = found {
                    let _ = snapshot.file(number);
                    let mut path = Vec::new();
                    if snapshot.path(number, &mut path).is_ok() {
                        prop_assert_eq!(&path[..], file.path.as_bytes());
                    }
                }
                prop_assert!(!is_whole || found.is_ok());
            }
        }
        for directory in 0..snapshot.directories().min(100) {
            let Ok(mut entries) = snapshot.entries(directory, b"a/b") else { continue };
            while let Ok(Some(_)) = entries.next(&snapshot) {}
        }
        if let Ok(Some(root)) = snapshot.directory(b"") {
            let listed = snapshot.entries(root, b"");
            let listed = listed.and_then(|mut entries| {
                while entries.next(&snapshot)?.is_some() {}
                Ok(())
            });
            prop_assert!(!is_whole || listed.is_ok());
        }
    }
}

/// Gives damaged bytes a valid length and valid checksums.
fn mend(bytes: &mut [u8]) {
    use crate::layout::{SNAPSHOT_CHECKSUM_OFFSET, SNAPSHOT_PRELUDE_LEN};
    let length = (bytes.len() as u64).to_le_bytes();
    let Some(place) = bytes.get_mut(64..72) else { return };
    place.copy_from_slice(&length);
    for section in 0..SnapshotSection::ALL.len() {
        let row = SNAPSHOT_PRELUDE_LEN + section * 32;
        let Some(fields) = bytes.get(row..row + 32) else { return };
        let number =
            |at: usize| u64::from_le_bytes(fields[at..at + 8].try_into().unwrap()) as usize;
        let (start, end) = (number(8), number(8).saturating_add(number(16)));
        let crc = Crc32c::of(bytes.get(start..end).unwrap_or_default()).value().to_le_bytes();
        bytes[row + 4..row + 8].copy_from_slice(&crc);
    }
    let table = &bytes[SNAPSHOT_PRELUDE_LEN..][..32 * SnapshotSection::ALL.len()];
    let crc = Crc32c::of_two(&bytes[..SNAPSHOT_CHECKSUM_OFFSET], table).value().to_le_bytes();
    bytes[SNAPSHOT_CHECKSUM_OFFSET..SNAPSHOT_PRELUDE_LEN].copy_from_slice(&crc);
}

#[test]
fn what_is_damaged_is_told_with_its_place_in_the_snapshot() {
    use crate::layout::SNAPSHOT_PRELUDE_LEN;
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
            let path = format!(
                "train/n{:08}/n{:08}_{image}{}.JPEG",
                class * 7_919,
                class * 7_919,
                file % 10
            );
            let holder = EntryVersion { stamp, chunk: id, entry };
            let mtime = 1_700_000_000_000_000_000 + (file as i64) * 40_003;
            LiveFile {
                path: FilePath::new(path.into_bytes()).unwrap(),
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
    let name = |path: &[u8]| FilePath::new(path.to_vec()).unwrap();
    for (other, is_whole) in [(&b"a/x"[..], false), (b"aa/x", true), (b"b/c/d", false)] {
        let (chunk, files) = &mut chunks[0];
        let record = FileRecord { offset: 4_096, ..files[0].record };
        let file = LiveFile { path: name(other), record, extents: Vec::new() };
        let mut all = files.clone();
        all.push(file);
        let snapshot = Snapshot::open(Bytes::from(build(&vec![(*chunk, all)]))).unwrap();
        assert_eq!(snapshot.verify().is_ok(), is_whole, "{}", name(other));
    }
}

#[test]
fn an_index_that_goes_on_where_there_is_room_is_refused() {
    let paths: Vec<Vec<u8>> = (0..100).map(|n| format!("file{n}").into_bytes()).collect();
    let mut bytes = build(&chunks(&[paths], 1));
    let row = crate::layout::SNAPSHOT_PRELUDE_LEN + SnapshotSection::Index.place() * 32;
    let index = u64::from_le_bytes(bytes[row + 8..row + 16].try_into().unwrap()) as usize;
    assert!(Snapshot::open(&bytes[..]).unwrap().verify().is_ok());
    bytes[index + 13] = 1;
    mend(&mut bytes);
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

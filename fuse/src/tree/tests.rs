//! The tree beside a model: a set of paths.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dl_format::snapshot::{
    LiveFile, Observed, SnapshotChunk, SnapshotOf, SnapshotSection, SnapshotWriter,
    snapshot_padding,
};
use dl_format::{Attributes, ChunkId, ChunkShape, Crc32c, DatasetId, EntryVersion, FilePath};
use dl_format::{FileRecord, Stamp, Version};
use libdiesel::{Client, ConnectOptions, Snapshot};
use proptest::prelude::*;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::abi::{AttrOut, Dirent, EntryOut, InHeader, ReadIn, Request, opcode};
use crate::fuzzing::Requests;
use crate::server::respond::{Response, respond};

const OWNER: Owner = Owner { uid: 7, gid: 8, umask: 0o022 };

/// The record of the file with a number among all.
fn record(number: usize) -> FileRecord {
    let version = EntryVersion {
        stamp: Stamp::new(5),
        chunk: ChunkId::from_bytes([1; 16]),
        entry: EntryVersion::UNKNOWN_ENTRY,
    };
    let length = 10 * number as u64;
    FileRecord {
        version,
        holder: version,
        attributes: Attributes { mode: 0o666, mtime: 3_000_000_007 + number as i64 },
        length,
        crc: Crc32c::of(&[]),
        offset: 64,
        stored: length as u32,
        has_extents: false,
    }
}

/// The snapshot of files, spread over chunks.
fn snapshot_of(paths: &BTreeSet<FilePath>, chunks: usize) -> Arc<Snapshot> {
    let chunks = chunks.min(paths.len());
    let mut observed = Observed::default();
    let records: Vec<_> = (0..paths.len()).map(record).collect();
    records.iter().for_each(|record| observed.file(record));
    (0..chunks).for_each(|_| observed.chunk());
    let mut version = Version::default();
    version.add(ChunkId::from_bytes([9; 16]), Stamp::new(7_000_000));
    let of = SnapshotOf {
        dataset: DatasetId::from_bytes([3; 16]),
        version,
        shape: ChunkShape::default(),
    };
    let mut writer = SnapshotWriter::new(of, observed).unwrap();
    let mut indexed = Vec::new();
    for chunk in 0..chunks {
        let files = paths.iter().zip(&records).enumerate();
        let files =
            files.filter(|(number, _)| number % chunks == chunk).map(|(_, (path, record))| {
                LiveFile { path: path.clone(), record: *record, extents: Vec::new() }
            });
        let row = SnapshotChunk {
            id: ChunkId::from_bytes([chunk as u8 + 1; 16]),
            stamp: Stamp::new(5),
            object_length: 1_000,
        };
        let files = files.collect();
        indexed.extend(writer.chunk(&row, files));
    }
    let runs = writer.runs();
    writer.end_files();
    let mut runs: Vec<_> = runs.into_iter().map(|run| writer.placed(run)).collect();
    runs.sort_unstable();
    runs.into_iter().for_each(|run| writer.run(run));
    indexed.sort_unstable();
    indexed.into_iter().for_each(|(hash, number)| writer.index(hash, number));
    let mut sections: Vec<(SnapshotSection, Vec<u8>)> = writer.drain().collect();
    let (rest, mut bytes) = writer.finish();
    sections.extend(rest);
    for section in SnapshotSection::ALL {
        let of_section = sections.iter().filter(|(found, _)| *found == section);
        let body: Vec<u8> = of_section.flat_map(|(_, bytes)| bytes.clone()).collect();
        let padding = snapshot_padding(body.len() as u64);
        bytes.extend(body);
        bytes.resize(bytes.len() + padding, 0);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot");
    std::fs::write(&file, bytes).unwrap();
    let client = Client::unconnected(ConnectOptions::default());
    let dataset = client.by_snapshot(&"ds".parse().unwrap(), &file, None).unwrap();
    Arc::clone(dataset.snapshot().unwrap())
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![5 => b'a'..=b'c', 1 => 1..=u8::MAX];
    let legal = |name: &Vec<u8>| !name.contains(&b'/') && name != b"." && name != b"..";
    prop::collection::vec(byte, 1..5).prop_filter("a name", legal)
}

/// Files without one that is also a folder.
fn paths() -> impl Strategy<Value = BTreeSet<FilePath>> {
    let path = prop::collection::vec(name(), 1..5).prop_map(|names| names.join(&b'/'));
    prop::collection::btree_set(path, 1..80).prop_map(|paths| {
        let is_folder = |path: &Vec<u8>| {
            let below = [path, &b"/"[..]].concat();
            paths.range(below.clone()..).next().is_some_and(|next| next.starts_with(&below))
        };
        let files = paths.iter().filter(|path| !is_folder(path));
        files.map(|path| FilePath::new(path.clone()).unwrap()).collect()
    })
}

/// The entries of each folder: names, and whether they are folders.
type Folders = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, bool>>;

fn model(paths: &BTreeSet<FilePath>) -> Folders {
    let mut folders = Folders::from([(Vec::new(), BTreeMap::new())]);
    for path in paths {
        let names: Vec<&[u8]> = path.as_bytes().split(|byte| *byte == b'/').collect();
        for depth in 0..names.len() {
            let is_folder = depth + 1 < names.len();
            let folder = names[..depth].join(&b'/');
            folders.entry(folder).or_default().insert(names[depth].to_vec(), is_folder);
        }
    }
    folders
}

/// Sends a request; gives its answer.
fn ask(tree: &Tree, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
    let len = (size_of::<InHeader>() + body.len()) as u32;
    let header = InHeader { len, opcode, unique: 2, node, ..InHeader::default() };
    let bytes = [header.as_bytes(), body].concat();
    let mut out = vec![7; 100];
    match respond(tree, &Request::of(&bytes).unwrap(), &mut out) {
        Response::Bytes => Ok(out),
        Response::Refused(why) => Err(why),
        other => panic!("{other:?}"),
    }
}

fn look_up(tree: &Tree, node: u64, name: &[u8]) -> EntryOut {
    let found = ask(tree, opcode::LOOKUP, node, &[name, b"\0"].concat()).unwrap();
    EntryOut::read_from_bytes(&found).unwrap()
}

/// All entries of a folder, in answers of at most `size` bytes: names, inodes and offsets behind.
fn list(tree: &Tree, node: u64, kind: u32, from: u64, size: u32) -> Vec<(Vec<u8>, u64, u64, u64)> {
    let (mut entries, mut offset) = (Vec::new(), from);
    loop {
        let read = ReadIn { offset, size, ..ReadIn::default() };
        let answer = ask(tree, kind, node, read.as_bytes()).unwrap();
        assert!(answer.len() <= size as usize);
        if answer.is_empty() {
            return entries;
        }
        let mut rest = &answer[..];
        while !rest.is_empty() {
            let (mut id, start) = (0, rest.len());
            if kind == opcode::READDIRPLUS {
                let (entry, behind) = EntryOut::read_from_prefix(rest).unwrap();
                (id, rest) = (entry.node, behind);
            }
            let (head, behind) = Dirent::read_from_prefix(rest).unwrap();
            let (name, behind) = behind.split_at(head.name_len as usize);
            let used = start - behind.len();
            rest = &behind[used.next_multiple_of(8) - used..];
            offset = head.next;
            entries.push((name.to_vec(), head.ino, id, offset));
        }
    }
}

fn check(tree: &Tree, folders: &Folders, folder: &[u8], node: u64, seen: &mut BTreeSet<u64>) {
    let wanted = &folders[folder];
    let all = list(tree, node, opcode::READDIRPLUS, 0, 400);
    let plain = list(tree, node, opcode::READDIR, 0, 4_096);
    let names = |all: &[(Vec<u8>, u64, u64, u64)]| -> Vec<_> {
        all.iter().map(|(name, ino, _, next)| (name.clone(), *ino, *next)).collect()
    };
    assert_eq!(names(&all), names(&plain));
    for (position, (_, _, _, next)) in all.iter().enumerate() {
        let rest = list(tree, node, opcode::READDIR, *next, 4_096);
        assert_eq!(names(&rest), names(&all[position + 1..]), "from {next}");
    }
    let listed: BTreeMap<Vec<u8>, (u64, u64)> =
        all.iter().map(|(name, ino, id, _)| (name.clone(), (*ino, *id))).collect();
    assert_eq!(listed.len(), all.len(), "a name twice");
    let mut expected: BTreeSet<_> = wanted.keys().cloned().collect();
    expected.extend([b".".to_vec(), b"..".to_vec()]);
    assert_eq!(listed.keys().cloned().collect::<BTreeSet<_>>(), expected);
    assert_eq!(look_up(tree, node, b"no such name").node, 0);
    for (name, is_folder) in wanted {
        let entry = look_up(tree, node, name);
        let (ino, id) = listed[name];
        assert!(seen.insert(ino), "an inode twice");
        assert_eq!((entry.node, entry.attr.ino), (id, ino));
        let attributes = ask(tree, opcode::GETATTR, id, &[0; 16]).unwrap();
        let attributes = AttrOut::read_from_bytes(&attributes).unwrap().attr;
        assert_eq!(attributes.as_bytes(), entry.attr.as_bytes());
        assert_eq!((attributes.uid, attributes.gid, attributes.nlink), (7, 8, 1));
        let mode = if *is_folder { 0o040_755 } else { 0o100_644 };
        assert_eq!(attributes.mode, mode);
        let read = ReadIn { size: 4_096, ..ReadIn::default() };
        if *is_folder {
            assert_eq!(ask(tree, opcode::READ, id, read.as_bytes()), Err(Errno::ISDIR));
            let mut path = folder.to_vec();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            check(tree, folders, &path, id, seen);
        } else {
            assert_eq!(attributes.size % 10, 0);
            assert_eq!(attributes.mtime, 3);
            assert_eq!(u64::from(attributes.mtime_ns), 7 + attributes.size / 10);
            for kind in [opcode::READDIR, opcode::READDIRPLUS] {
                assert_eq!(ask(tree, kind, id, read.as_bytes()), Err(Errno::NOTDIR));
            }
            assert_eq!(ask(tree, opcode::LOOKUP, id, b"x\0"), Err(Errno::NOTDIR));
        }
    }
}

#[test]
fn a_first_answer_with_attributes_is_short() {
    let path = |file| FilePath::new(format!("{file:03}")).unwrap();
    let paths = (0..80).map(path).collect();
    let tree = Tree::new(snapshot_of(&paths, 1), 0, OWNER, 0);
    let answered = |kind, offset| {
        let read = ReadIn { offset, size: 32 << 10, ..ReadIn::default() };
        ask(&tree, kind, 1, read.as_bytes()).unwrap().len()
    };
    let entry = |head: usize| head + size_of::<Dirent>() + 8;
    let plus = entry(size_of::<EntryOut>());
    assert_eq!(answered(opcode::READDIRPLUS, 0), 16 * plus);
    assert_eq!(answered(opcode::READDIRPLUS, 16), 66 * plus);
    assert_eq!(answered(opcode::READDIR, 0), 82 * entry(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_tree_shows_the_paths_of_its_snapshot(paths in paths(), chunks in 1..4_usize) {
        let folders = model(&paths);
        let snapshot = snapshot_of(&paths, chunks);
        for folder in folders.keys() {
            let top = snapshot.folder(folder).unwrap().unwrap();
            let tree = Tree::new(Arc::clone(&snapshot), top, OWNER, 3);
            let mut seen = BTreeSet::from([1]);
            check(&tree, &folders, folder, 1, &mut seen);
            let above = list(&tree, 1, opcode::READDIR, 1, 4_096);
            prop_assert_eq!(&above[0].0, b"..");
            prop_assert_eq!(above[0].1, 1);
        }
        for number in 0..snapshot.folders() {
            let path = snapshot.folder_path(number).unwrap();
            prop_assert_eq!(snapshot.folder(&path).unwrap(), Some(number));
        }
    }
}

/// Requests of random bytes; more of them in `make torture`.
const REQUESTS: u32 = 200;

fn cases() -> u32 {
    if std::env::var_os("DIESEL_TORTURE").is_some() { 1_000_000 / REQUESTS } else { 60 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn requests_of_any_bytes_get_an_answer(
        paths in paths(),
        requests in prop::collection::vec((0..50_u32, any::<u64>(), 0..90_u64,
            prop::collection::vec(any::<u8>(), 0..60)), 1..2 * REQUESTS as usize),
    ) {
        let mut mount = Requests::new(snapshot_of(&paths, 2));
        for (opcode, node, low, body) in requests {
            for node in [node, low, node << 48 | low] {
                let header = InHeader { opcode, node, ..InHeader::default() };
                let bytes = [header.as_bytes(), &body].concat();
                prop_assert!(mount.answer(&bytes));
                let cut = &bytes[..bytes.len().min(body.len())];
                prop_assert_eq!(mount.answer(cut), cut.len() >= size_of::<InHeader>());
            }
        }
    }
}

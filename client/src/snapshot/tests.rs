//! The folder that snapshots are kept in, and files that somebody names.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dl_format::layout::SNAPSHOT_PRELUDE_LEN;
use dl_format::snapshot::{
    Observed, SnapshotOf, SnapshotSection, SnapshotWriter, snapshot_padding,
};
use dl_format::{ChunkId, ChunkShape, DatasetId, DirPath, FilePath, Stamp, Version};
use dl_proto::StatItem;
use rustix::fs::{
    CWD, FileType, MemfdFlags, Mode, SealFlags, fcntl_add_seals, memfd_create, mknodat,
};

use super::marker::Marker;
use super::*;
use crate::Kind;

pub(crate) fn version(number: u8) -> Version {
    let mut version = Version::default();
    version.add(ChunkId::from_bytes([number; 16]), Stamp::new(number.into()));
    version
}

/// The snapshot of a dataset without files.
pub(crate) fn empty(dataset: DatasetId, version: Version) -> Vec<u8> {
    of_shape(dataset, version, ChunkShape::default())
}

/// One that says something else of the same version.
pub(crate) fn forged(dataset: DatasetId, version: Version) -> Vec<u8> {
    of_shape(dataset, version, ChunkShape::new(1 << 20, 64).unwrap())
}

fn of_shape(dataset: DatasetId, version: Version, shape: ChunkShape) -> Vec<u8> {
    let of = SnapshotOf { dataset, version, shape };
    let mut writer = SnapshotWriter::new(of, Observed::default()).unwrap();
    writer.end_files();
    laid_out(writer)
}

/// The bytes of a snapshot that was written to its end.
pub(crate) fn laid_out(mut writer: SnapshotWriter) -> Vec<u8> {
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
    bytes
}

const DATASET: DatasetId = DatasetId::from_bytes([3; 16]);

fn key(number: u8) -> Key {
    Key { source: Source::Servers, dataset: DATASET, version: version(number) }
}

fn keep(cache: &SnapshotCache, key: Key, time: SystemTime) {
    let lock = cache.lock(key.dataset).unwrap().expect("nobody has it");
    let (mut file, _) = cache.begin(&lock, key).unwrap();
    file.set_len(0).unwrap();
    file.write_all(&empty(key.dataset, key.version)).unwrap();
    cache.end(&lock, key, &file, time);
}

/// The one file of this ending.
fn of_ending(folder: &Path, ending: &str) -> PathBuf {
    let of_ending = names(folder).into_iter().filter(|name| name.ends_with(ending));
    let of_ending: Vec<String> = of_ending.collect();
    assert_eq!(of_ending.len(), 1, "{of_ending:?}");
    folder.join(&of_ending[0])
}

/// Writes other bytes, once it is later than when a file was last written to: times come in steps.
fn damage(path: &Path) {
    std::thread::sleep(Duration::from_millis(30));
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    File::options().write(true).open(path).unwrap().write_all(&bytes).unwrap();
}

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

fn at(minutes: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(60 * minutes)
}

#[test]
fn what_was_unused_for_longest_goes_first_and_the_quota_holds() {
    let folder = tempfile::tempdir().unwrap();
    let length = empty(DATASET, version(1)).len() as u64;
    let cache = SnapshotCache::new(folder.path().join("new/folder"), 3 * length);
    for number in 1..=3 {
        keep(&cache, key(number), at(number.into()));
    }
    assert!(cache.find(key(1), at(10)).is_some(), "used after the others");
    keep(&cache, key(4), at(4));
    let kept = |number| cache.find(key(number), at(11)).is_some();
    assert_eq!([1, 2, 3, 4].map(kept), [true, false, true, true]);
    // The newest stays, also where it takes more than there is room for.
    let tight = SnapshotCache::new(cache.folder(), 1);
    keep(&tight, key(5), at(0));
    assert_eq!([1, 3, 4, 5].map(kept), [false, false, false, true]);
    assert_eq!(names(cache.folder()).len(), 2, "the snapshot and its marker");
}

#[test]
fn what_was_begun_is_gone_on_with_and_what_is_of_no_use_goes() {
    assert!(DATASET.to_string().contains('-'), "as ids may");
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    let lock = cache.lock(DATASET).unwrap().expect("nobody has it");
    assert!(cache.lock(DATASET).unwrap().is_none(), "somebody has it");
    assert!(cache.lock(DatasetId::from_bytes([4; 16])).unwrap().is_some(), "of another dataset");
    let (mut file, path) = cache.begin(&lock, key(1)).unwrap();
    let before = cache.sign_of_life(DATASET);
    file.write_all(b"some").unwrap();
    let written = cache.sign_of_life(DATASET);
    assert!(written != before && cache.sign_of_life(DATASET) == written);
    lock.show_life(at(1));
    assert!(cache.sign_of_life(DATASET) != written, "it waits for the servers");
    drop((file, lock));
    let lock = cache.lock(DATASET).unwrap().expect("nobody has it any more");
    // What somebody hands in is another file.
    let given = Key { source: Source::File, ..key(1) };
    assert_eq!(cache.begin(&lock, given).unwrap().0.metadata().unwrap().len(), 0);
    let (file, _) = cache.begin(&lock, key(1)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4);
    cache.begin(&lock, key(2)).unwrap();
    assert!(!path.exists(), "of another version");
    assert!(cache.find(key(2), at(0)).is_none(), "it is not whole");
}

#[test]
fn what_a_killed_download_has_left_counts_and_goes_unless_somebody_goes_on_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let length = empty(DATASET, version(1)).len() as u64;
    let cache = SnapshotCache::new(folder.path(), 3 * length);
    let begin = |number| {
        let other = Key { dataset: DatasetId::from_bytes([number; 16]), ..key(1) };
        let lock = cache.lock(other.dataset).unwrap().expect("nobody has it");
        let (file, path) = cache.begin(&lock, other).unwrap();
        file.set_len(3 * length).unwrap();
        file.set_modified(at(1)).unwrap();
        (lock, path)
    };
    let ((held, of_held), (left, of_left)) = (begin(20), begin(21));
    // Its process was killed: the lock is free, and its file is there.
    left.leave();
    keep(&cache, key(1), at(2));
    assert!(of_held.exists() && !of_left.exists());
    assert!(cache.find(key(1), at(3)).is_some());
    let locks = names(folder.path()).into_iter().filter(|name| name.ends_with(".lock"));
    assert_eq!(locks.count(), 1, "the one that is held");
    drop(held);
    keep(&cache, key(2), at(3));
    assert!(!of_held.exists());
    assert_eq!(names(folder.path()).len(), 4, "two snapshots and their markers");
}

/// Keeps S-41.
#[test]
fn many_that_fetch_at_once_beyond_the_quota_remove_each_others_files_and_none_fails() {
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1);
    std::thread::scope(|scope| {
        for dataset in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                let dataset = DatasetId::from_bytes([dataset; 16]);
                for number in 0..15 {
                    let key = Key { dataset, ..key(number) };
                    let lock = loop {
                        // Who tidies up holds it for a moment.
                        if let Some(lock) = cache.lock(dataset).unwrap() {
                            break lock;
                        }
                    };
                    let (mut file, _) = cache.begin(&lock, key).unwrap();
                    file.write_all(&empty(dataset, key.version)).unwrap();
                    cache.end(&lock, key, &file, at(number.into()));
                }
            });
        }
    });
}

#[test]
fn one_at_a_time_has_a_lock_although_its_file_goes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let (path, inside) = (folder.path().join("lock"), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut taken = 0;
                while taken < 200 {
                    let Some(lock) = Lock::take(&path).unwrap() else { continue };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    taken += 1;
                    drop(lock);
                }
            });
        }
    });
    assert!(!path.exists());
}

#[test]
fn a_file_that_is_another_snapshot_than_its_name_says_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    let other = empty(DATASET, version(2));
    for bytes in [&other[..], &other[..100], b""] {
        keep(&cache, key(1), at(1));
        let path = of_ending(folder.path(), ".snapshot");
        File::create(&path).unwrap().write_all(bytes).unwrap();
        assert!(cache.find(key(1), at(2)).is_none());
        assert_eq!(names(folder.path()), Vec::<String>::new(), "it is gone");
    }
}

/// Keeps S-41 and S-72.
#[test]
fn a_kept_file_is_read_again_when_it_was_changed_the_machine_was_started_or_it_is_doubted() {
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    let find = || cache.find(key(1), at(2));
    keep(&cache, key(1), at(1));
    let path = of_ending(folder.path(), ".snapshot");
    damage(&path);
    assert!(find().is_none() && !path.exists(), "it was changed");

    let damaged = || {
        keep(&cache, key(1), at(1));
        damage(&path);
        // As if it had been found whole after that.
        Marker::of(&path).set(&File::open(&path).unwrap());
    };
    damaged();
    let marker = of_ending(folder.path(), ".whole");
    let found = find().expect("it is not read again each time");
    // There is no such file, so that something must be wrong.
    assert_eq!(found.record(7).unwrap_err().kind(), Kind::Corrupt);
    assert!(!marker.exists());
    assert!(find().is_none() && !path.exists(), "it is doubted");

    damaged();
    let text = fs::read_to_string(&marker).unwrap();
    let (_, file) = text.split_once(' ').unwrap();
    fs::write(&marker, format!("another-start {file}")).unwrap();
    assert!(find().is_none() && !path.exists(), "the machine was started");

    keep(&cache, key(1), at(1));
    fs::remove_file(&marker).unwrap();
    assert!(find().is_some() && marker.exists(), "a whole one");
}

#[test]
fn of_what_is_no_snapshot_of_its_length_no_more_than_the_beginning_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    // Nobody has memory for these.
    for (name, bytes) in [("zeros", Vec::new()), ("longer", empty(DATASET, version(1)))] {
        fs::write(path(name), bytes).unwrap();
        File::options().write(true).open(path(name)).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(Snapshot::check(&path(name)).unwrap_err().kind(), Kind::Corrupt, "{name}");
    }
    // It would wait for whoever writes into it.
    pipe(&path("pipe"));
    fs::create_dir(path("folder")).unwrap();
    symlink(path("pipe"), path("link")).unwrap();
    for name in ["pipe", "folder", "link", "none"] {
        assert_eq!(Snapshot::check(&path(name)).unwrap_err().kind(), Kind::Local, "{name}");
    }
    fs::write(path("whole"), empty(DATASET, version(1))).unwrap();
    symlink(path("whole"), path("link to it")).unwrap();
    assert_eq!(Snapshot::check(&path("link to it")).unwrap().version(), version(1));
}

#[test]
fn a_snapshot_by_a_descriptor_is_checked_and_shared_only_when_it_is_sealed() {
    const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);
    let whole = empty(DATASET, version(1));
    let in_memory = |bytes: &[u8], seals| {
        let file = memfd_create("snapshot", MemfdFlags::ALLOW_SEALING).unwrap();
        let mut file = File::from(file);
        // Afterwards its position is at the end.
        file.write_all(bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    };
    let unnamed = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    };
    let open = |file| Snapshot::from_file(file, Path::new("from the agent"));
    for (file, is_shared) in [
        (in_memory(&whole, SEALS), true),
        (in_memory(&whole, SealFlags::SHRINK), false),
        (in_memory(&whole, SealFlags::FUTURE_WRITE | SealFlags::SHRINK), false),
        (unnamed(&whole), false),
    ] {
        let also = file.try_clone().unwrap();
        let snapshot = open(file).unwrap();
        assert_eq!((snapshot.is_shared(), snapshot.version()), (is_shared, version(1)));
        // Whoever sent it may do as it likes with it.
        let _ = also.set_len(0);
        assert!(snapshot.bytes() == whole);
    }
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for bytes in [&damaged[..], &whole[..100], b""] {
        for file in [in_memory(bytes, SEALS), unnamed(bytes)] {
            let error = open(file).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains("from the agent"), "{error}");
        }
    }
    let (pipe, _writer) = std::io::pipe().unwrap();
    let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
    assert_eq!(open(pipe).unwrap_err().kind(), Kind::Local);
}

#[test]
fn only_a_regular_file_is_replaced_and_what_a_save_has_left_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    pipe(&path("pipe"));
    fs::create_dir(path("folder")).unwrap();
    fs::write(path("old"), b"old").unwrap();
    symlink(path("old"), path("link")).unwrap();
    symlink(path("none"), path("dangling")).unwrap();
    for name in ["pipe", "folder", "link", "dangling", "folder/..", ""] {
        assert!(Target::begin(&path(name)).is_err(), "{name}");
    }
    assert!(fs::symlink_metadata(path("pipe")).unwrap().file_type().is_fifo());
    assert!(fs::symlink_metadata(path("link")).unwrap().is_symlink());
    assert_eq!(names(folder.path()), ["dangling", "folder", "link", "old", "pipe"]);

    let bytes = empty(DATASET, version(1));
    let save = |name| {
        let mut target = Target::begin(&path(name)).unwrap();
        target.file().write_all(&bytes).unwrap();
        target
    };
    drop(save("old"));
    assert_eq!(fs::read(path("old")).unwrap(), b"old", "it was given up");
    // What was killed, longer than what comes.
    fs::write(path("old.partial"), [&bytes[..], &bytes[..]].concat()).unwrap();
    let target = save("old");
    assert!(Target::begin(&path("old")).is_err(), "somebody else saves it");
    // Something comes there meanwhile.
    fs::remove_file(path("old")).unwrap();
    pipe(&path("old"));
    assert!(target.end().is_err());
    fs::remove_file(path("old")).unwrap();
    save("old").end().unwrap();
    assert!(fs::read(path("old")).unwrap() == bytes);
    // Others have files of such names, too.
    fs::write(path("old.partial"), b"something else").unwrap();
    assert!(Target::begin(&path("old")).is_err());
    assert_eq!(fs::read(path("old.partial")).unwrap(), b"something else");
}

#[test]
fn many_paths_are_answered_as_each_of_them_is() {
    let files = (0..200).map(|n| format!("train/{}/{n}.jpg", n % 7)).collect();
    let snapshot = crate::report::tests::snapshot(&[files, vec!["val/one".to_owned()]]);
    let asked = (0..300).map(|n| format!("train/{}/{n}.jpg", n % 7));
    let asked = asked.chain(["train", "train/3", "val/one", "val/one/more"].map(str::to_owned));
    let asked: Vec<FilePath> = asked.map(|path| FilePath::new(path).unwrap()).collect();
    let one_by_one: Vec<StatItem> = asked.iter().map(|path| snapshot.stat(path).unwrap()).collect();
    assert_eq!(snapshot.stat_many(&asked).unwrap(), one_by_one);
    let count =
        |wanted: fn(&StatItem) -> bool| one_by_one.iter().filter(|item| wanted(item)).count();
    assert_eq!(count(|item| matches!(item, StatItem::File(_))), 201);
    assert_eq!(count(|item| matches!(item, StatItem::Folder)), 2);
    assert_eq!(snapshot.stat_many(&[]).unwrap(), []);
}

#[test]
fn a_walk_ends_where_runs_hold_the_same_files_again_and_again() {
    let chunk = |chunk| (0..10).map(|n| format!("folder/{chunk}-{n}")).collect();
    let chunks: Vec<Vec<String>> = (0..8).map(chunk).collect();
    let mut bytes = crate::report::tests::snapshot(&chunks).bytes().to_vec();
    let row = SNAPSHOT_PRELUDE_LEN + 32 * (SnapshotSection::Runs as usize - 1);
    let start = u64::from_le_bytes(bytes[row + 8..row + 16].try_into().unwrap()) as usize;
    for run in 0..8 {
        let all = [0_u32.to_le_bytes(), 80_u32.to_le_bytes()].concat();
        bytes[start + 8 * run..][..8].copy_from_slice(&all);
    }
    let snapshot = Arc::new(Snapshot::in_memory(bytes, Path::new("damaged")).unwrap());
    assert_eq!(snapshot.below(&DirPath::ROOT).unwrap_err().kind(), Kind::Corrupt);
    let listed: Vec<_> = snapshot.list(&DirPath::ROOT, true, true).unwrap().collect();
    assert!(listed.len() <= 81, "{} entries", listed.len());
    assert_eq!(listed.last().unwrap().as_ref().unwrap_err().kind(), Kind::Corrupt);
}

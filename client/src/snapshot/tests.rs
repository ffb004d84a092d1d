//! The snapshot cache, and snapshot files named by the user.

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
use rustix::fs::{CWD, FileType, Mode, mknodat};

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

/// Another snapshot of the same version.
pub(crate) fn forged(dataset: DatasetId, version: Version) -> Vec<u8> {
    of_shape(dataset, version, ChunkShape::new(1 << 20, 64).unwrap())
}

fn of_shape(dataset: DatasetId, version: Version, shape: ChunkShape) -> Vec<u8> {
    let of = SnapshotOf { dataset, version, shape };
    let mut writer = SnapshotWriter::new(of, Observed::default()).unwrap();
    writer.end_files();
    laid_out(writer)
}

/// The bytes of a finished snapshot.
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
    Key { origin: Origin::Servers, dataset: DATASET, version: version(number) }
}

fn keep(cache: &SnapshotCache, key: Key, time: SystemTime) {
    let lock = cache.lock(key.dataset).unwrap().expect("the lock is free");
    let (mut file, _) = cache.begin(&lock, key).unwrap();
    file.set_len(0).unwrap();
    file.write_all(&empty(key.dataset, key.version)).unwrap();
    cache.end(&lock, key, &file, time);
}

/// The only file with the suffix.
fn of_ending(folder: &Path, ending: &str) -> PathBuf {
    let of_ending = names(folder).into_iter().filter(|name| name.ends_with(ending));
    let of_ending: Vec<String> = of_ending.collect();
    assert_eq!(of_ending.len(), 1, "{of_ending:?}");
    folder.join(&of_ending[0])
}

/// Changes the last byte of a file, later than the last write by at least a step of file times.
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
fn the_least_recently_used_snapshot_goes_first() {
    let folder = tempfile::tempdir().unwrap();
    let length = empty(DATASET, version(1)).len() as u64;
    let cache = SnapshotCache::new(folder.path().join("new/folder"), 3 * length);
    for number in 1..=3 {
        keep(&cache, key(number), at(number.into()));
    }
    assert!(cache.find(key(1), at(10)).is_some(), "used last");
    keep(&cache, key(4), at(4));
    let kept = |number| cache.find(key(number), at(11)).is_some();
    assert_eq!([1, 2, 3, 4].map(kept), [true, false, true, true]);
    // The newest snapshot stays, even beyond the quota.
    let tight = SnapshotCache::new(cache.folder(), 1);
    keep(&tight, key(5), at(0));
    assert_eq!([1, 3, 4, 5].map(kept), [false, false, false, true]);
    assert_eq!(names(cache.folder()).len(), 2, "the snapshot and its marker");
}

#[test]
fn a_partial_file_is_resumed_and_useless_files_are_removed() {
    assert!(DATASET.to_string().contains('-'), "as ids may");
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    let lock = cache.lock(DATASET).unwrap().expect("the lock is free");
    assert!(cache.lock(DATASET).unwrap().is_none(), "the lock is held");
    assert!(cache.lock(DatasetId::from_bytes([4; 16])).unwrap().is_some(), "of another dataset");
    let (mut file, path) = cache.begin(&lock, key(1)).unwrap();
    let before = cache.sign_of_life(DATASET);
    file.write_all(b"some").unwrap();
    let written = cache.sign_of_life(DATASET);
    assert!(written != before && cache.sign_of_life(DATASET) == written);
    lock.show_life(at(1));
    assert!(cache.sign_of_life(DATASET) != written, "the holder waits for the servers");
    drop((file, lock));
    let lock = cache.lock(DATASET).unwrap().expect("the lock is free again");
    // A snapshot from a user's file has another partial file.
    let of_file = Key { origin: Origin::File, ..key(1) };
    assert_eq!(cache.begin(&lock, of_file).unwrap().0.metadata().unwrap().len(), 0);
    let (file, _) = cache.begin(&lock, key(1)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4);
    cache.begin(&lock, key(2)).unwrap();
    assert!(!path.exists(), "of another version");
    assert!(cache.find(key(2), at(0)).is_none(), "the file is partial");
}

#[test]
fn a_partial_file_of_a_killed_download_can_be_evicted() {
    let folder = tempfile::tempdir().unwrap();
    let length = empty(DATASET, version(1)).len() as u64;
    let cache = SnapshotCache::new(folder.path(), 3 * length);
    let begin = |number| {
        let other = Key { dataset: DatasetId::from_bytes([number; 16]), ..key(1) };
        let lock = cache.lock(other.dataset).unwrap().expect("the lock is free");
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
    assert_eq!(locks.count(), 1, "the held lock");
    drop(held);
    keep(&cache, key(2), at(3));
    assert!(!of_held.exists());
    assert_eq!(names(folder.path()).len(), 4, "two snapshots and their markers");
}

/// Keeps S-41.
#[test]
fn parallel_fetches_beyond_the_quota_all_succeed() {
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
                        // Another thread holds the lock for a moment while tidying up.
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
fn a_lock_has_one_holder_although_its_file_is_removed() {
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
fn a_cached_file_with_a_foreign_snapshot_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    let other = empty(DATASET, version(2));
    for bytes in [&other[..], &other[..100], b""] {
        keep(&cache, key(1), at(1));
        let path = of_ending(folder.path(), ".snapshot");
        File::create(&path).unwrap().write_all(bytes).unwrap();
        assert!(cache.find(key(1), at(2)).is_none());
        assert_eq!(names(folder.path()), Vec::<String>::new(), "the file is removed");
    }
}

/// Keeps S-41 and S-72.
#[test]
fn a_cached_file_is_checked_after_a_change_a_boot_or_a_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    let find = || cache.find(key(1), at(2));
    keep(&cache, key(1), at(1));
    let path = of_ending(folder.path(), ".snapshot");
    damage(&path);
    assert!(find().is_none() && !path.exists(), "the file was changed");

    let damaged = || {
        keep(&cache, key(1), at(1));
        damage(&path);
        // The marker claims a check after the damage.
        Marker::of(&path).set(&File::open(&path).unwrap());
    };
    damaged();
    let marker = of_ending(folder.path(), ".whole");
    let found = find().expect("a marked file is not read again");
    // No file has the number, so the snapshot must be damaged.
    assert_eq!(found.record(7).unwrap_err().kind(), Kind::Corrupt);
    assert!(!marker.exists());
    assert!(find().is_none() && !path.exists(), "the file is in doubt");

    damaged();
    let text = fs::read_to_string(&marker).unwrap();
    let (_, file) = text.split_once(' ').unwrap();
    fs::write(&marker, format!("another-start {file}")).unwrap();
    assert!(find().is_none() && !path.exists(), "the machine was started");

    keep(&cache, key(1), at(1));
    fs::remove_file(&marker).unwrap();
    assert!(find().is_some() && marker.exists(), "a whole file");
}

#[test]
fn only_the_beginning_of_an_invalid_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    // Too large for any memory.
    for (name, bytes) in [("zeros", Vec::new()), ("longer", empty(DATASET, version(1)))] {
        fs::write(path(name), bytes).unwrap();
        File::options().write(true).open(path(name)).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(Snapshot::check(&path(name)).unwrap_err().kind(), Kind::Corrupt, "{name}");
    }
    // A read would wait for a writer.
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
fn a_save_replaces_regular_files_and_resumes() {
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
    assert_eq!(fs::read(path("old")).unwrap(), b"old", "the save was given up");
    // A partial file of a killed save, longer than the new file.
    fs::write(path("old.partial"), [&bytes[..], &bytes[..]].concat()).unwrap();
    let target = save("old");
    assert!(Target::begin(&path("old")).is_err(), "another save runs");
    // A pipe takes the path meanwhile.
    fs::remove_file(path("old")).unwrap();
    pipe(&path("old"));
    assert!(target.end().is_err());
    fs::remove_file(path("old")).unwrap();
    save("old").end().unwrap();
    assert!(fs::read(path("old")).unwrap() == bytes);
    // A file of another program with such a name.
    fs::write(path("old.partial"), b"something else").unwrap();
    assert!(Target::begin(&path("old")).is_err());
    assert_eq!(fs::read(path("old.partial")).unwrap(), b"something else");
}

#[test]
fn stat_many_gives_the_answers_of_stat() {
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
fn a_walk_ends_although_runs_repeat_the_same_files() {
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

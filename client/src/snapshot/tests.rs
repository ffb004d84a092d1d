//! The folder that snapshots are kept in.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dl_format::snapshot::{
    Observed, SnapshotOf, SnapshotSection, SnapshotWriter, snapshot_padding,
};
use dl_format::{ChunkId, ChunkShape, DatasetId, FilePath, Stamp, Version};
use dl_proto::StatItem;

use super::*;

pub(crate) fn version(number: u8) -> Version {
    let mut version = Version::default();
    version.add(ChunkId::from_bytes([number; 16]), Stamp::new(number.into()));
    version
}

/// The snapshot of a dataset without files.
pub(crate) fn empty(dataset: DatasetId, version: Version) -> Vec<u8> {
    let of = SnapshotOf { dataset, version, shape: ChunkShape::default() };
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

fn keep(cache: &SnapshotCache, number: u8, time: SystemTime) {
    let lock = cache.lock(DATASET).unwrap().expect("nobody has it");
    let (mut file, _) = cache.begin(&lock, DATASET, version(number)).unwrap();
    file.write_all(&empty(DATASET, version(number))).unwrap();
    file.set_modified(time).unwrap();
    cache.end(&lock, DATASET, version(number), &file).unwrap();
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
        keep(&cache, number, at(number.into()));
    }
    assert!(cache.find(DATASET, version(1), at(10)).is_some(), "used after the others");
    keep(&cache, 4, at(4));
    let kept = |number| cache.find(DATASET, version(number), at(11)).is_some();
    assert_eq!([1, 2, 3, 4].map(kept), [true, false, true, true]);
    // The newest stays, also where it takes more than there is room for.
    let tight = SnapshotCache::new(cache.folder(), 1);
    keep(&tight, 5, at(0));
    assert_eq!([1, 3, 4, 5].map(kept), [false, false, false, true]);
}

#[test]
fn what_was_begun_is_gone_on_with_and_what_is_of_no_use_goes() {
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    let lock = cache.lock(DATASET).unwrap().expect("nobody has it");
    assert!(cache.lock(DATASET).unwrap().is_none(), "somebody has it");
    assert!(cache.lock(DatasetId::from_bytes([4; 16])).unwrap().is_some(), "of another dataset");
    let (mut file, path) = cache.begin(&lock, DATASET, version(1)).unwrap();
    let before = cache.sign_of_life(DATASET);
    file.write_all(b"some").unwrap();
    assert_ne!(cache.sign_of_life(DATASET), before);
    drop((file, lock));
    let lock = cache.lock(DATASET).unwrap().expect("nobody has it any more");
    let (file, _) = cache.begin(&lock, DATASET, version(1)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4);
    cache.begin(&lock, DATASET, version(2)).unwrap();
    assert!(!path.exists(), "of another version");
    assert!(cache.find(DATASET, version(2), at(0)).is_none(), "it is not whole");
}

#[test]
fn a_file_that_is_another_snapshot_than_its_name_says_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    keep(&cache, 1, at(1));
    let other = empty(DATASET, version(2));
    for bytes in [&other[..], &other[..100], b""] {
        let name = names(folder.path()).into_iter().find(|name| name.ends_with(".snapshot"));
        let name = name.unwrap_or_else(|| format!("{DATASET}-{}.snapshot", version(1)));
        File::create(folder.path().join(&name)).unwrap().write_all(bytes).unwrap();
        assert!(cache.find(DATASET, version(1), at(2)).is_none());
        assert!(!names(folder.path()).contains(&name), "it is gone");
    }
    let snapshot = Snapshot::map(&folder.path().join("none"));
    assert_eq!(snapshot.unwrap_err().kind(), crate::Kind::Local);
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

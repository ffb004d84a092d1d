//! Downloads of snapshots from scripted servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dl_runtime::locked;
use tonic::Status;

use super::*;
use crate::dataset::Dataset;
use crate::remote::testing::{Script, dataset, info};
use crate::snapshot::tests::{empty, forged, version};

/// A server with a snapshot, whose answers break off at the given offsets, one after the other.
fn serving(bytes: Vec<u8>, breaks: &'static [usize], asked: Arc<Mutex<Vec<u64>>>) -> Dataset {
    let broken = AtomicUsize::new(0);
    let snapshot = move |request: GetSnapshotRequest| {
        let (version, length) = (version(1), bytes.len() as u64);
        let head = SnapshotPiece::Head { version, length };
        let mut pieces = vec![Ok(SnapshotPiece::Waiting.into()), Ok(head.into())];
        if request.head_only {
            return pieces;
        }
        assert_eq!(request.version, Some(version));
        locked(&asked).push(request.offset);
        let from = request.offset as usize;
        let stop = breaks.get(broken.fetch_add(1, Ordering::SeqCst)).copied();
        let rest = bytes.get(from..stop.unwrap_or(bytes.len())).unwrap();
        let some = rest
            .chunks(100)
            .map(|some| Ok(SnapshotPiece::Data(Bytes::copy_from_slice(some)).into()));
        pieces.extend(some);
        if stop.is_some() {
            pieces.push(Err(Status::unavailable("stopping")));
        }
        pieces
    };
    dataset(Script { snapshot: Box::new(snapshot), ..Script::default() })
}

fn key(version: Version) -> Key {
    Key { origin: Origin::Servers, dataset: info().id, version }
}

#[test]
fn a_broken_download_resumes() {
    let bytes = empty(info().id, version(1));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let dataset = serving(bytes.clone(), &[150, 150, 400], Arc::clone(&asked));
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    let reader = dataset.with_snapshot(&cache).unwrap();
    assert_eq!(reader.snapshot().unwrap().bytes(), bytes);
    assert_eq!(*locked(&asked), [0, 150, 150, 400]);
    let file = folder.path().join("saved");
    dataset.save_meta(&file).unwrap();
    assert!(std::fs::read(&file).unwrap() == bytes);
}

/// The version disappears from the servers during the download, and a newer version exists.
#[test]
fn a_download_of_a_lost_version_restarts_with_the_newest() {
    let of = |number| empty(info().id, version(number));
    let is_gone = std::sync::atomic::AtomicBool::new(false);
    let snapshot = move |request: GetSnapshotRequest| {
        let newest = if is_gone.load(Ordering::SeqCst) { 2 } else { 1 };
        if request.version.is_some_and(|wanted| wanted != version(newest)) {
            return vec![Err(Status::not_found("no snapshot of the version"))];
        }
        let bytes = of(newest);
        let head = SnapshotPiece::Head { version: version(newest), length: bytes.len() as u64 };
        let mut pieces = vec![Ok(head.into())];
        if !request.head_only {
            let rest = bytes.get(request.offset as usize..).unwrap();
            let is_cut = !is_gone.swap(true, Ordering::SeqCst);
            let rest = if is_cut { &rest[..150] } else { rest };
            pieces.push(Ok(SnapshotPiece::Data(Bytes::copy_from_slice(rest)).into()));
            if is_cut {
                pieces.push(Err(Status::unavailable("stopping")));
            }
        }
        pieces
    };
    let dataset = dataset(Script { snapshot: Box::new(snapshot), ..Script::default() });
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    let reader = dataset.with_snapshot(&cache).unwrap();
    assert_eq!(reader.snapshot().unwrap().version(), version(2));
    assert!(reader.snapshot().unwrap().bytes() == of(2));
    let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("partial")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn another_process_resumes_a_partial_file() {
    let bytes = empty(info().id, version(1));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let dataset = serving(bytes.clone(), &[], Arc::clone(&asked));
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    for (left, offset) in [(&bytes[..300], 300), (&[0; 5_000][..], 0)] {
        let lock = cache.lock(info().id).unwrap().unwrap();
        let (mut file, _) = cache.begin(&lock, key(version(1))).unwrap();
        file.write_all(left).unwrap();
        drop(lock);
        locked(&asked).clear();
        let reader = dataset.with_snapshot(&cache).unwrap();
        assert_eq!(reader.snapshot().unwrap().bytes(), bytes);
        assert_eq!(*locked(&asked), [offset]);
        std::fs::remove_dir_all(folder.path()).unwrap();
    }
}

#[test]
fn a_damaged_download_is_repeated_and_then_fails() {
    let mut bytes = empty(info().id, version(1));
    *bytes.last_mut().unwrap() ^= 1;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let dataset = serving(bytes, &[], Arc::clone(&asked));
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    assert_eq!(dataset.with_snapshot(&cache).unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(*locked(&asked), [0; TIMES as usize]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let file = folder.path().join("saved");
    assert_eq!(dataset.save_meta(&file).unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn servers_without_snapshots_give_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    let dataset = dataset(Script::default());
    assert_eq!(dataset.with_snapshot(&cache).unwrap_err().kind(), Kind::Invalid);
}

/// Keeps S-41 and S-73.
#[test]
fn a_snapshot_from_a_file_never_answers_for_the_servers() {
    let (real, other) = (empty(info().id, version(1)), forged(info().id, version(1)));
    assert_eq!(real.len(), other.len());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let dataset = serving(real.clone(), &[], Arc::clone(&asked));
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path().join("cache"), 1 << 20);
    let file = folder.path().join("handed in");
    // Nor does an unfinished copy of the file.
    let lock = cache.lock(info().id).unwrap().unwrap();
    let of_file = Key { origin: Origin::File, ..key(version(1)) };
    cache.begin(&lock, of_file).unwrap().0.write_all(&other).unwrap();
    drop(lock);
    let load = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let loaded = dataset.load_meta(&file, Some(&cache)).unwrap();
        // The file may change while the handle is in use.
        std::fs::write(&file, b"something else").unwrap();
        let snapshot = Arc::clone(loaded.snapshot().unwrap());
        assert!(snapshot.is_shared() && snapshot.bytes() == bytes);
    };
    load(&other);
    let reader = dataset.with_snapshot(&cache).unwrap();
    assert!(reader.snapshot().unwrap().bytes() == real);
    assert_eq!(*locked(&asked), [0]);
    for bytes in [&real, &other, &real] {
        load(bytes);
    }
    let reader = dataset.with_snapshot(&cache).unwrap();
    assert!(reader.snapshot().unwrap().bytes() == real);
    assert_eq!(*locked(&asked), [0], "the cache has the snapshot");
}

/// Keeps S-41 and S-72.
#[test]
fn a_damaged_snapshot_in_the_cache_is_fetched_again() {
    let bytes = empty(info().id, version(1));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let dataset = serving(bytes.clone(), &[], Arc::clone(&asked));
    let folder = tempfile::tempdir().unwrap();
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    for place in [20, bytes.len() - 1] {
        dataset.with_snapshot(&cache).unwrap();
        let mut kept = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let kept = kept.find(|path| path.extension().unwrap() == "snapshot").unwrap();
        let mut damaged = bytes.clone();
        *damaged.get_mut(place).unwrap() ^= 1;
        // File times have coarse steps.
        std::thread::sleep(Duration::from_millis(30));
        std::fs::write(kept, damaged).unwrap();
        let reader = dataset.with_snapshot(&cache).unwrap();
        assert!(reader.snapshot().unwrap().bytes() == bytes);
    }
    assert_eq!(*locked(&asked), [0; 3]);
}

/// Keeps S-41 and S-72.
#[test]
fn without_a_usable_cache_a_snapshot_lies_in_memory() {
    let bytes = empty(info().id, version(1));
    let dataset = serving(bytes.clone(), &[150, 400], Arc::default());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in the way");
    std::fs::write(&file, b"a file").unwrap();
    let reader = dataset.with_snapshot(&SnapshotCache::new(file.join("cache"), 1 << 20)).unwrap();
    let snapshot = reader.snapshot().unwrap();
    assert!(!snapshot.is_shared() && snapshot.bytes() == bytes);
    // The download succeeds, and the renaming fails.
    let cache = SnapshotCache::new(folder.path(), 1 << 20);
    let name = format!("{}-{}.snapshot", info().id, version(1));
    std::fs::create_dir(folder.path().join(name)).unwrap();
    let reader = dataset.with_snapshot(&cache).unwrap();
    assert!(reader.snapshot().unwrap().bytes() == bytes);
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 2, "only the obstacles");
}

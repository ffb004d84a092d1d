//! Snapshots on the readers' side.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use dl_meta::{FaultMeta, Memory};
use dl_runtime::SeededRandom;
use dl_runtime::fault::{CutPoint, Faults, Rates};
use dl_tests::cluster::{clock, context};
use dl_tests::program::run;
use dl_tests::skip;
use libdiesel::{DirPath, Kind, ReadItem, ShuffleOptions, SnapshotCache, StatItem};

use super::{Scene, files_in, listed, path, put};

/// Keeps S-41: with a metadata store that answers no request.
#[test]
fn with_a_snapshot_no_metadata_is_asked_for() -> Result<()> {
    let (store, faults) = (dl_store::memory(), Faults::new(Arc::new(SeededRandom::new(1))));
    let inner = Arc::new(Memory::new());
    let meta = FaultMeta::new(inner, clock(), faults.clone(), CutPoint::new());
    let mut scene = Scene::over(1, &store, context(Arc::clone(&store), Arc::new(meta)))?;
    let large = vec![7; 2_500_000];
    put(&scene.dataset, &[("a", b"1"), ("b/c", b"22"), ("large", b"")])?;
    let attributes = libdiesel::Attributes { mode: 0o644, mtime: 7 };
    let length = large.len() as u64;
    scene.dataset.put_reader(&path("large")?, attributes, length, &mut large.as_slice())?;
    let _ = scene.dataset.flush()?.check()?;
    let reader = scene.reader("cache")?;
    let refused = Rates {
        before: 1.0,
        answer_lost: 0.0,
        delay: 0.0,
        longest_delay: std::time::Duration::ZERO,
        error: dl_meta::Kind::Denied,
    };
    for operation in ["lookup", "list", "objects", "log", "dataset", "outline", "record_named"] {
        faults.set_rates(operation, Some(refused));
    }
    ensure!(scene.dataset.stat(&path("a")?).is_err(), "handles without a snapshot are refused");
    ensure!(listed(&reader)? == ["a", "b/c", "large"], "{:?}", listed(&reader)?);
    ensure!(matches!(reader.stat(&path("b")?)?, StatItem::Folder), "a folder");
    ensure!(matches!(reader.stat(&path("none")?)?, StatItem::Missing), "nothing");
    ensure!(reader.get(&path("b/c")?)? == b"22"[..], "a small file");
    ensure!(reader.get(&path("large")?)? == large, "a large file");
    let got = reader.get_many(&[path("a")?, path("none")?, path("b")?, path("b/c")?])?;
    let kinds = got.iter().map(|one| one.as_ref().err().map(libdiesel::Error::kind));
    let expected = [None, Some(Kind::NotFound), Some(Kind::Conflict), None];
    ensure!(kinds.collect::<Vec<_>>() == expected, "{got:?}");
    let mut read = Vec::new();
    let items = vec![ReadItem::from(path("none")?), path("a")?.into()];
    reader.read_files(items, &mut |number, file| read.push((number, file.is_ok())));
    read.sort_unstable();
    ensure!(read == [(0, false), (1, true)], "{read:?}");
    let mut written = Vec::new();
    reader.read_to(path("large")?, &mut written)?;
    ensure!(written == large, "in pieces");
    let (epoch, mut files) = (reader.shuffle(ShuffleOptions::new(1, 0, 8))?, 0);
    while let Some(file) = epoch.next()? {
        file.bytes?;
        files += 1;
    }
    ensure!(files == 3, "{files} files in an epoch");
    // Operations without file bytes need no server.
    scene.cluster.kill();
    ensure!(listed(&reader)? == ["a", "b/c", "large"], "without a server");
    let none = reader.list(DirPath::from(path("none")?), false, true);
    ensure!(none.is_err_and(|error| error.kind() == Kind::NotFound), "no such folder");
    Ok(())
}

/// Keeps S-40 (I5): a new version is fetched while an old version is mapped.
#[test]
fn a_reader_sees_its_version_and_its_own_writes() -> Result<()> {
    let scene = Scene::new()?;
    put(&scene.dataset, &[("a", b"1"), ("b", b"2")])?;
    let old = scene.reader("cache")?;
    put(&scene.dataset, &[("a", b"one"), ("c", b"3")])?;
    scene.dataset.delete(&[path("b")?])?;
    let new = scene.reader("cache")?;
    ensure!(listed(&old)? == ["a", "b"] && listed(&new)? == ["a", "c"], "{:?}", listed(&old)?);
    ensure!(old.get(&path("a")?)? == b"1"[..] && new.get(&path("a")?)? == b"one"[..], "a");
    ensure!(old.get(&path("b")?)? == b"2"[..], "deleted, and there for this version");
    ensure!(old.refresh()?.version != old.info().version, "a reader sees its own staleness");
    // The mapping survives the removal of the file's name.
    fs::remove_dir_all(scene.cache("cache").folder())?;
    ensure!(listed(&old)? == ["a", "b"], "its file was removed");
    put(&old, &[("d", b"4")])?;
    ensure!(listed(&old)? == ["a", "c", "d"], "{:?}", listed(&old)?);
    ensure!(old.snapshot().is_none() && new.snapshot().is_some(), "only who writes");
    new.delete(&[path("c")?])?;
    ensure!(listed(&new)? == ["a", "d"], "{:?}", listed(&new)?);
    // The next snapshot of a handle has its own writes.
    let newest = old.with_snapshot(&scene.cache("cache"))?;
    ensure!(newest.snapshot().is_some() && listed(&newest)? == ["a", "d"], "the newest version");
    ensure!(newest.info().version == old.refresh()?.version, "the handle has another version");
    Ok(())
}

/// Keeps S-72: without room in the cache the snapshot is in memory.
#[test]
fn a_full_cache_costs_memory_and_nothing_else() -> Result<()> {
    let scene = Scene::new()?;
    for number in 0..30_000 {
        let file = path(&format!("{}/{number:0200}", number % 300))?;
        scene.dataset.put(&file, libdiesel::Attributes::default(), &[1; 100])?;
    }
    let _ = scene.dataset.flush()?.check()?;
    let disk = scene.folder.path().join("disk");
    fs::create_dir(&disk)?;
    let mut mount = Command::new("mount");
    let mounted = run(mount.args(["-t", "tmpfs", "-o", "size=256k", "none"]).arg(&disk))?;
    if mounted.code != 0 {
        return skip(format_args!("no small file system can be mounted here: {mounted:?}"));
    }
    let full = scene.dataset.with_snapshot(&SnapshotCache::new(disk.join("cache"), 1 << 30));
    let left = fs::read_dir(disk.join("cache")).map(Iterator::count);
    run(Command::new("umount").arg("-l").arg(&disk))?.code(0)?;
    let full = full?;
    let snapshot = full.snapshot().context("a snapshot")?;
    ensure!(!snapshot.is_shared() && snapshot.files() == 30_000, "{}", snapshot.files());
    ensure!(left? == 0, "an incomplete file was left behind");
    Ok(())
}

#[test]
fn a_snapshot_file_is_checked_for_each_fault() -> Result<()> {
    let scene = Scene::new()?;
    put(&scene.dataset, &[("a", b"1"), ("b/c", b"2")])?;
    let file = scene.folder.path().join("saved");
    scene.dataset.save_meta(&file)?;
    let cache = scene.cache("cache");
    let loaded = scene.dataset.load_meta(&file, Some(&cache))?;
    ensure!(listed(&loaded)? == ["a", "b/c"] && loaded.get(&path("a")?)? == b"1"[..], "loaded");
    ensure!(files_in(cache.folder(), "given")? == 1, "the loaded snapshot is cached");
    ensure!(files_in(cache.folder(), "snapshot")? == 0, "the loaded snapshot counts as fetched");
    // Later changes of the file have no effect.
    let bytes = fs::read(&file)?;
    fs::write(&file, b"")?;
    ensure!(listed(&loaded)? == ["a", "b/c"], "from the cache");
    let mut damaged = bytes.clone();
    damaged[450] ^= 1;
    for (faulty, why) in [
        (b"something else altogether".to_vec(), "this is no snapshot"),
        (bytes[..bytes.len() - 64].to_vec(), "snapshot length"),
        ([&bytes[..8], &[9, 9], &bytes[10..]].concat(), "update"),
        (damaged, "checksum"),
    ] {
        fs::write(&file, faulty)?;
        // A new cache, because a cached copy would be used instead of the file.
        let fresh = scene.cache(why);
        for cache in [None, Some(&fresh)] {
            let error = scene.dataset.load_meta(&file, cache).err().context("it was accepted")?;
            let told = std::error::Error::source(&error).context("a reason")?.to_string();
            ensure!(told.contains(why), "{why} is not in {told} of {error:?}");
        }
    }
    let other = scene
        .client
        .create_dataset(&libdiesel::DatasetName::new("other")?, libdiesel::ChunkShape::default())?;
    fs::write(&file, &bytes)?;
    let error = other.load_meta(&file, Some(&cache)).err().context("of another dataset")?;
    ensure!(error.kind() == Kind::Conflict, "{error:?}");
    ensure!(!loaded.is_stale()?, "nothing has changed");
    put(&scene.dataset, &[("c", b"3")])?;
    ensure!(loaded.is_stale()? && listed(&loaded)? == ["a", "b/c"], "of the version before");
    ensure!(!scene.reader("cache")?.is_stale()?, "the newest");
    Ok(())
}

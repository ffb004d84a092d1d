//! Snapshots on the readers' side.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use dl_meta::{FaultMeta, Memory, MetaStore};
use dl_runtime::SeededRandom;
use dl_runtime::fault::{CutPoint, Faults, Rates};
use dl_tests::cluster::{Cluster, clock, parts};
use dl_tests::program::run;
use dl_tests::skip;
use libdiesel::{Dataset, DirPath, Kind, ReadItem, ShuffleOptions, SnapshotCache, StatItem};

use super::{Scene, files_in, listed, name, path, put};

/// Keeps S-41: with a metadata store that answers no request.
#[test]
fn with_a_snapshot_no_metadata_is_asked_for() -> Result<()> {
    let cluster = Cluster::new()?;
    let store = cluster.run(dl_store::open("memory:"))?;
    let faults = Faults::new(Arc::new(SeededRandom::new(1)));
    let inner: Arc<dyn MetaStore> = Arc::new(Memory::new());
    let meta: Arc<dyn MetaStore> =
        Arc::new(FaultMeta::new(inner, clock(), faults.clone(), CutPoint::new()));
    let mut scene = Scene::over(cluster, 1, Arc::clone(&store), parts(store, meta))?;
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
    Ok(())
}

/// Keeps S-41.
#[test]
fn a_snapshot_is_fetched_once_for_all_readers_of_a_user() -> Result<()> {
    let mut scene = Scene::new()?;
    put(&scene.dataset, &[("a", b"1"), ("b/c", b"2")])?;
    let cache = scene.cache("cache");
    let handle = scene.cluster.client_with_short_timeout()?.dataset(&name()?)?;
    std::thread::scope(|scope| {
        let readers: Vec<_> =
            (0..8).map(|_| scope.spawn(|| handle.with_snapshot(&cache).map(drop))).collect();
        for reader in readers {
            reader.join().map_err(|_| anyhow::anyhow!("a reader ended early"))??;
        }
        anyhow::Ok(())
    })?;
    ensure!(files_in(cache.folder(), "snapshot")? == 1, "the cache has one snapshot");
    ensure!(files_in(cache.folder(), "partial")? == 0, "the cache has no partial file");
    // A cached snapshot needs no server.
    scene.cluster.kill();
    ensure!(listed(&handle.with_snapshot(&cache)?)? == ["a", "b/c"], "from the cache");
    // A file damaged at its beginning is not used.
    fs::write(kept(&scene)?, b"no snapshot")?;
    let lost = handle.with_snapshot(&cache).err().context("from nowhere")?;
    ensure!(lost.kind() == Kind::Unreachable, "{lost:?}");
    Ok(())
}

/// Keeps S-40: all files acknowledged before the request are included.
#[test]
fn a_handle_gets_a_snapshot_with_its_own_writes() -> Result<()> {
    let scene = Scene::new()?;
    put(&scene.dataset, &[("a", b"1"), ("b", b"2")])?;
    let cache = scene.cache("cache");
    let handle = scene.reader("cache")?;
    for (name, files) in [("c", ["a", "b", "c"].as_slice()), ("d", &["a", "b", "c", "d"])] {
        put(&handle, &[(name, b"3")])?;
        let newest = handle.with_snapshot(&cache)?;
        ensure!(newest.snapshot().is_some() && listed(&newest)? == files, "{:?}", listed(&newest)?);
        let version = handle.refresh()?.version;
        ensure!(newest.info().version == version, "the handle reports another version");
    }
    Ok(())
}

/// Keeps S-41: several readers get the same file at once; a single reader copies the file for all.
#[test]
fn a_snapshot_file_is_in_memory_once() -> Result<()> {
    let scene = Scene::new()?;
    put(&scene.dataset, &[("a", b"1"), ("b/c", b"2")])?;
    let file = scene.folder.path().join("ds.snapshot");
    scene.dataset.save_meta(&file)?;
    let (cache, dataset) = (scene.cache("cache"), &scene.dataset);
    std::thread::scope(|scope| {
        let load = || {
            let loaded = dataset.load_meta(&file, Some(&cache))?;
            let snapshot = loaded.snapshot().context("a snapshot")?;
            ensure!(snapshot.is_shared(), "the snapshot is private to a reader");
            Ok(())
        };
        let readers: Vec<_> = (0..8).map(|_| scope.spawn(load)).collect();
        for reader in readers {
            reader.join().map_err(|_| anyhow::anyhow!("a reader ended early"))??;
        }
        anyhow::Ok(())
    })?;
    ensure!(files_in(cache.folder(), "given")? == 1, "the cache has one copy");
    Ok(())
}

/// Keeps S-41: without a cache the snapshot is in memory.
#[test]
fn a_full_or_forbidden_cache_costs_memory_and_nothing_else() -> Result<()> {
    let scene = Scene::new()?;
    let data = vec![1; 100];
    for round in 0..300 {
        let files: Vec<String> = (0..100).map(|n| format!("{round}/{n:0200}")).collect();
        for file in &files {
            scene.dataset.put(&path(file)?, libdiesel::Attributes::default(), &data)?;
        }
    }
    let _ = scene.dataset.flush()?.check()?;
    let file = scene.folder.path().join("file");
    fs::write(&file, b"in the way")?;
    let forbidden = SnapshotCache::new(file.join("cache"), 1 << 30);
    let in_memory = |reader: &Dataset| -> Result<()> {
        let snapshot = reader.snapshot().context("a snapshot")?;
        ensure!(!snapshot.is_shared() && snapshot.files() == 30_000, "{}", snapshot.files());
        let _ = reader.shuffle(ShuffleOptions::new(1, 0, 3))?.next()?.context("a file")?.bytes?;
        Ok(())
    };
    in_memory(&scene.dataset.with_snapshot(&forbidden)?)?;
    let options = libdiesel::ConnectOptions {
        servers: scene.cluster.addresses(),
        snapshots: Some(forbidden),
        ..libdiesel::ConnectOptions::default()
    };
    let reader = libdiesel::Client::connect(options)?.dataset(&name()?)?;
    in_memory(&reader)?;

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
    in_memory(&full?)?;
    ensure!(left? == 0, "an incomplete file was left behind");
    Ok(())
}

/// Keeps S-41: with damage behind the checked beginning.
#[test]
fn a_damaged_cache_file_is_fetched_again() -> Result<()> {
    let mut scene = Scene::new()?;
    put(&scene.dataset, &[("a", b"1"), ("b/c", b"2")])?;
    let damage = || -> Result<()> {
        let file = kept(&scene)?;
        let mut bytes = fs::read(&file)?;
        let at = bytes.windows(3).position(|three| three == b"b/c").context("a name")?;
        bytes[at + 2] = b'x';
        // File times have a coarse resolution.
        std::thread::sleep(std::time::Duration::from_millis(30));
        Ok(fs::write(file, bytes)?)
    };
    drop(scene.reader("cache")?);
    damage()?;
    ensure!(listed(&scene.reader("cache")?)? == ["a", "b/c"], "fetched again");
    damage()?;
    let handle = scene.cluster.client_with_short_timeout()?.dataset(&name()?)?;
    scene.cluster.kill();
    let lost = handle.with_snapshot(&scene.cache("cache")).err().context("from nowhere")?;
    ensure!(lost.kind() == Kind::Unreachable, "{lost:?}");
    Ok(())
}

/// The snapshot in the folder `cache`.
fn kept(scene: &Scene) -> Result<PathBuf> {
    for entry in fs::read_dir(scene.cache("cache").folder())? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "snapshot") {
            return Ok(path);
        }
    }
    anyhow::bail!("nothing is kept")
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
    let refused = |bytes: &[u8], why: &str| -> Result<()> {
        fs::write(&file, bytes)?;
        // A new cache, because a cached copy would be used instead of the file.
        let fresh = scene.cache(why);
        for cache in [None, Some(&fresh)] {
            let error = scene
                .dataset
                .load_meta(&file, cache)
                .err()
                .context("a faulty file was accepted")?;
            let told = std::error::Error::source(&error).map(ToString::to_string);
            let told = told.unwrap_or_default();
            ensure!(told.contains(why), "{why} is not in {told} of {error:?}");
        }
        Ok(())
    };
    refused(b"something else altogether", "this is no snapshot")?;
    refused(&bytes[..bytes.len() - 64], "snapshot length")?;
    refused(&[&bytes[..8], &[9, 9], &bytes[10..]].concat(), "update")?;
    let mut damaged = bytes.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    refused(&damaged, "must be zero")?;
    let mut damaged = bytes.clone();
    damaged[450] ^= 1;
    refused(&damaged, "checksum")?;
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

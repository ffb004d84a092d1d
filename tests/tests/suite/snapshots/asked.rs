//! Concurrent readers of one snapshot, and of a snapshot whose version is replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use dl_meta::{DatasetRecord, DatasetState, Memory, MetaStore};
use dl_tests::cluster::context;
use dl_tests::dice::Dice;
use dl_tests::http::get;
use dl_tests::program::{Server, run};
use dl_tests::{folder, rounds};
use libdiesel::{Kind, ShuffleOptions, SnapshotCache, StatItem};

use super::{Scene, at_once, files_in, listed, name, path, put};

/// Keeps S-50: a rebuild holds up reads by path, and not reads by place.
#[test]
fn a_snapshot_reader_goes_on_while_its_dataset_is_rebuilt() -> Result<()> {
    let store = dl_store::memory();
    let meta: Arc<dyn MetaStore> = Arc::new(Memory::new());
    let scene = Scene::over(1, &store, context(Arc::clone(&store), Arc::clone(&meta)))?;
    put(&scene.dataset, &[("a", b"some bytes")])?;
    let reader = scene.reader("cache")?;
    let id = scene.dataset.info().id;
    let record = scene.cluster.run(meta.record(id))?.context("the record")?;
    let rebuilt = DatasetRecord { state: DatasetState::Recovering, ..record };
    scene.cluster.run(meta.put_dataset(&rebuilt))?;
    ensure!(reader.get(&path("a")?)? == b"some bytes"[..], "by its place");
    let epoch = reader.shuffle(ShuffleOptions::new(1, 0, 8))?;
    let file = epoch.next()?.context("a file of the epoch")?;
    ensure!(file.bytes? == b"some bytes"[..], "in whole chunks");
    let refused = scene.dataset.get(&path("a")?);
    ensure!(refused.is_err_and(|error| error.kind() == Kind::NeedsRecovery), "by its path");
    Ok(())
}

/// Keeps S-41 and S-71.
#[test]
fn concurrent_processes_fetch_a_snapshot_once() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let data = scene.path().join("data");
    let server = Server::start_with(&data, "127.0.0.1:0", &["--http", "127.0.0.1:0"])?;
    let source = scene.path().join("src");
    folder::fill(&source, 60, 100, &Dice::new(1))?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    let cache = scene.path().join("cache");
    let printed = at_once(4, |_| {
        let mut shuffle = server.dlcmd()?;
        run(shuffle.args(["shuffle", "dl://ds"]).env("XDG_CACHE_HOME", &cache))?.code(0)
    })?;
    ensure!(printed.iter().all(|one| one.text().lines().count() == 60), "{printed:?}");
    let snapshots = cache.join("diesel/snapshots");
    let left = (files_in(&snapshots, "snapshot")?, files_in(&snapshots, "partial")?);
    ensure!(left == (1, 0), "{left:?}");
    // A request for the manifest and a request for the bytes.
    let (_, metrics) = get(server.http(), "/metrics")?;
    let is_asked = |line: &&str| line.starts_with("diesel_requests_total{method=\"GetSnapshot\"");
    let counts = metrics.lines().filter(is_asked).filter_map(|line| line.rsplit_once(' '));
    let asked = counts.map(|(_, count)| Ok(count.parse::<u64>()?)).sum::<Result<u64>>()?;
    ensure!(asked == 2, "{asked} requests for the snapshot");
    Ok(())
}

/// Keeps S-40 (I5): a reader uses its version while newer versions replace the file in the cache.
#[test]
fn a_version_is_read_while_newer_ones_take_its_place() -> Result<()> {
    let scene = Scene::new()?;
    put(&scene.dataset, &[("a", b"first"), ("b/c", b"2")])?;
    let length = scene.saved("saved")?.len() as u64;
    // Room for a single snapshot.
    let cache = SnapshotCache::new(scene.folder.path().join("cache"), length + 200);
    let old = scene.client.dataset(&name()?)?.with_snapshot(&cache)?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                ensure!(listed(&old)? == ["a", "b/c"], "{:?}", listed(&old)?);
                let StatItem::File(record) = old.stat(&path("a")?)? else {
                    anyhow::bail!("file a is missing")
                };
                ensure!(record.length == 5, "{record:?}");
                count += 1;
            }
            Ok(count)
        });
        let written = (0..rounds(20, 500)).try_for_each(|round| -> Result<()> {
            put(&scene.dataset, &[("a", b"another one"), (&format!("{round}"), b"new")])?;
            let new = scene.client.dataset(&name()?)?.with_snapshot(&cache)?;
            ensure!(listed(&new)?.len() == 3 + round, "{:?}", listed(&new)?);
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        let read = reading.join().ok().context("the reader ended early")??;
        ensure!(read > 0, "the reader has read nothing");
        written
    })?;
    ensure!(files_in(cache.folder(), "snapshot")? == 1, "older snapshots were removed");
    Ok(())
}

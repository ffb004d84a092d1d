//! Requests of readers with a snapshot, and of concurrent readers that need one snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use dl_tests::http::get;
use dl_tests::program::{Server, run};
use dl_tests::rounds;
use libdiesel::{
    ChunkShape, Client, ConnectOptions, Dataset, DirPath, FilePath, ShuffleOptions, SnapshotCache,
    StatItem,
};

use super::{Scene, files_in, listed, name, path, put};

const FILES: usize = 60;

fn paths() -> Result<Vec<FilePath>> {
    (0..FILES).map(|number| path(&format!("{}/{number}", number % 7))).collect()
}

fn filled(server: &Server) -> Result<Dataset> {
    let servers = vec![server.address().to_owned()];
    let client = Client::connect(ConnectOptions { servers, ..ConnectOptions::default() })?;
    let dataset = client.create_dataset(&name()?, ChunkShape::new(1 << 20, 64)?)?;
    for path in paths()? {
        put(&dataset, &[(&path.to_string(), b"some bytes")])?;
    }
    Ok(dataset)
}

/// The count of finished requests of each method.
fn requests(server: &Server) -> Result<BTreeMap<String, u64>> {
    let (_, text) = get(server.http(), "/metrics")?;
    let mut requests = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("diesel_requests_total{")) {
        let (labels, count) = line.rsplit_once(' ').context("a sample")?;
        let method = labels.split('"').nth(1).context("a method")?;
        *requests.entry(method.to_owned()).or_default() += count.parse::<u64>()?;
    }
    Ok(requests)
}

/// Keeps S-41: by the request counts of the server.
#[test]
fn a_snapshot_reader_asks_only_for_file_bytes() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let data = scene.path().join("data");
    let server = Server::start_with(&data, "127.0.0.1:0", &["--http", "127.0.0.1:0"])?;
    let dataset = filled(&server)?;
    let asked_since = |before: &BTreeMap<String, u64>| -> Result<BTreeSet<String>> {
        let after = requests(&server)?.into_iter();
        let asked = after.filter(|(method, count)| before.get(method) != Some(count));
        Ok(asked.map(|(method, _)| method).collect())
    };
    let cache = SnapshotCache::new(scene.path().join("cache"), 1 << 30);
    let reader = dataset.with_snapshot(&cache)?;
    let (paths, before) = (paths()?, requests(&server)?);
    for path in &paths {
        ensure!(matches!(reader.stat(path)?, StatItem::File(_)), "{path}");
    }
    ensure!(reader.stat_many(&paths)?.len() == FILES, "as many as were asked for");
    ensure!(matches!(reader.stat(&path("none")?)?, StatItem::Missing), "nothing is there");
    ensure!(listed(&reader)?.len() == FILES, "{:?}", listed(&reader)?);
    ensure!(
        reader.list(DirPath::from(path("3")?), false, false)?.count() > 5,
        "the listing of a folder"
    );
    ensure!(asked_since(&before)?.is_empty(), "{:?}", asked_since(&before)?);
    ensure!(reader.get(&paths[0])? == b"some bytes"[..], "the bytes of a file");
    ensure!(
        reader.get_many(&paths)?.into_iter().all(|file| file.is_ok()),
        "the bytes of all files"
    );
    let asked = asked_since(&before)?;
    ensure!(asked == BTreeSet::from(["Read".to_owned()]), "{asked:?}");
    let before = requests(&server)?;
    let (epoch, mut count) = (reader.shuffle(ShuffleOptions::new(1, 0, 8))?, 0);
    while let Some(file) = epoch.next()? {
        ensure!(file.bytes? == b"some bytes"[..], "{}", file.path);
        count += 1;
    }
    let asked = asked_since(&before)?;
    let of_chunks = BTreeSet::from(["GetChunks".to_owned()]);
    ensure!(count == FILES && asked == of_chunks, "{count}, {asked:?}");
    // Cross-check of the counts: a handle without a snapshot sends Stat.
    let before = requests(&server)?;
    dataset.stat(&paths[0])?;
    ensure!(asked_since(&before)?.contains("Stat"), "{:?}", asked_since(&before)?);
    Ok(())
}

/// Keeps S-41 and S-71.
#[test]
fn concurrent_processes_fetch_a_snapshot_once() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let data = scene.path().join("data");
    let server = Server::start_with(&data, "127.0.0.1:0", &["--http", "127.0.0.1:0"])?;
    filled(&server)?;
    let cache = scene.path().join("cache");
    let shuffle = || {
        let mut shuffle = server.dlcmd()?;
        run(shuffle.args(["shuffle", "dl://ds"]).env("XDG_CACHE_HOME", &cache))
    };
    let ended = std::thread::scope(|scope| {
        let running: Vec<_> = (0..4).map(|_| scope.spawn(shuffle)).collect();
        let ended =
            running.into_iter().map(|thread| thread.join().ok().context("a thread panicked")?);
        ended.collect::<Result<Vec<_>>>()
    })?;
    for one in ended {
        let one = one.code(0)?.text();
        ensure!(one.lines().count() == FILES, "{one}");
    }
    let snapshots: &Path = &cache.join("diesel/snapshots");
    let left = (files_in(snapshots, "snapshot")?, files_in(snapshots, "partial")?);
    ensure!(left == (1, 0), "{left:?}");
    // A request for the manifest and a request for the bytes.
    let asked = requests(&server)?.get("GetSnapshot").copied();
    ensure!(asked == Some(2), "{asked:?} requests for the snapshot");
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

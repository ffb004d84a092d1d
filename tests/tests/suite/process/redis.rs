//! Servers with shared metadata in a real Redis Cluster and a shared chunk folder.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use dl_meta::redis_testing::Cluster;
use dl_tests::folder;
use dl_tests::http::{becomes, becomes_well, get};
use dl_tests::program::{Server, dl, run};
use dl_tests::scene::Scene;
use libdiesel::{
    Client, ConnectOptions, Dataset, DatasetName, FilePath, Kind, SnapshotCache, StatItem,
};
use tokio::runtime::Runtime;

/// A reader of the dataset `all` with a snapshot.
fn snapshot_reader(scene: &Scene, server: &Server) -> Result<Dataset> {
    let options = ConnectOptions {
        servers: vec![server.address().to_owned()],
        request_timeout: Duration::from_secs(5),
        ..ConnectOptions::default()
    };
    let cache = SnapshotCache::new(scene.path("snapshots"), 10 << 20);
    let dataset = Client::connect(options)?.dataset(&DatasetName::new("all")?)?;
    let reader = dataset.with_snapshot(&cache)?;
    ensure!(reader.snapshot().is_some(), "the reader has no snapshot");
    Ok(reader)
}

/// Looks all files up by the snapshot, and reads them. Servers may refuse a read with a clear error.
fn check_reader(reader: &Dataset, files: &BTreeMap<FilePath, Vec<u8>>) -> Result<()> {
    let paths: Vec<_> = files.keys().cloned().collect();
    for (item, bytes) in reader.stat_many(&paths)?.iter().zip(files.values()) {
        let length = bytes.len() as u64;
        let is_right = matches!(item, StatItem::File(record) if record.length == length);
        ensure!(is_right, "the reader finds {item:?}");
    }
    let read = reader.get_many(&paths).unwrap_or_else(|error| vec![Err(error)]);
    for (read, bytes) in read.into_iter().zip(files.values()) {
        let is_clear = |kind: Kind| kind.is_retryable() || kind == Kind::NeedsRecovery;
        match read {
            Ok(read) => ensure!(read == bytes[..], "the reader has other bytes"),
            Err(error) => ensure!(is_clear(error.kind()), "{error:?}"),
        }
    }
    Ok(())
}

/// Lists all files by each server. dlcmd waits for a rebuild by the servers; metadata without any copy of
/// its identity is refused.
fn list(servers: [&Server; 2], has_identity: bool) -> Result<()> {
    for server in servers {
        let listed = run(server.dlcmd()?.args(["ls", "-R", "dl://all"]))?;
        if has_identity {
            ensure!(listed.code(0)?.text().lines().count() == 1_000, "not all are listed");
        } else {
            ensure!(listed.code == 1 && listed.stderr.contains("recover"), "{listed:?}");
        }
    }
    Ok(())
}

/// Keeps S-02, S-05 and S-50: the servers rebuild the shards of any lost primary, and a reader with a snapshot
/// looks files up meanwhile. After a loss of all primaries an administrator recovers.
#[test]
fn datasets_lost_by_redis_are_refused_until_rebuilt() -> Result<()> {
    let scene = Scene::filled(1_000, 20_000)?;
    let (runtime, source) = (Runtime::new()?, scene.src());
    let cluster = runtime.block_on(Cluster::start(3, 0));
    let start = || scene.start_with(&["--meta", &cluster.url()]);
    let (first, second) = (start()?, start()?);
    first.put(&source, "dl://all")?;
    let reader = snapshot_reader(&scene, &second)?;
    let mut files = BTreeMap::new();
    for (path, (bytes, ..)) in folder::read(&source)? {
        files.insert(FilePath::new(path)?, bytes);
    }
    for forgetful in [0..1, 1..2, 1..3, 0..3] {
        for redis in &cluster.servers()[forgetful.clone()] {
            runtime.block_on(redis.ask(&["FLUSHALL"]));
        }
        let has_identity = forgetful != (0..3);
        std::thread::scope(|scope| {
            let listed = scope.spawn(|| list([&first, &second], has_identity));
            loop {
                let is_last = listed.is_finished();
                check_reader(&reader, &files)?;
                if is_last {
                    break listed.join().map_err(|_| anyhow!("the thread panicked"))?;
                }
            }
        })?;
        if !has_identity {
            dl(&second, ["recover", "--all"])?.code(0)?;
        }
        for server in [&first, &second] {
            server.compare("dl://all", &source)?;
        }
    }
    Ok(())
}

/// Keeps S-02 and S-39: lost rows without a sign of the loss.
#[tokio::test(flavor = "multi_thread")]
async fn a_requested_recovery_restores_unnoticed_losses() -> Result<()> {
    let scene = Scene::filled(300, 2_000)?;
    let source = scene.src();
    let cluster = Cluster::start(3, 0).await;
    let server = scene.start_with(&["--meta", &cluster.url()])?;
    server.put(&source, "dl://all")?;
    let remove = async |lost: &str| -> Result<()> {
        let mut removed = 0;
        for redis in cluster.servers() {
            let all = "return table.concat(redis.call('KEYS', '*'), '\\n')";
            let keys = redis.text(&["EVAL", all, "0"]).await;
            for key in keys.lines().filter(|key| key.contains(lost)) {
                redis.text(&["DEL", key]).await;
                removed += 1;
            }
        }
        ensure!(removed > 0, "there is no such key");
        Ok(())
    };
    for lost in ["}:d:", "}:x:"] {
        dl(&server, ["rm", "dl://all/000/000000.bin"])?;
        remove(lost).await?;
        let found = dl(&server, ["verify", "dl://all"])?.code(4)?;
        ensure!(found.text().contains("run `dlcmd recover dl://all`"), "{}", found.text());
        dl(&server, ["recover", "dl://all"])?.code(0)?;
        dl(&server, ["verify", "dl://all"])?.code(0)?;
    }
    // The rows of a log, regardless of its counts.
    remove("}:log:").await?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    dl(&server, ["verify", "dl://all"])?.code(0)?;
    // The rows of all names.
    remove("}:names").await?;
    dl(&server, ["ls", "dl://all"])?.code(1)?;
    dl(&server, ["recover", "dl://all"])?.code(0)?;
    dl(&server, ["verify", "dl://all"])?.code(0)?;
    // All signs of the loss, and the identity of the chunk store.
    for lost in ["}:d:", "}:identity", "}:mark"] {
        remove(lost).await?;
    }
    dl(&server, ["recover", "--all"])?.code(0)?;
    dl(&server, ["verify", "dl://all"])?.code(0)?;
    fs::remove_file(source.join("000/000000.bin"))?;
    server.compare("dl://all", &source)
}

/// Keeps S-32 and S-05: `/healthz` and the metrics report a loss, and the command that repairs it.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_of_metadata_is_reported_with_the_remedy() -> Result<()> {
    let scene = Scene::filled(200, 1_000)?;
    let cluster = Cluster::start(3, 0).await;
    let server = scene.start_with(&["--meta", &cluster.url()])?;
    server.put(scene.src(), "dl://all")?;
    let is_counted = || -> Result<bool> {
        let (_, metrics) = get(server.http(), "/metrics")?;
        Ok(metrics.contains("diesel_meta_losses{extent=\"all\"} 1"))
    };
    let is_lost = |status, text: &str| status == 503 && text.contains("run `dlcmd recover --all`");
    becomes_well(server.http())?;
    ensure!(!is_counted()?, "the metrics report a loss from the start");
    for round in 0..2 {
        cluster.flush().await;
        becomes(server.http(), is_lost)?;
        ensure!(is_counted()?, "the metrics report no loss");
        if round < 1 {
            dl(&server, ["recover", "--all"])?.code(0)?;
            becomes_well(server.http())?;
            ensure!(!is_counted()?, "the metrics still report the loss");
        }
    }
    // An alert stays while the state is unknown.
    cluster.servers().iter().for_each(|redis| redis.kill());
    let names_one = |text: &str| {
        cluster.servers().iter().any(|redis| text.contains(&format!("127.0.0.1:{}", redis.port())))
    };
    becomes(server.http(), |status, text| {
        status == 503 && !is_lost(status, text) && names_one(text)
    })?;
    ensure!(is_counted()?, "the metrics no longer report the loss");
    Ok(())
}

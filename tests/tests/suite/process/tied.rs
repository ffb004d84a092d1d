//! Several servers on one Redis with one or several chunk stores, and a full or read-only Redis.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dl_meta::redis_testing::{Cluster, Server as Redis};
use dl_runtime::Deadline;
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::http::{becomes, becomes_well};
use dl_tests::program::{Process, Server, dl, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a server on each folder at the same moment.
fn start_at_once(redis: &Redis, folders: [&Path; 2]) -> [Result<Server>; 2] {
    let url = redis.url();
    let start = |data: PathBuf| {
        let url = url.clone();
        std::thread::spawn(move || Server::start_with(&data, "127.0.0.1:0", &["--meta", &url]))
    };
    let started = folders.map(|folder| start(folder.to_owned()));
    started.map(|thread| match thread.join() {
        Ok(started) => started,
        Err(_) => bail!("the thread panicked"),
    })
}

/// Keeps S-05 and S-49.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_redis_belongs_to_a_single_chunk_store() -> Result<()> {
    let redis = Redis::start(&[]).await;
    for _ in 0..3 {
        redis.ask(&["FLUSHALL"]).await;
        let scene = tempfile::tempdir()?;
        let (first, second) = (scene.path().join("first"), scene.path().join("second"));
        let (mut served, mut refused) = (Vec::new(), Vec::new());
        for started in start_at_once(&redis, [&first, &second]) {
            match started {
                Ok(server) => served.push(server),
                Err(error) => refused.push(format!("{error:#}")),
            }
        }
        ensure!(served.len() == 1, "{} serve: {refused:?}", served.len());
        let told = |why: &String| why.contains("check --store and --meta");
        ensure!(refused.iter().all(told), "{refused:?}");
        for server in served {
            server.stop()?;
        }
    }
    Ok(())
}

/// Keeps S-05 and S-07.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_can_start_at_once_on_a_chunk_store() -> Result<()> {
    let redis = Redis::start(&[]).await;
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    folder::fill(&source, 20, 1_000, &Dice::new(1))?;
    let [first, second] = start_at_once(&redis, [&data, &data]);
    let (first, second) = (first?, second?);
    run(first.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    ensure!(
        dl(&second, ["datasets"])?.code(0)?.text() == "ds\n",
        "the second server misses the dataset"
    );
    first.stop()?;
    second.stop()?;
    Ok(())
}

/// Keeps S-05 and S-49: a server does not touch metadata that were bound to another chunk store.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_redis_was_given_to_another_chunk_store_ends() -> Result<()> {
    let redis = Redis::start(&[]).await;
    let scene = tempfile::tempdir()?;
    let start = |data: &str| {
        let flags = ["--meta", &redis.url()];
        Server::start_with(&scene.path().join(data), "127.0.0.1:0", &flags)
    };
    let mut first = start("first")?;
    redis.ask(&["FLUSHALL"]).await;
    let second = start("second")?;
    ensure!(first.process().wait(PATIENCE)? == 1, "the first server has another exit code");
    let log = first.kill()?;
    ensure!(log.contains("check --store and --meta"), "{log}");
    dl(&second, ["datasets"])?.code(0)?;
    second.stop()?;
    Ok(())
}

/// Keeps S-12, S-26 and S-32.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_is_read_as_before_and_deletes_make_room() -> Result<()> {
    let redis = Redis::start(&["--maxmemory-policy", "noeviction"]).await;
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    let got = scene.path().join("got");
    folder::fill(&source, 300, 1_000, &Dice::new(1))?;
    let flags = ["--meta", &redis.url(), "--http", "127.0.0.1:0"];
    let server = Server::start_with(&data, "127.0.0.1:0", &flags)?;
    for dataset in ["dl://one", "dl://two"] {
        run(server.dlcmd()?.arg("put").arg(&source).arg(dataset))?.code(0)?;
    }
    let file = dl(&server, ["ls", "-R", "dl://one"])?.code(0)?.text();
    let file = format!("dl://one/{}", file.lines().next().context("a file")?);
    run(server.dlcmd()?.args(["cat", &file]))?.code(0)?;
    // Invalidates the server's counts of the dataset.
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://one/again"))?.code(0)?;
    redis.ask(&["CONFIG", "SET", "maxmemory", "500kb"]).await;
    for read in
        [vec!["datasets"], vec!["stat", "dl://one"], vec!["ls", "dl://one"], vec!["cat", &file]]
    {
        dl(&server, read.clone())?.code(0).with_context(|| format!("{read:?}"))?;
    }
    run(server.dlcmd()?.arg("get").arg("dl://two").arg(&got))?.code(0)?;
    folder::compare(&source, &got)?;
    let stored = || folder::bytes_under(&data.join("chunks"));
    let before = stored()?;
    let refused = run(server.dlcmd()?.arg("put").arg(&source).arg("dl://three"))?;
    ensure!(refused.code != 0 && refused.stderr.contains("maxmemory"), "{refused:?}");
    ensure!(stored()? == before, "something of the new dataset was stored");
    becomes(server.http(), |status, text| {
        status == 503 && text.contains("takes no writes but deletes")
    })?;

    // A refused put must leave nothing for a recovery after the delete.
    let newer = scene.path().join("newer");
    fs::create_dir(&newer)?;
    fs::write(newer.join("newer"), "refused")?;
    dl(&server, ["rm", "-r", "dl://two"])?.code(0)?;
    run(server.dlcmd()?.arg("put").arg(&newer).arg("dl://two"))?.code(1)?;

    dl(&server, ["rm", &file])?.code(0)?;
    dl(&server, ["cat", &file])?.code(3)?;
    // Deletes go on however much memory is used.
    redis.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    redis.ask(&["SETRANGE", "other", "80000000", "x"]).await;
    redis.ask(&["CONFIG", "SET", "maxmemory", "500kb"]).await;
    dl(&server, ["rm", "-r", "dl://one/again"])?.code(0)?;
    dl(&server, ["delete-dataset", "dl://one"])?.code(0)?;
    ensure!(
        dl(&server, ["datasets"])?.code(0)?.text().starts_with("two\n"),
        "the deleted dataset is listed"
    );
    redis.ask(&["DEL", "other"]).await;
    redis.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    becomes_well(server.http())?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://three"))?.code(0)?;
    dl(&server, ["recover", "dl://two"])?.code(0)?;
    ensure!(
        dl(&server, ["ls", "-R", "dl://two"])?.code(0)?.text().is_empty(),
        "deleted files returned"
    );
    server.stop()?;
    Ok(fs::remove_dir_all(got)?)
}

/// Keeps S-02 and S-32: a refused put uses memory only while it runs.
#[tokio::test(flavor = "multi_thread")]
async fn puts_into_a_nearly_full_redis_leave_chunks_only_once() -> Result<()> {
    let redis = Redis::start(&["--maxmemory-policy", "noeviction"]).await;
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    folder::fill(&source, 4_000, 10, &Dice::new(1))?;
    let flags = ["--meta", &redis.url(), "--http", "127.0.0.1:0"];
    let server = Server::start_with(&data, "127.0.0.1:0", &flags)?;
    dl(&server, ["put", "Cargo.toml", "dl://one"])?.code(0)?;
    redis.ask(&["SETRANGE", "other", "5000000", "x"]).await;
    let most = redis.used_memory().await + 200_000;
    redis.ask(&["CONFIG", "SET", "maxmemory", &most.to_string()]).await;
    becomes_well(server.http())?;
    // A single thread fills a single chunk: of two chunks, a small chunk may still fit.
    let put = || {
        let mut put = server.dlcmd()?;
        run(put.args(["put", "--threads", "1"]).arg(&source).arg("dl://one/more"))
    };
    let empty = folder::bytes_under(&data.join("chunks"))?;
    let refused = put()?;
    ensure!(refused.code == 1 && refused.stderr.contains("maxmemory"), "{refused:?}");
    let stored = folder::bytes_under(&data.join("chunks"))?;
    ensure!(stored > empty, "Redis was full before");
    for _ in 0..3 {
        becomes(server.http(), |status, text| {
            status == 503 && text.contains("takes no writes but deletes")
        })?;
        // Redis needs a moment to free the memory.
        std::thread::sleep(Duration::from_secs(1));
        let refused = put()?;
        ensure!(refused.code == 1 && refused.stderr.contains("maxmemory"), "{refused:?}");
        ensure!(folder::bytes_under(&data.join("chunks"))? == stored, "more was stored");
    }
    redis.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    becomes_well(server.http())?;
    put()?.code(0)?;
    server.stop()?;
    Ok(())
}

/// Keeps S-02, S-11, S-32 and S-37.
#[tokio::test(flavor = "multi_thread")]
async fn puts_wait_for_a_read_only_redis_and_reads_work() -> Result<()> {
    let redis = Redis::start(&["--maxmemory-policy", "noeviction"]).await;
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    folder::fill(&source, 20, 1_000, &Dice::new(1))?;
    let flags = ["--meta", &redis.url(), "--http", "127.0.0.1:0"];
    let server = Server::start_with(&data, "127.0.0.1:0", &flags)?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    let stored = || folder::bytes_under(&data.join("chunks"));
    let before = stored()?;
    redis.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    becomes(server.http(), |status, text| {
        status == 503 && text.contains("takes no writes: NOREPLICAS")
    })?;
    let mut put = Process::start(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds/more"))?;
    for read in [["stat", "dl://ds"], ["ls", "dl://ds"]] {
        dl(&server, read)?.code(0)?;
    }
    std::thread::sleep(Duration::from_secs(3));
    ensure!(stored()? == before, "something was stored that the log can't take");
    redis.ask(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    ensure!(put.wait(PATIENCE)? == 0, "the put failed");
    let got = scene.path().join("got");
    run(server.dlcmd()?.args(["get", "dl://ds/more"]).arg(&got))?.code(0)?;
    folder::compare(&source, &got)?;
    becomes_well(server.http())?;
    server.stop()?;
    Ok(())
}

/// Keeps S-02 and S-37: for a put, a new dataset and a delete without room in Redis. Two of the
/// primaries hold no part of the dataset's root, so stamps are still given.
#[tokio::test(flavor = "multi_thread")]
async fn writes_with_a_read_only_primary_store_nothing() -> Result<()> {
    let cluster = Cluster::start(3, 0).await;
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    folder::fill(&source, 20, 1_000, &Dice::new(1))?;
    let server = Server::start_with(&data, "127.0.0.1:0", &["--meta", &cluster.url()])?;
    let put = |to: &str| -> Result<_> {
        let mut command = server.dlcmd()?;
        command.arg("put").arg(&source).arg(to);
        Ok(command)
    };
    for folder in ["dl://ds", "dl://ds/old0", "dl://ds/old1", "dl://ds/old2"] {
        run(&mut put(folder)?)?.code(0)?;
    }
    let notes = ["create", "delete"].map(|of| scene.path().join(of));
    let stored = || folder::bytes_under(&data.join("chunks"));
    for (number, primary) in cluster.servers().iter().enumerate() {
        let (new, old) = (format!("dl://ds/new{number}"), format!("dl://ds/old{number}"));
        let (begun, ended) = (format!("dl://begun{number}"), format!("dl://ended{number}"));
        run(&mut put(&ended)?)?.code(0)?;
        let before = stored()?;
        primary.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
        // Until then the server may rely on its last measurement.
        std::thread::sleep(Duration::from_millis(500));
        let mut create = put(&begun)?;
        create.stderr(fs::File::create(&notes[0])?);
        let mut delete = server.dlcmd()?;
        delete.args(["delete-dataset", &ended]).stderr(fs::File::create(&notes[1])?);
        let mut writers = [
            Process::start(&mut put(&new)?)?,
            Process::start(server.dlcmd()?.args(["rm", "-r", &old]))?,
            Process::start(&mut create)?,
            Process::start(&mut delete)?,
        ];
        std::thread::sleep(Duration::from_secs(3));
        let deadline = Deadline::after(&*clock(), PATIENCE / 2);
        for notes in &notes {
            while !fs::read_to_string(notes)?.contains("takes no writes: NOREPLICAS") {
                let said = fs::read_to_string(notes)?;
                ensure!(!deadline.remaining(&*clock()).is_zero(), "{number}: {said}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        ensure!(stored()? == before, "{number}: something was stored that the log can't take");
        primary.ask(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
        for writer in &mut writers {
            ensure!(writer.wait(PATIENCE)? == 0, "{number}: a put or a delete failed");
        }
        for (kept, got) in [(&new, "new"), (&begun, "begun")] {
            let got = scene.path().join(format!("{got}{number}"));
            run(server.dlcmd()?.args(["get", kept]).arg(&got))?.code(0)?;
            folder::compare(&source, &got)?;
        }
        for gone in [&old, &ended] {
            ensure!(dl(&server, ["ls", gone])?.code != 0, "{number}: {gone} was not deleted");
        }
    }
    server.stop()?;
    Ok(())
}

/// Keeps S-05: a chunk store that lost its identity during a loss in Redis gets the same identity
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn an_identity_lost_with_metadata_is_written_again() -> Result<()> {
    let redis = Redis::start(&[]).await;
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    folder::fill(&source, 20, 1_000, &Dice::new(1))?;
    let meta = ["--meta", &redis.url(), "--http", "127.0.0.1:0"];
    let server = Server::start_with(&data, "127.0.0.1:0", &meta)?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    let identity = data.join("chunks/identity");
    let lost = fs::read(&identity)?;
    fs::remove_file(&identity)?;
    redis.ask(&["DEL", "dl:{9}:mark"]).await;
    let deadline = Deadline::after(&*clock(), PATIENCE);
    while !identity.exists() {
        ensure!(!deadline.remaining(&*clock()).is_zero(), "it is never written");
        std::thread::sleep(Duration::from_millis(50));
    }
    becomes_well(server.http())?;
    ensure!(fs::read(&identity)? == lost, "the identity changed");
    server.stop()?;
    let server = Server::start_with(&data, "127.0.0.1:0", &meta)?;
    let got = scene.path().join("got");
    run(server.dlcmd()?.arg("get").arg("dl://ds").arg(&got))?.code(0)?;
    folder::compare(&source, &got)?;
    server.stop()?;
    Ok(())
}

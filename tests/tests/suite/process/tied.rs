//! Several servers on one Redis with one or several chunk stores, and a full or read-only Redis.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use dl_meta::redis_testing::{Cluster, Server as Redis};
use dl_tests::http::{becomes, becomes_well};
use dl_tests::program::{Process, Server, dl, run};
use dl_tests::scene::Scene;
use dl_tests::{folder, soon};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Keeps S-05, S-07 and S-49: two servers start at the same moment, on two chunk stores or on one.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_redis_belongs_to_a_single_chunk_store() -> Result<()> {
    let redis = Redis::start(&[]).await;
    let meta = ["--meta", &redis.url()];
    for (second, expected) in [("second", 1), ("first", 2), ("second", 1)] {
        redis.ask(&["FLUSHALL"]).await;
        let scene = Scene::new()?;
        let start = |data: &str| Server::start_with(&scene.path(data), "127.0.0.1:0", &meta);
        let started = std::thread::scope(|scope| {
            let first = scope.spawn(|| start("first"));
            let second = start(second);
            anyhow::Ok([first.join().map_err(|_| anyhow!("the thread panicked"))?, second])
        })?;
        let served = started.iter().filter(|server| server.is_ok()).count();
        ensure!(served == expected, "{served} serve: {started:?}");
        for refused in started.iter().filter_map(|server| server.as_ref().err()) {
            ensure!(format!("{refused:#}").contains("check --store and --meta"), "{refused:#}");
        }
    }
    Ok(())
}

/// Keeps S-05 and S-49: a server does not touch metadata that were bound to another chunk store.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_redis_was_given_to_another_chunk_store_ends() -> Result<()> {
    let redis = Redis::start(&[]).await;
    let scene = Scene::new()?;
    let start = |data: &str| {
        let flags = ["--meta", &redis.url()];
        Server::start_with(&scene.path(data), "127.0.0.1:0", &flags)
    };
    let mut first = start("first")?;
    redis.ask(&["FLUSHALL"]).await;
    let second = start("second")?;
    ensure!(first.process().wait(TIMEOUT)? == 1, "the first server has another exit code");
    let log = first.kill()?;
    ensure!(log.contains("check --store and --meta"), "{log}");
    dl(&second, ["datasets"])?.code(0)?;
    Ok(())
}

/// Keeps S-12, S-26 and S-32.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_is_read_as_before_and_deletes_make_room() -> Result<()> {
    let redis = Redis::start(&["--maxmemory-policy", "noeviction"]).await;
    let scene = Scene::filled(300, 1_000)?;
    let source = scene.src();
    let server = scene.start_with(&["--meta", &redis.url()])?;
    for dataset in ["dl://one", "dl://two"] {
        server.put(&source, dataset)?;
    }
    let file = dl(&server, ["ls", "-R", "dl://one"])?.code(0)?.text();
    let file = format!("dl://one/{}", file.lines().next().context("a file")?);
    run(server.dlcmd()?.args(["cat", &file]))?.code(0)?;
    // Invalidates the server's counts of the dataset.
    server.put(&source, "dl://one/again")?;
    redis.ask(&["CONFIG", "SET", "maxmemory", "500kb"]).await;
    for read in
        [vec!["datasets"], vec!["stat", "dl://one"], vec!["ls", "dl://one"], vec!["cat", &file]]
    {
        dl(&server, read.clone())?.code(0).with_context(|| format!("{read:?}"))?;
    }
    server.compare("dl://two", &source)?;
    let before = scene.stored()?;
    let refused = run(server.dlcmd()?.arg("put").arg(&source).arg("dl://three"))?;
    ensure!(refused.code != 0 && refused.stderr.contains("maxmemory"), "{refused:?}");
    ensure!(scene.stored()? == before, "something of the new dataset was stored");
    becomes(server.http(), |status, text| {
        status == 503 && text.contains("takes no writes but deletes")
    })?;

    // A refused put must leave nothing for a recovery after the delete.
    let newer = scene.path("newer");
    folder::write(&newer, "newer", "refused")?;
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
    server.put(&source, "dl://three")?;
    dl(&server, ["recover", "dl://two"])?.code(0)?;
    ensure!(
        dl(&server, ["ls", "-R", "dl://two"])?.code(0)?.text().is_empty(),
        "deleted files returned"
    );
    Ok(())
}

/// Keeps S-02, S-11, S-32 and S-37: for a put, a new dataset and deletes. Two of the
/// primaries hold no part of the dataset's root, so stamps are still given.
#[tokio::test(flavor = "multi_thread")]
async fn writes_with_a_read_only_primary_store_nothing() -> Result<()> {
    let cluster = Cluster::start(3, 0).await;
    let scene = Scene::filled(20, 1_000)?;
    let source = scene.src();
    let server = scene.start_with(&["--meta", &cluster.url()])?;
    let put = |to: &str| -> Result<_> {
        let mut command = server.dlcmd()?;
        command.arg("put").arg(&source).arg(to);
        Ok(command)
    };
    for folder in ["dl://ds", "dl://ds/old0", "dl://ds/old1", "dl://ds/old2"] {
        run(&mut put(folder)?)?.code(0)?;
    }
    let notes = ["create", "delete"].map(|of| scene.path(of));
    for (number, primary) in cluster.servers().iter().enumerate() {
        let (new, old) = (format!("dl://ds/new{number}"), format!("dl://ds/old{number}"));
        let (begun, ended) = (format!("dl://begun{number}"), format!("dl://ended{number}"));
        run(&mut put(&ended)?)?.code(0)?;
        let before = scene.stored()?;
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
        becomes(server.http(), |status, text| {
            status == 503 && text.contains("takes no writes: NOREPLICAS")
        })?;
        dl(&server, ["ls", "dl://ds"])?.code(0)?;
        for notes in &notes {
            soon(format_args!("{number}: a refusal"), || {
                Ok(fs::read_to_string(notes)?.contains("takes no writes: NOREPLICAS"))
            })?;
        }
        ensure!(
            scene.stored()? == before,
            "{number}: something was stored that the log can't take"
        );
        primary.ask(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
        for writer in &mut writers {
            ensure!(writer.wait(TIMEOUT)? == 0, "{number}: a put or a delete failed");
        }
        for kept in [&new, &begun] {
            server.compare(kept, &source)?;
        }
        for gone in [&old, &ended] {
            ensure!(dl(&server, ["ls", gone])?.code != 0, "{number}: {gone} was not deleted");
        }
    }
    Ok(())
}

//! Server and client processes with clocks minutes apart, over a Redis Cluster and a bucket.
//!
//! Must hold: winners of writes and results of recoveries are the same as with equal clocks.

use std::fs;

use anyhow::{Result, ensure};
use dl_format::ChunkShape;
use dl_meta::redis_testing::Cluster;
use dl_tests::program::{Server, dlcmd, run};
use dl_tests::rounds;
use dl_tests::s3::{Kind, S3, settings};
use dl_tests::shift::ClockShift;
use tokio::runtime::Runtime;

use super::{Event, Stage, shifts, survive_on};

/// Clock shifts of servers and clients in seconds. A client and a server may be 15 minutes apart.
const SERVERS: [i64; 2] = [420, -400];
const CLIENTS: [i64; 2] = [-440, 430];

/// Runs an event with shifted servers and writers.
fn survive_apart(event: Event, replicas: usize) -> Result<()> {
    survive_on(event, |round| {
        let mut stage = Stage::with(round, replicas, ChunkShape::default(), &SERVERS)?;
        stage.writers = shifts(stage.scene.path(), "writer", &CLIENTS)?;
        Ok(stage)
    })
}

/// Keeps S-17, S-22, S-01, S-02 and S-04 (I4).
#[test]
fn a_flush_of_redis_with_clocks_minutes_apart() -> Result<()> {
    survive_apart(Event::AllIsFlushed, 0)
}

/// Keeps S-17, S-22, S-01, S-02 and S-04 (I4).
#[test]
fn an_emptied_primary_with_clocks_minutes_apart() -> Result<()> {
    survive_apart(Event::PrimaryIsEmptied, 0)
}

/// Keeps S-17, S-22, S-01, S-02 and S-04 (I4).
#[test]
fn a_failover_with_clocks_minutes_apart() -> Result<()> {
    survive_apart(Event::PrimaryDies, 1)
}

/// Keeps S-17, S-22, S-01 and S-02.
#[test]
fn clients_minutes_apart_change_a_file_around_a_flush() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let server_clocks = shifts(scene.path(), "server", &SERVERS)?;
    let client_clocks = shifts(scene.path(), "client", &CLIENTS)?;
    let runtime = Runtime::new()?;
    let redis = runtime.block_on(Cluster::start(3, 0));
    let bucket = S3::start(Kind::S3sFs)?;
    let store = bucket.fresh();
    let start = |(number, clock): (usize, &ClockShift)| {
        let data = scene.path().join(format!("data{number}"));
        let flags = ["--meta", &redis.url(), "--store", &store];
        let set = [settings(bucket.address()), clock.variables()].concat();
        Server::start_among(&data, "127.0.0.1:0", &flags, &set)
    };
    let servers = server_clocks.iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
    let told = |number: usize, arguments: &[&str]| {
        let mut command = dlcmd()?;
        command.envs(client_clocks[number % 2].variables());
        // Each client uses the servers in turn.
        run(command.args(["--server", servers[number / 2 % 2].address()]).args(arguments))
    };
    let file = scene.path().join("file");
    let path = file.display().to_string();
    let read =
        |number| -> Result<String> { Ok(told(number, &["cat", "dl://ds/file"])?.code(0)?.text()) };
    for turn in 0..rounds(12, 60) {
        let (is_deleted, text) = (turn % 5 == 4, "x".repeat(turn + 1));
        if is_deleted {
            told(turn, &["rm", "dl://ds/file"])?.code(0)?;
        } else {
            fs::write(&file, &text)?;
            told(turn, &["put", &path, "dl://ds"])?.code(0)?;
        }
        if turn % 4 == 3 {
            match turn % 8 {
                3 => runtime.block_on(redis.flush()),
                _ => {
                    redis.servers()[turn % 3].kill();
                    runtime.block_on(redis.servers()[turn % 3].run());
                }
            }
            told(turn + 1, &["recover", "--all"])?.code(0)?;
        }
        for reader in [0, 2] {
            if is_deleted {
                told(reader, &["cat", "dl://ds/file"])?.code(3)?;
            } else {
                let there = read(reader)?;
                ensure!(there == text, "{turn}: the file has {} bytes", there.len());
            }
        }
    }
    Ok(())
}

/// Keeps S-22 and S-12.
#[test]
fn a_client_with_a_wrong_clock_stores_nothing() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let off = shifts(scene.path(), "client", &[1_000])?;
    let server = Server::start(&scene.path().join("data"))?;
    let file = scene.path().join("file");
    fs::write(&file, "bytes")?;
    let told = |arguments: &[&str]| run(server.dlcmd()?.envs(off[0].variables()).args(arguments));
    let path = file.display().to_string();
    run(server.dlcmd()?.arg("put").arg(&file).arg("dl://ds/there"))?.code(0)?;
    for arguments in [["put", &path, "dl://ds/file"], ["rm", "-r", "dl://ds/there"]] {
        let refused = told(&arguments)?.code(1)?;
        ensure!(refused.stderr.contains("set the clocks"), "{refused:?}");
    }
    let listed = run(server.dlcmd()?.args(["ls", "-R", "dl://ds"]))?.code(0)?.text();
    ensure!(listed == "there/file\n" || listed == "there\n", "{listed}");
    server.stop()?;
    Ok(())
}

/// Keeps S-02: with servers further apart than promised. A server may date its appends by the
/// faster clock of the other server.
#[test]
fn writes_of_a_server_an_hour_behind_survive_a_loss() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let off = shifts(scene.path(), "behind", &[-3_000])?;
    let runtime = Runtime::new()?;
    let redis = runtime.block_on(Cluster::start(3, 0));
    let store = format!("file://{}", scene.path().join("store").display());
    let flags = ["--meta", &redis.url(), "--store", &store];
    let data = |name| scene.path().join(name);
    let right = Server::start_among(&data("right"), "127.0.0.1:0", &flags, &[])?;
    let behind = Server::start_among(&data("behind"), "127.0.0.1:0", &flags, &off[0].variables())?;
    let mut files = 0;
    for (turn, primary) in redis.servers().iter().enumerate() {
        // The restored state must be the state before this put.
        for server in redis.servers() {
            runtime.block_on(server.ask(&["SAVE"]));
        }
        let source = scene.path().join(format!("source{turn}"));
        fs::create_dir(&source)?;
        for number in 0..60 {
            fs::create_dir(source.join(format!("{number}")))?;
            fs::write(source.join(format!("{number}/{turn}")), "bytes")?;
        }
        let mut put = dlcmd()?;
        put.envs(off[0].variables()).args(["--server", behind.address(), "put"]);
        run(put.arg(&source).arg("dl://ds"))?.code(0)?;
        files += 60;
        primary.kill();
        runtime.block_on(primary.run());
        let listed = run(right.dlcmd()?.args(["ls", "-R", "dl://ds"]))?.code(0)?.text();
        ensure!(listed.lines().count() == files, "{turn}: {} files", listed.lines().count());
    }
    Ok(())
}

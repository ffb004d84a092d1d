//! Server and client processes with clocks minutes apart, over a Redis Cluster and a bucket.
//!
//! Must hold: winners of writes and results of recoveries are the same as with equal clocks.

use std::fs;

use anyhow::{Result, ensure};
use dl_format::ChunkShape;
use dl_tests::program::run;
use dl_tests::scene::Scene;
use dl_tests::shift::ClockShift;

use super::{Event, Stage, shifts, survive_on};

/// Clock shifts of servers and clients in seconds. A client and a server may be 15 minutes apart.
const SERVERS: [i64; 2] = [420, -400];
const CLIENTS: [i64; 2] = [-440, 430];

/// Runs an event with shifted servers and writers.
fn survive_apart(event: Event, replicas: usize) -> Result<()> {
    survive_on(event, |round| {
        let mut stage = Stage::with(round, replicas, ChunkShape::default(), &SERVERS)?;
        stage.writers = shifts(&stage.scene.path(""), "writer", &CLIENTS)?;
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

/// Keeps S-22 and S-12.
#[test]
fn a_client_with_a_wrong_clock_stores_nothing() -> Result<()> {
    let scene = Scene::new()?;
    let off = ClockShift::new(&scene.path(""), "client", 1_000)?;
    let server = scene.start()?;
    let file = scene.path("file");
    fs::write(&file, "bytes")?;
    let told = |arguments: &[&str]| run(server.dlcmd()?.envs(off.variables()).args(arguments));
    let path = file.display().to_string();
    server.put(&file, "dl://ds/there")?;
    for arguments in [["put", &path, "dl://ds/file"], ["rm", "-r", "dl://ds/there"]] {
        let refused = told(&arguments)?.code(1)?;
        ensure!(refused.stderr.contains("set the clocks"), "{refused:?}");
    }
    let listed = run(server.dlcmd()?.args(["ls", "-R", "dl://ds"]))?.code(0)?.text();
    ensure!(listed == "there/file\n" || listed == "there\n", "{listed}");
    Ok(())
}

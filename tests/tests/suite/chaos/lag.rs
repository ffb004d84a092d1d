//! A lagging replica takes over from a dead primary: acknowledged writes are missing.
//!
//! Must hold: the test checks that the replica lags at the failover. From then on each answer is
//! complete or a refusal.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::{Cluster, Server as Redis, eventually};
use dl_runtime::Deadline;
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::program::Server;
use dl_tests::scene::Scene;
use dl_tests::wire::Wire;
use dl_tests::{folder, rounds};
use tonic::{Code, Status};

use super::TIMEOUT;

const PRIMARIES: usize = 3;

/// Enough puts to reach every primary.
const LATE_PUTS: u64 = 20;

/// Puts files, cuts the replication of a primary, puts more files, and kills the primary: its
/// replica lacks acknowledged writes.
async fn lose(scene: &Scene, redis: &Cluster, server: &Server, number: usize) -> Result<()> {
    server.put(scene.src(), "dl://ds")?;
    let nodes = redis.servers();
    let primary = nodes.get(number).context("a primary")?;
    let replica = nodes.get(PRIMARIES + number).context("its replica")?;
    // The replica can't log in again after its connection ends, but stays a member of the
    // cluster.
    replica.ask(&["CONFIG", "SET", "masteruser", "nobody"]).await;
    replica.ask(&["CONFIG", "SET", "masterauth", "nothing"]).await;
    primary.ask(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    eventually("the replica is cut off", || async {
        primary.text(&["INFO", "replication"]).await.contains("connected_slaves:0")
    })
    .await;
    // The few keys of a put may all belong to other primaries.
    for late in 0.. {
        let folder = scene.src().join(format!("late{late}"));
        folder::fill(&folder, 200, 20_000, &Dice::new(2 + late))?;
        server.put(scene.src(), "dl://ds")?;
        let has = offset(primary, "master_repl_offset").await?;
        let lags = offset(replica, "slave_repl_offset").await?;
        if lags < has {
            break;
        }
        ensure!(late < LATE_PUTS, "the replica lacks nothing: {lags} of {has}");
    }
    primary.kill();
    eventually("the replica takes over", || async {
        replica.text(&["INFO", "replication"]).await.contains("role:master")
    })
    .await;
    Ok(())
}

async fn offset(redis: &Redis, field: &str) -> Result<u64> {
    let info = redis.text(&["INFO", "replication"]).await;
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(value.context("Redis tells its offset")?.trim().parse()?)
}

/// The count of listed files; none for a refusal, which is remembered.
async fn listed(client: &Wire, refusals: &mut Vec<String>) -> Result<Option<usize>> {
    let listed = match client.dataset("ds").await {
        Ok(id) => client.list(id.context("the dataset is not there")?).await,
        Err(refused) => Err(refused.into()),
    };
    let refused: Status = match listed {
        Ok(files) => return Ok(Some(files.len())),
        Err(error) => error.downcast()?,
    };
    let clear = [Code::Unavailable, Code::FailedPrecondition, Code::DeadlineExceeded];
    ensure!(clear.contains(&refused.code()), "{refused}");
    refusals.push(refused.message().to_owned());
    Ok(None)
}

/// Keeps S-01, S-02, S-05, S-07 and S-50.
#[tokio::test(flavor = "multi_thread")]
async fn missing_writes_of_a_new_primary_are_refused_until_restored() -> Result<()> {
    for round in 0..rounds(1, 6) {
        let scene = Scene::filled(200, 20_000)?;
        let redis = Cluster::start(PRIMARIES, 1).await;
        let serve = || scene.start_with(&["--meta", &redis.url()]);
        let (first, second) = (serve()?, serve()?);
        lose(&scene, &redis, &first, round % PRIMARIES).await?;
        let wanted = folder::paths(&scene.src())?.len();
        let deadline = Deadline::after(&*clock(), TIMEOUT);
        let mut refusals = Vec::new();
        for server in [&first, &second] {
            let client = Wire::connect(server.address().parse()?).await?;
            let count = loop {
                if let Some(count) = listed(&client, &mut refusals).await? {
                    break count;
                }
                ensure!(!deadline.remaining(&*clock()).is_zero(), "never well: {refusals:?}");
                clock().sleep(Duration::from_millis(20)).await;
            };
            ensure!(count == wanted, "{count} of {wanted} files");
        }
        // Servers may have brought it back before they were asked for the first time.
        let is_told = refusals.iter().any(|why| why.contains("are rebuilding"));
        ensure!(is_told || refusals.is_empty(), "{refusals:?}");
        for server in [first, second] {
            server.compare("dl://ds", &scene.src())?;
        }
    }
    Ok(())
}

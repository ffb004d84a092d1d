//! Several servers rebuild lost metadata: one of them works, and another goes on when that server is killed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::Cluster;
use dl_runtime::SeededRandom;
use dl_store::Throttle;
use dl_tests::cluster::clock;
use dl_tests::http::{becomes_well, sample};
use dl_tests::program::{Process, Server, dlcmd, run};
use dl_tests::proxy::Proxy;
use dl_tests::s3::{self, Kind, S3};
use dl_tests::scene::Scene;
use dl_tests::{folder, soon};

const OBJECTS: usize = 150;

/// Each header takes so long, so that a rebuild takes some seconds.
const LATENCY: Duration = Duration::from_millis(700);

/// A killed server is replaced within the lifetime of its turn, and a few looks on a busy machine.
const REPLACED: Duration = Duration::from_secs(15);

fn is_rebuilding(server: &Server) -> Result<bool> {
    Ok(sample(server.http(), "diesel_rebuild_running")? == 1.0)
}

/// The objects found so far by the rebuild of a server.
fn found(server: &Server) -> Result<f64> {
    sample(server.http(), "diesel_rebuild_objects{state=\"found\"}")
}

/// The servers that rebuild at the moment.
fn rebuilding(servers: &[Server]) -> Result<Vec<usize>> {
    let mut found = Vec::new();
    for (number, server) in servers.iter().enumerate() {
        if is_rebuilding(server)? {
            found.push(number);
        }
    }
    Ok(found)
}

/// Keeps S-50, S-77 and S-78: after the loss of the primary with the identity.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_rebuilding_server_is_replaced_in_seconds() -> Result<()> {
    let (scene, cluster) = (Scene::new()?, Cluster::start(3, 0).await);
    let bucket = S3::start(Kind::S3sFs)?;
    let proxy = Proxy::start(bucket.address(), Arc::new(SeededRandom::new(7)))?;
    let (store, variables) = (bucket.fresh(), s3::settings(proxy.address()));
    let meta = cluster.url();
    let start = || scene.start_among(&["--meta", &meta, "--store", &store], &variables);
    let mut servers = vec![start()?, start()?, start()?];
    for number in 0..OBJECTS {
        folder::write(&scene.src(), "file", number.to_string())?;
        servers[0].put(scene.src(), format!("dl://all/{number}"))?;
    }
    let all = [servers[0].address(), servers[1].address(), servers[2].address()].join(",");
    // A read by path waits for the rebuild, in each of its states.
    let read = || -> Result<Process> {
        Process::start(dlcmd()?.args(["--server", &all, "cat", "dl://all/7/file"]))
    };
    proxy.set_throttle(Throttle { latency: LATENCY, ..Throttle::default() });
    let first = cluster.servers().first().context("three primaries")?;
    first.ask(&["FLUSHALL"]).await;
    let mut readers = vec![read()?];
    soon("a server rebuilds", || Ok(!rebuilding(&servers)?.is_empty()))?;
    readers.push(read()?);
    soon("objects are found", || {
        Ok(rebuilding(&servers)?.into_iter().map(|at| found(&servers[at])).sum::<Result<f64>>()?
            > 0.0)
    })?;
    readers.push(read()?);
    let working = rebuilding(&servers)?;
    ensure!(working.len() == 1, "servers {working:?} rebuild");
    let victim = servers.remove(working[0]);
    let began = clock().monotonic();
    victim.kill()?;
    soon("another server rebuilds", || Ok(!rebuilding(&servers)?.is_empty()))?;
    let took = clock().monotonic() - began;
    ensure!(took < REPLACED, "a killed server was replaced after {took:?}");
    ensure!(rebuilding(&servers)?.len() < 2, "two servers rebuild");
    readers.push(read()?);
    proxy.set_throttle(Throttle::default());
    for server in &servers {
        becomes_well(server.http())?;
        soon("the rebuild ends", || Ok(!is_rebuilding(server)?))?;
    }
    for (number, reader) in readers.iter_mut().enumerate() {
        ensure!(reader.wait(Duration::from_secs(60))? == 0, "read {number} by path failed");
    }
    let listed = run(servers[0].dlcmd()?.args(["ls", "-R", "dl://all"]))?.code(0)?;
    ensure!(listed.text().lines().count() == OBJECTS, "not all files are listed");
    Ok(())
}

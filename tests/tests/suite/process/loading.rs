//! A restarted Redis that loads its data and answers nothing meanwhile.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::{Server as Redis, eventually};
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Server, run};
use dl_tests::wire::Wire;
use tonic::Code;

/// The loading time per key, and the interval of loading notices.
const SLOWLY: [&str; 4] =
    ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];

/// Files in a Redis with many other keys, killed and now loading.
async fn loading(
    scene: &std::path::Path,
    others: &str,
) -> Result<(Redis, Server, std::path::PathBuf)> {
    let source = scene.join("src");
    folder::fill(&source, 100, 2_000, &Dice::new(1))?;
    let redis = Redis::start(&SLOWLY).await;
    let meta = ["--meta", &redis.url()];
    let server = Server::start_with(&scene.join("data"), "127.0.0.1:0", &meta)?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    redis.ask(&["DEBUG", "POPULATE", others]).await;
    redis.ask(&["SAVE"]).await;
    redis.kill();
    redis.run().await;
    ensure!(is_loading(&redis).await, "Redis has loaded everything already");
    Ok((redis, server, source))
}

async fn is_loading(redis: &Redis) -> bool {
    redis.text(&["INFO", "persistence"]).await.contains("loading:1")
}

/// Keeps S-11, S-12 and S-07.
#[tokio::test(flavor = "multi_thread")]
async fn a_loading_redis_is_waited_for() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (redis, server, source) = loading(scene.path(), "3000").await?;
    let clock = clock();
    let began = clock.monotonic();
    let got = scene.path().join("got");
    run(server.dlcmd()?.args(["get", "dl://ds"]).arg(&got))?.code(0)?;
    folder::compare(&source, &got)?;
    ensure!(!is_loading(&redis).await, "the server answers while Redis loads");
    let took = clock.monotonic() - began;
    ensure!(took < Duration::from_secs(30), "the answer took {took:?}");
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://again"))?.code(0)?;
    server.stop()?;
    Ok(())
}

/// Keeps S-11 and S-12.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_loading_redis_is_reported_and_later_used() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (redis, server, source) = loading(scene.path(), "200000").await?;
    let client = Wire::connect(server.address().parse()?).await?;
    let clock = clock();
    let began = clock.monotonic();
    let refused =
        client.dataset("ds").await.err().context("the server answers while Redis loads")?;
    ensure!(refused.code() == Code::Unavailable, "{refused}");
    ensure!(refused.message().contains("LOADING"), "{refused}");
    let took = clock.monotonic() - began;
    // The time-out of a call to Redis, with a margin for busy machines.
    ensure!(took < Duration::from_secs(20), "the refusal took {took:?}");
    ensure!(is_loading(&redis).await, "Redis has loaded everything already");
    redis.ask(&["CONFIG", "SET", "key-load-delay", "0"]).await;
    eventually("Redis has loaded", || async { !is_loading(&redis).await }).await;
    let got = scene.path().join("got");
    run(server.dlcmd()?.args(["get", "dl://ds"]).arg(&got))?.code(0)?;
    folder::compare(&source, &got)?;
    server.stop()?;
    Ok(())
}

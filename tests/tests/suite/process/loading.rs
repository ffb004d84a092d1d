//! A restarted Redis that loads its data and answers nothing meanwhile.

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::Server as Redis;
use dl_tests::cluster::clock;
use dl_tests::scene::Scene;
use dl_tests::wire::Wire;
use tonic::Code;

/// The loading time per key, and the interval of loading notices.
const SLOWLY: [&str; 4] =
    ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];

/// Keeps S-07, S-11 and S-12: a single request is refused, and dlcmd waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_loading_redis_is_reported_and_waited_for() -> Result<()> {
    let scene = Scene::filled(100, 2_000)?;
    let redis = Redis::start(&SLOWLY).await;
    let server = scene.start_with(&["--meta", &redis.url()])?;
    server.put(scene.src(), "dl://ds")?;
    redis.ask(&["DEBUG", "POPULATE", "200000"]).await;
    redis.ask(&["SAVE"]).await;
    redis.kill();
    redis.run().await;
    let is_loading = async || redis.text(&["INFO", "persistence"]).await.contains("loading:1");
    let client = Wire::connect(server.address().parse()?).await?;
    let began = clock().monotonic();
    let refused = client.dataset("ds").await.err().context("answered while Redis loads")?;
    ensure!(refused.code() == Code::Unavailable, "{refused}");
    ensure!(refused.message().contains("LOADING"), "{refused}");
    let took = clock().monotonic() - began;
    // The time-out of a call to Redis, with a margin for busy machines.
    ensure!(took.as_secs() < 20, "the refusal took {took:?}");
    ensure!(is_loading().await, "Redis has loaded everything already");
    // 200 seconds become a few seconds.
    redis.ask(&["CONFIG", "SET", "key-load-delay", "10"]).await;
    server.compare("dl://ds", &scene.src())?;
    ensure!(!is_loading().await, "the server answers while Redis loads");
    server.put(scene.src(), "dl://again")
}

//! Objects appended long after their sealing, right before Redis loses its last writes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use dl_format::{ChunkIdMaker, DatasetId};
use dl_meta::redis_testing::{Cluster, eventually};
use dl_meta::{Memory, MetaStore, Redis, RedisOptions, Stop};
use dl_runtime::{Clock, ManualClock, SystemClock};
use dl_server::{ServerContext, prepare};
use dl_store::Store;
use dl_tests::cluster::{Running, context};
use dl_tests::wire::{Wire, chunk};

/// Longer than any permitted clock difference.
const LONG: Duration = Duration::from_secs(3 * 3_600);
const FILES: u32 = 100;

/// Keeps S-01 and S-02: each primary in turn is set back to its state before the recovery.
#[tokio::test(flavor = "multi_thread")]
async fn changes_adopted_right_before_a_failover_are_adopted_again() -> Result<()> {
    let cluster = Cluster::start(3, 0).await;
    for lost in 0..3 {
        cluster.flush().await;
        let store = dl_store::open("memory:").await?;
        let (server, dataset) = {
            let context = on_redis(&store, &cluster.url()).await?;
            prepare(&context, Stop::Fresh).await?;
            let server = Running::start(context).await?;
            let dataset = Wire::connect(server.address()).await?.create("ds").await?;
            (server, dataset)
        };
        let client = Wire::connect(server.address()).await?;
        put_long_ago(&store, dataset).await?;
        for primary in cluster.servers() {
            primary.ask(&["SAVE"]).await;
        }
        client.recover().await?;
        ensure!(
            client.files(dataset).await?.len() == FILES as usize,
            "recover did not find the files"
        );
        let primary = cluster.servers().get(lost).context("three primaries")?;
        primary.kill();
        primary.run().await;
        // The server restores missing entries without a command.
        eventually("all is as before", || async { client.files(dataset).await.is_ok() }).await;
        let there = client.files(dataset).await?.len();
        ensure!(there == FILES as usize, "{there} files are there after {lost} was set back");
        server.stop().await?;
    }
    Ok(())
}

/// Stores an object sealed long ago, unknown to every log.
async fn put_long_ago(store: &Arc<dyn Store>, dataset: DatasetId) -> Result<()> {
    let then = SystemTime::UNIX_EPOCH
        + Duration::from_secs(
            SystemClock::new().now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs(),
        )
        - LONG;
    let context = context(Arc::clone(store), Arc::new(Memory::new()));
    let context = ServerContext { clock: Arc::new(ManualClock::new(then)), ..context };
    prepare(&context, Stop::Fresh).await?;
    let server = Running::start(context).await?;
    let client = Wire::connect(server.address()).await?;
    client.recover().await?;
    let names: Vec<_> = (0..FILES).map(|file| format!("{file}/late")).collect();
    let files = names.iter().map(|name| (name.as_bytes(), name.as_bytes()));
    let object = chunk(ChunkIdMaker::new([9; 9]).next(then), dataset, files)?;
    client.put(dataset, &object).await?;
    Ok(())
}

async fn on_redis(store: &Arc<dyn Store>, url: &str) -> Result<ServerContext> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let meta: Arc<dyn MetaStore> =
        Arc::new(Redis::open(url, RedisOptions::default(), clock).await?);
    Ok(context(Arc::clone(store), meta))
}

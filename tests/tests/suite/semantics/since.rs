//! The range of objects listed by `recover --since`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use dl_format::{ChunkIdMaker, DatasetId, Stamp};
use dl_meta::redis_testing::Server;
use dl_meta::{Memory, MetaStore, Redis, RedisOptions, Stop};
use dl_proto::{RecoverProgress, RecoverRequest, pb};
use dl_runtime::{Clock, ManualClock};
use dl_server::{ServerContext, prepare};
use dl_store::Store;
use dl_tests::cluster::{Running, context};
use dl_tests::wire::{Files, Wire, chunk};

/// The slack promised by docs/SEMANTICS.md.
const SLACK: Duration = Duration::from_secs(30 * 60);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Objects with the times of their sealing around the requested time.
fn objects(asked: SystemTime) -> [(&'static str, SystemTime); 4] {
    [
        ("before", asked - SLACK - SECOND),
        ("edge", asked - SLACK),
        ("within", asked - SLACK + MINUTE),
        ("later", asked - 10 * MINUTE),
    ]
}

async fn put(client: &Wire, dataset: DatasetId, asked: SystemTime) -> Result<()> {
    let mut writer = ChunkIdMaker::new([9; 9]);
    for (path, sealed) in objects(asked) {
        let object = chunk(writer.next(sealed), dataset, [(path.as_bytes(), path.as_bytes())])?;
        client.put(dataset, &object).await?;
    }
    Ok(())
}

/// Keeps S-02 and S-48: Rule 8. The time of sealing says nothing about the time of the append.
#[tokio::test(flavor = "multi_thread")]
async fn recover_since_a_time_brings_back_whatever_the_log_lacks() -> Result<()> {
    let store = dl_store::open("memory:").await?;
    // Ids have a resolution of a second.
    let asked = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let behind: Arc<dyn MetaStore> = Arc::new(Memory::new());
    let dataset = {
        let (_server, client) = serve(&store, Arc::clone(&behind), asked).await?;
        client.create("ds").await?
    };
    {
        // Other metadata, so that the first metadata miss these objects.
        let now = asked - Duration::from_secs(20 * 60);
        let (_server, client) = serve(&store, Arc::new(Memory::new()), now).await?;
        client.recover().await?;
        put(&client, dataset, asked).await?;
    }
    let (_server, client) = serve(&store, behind, asked).await?;
    ensure!(client.files(dataset).await?.is_empty(), "the metadata already have the objects");
    let last = recover_since(&client, asked).await?;
    ensure!(last.adopted == 4 && last.listed == 4 && last.checked == 4, "{last:?}");
    ensure!(client.files(dataset).await?.len() == 4, "files are missing");
    Ok(())
}

/// Keeps S-02: Rule 8. Rows of logged objects may be lost if they were written after the requested
/// time. After a loss shown by the stamps, all objects are read.
#[tokio::test(flavor = "multi_thread")]
async fn recovery_rereads_the_log_from_half_an_hour_before() -> Result<()> {
    let all = ["before", "edge", "within", "later"];
    let redis = Server::start(&[]).await;
    let lost_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    for (is_noticed, asked, there) in [
        (true, lost_at + 40 * MINUTE, &all[..]),
        (false, lost_at, &all[1..]),
        (false, lost_at - MINUTE, &all),
        (false, lost_at + 20 * MINUTE, &all[3..]),
    ] {
        let shown = || format!("noticed: {is_noticed}, {asked:?}");
        redis.ask(&["FLUSHALL"]).await;
        let store = dl_store::open("memory:").await?;
        let now = lost_at - Duration::from_secs(20 * 60);
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(now));
        let meta = Redis::open(&redis.url(), RedisOptions::default(), clock).await?;
        let (_server, client) = serve(&store, Arc::new(meta), now).await?;
        let dataset = client.create("ds").await?;
        put(&client, dataset, lost_at).await?;
        ensure!(
            client.files(dataset).await? == files(&all),
            "all files are readable before the loss"
        );
        let rows =
            "for _, key in ipairs(redis.call('KEYS', 'dl:*:d:*')) do redis.call('DEL', key) end";
        redis.ask(&["EVAL", rows, "0"]).await;
        if is_noticed {
            // The state after a restart of Redis.
            let stamps = "for _, key in ipairs(redis.call('KEYS', 'dl:*:mark')) do
                    redis.call('HSET', key, 'run', 'other:other')
                end";
            redis.ask(&["EVAL", stamps, "0"]).await;
        }
        recover_since(&client, asked).await.with_context(shown)?;
        ensure!(client.files(dataset).await? == files(there), "{}", shown());
        client.recover().await?;
        ensure!(client.files(dataset).await? == files(&all), "without a time, {}", shown());
    }
    Ok(())
}

fn files(paths: &[&str]) -> Files {
    paths.iter().map(|path| (path.as_bytes().to_vec(), path.as_bytes().to_vec())).collect()
}

/// Runs `recover --since` and returns its last progress.
async fn recover_since(client: &Wire, time: SystemTime) -> Result<RecoverProgress> {
    let request = RecoverRequest { dataset: None, since: Some(Stamp::at(time)) };
    let mut steps = client.stub().recover(pb::RecoverRequest::from(request)).await?.into_inner();
    let mut last = None;
    while let Some(step) = steps.message().await? {
        last = Some(step);
    }
    last.ok_or_else(|| anyhow::anyhow!("recover reports no progress"))
}

/// A server with a fixed clock at `now`.
async fn serve(
    store: &Arc<dyn Store>,
    meta: Arc<dyn MetaStore>,
    now: SystemTime,
) -> Result<(Running, Wire)> {
    let context = context(Arc::clone(store), meta);
    let context = ServerContext { clock: Arc::new(ManualClock::new(now)), ..context };
    prepare(&context, Stop::Fresh).await?;
    let server = Running::start(context).await?;
    let client = Wire::connect(server.address()).await?;
    Ok((server, client))
}

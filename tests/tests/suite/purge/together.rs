//! Purges beside writers, deletes and each other, through two servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::Server;
use dl_meta::{Memory, MetaStore, Redis, RedisOptions, Stop};
use dl_runtime::{Clock, ManualClock};
use dl_store::Store;
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::wire::Wire;

use super::scene::{
    HOUR, NAME, Writer, check, check_files, data, new_clock, purge_all, serve, stored,
};

/// How much faster time goes by: a purge of less than a second and a half acts on what it saw in
/// less than five minutes.
const FASTER: u32 = 200;
/// Objects that the purges remove at least while others write.
const REMOVED: u64 = 10;
const PAUSE: Duration = Duration::from_millis(30);

/// One of several writers: only it writes below its folder.
async fn write(
    client: Wire,
    clock: Arc<ManualClock>,
    origin: u8,
    removed: Arc<AtomicU64>,
) -> Result<Writer> {
    let dice = Dice::new(u64::from(origin));
    let mut writer = Writer::create(&client, origin).await?;
    let (until, mut step) = (clock.now() + HOUR + HOUR / 6, 0);
    // On a busy machine the purges need longer before there is something to compare.
    let is_enough = || removed.load(Ordering::Relaxed) > REMOVED;
    while clock.now() < until || (!is_enough() && clock.now() < until + 3 * HOUR) {
        step += 1;
        let count = 1 + dice.below(8);
        let files: Vec<_> = (0..count)
            .map(|n| {
                (format!("{origin}/{}", dice.below(25)), data(step * 31 + n, dice.below(40_000)))
            })
            .collect();
        // Of one path, the last one holds.
        writer.put(&client, clock.now(), &files).await?;
        if dice.once_in(3) {
            let (prefix, digit) = (format!("{origin}/"), b'0' + dice.below(10) as u8);
            let is_wanted =
                |path: &[u8]| path.starts_with(prefix.as_bytes()) && path.ends_with(&[digit]);
            if writer.files.keys().any(|path| is_wanted(path)) {
                writer.delete(&client, clock.now(), is_wanted).await?;
            }
        }
        self::clock().sleep(PAUSE).await;
    }
    Ok(writer)
}

async fn purge(client: Wire, writers: Arc<()>, removed: Arc<AtomicU64>) -> Result<()> {
    while Arc::strong_count(&writers) > 3 {
        let done = client.purge(NAME, Duration::ZERO).await?;
        ensure!(done.problems.is_empty(), "{done:?}");
        removed.fetch_add(done.removed, Ordering::Relaxed);
        clock().sleep(PAUSE).await;
    }
    Ok(())
}

/// Time goes by for ids and stamps, so many times faster, and not for whoever waits.
async fn pass(time: Arc<ManualClock>) {
    let (real, began) = (clock(), time.now());
    loop {
        real.sleep(PAUSE).await;
        time.set(began + real.monotonic() * FASTER);
    }
}

async fn beside_each_other(store: &Arc<dyn Store>, meta: &Arc<dyn MetaStore>) -> Result<()> {
    let time = new_clock();
    let (_one, first) = serve(store, meta, &time, Stop::Fresh).await?;
    let (_two, second) = serve(store, meta, &time, Stop::Clean).await?;
    first.create(NAME).await?;
    let passing = tokio::spawn(pass(Arc::clone(&time)));
    // Held by both purges and by whoever still writes.
    let running = Arc::new(());
    let removed = Arc::new(AtomicU64::new(0));
    // First, at once: a purge ends when it sees no writers.
    let writers = [(&first, 1), (&second, 2)].map(|(client, origin)| {
        let (client, time, running) = (client.clone(), Arc::clone(&time), Arc::clone(&running));
        let removed = Arc::clone(&removed);
        tokio::spawn(async move {
            let _running = running;
            write(client, time, origin, removed).await
        })
    });
    let purges = [&first, &second].map(|client| {
        tokio::spawn(purge(client.clone(), Arc::clone(&running), Arc::clone(&removed)))
    });
    let mut all: Option<Writer> = None;
    for writer in writers {
        let writer = writer.await??;
        match &mut all {
            Some(all) => all.files.extend(writer.files),
            None => all = Some(writer),
        }
    }
    let writer = all.context("nobody wrote")?;
    for purge in purges {
        purge.await??;
    }
    passing.abort();
    let removed = removed.load(Ordering::Relaxed);
    ensure!(removed > REMOVED, "only {removed} were removed beside the writers");
    // What one purge was about to remove the other one may have found and adopted: the next one
    // sees that it is gone.
    check_files(store, &second, &time, &writer).await.context("when all is quiet")?;
    time.advance(HOUR);
    purge_all(&first, &time).await?;
    check(store, &second, &time, &writer).await.context("purged")?;
    ensure!(first.verify(NAME, true).await?.is_empty(), "verify finds something");
    let [_, tombstones, bytes] = stored(store, writer.dataset).await?;
    let live: usize = writer.files.values().map(Vec::len).sum();
    ensure!(tombstones == 0, "{tombstones} tombstones");
    ensure!(bytes * 7 < live as u64 * 10 + 700_000, "{bytes} bytes for {live}");
    Ok(())
}

/// Keeps S-27, S-17 and S-19: Rule 4.
#[tokio::test(flavor = "multi_thread")]
async fn two_purges_beside_writers_and_deletes_lose_and_revive_nothing() -> Result<()> {
    let store = dl_store::open("memory:").await?;
    beside_each_other(&store, &(Arc::new(Memory::new()) as Arc<dyn MetaStore>)).await
}

/// Keeps S-27.
#[tokio::test(flavor = "multi_thread")]
async fn two_purges_beside_writers_lose_nothing_on_redis() -> Result<()> {
    let server = Server::start(&[]).await;
    let store = dl_store::open("memory:").await?;
    let meta = Redis::open(&server.url(), RedisOptions::default(), clock()).await?;
    beside_each_other(&store, &(Arc::new(meta) as Arc<dyn MetaStore>)).await
}

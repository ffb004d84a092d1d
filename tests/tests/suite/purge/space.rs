//! Freed space without other changes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::{Cluster, Server};
use dl_meta::{Embedded, EmbeddedOptions, Memory, MetaStore, Redis, RedisOptions, Stop};
use dl_runtime::Clock;
use dl_tests::cluster::clock;

use super::scene::{
    Fixture, GRACE, HOUR, NAME, SETTLED, Writer, check, history, new_clock, purge_all, serve,
    stored,
};

async fn gives_space_back(meta: Arc<dyn MetaStore>) -> Result<()> {
    let (store, time) = (dl_store::open("memory:").await?, new_clock());
    let (_server, client) = serve(&store, &meta, &time, Stop::Fresh).await?;
    let mut writer = history(&client, &time).await?;
    let before = stored(&store, writer.dataset).await?;
    check(&store, &client, &time, &writer).await.context("before")?;

    let first = client.purge(NAME, GRACE).await?;
    ensure!(first.rewritten > 1 && first.removed > 4 && first.waiting > 1, "{first:?}");
    check(&store, &client, &time, &writer).await.context("after one purge")?;
    // Readers with known places get their time.
    let during = stored(&store, writer.dataset).await?;
    ensure!(during[0] > 3, "{during:?} of {before:?}");
    let again = client.purge(NAME, GRACE).await?;
    ensure!((again.rewritten, again.waiting) == (0, first.waiting), "{first:?}, {again:?}");
    time.advance(GRACE + Duration::from_secs(1));
    let second = client.purge(NAME, GRACE).await?;
    ensure!(second.removed >= first.waiting && second.rewritten == 0, "{second:?}");
    check(&store, &client, &time, &writer).await.context("after the second")?;
    purge_all(&client, &time).await?;
    check(&store, &client, &time, &writer).await.context("at the end")?;
    let found = client.verify(NAME, true).await?;
    ensure!(found.iter().all(|one| one.problem.contains("a file and a folder")), "{found:?}");

    // A chunk and the large file: three parts and its last chunk.
    let [objects, tombstones, bytes] = stored(&store, writer.dataset).await?;
    let live: usize = writer.files.values().map(Vec::len).sum();
    ensure!((objects, tombstones) == (5, 0), "{objects} objects, {tombstones} tombstones");
    ensure!(bytes < live as u64 + 64_000, "{bytes} bytes for {live}");

    // Hidden files were kept, deleted files stay deleted, removed data stay removed.
    writer.delete(&client, time.now(), |path| path == b"h/i").await?;
    writer.files.insert(b"h".to_vec(), b"hidden".to_vec());
    ensure!(client.files(writer.dataset).await? == writer.files, "the hidden file");
    writer.delete(&client, time.now(), |_| true).await?;
    time.advance(48 * HOUR);
    purge_all(&client, &time).await?;
    let left = stored(&store, writer.dataset).await?;
    ensure!(left == [0, 0, 0], "{left:?} of an empty dataset");
    check(&store, &client, &time, &writer).await.context("empty")
}

/// Keeps S-27, S-25, S-02 and S-51: Rule 4.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_gives_space_back_and_changes_no_file() -> Result<()> {
    gives_space_back(Arc::new(Memory::new())).await
}

/// Keeps S-27.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_gives_space_back_with_embedded_metadata() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = EmbeddedOptions { sync_interval: Duration::from_millis(5), ..Default::default() };
    let (meta, _) = Embedded::open(folder.path(), options, clock()).await?;
    gives_space_back(Arc::new(meta)).await
}

/// Keeps S-27: on a single Redis and on a cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_gives_space_back_with_metadata_in_redis() -> Result<()> {
    let (server, cluster) = (Server::start(&[]).await, Cluster::start(3, 0).await);
    for url in [server.url(), cluster.url()] {
        let meta = Redis::open(&url, RedisOptions::default(), clock()).await?;
        gives_space_back(Arc::new(meta)).await.with_context(|| url)?;
    }
    Ok(())
}

/// Keeps S-06: recent puts may be repeated.
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_possible_retries_stay() -> Result<()> {
    let scene = Fixture::empty().await?;
    let Fixture { client, time, writer: Writer { dataset, .. }, .. } = &scene;
    let dataset = *dataset;
    let mut ids = dl_format::ChunkIdMaker::new([9; 9]);
    let old = dl_tests::wire::chunk(ids.next(time.now()), dataset, [(&b"a"[..], &b"old"[..])])?;
    let new = dl_tests::wire::chunk(ids.next(time.now()), dataset, [(&b"a"[..], &b"new"[..])])?;
    let stamp = client.put(dataset, &old).await?;
    client.put(dataset, &new).await?;
    time.advance(Duration::from_secs(14 * 60));
    let done = scene.purge().await?;
    ensure!((done.removed, done.waiting) == (0, 1), "{done:?}");
    ensure!(client.put(dataset, &old).await? == stamp, "the same answer");
    ensure!(client.files(dataset).await?.get(&b"a"[..]).is_some_and(|a| a == b"new"), "revived");
    time.advance(SETTLED);
    let done = scene.purge().await?;
    ensure!(done.removed == 1, "{done:?}");
    ensure!(client.put(dataset, &old).await.is_err(), "a late put was accepted");
    Ok(())
}

/// Keeps S-13: the parts of a running upload stay, even for days.
#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_running_upload_stay() -> Result<()> {
    let mut scene = Fixture::empty().await?;
    for days in 0..3u8 {
        scene.writer.put_part(&scene.client, scene.time.now(), &[days; 1_000]).await?;
        let done = scene.purge().await?;
        ensure!(done.removed == 0, "day {days}: {done:?}");
        scene.time.advance(20 * HOUR);
    }
    ensure!(scene.purge().await?.removed == 0, "20 hours after the last");
    scene.time.advance(5 * HOUR);
    let done = scene.purge().await?;
    ensure!(done.removed == 3, "a day after the last sign of it: {done:?}");
    scene.check().await
}

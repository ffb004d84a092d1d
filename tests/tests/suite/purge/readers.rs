//! Readers with places from before a purge.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::{Memory, MetaStore, Stop};
use dl_runtime::Clock;
use dl_runtime::ManualClock;
use dl_tests::cluster::Cluster;
use dl_tests::wire::Wire;
use libdiesel::{ReadItem, ShuffleOptions, SnapshotCache};

use super::scene::{NAME, SETTLED, Writer, data, new_clock, serve};

/// A dataset with half of its files deleted, old enough for a purge.
async fn half_deleted(client: &Wire, clock: &ManualClock) -> Result<Writer> {
    let mut writer = Writer::create(client, 9).await?;
    let files: Vec<_> = (0..20).map(|n| (format!("{n:02}"), data(n, 20_000))).collect();
    writer.put(client, clock.now(), &files).await?;
    writer.delete(client, clock.now(), |path| path.starts_with(b"0")).await?;
    clock.advance(SETTLED);
    Ok(writer)
}

/// Keeps S-28: libdiesel looks a file up again if a purge removed its chunk after the listing.
#[test]
fn libdiesel_reads_files_listed_before_a_purge() -> Result<()> {
    let mut cluster = Cluster::new()?;
    let time = new_clock();
    let store = cluster.run(dl_store::open("memory:"))?;
    let meta: Arc<dyn MetaStore> = Arc::new(Memory::new());
    let (writer, listed) = cluster.run(async {
        let (_server, client) = serve(&store, &meta, &time, Stop::Fresh).await?;
        let writer = half_deleted(&client, &time).await?;
        let listed = client.list(writer.dataset).await?;
        for _ in 0..2 {
            let done = client.purge(NAME, Duration::ZERO).await?;
            ensure!(done.problems.is_empty(), "{done:?}");
        }
        anyhow::Ok((writer, listed))
    })?;
    cluster.start(&dl_tests::cluster::parts(store, meta), 1)?;
    let dataset = cluster.client()?.dataset(&NAME.parse()?)?;
    let items: Vec<ReadItem> = listed.iter().cloned().map(ReadItem::from).collect();
    let mut read = 0;
    let mut wrong = Vec::new();
    dataset.read_files(items.clone(), &mut |number, file| {
        let (path, before) = &listed[number];
        match file {
            Ok(bytes) if writer.files.get(path.as_bytes()).is_some_and(|f| f == bytes) => {
                read += 1;
            }
            other => wrong.push(format!("{path} of {before:?}: {other:?}")),
        }
    });
    ensure!(wrong.is_empty() && read == writer.files.len(), "{read}, {wrong:?}");
    let mut bytes = Vec::new();
    let (first, _) = listed.first().context("nothing is listed")?;
    dataset.read_to(items[0].clone(), &mut bytes)?;
    ensure!(writer.files.get(first.as_bytes()) == Some(&bytes), "read to a writer");
    Ok(())
}

/// Keeps S-28, S-44 and S-70: an epoch continues across a purge.
#[test]
fn an_epoch_across_a_purge_names_only_deleted_files() -> Result<()> {
    let mut cluster = Cluster::new()?;
    let time = new_clock();
    let store = cluster.run(dl_store::open("memory:"))?;
    let meta: Arc<dyn MetaStore> = Arc::new(Memory::new());
    let (server, client, mut writer) = cluster.run(async {
        let (server, client) = serve(&store, &meta, &time, Stop::Fresh).await?;
        let mut writer = Writer::create(&client, 9).await?;
        for chunk in 0..12_usize {
            let file = |n: usize| (format!("{n}/{chunk:02}"), data(chunk * 7 + n, 20_000));
            let files: Vec<_> = (0..10_usize).map(file).collect();
            writer.put(&client, time.now(), &files).await?;
        }
        anyhow::Ok((server, client, writer))
    })?;
    cluster.start(&dl_tests::cluster::parts(store, meta), 1)?;
    let folder = tempfile::tempdir()?;
    let cache = SnapshotCache::new(folder.path(), 1 << 30);
    let dataset = cluster.client()?.dataset(&NAME.parse()?)?.with_snapshot(&cache)?;
    let before = writer.files.clone();
    let epoch = dataset.shuffle(ShuffleOptions::new(1, 0, 1))?;
    let first = epoch.next()?.context("there are files")?;
    let bytes = first.bytes?;
    ensure!(before.get(first.path.as_bytes()).is_some_and(|put| *put == bytes), "the first");
    cluster.run(async {
        writer.delete(&client, time.now(), |path| path < b"6".as_slice()).await?;
        for _ in 0..2 {
            time.advance(SETTLED);
            let done = client.purge(NAME, Duration::ZERO).await?;
            ensure!(done.problems.is_empty(), "{done:?}");
        }
        Ok(())
    })?;
    let (mut read, mut gone) = (1, 0);
    while let Some(file) = epoch.next()? {
        let path = file.path.as_bytes();
        match file.bytes {
            Ok(bytes) => {
                ensure!(before.get(path).is_some_and(|put| *put == bytes), "{}", file.path);
                read += 1;
            }
            Err(error) => {
                ensure!(!writer.files.contains_key(path), "{}: {error:?}", file.path);
                let why = std::error::Error::source(&error).context("a reason")?.to_string();
                ensure!(why.contains("the snapshot is stale"), "{error}: {why}");
                gone += 1;
            }
        }
    }
    ensure!(read + gone == before.len(), "{read} and {gone}");
    ensure!(gone > 30, "{gone} were gone, so nothing was purged in time");
    drop(server);
    Ok(())
}

//! Readers with places from before a purge.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use dl_tests::cluster::{Cluster, context};
use libdiesel::{ReadItem, ShuffleOptions, SnapshotCache};

use super::scene::{Fixture, NAME, data};

/// Keeps S-28: libdiesel looks a file up again if a purge removed its chunk after the listing.
#[test]
fn libdiesel_reads_files_listed_before_a_purge() -> Result<()> {
    let mut cluster = Cluster::new()?;
    let mut scene = cluster.run(Fixture::empty())?;
    let listed = cluster.run(async {
        let file = |n| (format!("{n:02}"), data(n, 20_000));
        scene.put(&(0..20).map(file).collect::<Vec<_>>()).await?;
        scene.delete(|path| path.starts_with(b"0")).await?;
        let listed = scene.client.list(scene.writer.dataset).await?;
        scene.purge_settled().await?;
        anyhow::Ok(listed)
    })?;
    cluster.start(&context(Arc::clone(&scene.store), Arc::clone(&scene.meta)), 1)?;
    let dataset = cluster.client()?.dataset(&NAME.parse()?)?;
    let writer = &scene.writer;
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
    let mut scene = cluster.run(Fixture::empty())?;
    for chunk in 0..12_usize {
        let file = |n: usize| (format!("{n}/{chunk:02}"), data(chunk * 7 + n, 20_000));
        cluster.run(scene.put(&(0..10).map(file).collect::<Vec<_>>()))?;
    }
    cluster.start(&context(Arc::clone(&scene.store), Arc::clone(&scene.meta)), 1)?;
    let folder = tempfile::tempdir()?;
    let cache = SnapshotCache::new(folder.path(), 1 << 30);
    let dataset = cluster.client()?.dataset(&NAME.parse()?)?.with_snapshot(&cache)?;
    let before = scene.writer.files.clone();
    let epoch = dataset.shuffle(ShuffleOptions::new(1, 0, 1))?;
    let first = epoch.next()?.context("there are files")?;
    let bytes = first.bytes?;
    ensure!(before.get(first.path.as_bytes()).is_some_and(|put| *put == bytes), "the first");
    cluster.run(scene.delete(|path| path < b"6".as_slice()))?;
    cluster.run(scene.purge_settled())?;
    let (mut read, mut gone) = (1, 0);
    while let Some(file) = epoch.next()? {
        let path = file.path.as_bytes();
        match file.bytes {
            Ok(bytes) => {
                ensure!(before.get(path).is_some_and(|put| *put == bytes), "{}", file.path);
                read += 1;
            }
            Err(error) => {
                ensure!(!scene.writer.files.contains_key(path), "{}: {error:?}", file.path);
                let why = std::error::Error::source(&error).context("a reason")?.to_string();
                ensure!(why.contains("the snapshot is stale"), "{error}: {why}");
                gone += 1;
            }
        }
    }
    ensure!(read + gone == before.len(), "{read} and {gone}");
    ensure!(gone > 30, "{gone} were gone, so nothing was purged in time");
    Ok(())
}

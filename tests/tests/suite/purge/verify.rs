//! Findings of verify, and purges of damaged datasets.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use dl_format::{ChunkId, ObjectKind, object_key};
use dl_meta::{Memory, MetaStore, Stop};
use dl_runtime::Clock;
use dl_store::{Key, StoreExt};

use super::scene::{Fixture, GRACE, NAME, SETTLED, data, serve};

/// Two chunks, and a tombstone for a file of the first chunk.
async fn scene() -> Result<Fixture> {
    let mut scene = Fixture::with_two_chunks().await?;
    scene.delete(|path| path.ends_with(b"/0")).await?;
    scene.time.advance(SETTLED);
    Ok(scene)
}

impl Fixture {
    /// The chunk of a file.
    async fn chunk_of(&self, path: &str) -> Result<ChunkId> {
        let listed = self.client.list(self.writer.dataset).await?;
        let found = listed.into_iter().find(|(listed, _)| listed.as_bytes() == path.as_bytes());
        Ok(found.context("the file is not listed")?.1.holder.chunk)
    }

    fn key(&self, chunk: ChunkId) -> Result<Key> {
        Ok(Key::new(object_key(self.writer.dataset, chunk, ObjectKind::Chunk))?)
    }

    /// Checks that all files are there and that verify finds nothing.
    async fn check_healthy(&self) -> Result<()> {
        ensure!(self.verify(true).await?.is_empty(), "{:?}", self.verify(true).await?);
        ensure!(self.client.files(self.writer.dataset).await? == self.writer.files, "other files");
        Ok(())
    }
}

/// Keeps S-29 and S-14.
#[tokio::test(flavor = "multi_thread")]
async fn losses_and_damage_are_reported_with_their_files() -> Result<()> {
    let scene = scene().await?;
    scene.check_healthy().await?;
    let (first, second) = (scene.chunk_of("a/1").await?, scene.chunk_of("b/1").await?);
    scene.damage(&scene.key(second)?, |length| length - 10).await?;
    ensure!(scene.verify(false).await?.is_empty(), "bytes are not read");
    let found = scene.verify(true).await?;
    ensure!(found.len() == 1 && found[0].contains("b/8 is damaged"), "{found:?}");
    ensure!(found[0].contains("dlcmd put --checksum"), "{found:?}");
    scene.damage(&scene.key(second)?, |_| 200).await?;
    let found = scene.verify(false).await?;
    ensure!(found.iter().any(|one| one.contains(&second.to_string())), "{found:?}");
    scene.store.delete(&scene.key(first)?).await?;
    let found = scene.verify(false).await?;
    let is_lost = |one: &&String, of: &str| one.contains("is lost") && one.contains(of);
    let lost = ["a/", "b/"].map(|of| found.iter().filter(|one| is_lost(one, of)).count());
    ensure!(lost == [8, 8], "{found:?}");
    Ok(())
}

/// Keeps S-29: the printed remedies work.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_over_after_a_new_put_and_a_purge() -> Result<()> {
    let mut scene = scene().await?;
    let (short, damaged) = (scene.chunk_of("a/1").await?, scene.chunk_of("b/1").await?);
    scene.damage(&scene.key(damaged)?, |_| 200).await?;
    let key = scene.key(short)?;
    let bytes = scene.store.read_all(&key).await?;
    scene.store.delete(&key).await?;
    scene.store.create(&key, bytes.slice(..bytes.len() - 1)).await?;
    let found = scene.verify(false).await?;
    ensure!(found.iter().any(|one| one.contains("cut short")), "{found:?}");
    ensure!(found.iter().filter(|one| one.contains("put --checksum")).count() == 16, "{found:?}");
    for folder in ["a", "b"] {
        let file = |n: usize| (format!("{folder}/{n}"), data(n + 1, 50_000));
        scene.put(&(1..9).map(file).collect::<Vec<_>>()).await?;
    }
    let found = scene.verify(true).await?;
    ensure!(found.len() == 2, "{found:?}");
    ensure!(found.iter().all(|one| one.contains("no file needs it: restore")), "{found:?}");
    for chunk in [short, damaged] {
        scene.store.delete(&scene.key(chunk)?).await?;
    }
    scene.time.advance(SETTLED);
    scene.purge().await?;
    scene.check_healthy().await
}

/// Keeps S-29 and S-20: the metadata lack an object, or have rows without chunks.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_metadata_are_found() -> Result<()> {
    let mut scene = scene().await?;
    // Another server with its own metadata takes a file unknown to the first metadata.
    let other: Arc<dyn MetaStore> = Arc::new(Memory::new());
    {
        let (_server, client) = serve(&scene.store, &other, &scene.time, Stop::Fresh).await?;
        client.recover().await?;
        let file = ("c".to_owned(), b"unknown".to_vec());
        scene.writer.put(&client, scene.time.now(), &[file]).await?;
    }
    let found = scene.verify(false).await?;
    ensure!(found.len() == 1 && found[0].contains("1 objects"), "{found:?}");
    ensure!(found[0].contains("dlcmd recover dl://ds"), "{found:?}");
    // A purge adopts the object, as a recovery does.
    scene.client.purge(NAME, GRACE).await?;
    scene.check_healthy().await?;

    // Simulates a metadata store that has dropped an object without reason.
    let chunk = scene.chunk_of("c").await?;
    scene.store.delete(&scene.key(chunk)?).await?;
    let found = scene.verify(false).await?;
    ensure!(found.len() == 1 && found[0].contains("c is lost"), "{found:?}");
    let purged = scene.client.purge(NAME, GRACE).await?;
    ensure!(purged.problems.iter().any(|one| one.contains("verify")), "{purged:?}");
    ensure!(scene.meta.objects(scene.writer.dataset, chunk.before(), 1).await?.len() == 1, "kept");
    Ok(())
}

/// Keeps S-14 and S-27.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_refuses_a_damaged_file_until_a_new_put() -> Result<()> {
    let mut scene = scene().await?;
    let chunk = scene.chunk_of("a/8").await?;
    scene.delete(|path| path < &b"a/6"[..]).await?;
    scene.damage(&scene.key(chunk)?, |length| length - 10).await?;
    scene.time.advance(SETTLED);
    for _ in 0..2 {
        let purged = scene.purge().await?;
        let [problem] = purged.problems.as_slice() else { anyhow::bail!("{purged:?}") };
        let told = ["a/8 is damaged", "run `dlcmd verify --checksums dl://ds`"];
        ensure!(told.iter().all(|told| problem.contains(told)), "{problem}");
        ensure!(purged.written + purged.removed == 0, "{purged:?}");
    }
    ensure!(scene.chunk_of("a/8").await? == chunk, "the damaged file was moved");
    scene.put(&[("a/8".to_owned(), data(9, 50_000))]).await?;
    let purged = scene.purge().await?;
    ensure!(purged.problems.is_empty() && purged.rewritten > 0, "{purged:?}");
    ensure!(scene.chunk_of("a/7").await? != chunk, "the other files were not moved");
    ensure!(scene.client.files(scene.writer.dataset).await? == scene.writer.files, "other files");
    Ok(())
}

/// Keeps S-14 and S-54: an unreadable chunk may hold versions hidden only by a deleted file.
#[tokio::test(flavor = "multi_thread")]
async fn beside_a_damaged_header_deleted_files_are_kept_deleted() -> Result<()> {
    let mut scene = scene().await?;
    let chunk = scene.chunk_of("b/1").await?;
    scene.delete(|path| path.starts_with(b"a/")).await?;
    scene.damage(&scene.key(chunk)?, |_| 200).await?;
    scene.time.advance(SETTLED);
    for _ in 0..2 {
        let purged = scene.purge().await?;
        ensure!(purged.removed == 0, "{purged:?}");
        ensure!(purged.problems.iter().any(|one| one.contains(&chunk.to_string())), "{purged:?}");
    }
    scene.damage(&scene.key(chunk)?, |_| 200).await?;
    scene.purge_settled().await?;
    scene.check_healthy().await
}

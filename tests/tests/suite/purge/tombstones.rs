//! Lost or damaged objects that keep files deleted: verify names the files, and a purge refuses the
//! dataset until a repair.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use dl_store::{Key, StoreExt};

use super::scene::{Fixture, GRACE, NAME, data};

/// Two chunks; a purge has copied one of them from a third chunk.
async fn scene() -> Result<Fixture> {
    let mut scene = Fixture::with_two_chunks().await?;
    scene.delete(|path| path < &b"a/5"[..]).await?;
    scene.purge_settled().await?;
    ensure!(scene.keys(".t").await?.is_empty(), "tombstones are left");
    Ok(scene)
}

impl Fixture {
    /// The keys of the dataset's objects with this ending.
    async fn keys(&self, end: &str) -> Result<Vec<Key>> {
        let of_dataset = dl_store::Prefix::new(self.writer.dataset.to_string())?;
        let keys = self.store.list_sorted(&of_dataset).await?.into_iter().map(|object| object.key);
        Ok(keys.filter(|key| key.as_str().ends_with(end)).collect())
    }

    /// Deletes `a/8` and `b/8`; returns the tombstone.
    async fn delete_8(&mut self) -> Result<Key> {
        let before = self.keys(".t").await?;
        self.delete(|path| path.ends_with(b"/8")).await?;
        let after = self.keys(".t").await?;
        after.into_iter().find(|key| !before.contains(key)).context("no tombstone")
    }

    /// Puts files; returns their chunk.
    async fn put_chunk(&mut self, files: &[(String, Vec<u8>)]) -> Result<Key> {
        let before = self.keys(".c").await?;
        self.put(files).await?;
        let after = self.keys(".c").await?;
        after.into_iter().find(|key| !before.contains(key)).context("no chunk")
    }

    /// Overwrites a file of each chunk.
    async fn put_newer(&mut self) -> Result<Key> {
        self.put_chunk(&["a/8", "b/8"].map(|path| (path.to_owned(), data(77, 9)))).await
    }
}

/// The lost object: a tombstone, or a newer, deleted version; missing or damaged.
const LOSSES: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

impl Fixture {
    /// Loses the object that keeps `a/8` and `b/8` deleted; returns its key and its bytes.
    async fn lose(&mut self, is_chunk: bool, is_damaged: bool) -> Result<(Key, Bytes)> {
        let newer = if is_chunk { Some(self.put_newer().await?) } else { None };
        let tombstone = self.delete_8().await?;
        let lost = newer.unwrap_or(tombstone);
        let bytes = self.store.read_all(&lost).await?;
        match is_damaged {
            true => self.damage(&lost, |_| 200).await?,
            false => self.store.delete(&lost).await?,
        }
        Ok((lost, bytes))
    }

    /// Checks that a purge changes nothing and asks for a verify.
    async fn check_refused(&self) -> Result<()> {
        let purged = self.purge().await?;
        let [problem] = purged.problems.as_slice() else { anyhow::bail!("{purged:?}") };
        ensure!(problem.contains("run `dlcmd verify dl://ds`"), "{problem}");
        ensure!(purged.rewritten + purged.written + purged.removed == 0, "{purged:?}");
        Ok(())
    }

    /// Checks that purge and verify find nothing, and that the files equal rebuilt metadata.
    async fn check_repaired(&self) -> Result<()> {
        let purged = self.client.purge(NAME, GRACE).await?;
        ensure!(purged.problems.is_empty(), "{purged:?}");
        ensure!(self.verify(true).await?.is_empty(), "{:?}", self.verify(true).await?);
        self.check().await
    }
}

/// Keeps S-27 and S-29: verify names the files that may return.
#[tokio::test(flavor = "multi_thread")]
async fn restoring_the_object_repairs_a_lost_deletion() -> Result<()> {
    for (is_chunk, is_damaged) in LOSSES {
        let mut scene = scene().await?;
        let (lost, bytes) = scene.lose(is_chunk, is_damaged).await?;
        let found = scene.verify(true).await?;
        let told = |text: &str| found.iter().filter(|one| one.contains(text)).count();
        ensure!(
            told("/8 of chunk") == 2 && told("delete it if it is to be gone") == 2,
            "{found:?}"
        );
        ensure!(told("no file needs it: restore the object; or mend") == 1, "{found:?}");
        scene.check_refused().await?;
        if is_damaged {
            scene.store.delete(&lost).await?;
        }
        scene.store.create(&lost, bytes).await?;
        scene.check_repaired().await?;
    }
    Ok(())
}

/// Keeps S-27, S-29 and S-02: the other printed remedy, without a copy of the object.
#[tokio::test(flavor = "multi_thread")]
async fn deleting_the_files_again_repairs_a_lost_deletion() -> Result<()> {
    for (is_chunk, is_damaged) in LOSSES {
        let mut scene = scene().await?;
        let (lost, _) = scene.lose(is_chunk, is_damaged).await?;
        scene.check_refused().await?;
        scene.put_newer().await?;
        scene.delete_8().await?;
        let found = scene.verify(true).await?;
        let [found] = found.as_slice() else { anyhow::bail!("{found:?}") };
        ensure!(found.contains("run `dlcmd purge dl://ds`") && !found.contains("mend"), "{found}");
        if is_damaged {
            scene.check_refused().await?;
            ensure!(found.contains("remove it from the chunk store"), "{found}");
            scene.store.delete(&lost).await?;
        }
        scene.check_repaired().await?;
        scene.purge_settled().await?;
        scene.check_repaired().await?;
    }
    Ok(())
}

/// Keeps S-27, S-29 and S-02: the metadata know that all files of the restored chunk are deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_refuses_a_restored_purged_chunk() -> Result<()> {
    let mut scene = scene().await?;
    let more = [("c/1".to_owned(), data(1, 60_000)), ("c/2".to_owned(), data(2, 60_000))];
    let chunk = scene.put_chunk(&more).await?;
    let bytes = scene.store.read_all(&chunk).await?;
    scene.delete(|path| path.starts_with(b"c/")).await?;
    scene.purge_settled().await?;
    ensure!(!scene.keys(".c").await?.contains(&chunk), "the chunk is still there");
    scene.store.create(&chunk, bytes).await?;
    scene.client.recover().await?;
    let found = scene.verify(true).await?;
    let is_named = |one: &&String| one.contains("c/") && one.contains("is not in the metadata");
    ensure!(found.iter().filter(is_named).count() == 2, "{found:?}");
    scene.check_refused().await?;
    scene.put(&more).await?;
    scene.delete(|path| path.starts_with(b"c/")).await?;
    scene.check_repaired().await
}

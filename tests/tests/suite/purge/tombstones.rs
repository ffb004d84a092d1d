//! Tombstones that are lost or damaged: verify tells what that costs, a purge deletes again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_format::{ObjectKind, object_key};
use dl_meta::{Memory, MetaStore, Stop};
use dl_runtime::{Clock, ManualClock};
use dl_store::{Key, Store, StoreExt};
use dl_tests::cluster::Running;
use dl_tests::wire::Wire;

use super::scene::{GRACE, NAME, SETTLED, Writer, check, check_files, data, new_clock, serve};

struct Scene {
    store: Arc<dyn Store>,
    time: Arc<ManualClock>,
    _server: Running,
    client: Wire,
    writer: Writer,
}

/// Two chunks; a purge has copied one of them from a third chunk.
async fn scene() -> Result<Scene> {
    let (store, time) = (dl_store::open("memory:").await?, new_clock());
    let meta: Arc<dyn MetaStore> = Arc::new(Memory::new());
    let (server, client) = serve(&store, &meta, &time, Stop::Fresh).await?;
    let mut writer = Writer::create(&client, 9).await?;
    for folder in ["a", "b"] {
        let file = |n| (format!("{folder}/{n}"), data(n, 50_000));
        let files: Vec<_> = (0..9).map(file).collect();
        writer.put(&client, time.now(), &files).await?;
    }
    writer.delete(&client, time.now(), |path| path < &b"a/5"[..]).await?;
    for _ in 0..4 {
        time.advance(SETTLED);
        client.purge(NAME, Duration::ZERO).await?;
    }
    let scene = Scene { store, time, _server: server, client, writer };
    ensure!(scene.tombstones().await?.is_empty(), "nothing is deleted any more");
    Ok(scene)
}

impl Scene {
    async fn tombstones(&self) -> Result<Vec<Key>> {
        self.keys(".t").await
    }

    async fn chunks(&self) -> Result<Vec<Key>> {
        self.keys(".c").await
    }

    async fn keys(&self, end: &str) -> Result<Vec<Key>> {
        let of_dataset = dl_store::Prefix::new(self.writer.dataset.to_string())?;
        let keys = self.store.list_sorted(&of_dataset).await?.into_iter().map(|object| object.key);
        Ok(keys.filter(|key| key.as_str().ends_with(end)).collect())
    }

    /// Deletes a file of each chunk; returns the tombstone.
    async fn delete(&mut self, end: &[u8]) -> Result<Key> {
        let (client, now) = (self.client.clone(), self.time.now());
        let before = self.tombstones().await?;
        self.writer.delete(&client, now, |path| path.ends_with(end)).await?;
        let after = self.tombstones().await?;
        after.into_iter().find(|key| !before.contains(key)).context("no tombstone")
    }

    /// Puts files; returns their chunk.
    async fn put(&mut self, files: &[(String, Vec<u8>)]) -> Result<Key> {
        let before = self.chunks().await?;
        self.writer.put(&self.client, self.time.now(), files).await?;
        let after = self.chunks().await?;
        after.into_iter().find(|key| !before.contains(key)).context("no chunk")
    }

    /// Overwrites a file of each chunk.
    async fn put_newer(&mut self) -> Result<Key> {
        self.put(&["a/8", "b/8"].map(|path| (path.to_owned(), data(77, 9)))).await
    }

    async fn damage(&self, key: &Key) -> Result<()> {
        let mut bytes = self.store.read_all(key).await?.to_vec();
        *bytes.get_mut(200).context("the object is too short")? ^= 1;
        self.store.delete(key).await?;
        Ok(self.store.create(key, bytes.into()).await?)
    }

    /// All findings of verify, as text.
    async fn verify(&self) -> Result<Vec<String>> {
        let found = self.client.verify(NAME, true).await?;
        Ok(found.into_iter().map(|one| format!("{}: {}", one.problem, one.remedy)).collect())
    }
}

/// Keeps S-29 and S-02: the remedy that is told mends, at once and for the metadata that come after.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_tombstone_deleted_is_deleted_again() -> Result<()> {
    let mut scene = scene().await?;
    let lost = scene.delete(b"/7").await?;
    scene.delete(b"/6").await?;
    scene.store.delete(&lost).await?;
    let found = scene.verify().await?;
    let [found] = found.as_slice() else { anyhow::bail!("{found:?}") };
    let told = ["2 deleted files come back", "run `dlcmd purge dl://ds`, which deletes them again"];
    ensure!(told.iter().all(|told| found.contains(told)), "{found}");
    let purged = scene.client.purge(NAME, GRACE).await?;
    ensure!(purged.problems.is_empty(), "{purged:?}");
    ensure!(scene.verify().await?.is_empty(), "{:?}", scene.verify().await?);
    check(&scene.store, &scene.client, &scene.time, &scene.writer).await?;
    for _ in 0..4 {
        scene.time.advance(SETTLED);
        scene.client.purge(NAME, Duration::ZERO).await?;
    }
    ensure!(scene.tombstones().await?.is_empty(), "tombstones are left");
    check(&scene.store, &scene.client, &scene.time, &scene.writer).await
}

/// Keeps S-29 and S-02: the damaged object is left to whoever may have a whole one.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_tombstone_is_needed_by_nothing_once_its_files_are_deleted_again() -> Result<()> {
    let mut scene = scene().await?;
    let damaged = scene.delete(b"/7").await?;
    scene.damage(&damaged).await?;
    let found = scene.verify().await?;
    let [found] = found.as_slice() else { anyhow::bail!("{found:?}") };
    let told = [damaged.as_str(), "2 deleted files come back", "which deletes them again"];
    ensure!(told.iter().all(|told| found.contains(told)), "{found}");
    let purged = scene.client.purge(NAME, GRACE).await?;
    ensure!(purged.problems.iter().all(|one| one.contains(damaged.as_str())), "{purged:?}");
    ensure!(scene.tombstones().await?.len() == 2, "another one says it now");
    let found = scene.verify().await?;
    let [found] = found.as_slice() else { anyhow::bail!("{found:?}") };
    ensure!(found.contains("no deleted file needs it: remove it from the chunk store"), "{found}");
    // Purged again, nothing is said twice.
    scene.client.purge(NAME, GRACE).await?;
    ensure!(scene.tombstones().await?.len() == 2, "once is enough");
    scene.store.delete(&damaged).await?;
    check_files(&scene.store, &scene.client, &scene.time, &scene.writer).await?;
    let purged = scene.client.purge(NAME, GRACE).await?;
    ensure!(purged.problems.is_empty(), "{purged:?}");
    ensure!(scene.verify().await?.is_empty(), "{:?}", scene.verify().await?);
    check(&scene.store, &scene.client, &scene.time, &scene.writer).await
}

/// Keeps S-29 and S-20: an object that the metadata lacks is adopted, and its file is not taken for deleted.
#[tokio::test(flavor = "multi_thread")]
async fn beside_a_lost_tombstone_what_the_metadata_lacks_is_adopted() -> Result<()> {
    let mut scene = scene().await?;
    let lost = scene.delete(b"/7").await?;
    scene.store.delete(&lost).await?;
    // Another server with metadata of its own takes a file that these know nothing of.
    let other: Arc<dyn MetaStore> = Arc::new(Memory::new());
    {
        let (_server, client) = serve(&scene.store, &other, &scene.time, Stop::Fresh).await?;
        client.recover().await?;
        let file = ("c".to_owned(), b"unknown".to_vec());
        scene.writer.put(&client, scene.time.now(), &[file]).await?;
    }
    let found = scene.verify().await?;
    ensure!(found.iter().any(|one| one.contains("1 objects in the chunk store")), "{found:?}");
    let purged = scene.client.purge(NAME, GRACE).await?;
    ensure!(purged.problems.is_empty(), "{purged:?}");
    ensure!(scene.verify().await?.is_empty(), "{:?}", scene.verify().await?);
    check(&scene.store, &scene.client, &scene.time, &scene.writer).await
}

/// Keeps S-29 and S-02: a chunk that can't be read may hold what the lost tombstone deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_tombstone_stays_in_the_log_as_long_as_a_chunk_cannot_be_read() -> Result<()> {
    let mut scene = scene().await?;
    let listed = scene.client.list(scene.writer.dataset).await?;
    let of_b = listed.iter().find(|(path, _)| path.as_bytes() == b"b/1").context("b/1")?;
    let held = of_b.1.holder.chunk;
    let chunk = Key::new(object_key(scene.writer.dataset, held, ObjectKind::Chunk))?;
    let (client, now) = (scene.client.clone(), scene.time.now());
    // All of that chunk's files, so that as many are left as can be read.
    let lies_there = |path: &[u8]| {
        let found = listed.iter().find(|(listed, _)| listed.as_bytes() == path);
        found.is_some_and(|(_, record)| record.holder.chunk == held)
    };
    scene.writer.delete(&client, now, lies_there).await?;
    let tombstones = scene.tombstones().await?;
    let [lost] = tombstones.as_slice() else { anyhow::bail!("{tombstones:?}") };
    scene.store.delete(lost).await?;
    scene.damage(&chunk).await?;
    for _ in 0..2 {
        let purged = scene.client.purge(NAME, Duration::ZERO).await?;
        let told = purged.problems.iter().any(|one| one.contains("is not in the store"));
        ensure!(told, "{purged:?}");
        scene.time.advance(SETTLED);
    }
    let found = scene.verify().await?;
    ensure!(found.iter().any(|one| one.contains("chunks can't be read")), "{found:?}");
    // A whole one from a copy.
    scene.damage(&chunk).await?;
    scene.client.purge(NAME, GRACE).await?;
    ensure!(scene.verify().await?.is_empty(), "{:?}", scene.verify().await?);
    check(&scene.store, &scene.client, &scene.time, &scene.writer).await
}

/// Keeps S-29 and S-02: what a lost chunk hid, and was deleted itself, stays deleted by what verify tells.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_chunk_hid_stays_deleted() -> Result<()> {
    for is_damaged in [false, true] {
        let mut scene = scene().await?;
        let lost = scene.put_newer().await?;
        scene.delete(b"/8").await?;
        match is_damaged {
            true => scene.damage(&lost).await?,
            false => scene.store.delete(&lost).await?,
        }
        let found = scene.verify().await?;
        let told = ["no file needs it", "2 deleted files come back"];
        let all_told = told.iter().all(|told| found.iter().any(|one| one.contains(told)));
        ensure!(all_told && found.len() == 2, "{found:?}");
        if is_damaged {
            scene.store.delete(&lost).await?;
        }
        let purged = scene.client.purge(NAME, GRACE).await?;
        ensure!(purged.problems.is_empty(), "{purged:?}");
        ensure!(scene.verify().await?.is_empty(), "{:?}", scene.verify().await?);
        check(&scene.store, &scene.client, &scene.time, &scene.writer).await?;
    }
    Ok(())
}

/// Keeps S-29 and S-02: while a chunk that it may have hidden files of can't be read, a lost one stays in
/// the log, as the last trace of that.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_chunk_hid_is_not_forgotten_while_it_cannot_be_read() -> Result<()> {
    let mut scene = scene().await?;
    let before = scene.chunks().await?;
    let lost = scene.put_newer().await?;
    scene.delete(b"/8").await?;
    scene.store.delete(&lost).await?;
    for key in &before {
        scene.damage(key).await?;
    }
    for _ in 0..2 {
        scene.client.purge(NAME, Duration::ZERO).await?;
        scene.time.advance(SETTLED);
    }
    let found = scene.verify().await?;
    let told = "no file needs it: mend what else is wrong, then run `dlcmd purge dl://ds`";
    ensure!(found.iter().any(|one| one.contains(told)), "{found:?}");
    // Whole ones from a copy.
    for key in &before {
        scene.damage(key).await?;
    }
    scene.client.purge(NAME, GRACE).await?;
    ensure!(scene.verify().await?.is_empty(), "{:?}", scene.verify().await?);
    check(&scene.store, &scene.client, &scene.time, &scene.writer).await
}

/// Keeps S-29 and S-02: of a purged chunk that somebody puts back what was deleted stays deleted.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_of_a_chunk_that_is_put_back_is_deleted_again() -> Result<()> {
    let mut scene = scene().await?;
    let (client, time) = (scene.client.clone(), Arc::clone(&scene.time));
    let more = [("c/1".to_owned(), data(1, 60_000)), ("c/2".to_owned(), data(2, 60_000))];
    let purged = scene.put(&more).await?;
    let bytes = scene.store.read_all(&purged).await?;
    scene.writer.delete(&client, time.now(), |path| path.starts_with(b"c/")).await?;
    for _ in 0..4 {
        time.advance(SETTLED);
        client.purge(NAME, Duration::ZERO).await?;
    }
    ensure!(scene.tombstones().await?.is_empty(), "tombstones are left");
    ensure!(!scene.chunks().await?.contains(&purged), "the chunk is gone");
    scene.store.create(&purged, bytes).await?;
    client.recover().await?;
    let found = scene.verify().await?;
    let told = "2 deleted files come back if the metadata is lost, as a chunk of theirs";
    ensure!(found.len() == 1 && found[0].contains(told), "{found:?}");
    let purged = client.purge(NAME, GRACE).await?;
    ensure!(purged.problems.is_empty(), "{purged:?}");
    ensure!(scene.verify().await?.is_empty(), "{:?}", scene.verify().await?);
    check(&scene.store, &client, &time, &scene.writer).await
}

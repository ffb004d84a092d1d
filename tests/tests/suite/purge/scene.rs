//! A dataset with all cases of a purge, and checks of the result.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use dl_format::{
    Attributes, ChunkIdMaker, ChunkWriter, DatasetId, Deletions, Extent, FilePath, Sealed,
};
use dl_meta::{Memory, MetaStore, Stop};
use dl_proto::PurgeProgress;
use dl_runtime::{Clock, ManualClock};
use dl_server::{ServerContext, prepare};
use dl_store::{Key, Store, StoreExt};
use dl_tests::cluster::{Running, context};
use dl_tests::wire::{Files, Wire, chunk, shape};

pub(super) const NAME: &str = "ds";
pub(super) const HOUR: Duration = Duration::from_secs(3_600);
/// More than the 70 minutes during which new data are left alone.
pub(super) const SETTLED: Duration = Duration::from_secs(75 * 60);
pub(super) const GRACE: Duration = Duration::from_secs(900);

/// The start of the history.
fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

/// The clock of the history.
pub(super) fn new_clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(start()))
}

/// A server over these stores.
pub(super) async fn serve(
    store: &Arc<dyn Store>,
    meta: &Arc<dyn MetaStore>,
    clock: &Arc<ManualClock>,
    stop: Stop,
) -> Result<(Running, Wire)> {
    let context = context(Arc::clone(store), Arc::clone(meta));
    let context = ServerContext { clock: Arc::<ManualClock>::clone(clock), ..context };
    prepare(&context, stop).await?;
    let server = Running::start(context).await?;
    let client = Wire::connect(server.address()).await?;
    Ok((server, client))
}

/// A writer of a dataset, and the expected files.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) dataset: DatasetId,
    ids: ChunkIdMaker,
    /// The visible files.
    pub(super) files: Files,
}

impl Writer {
    pub(super) async fn create(client: &Wire, origin: u8) -> Result<Self> {
        let dataset = client.create(NAME).await?;
        Ok(Self { dataset, ids: ChunkIdMaker::new([origin; 9]), files: Files::new() })
    }

    pub(super) async fn put(
        &mut self,
        client: &Wire,
        now: SystemTime,
        files: &[(String, Vec<u8>)],
    ) -> Result<()> {
        let context = files.iter().map(|(path, data)| (path.as_bytes(), data.as_slice()));
        let object = chunk(self.ids.next(now), self.dataset, context)?;
        client.put(self.dataset, &object).await?;
        let files = files.iter();
        self.files.extend(files.map(|(path, data)| (path.clone().into_bytes(), data.clone())));
        Ok(())
    }

    /// Puts a file in several parts; the last chunk holds 100 bytes.
    pub(super) async fn put_large(
        &mut self,
        client: &Wire,
        now: SystemTime,
        path: &str,
        data: &[u8],
    ) -> Result<()> {
        let (head, tail) = data.split_at(data.len() - 100);
        let mut extents: Vec<Extent> = Vec::new();
        for piece in head.chunks(200_000) {
            extents.push(self.put_part(client, now, piece).await?);
        }
        let mut writer = ChunkWriter::new(shape()?, Vec::new());
        writer.append_tail(&FilePath::new(path.to_owned())?, attributes(), extents, tail)?;
        let sealed = writer.seal(self.ids.next(now), self.dataset);
        client.put(self.dataset, sealed.as_slice()).await?;
        self.files.insert(path.as_bytes().to_vec(), data.to_vec());
        Ok(())
    }

    pub(super) async fn put_part(
        &mut self,
        client: &Wire,
        now: SystemTime,
        piece: &[u8],
    ) -> Result<Extent> {
        let (part, extent) = Sealed::part(shape()?, self.ids.next(now), self.dataset, piece)?;
        client.put(self.dataset, part.as_slice()).await?;
        Ok(extent)
    }

    pub(super) async fn delete(
        &mut self,
        client: &Wire,
        now: SystemTime,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<()> {
        let mut deletions = Deletions::default();
        for (path, record) in client.list(self.dataset).await? {
            if is_wanted(path.as_bytes()) {
                deletions.insert(&record.version);
            }
        }
        client.delete(self.dataset, self.ids.next(now), &deletions).await?;
        self.files.retain(|path, _| !is_wanted(path));
        Ok(())
    }
}

fn attributes() -> Attributes {
    Attributes { mode: 0o644, mtime: 1 }
}

/// Bytes that depend on the seed.
pub(super) fn data(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (seed.wrapping_mul(31) + at / 7) as u8).collect()
}

fn many(folder: &str, from: usize, count: usize) -> Vec<(String, Vec<u8>)> {
    let file = |n| (format!("{folder}/{n:02}"), data(n, 30_000 + n));
    (from..from + count).map(file).collect()
}

fn one(path: &str, bytes: &str) -> (String, Vec<u8>) {
    (path.to_owned(), bytes.as_bytes().to_vec())
}

/// Builds a history: overwritten and deleted files, deleted files that hide older versions, a file
/// hidden by a folder, live and deleted large files, and an abandoned upload. Then two days pass.
pub(super) async fn history(client: &Wire, clock: &ManualClock) -> Result<Writer> {
    let mut writer = Writer::create(client, 9).await?;
    let now = clock.now();
    let mut first = many("d", 0, 20);
    first.push(one("x", "first"));
    writer.put(client, now, &first).await?;
    let mut second = many("e", 0, 20);
    second.push(one("x", "second"));
    second.push(("empty".to_owned(), Vec::new()));
    writer.put(client, now, &second).await?;
    writer.put(client, now, &[one("x", "third")]).await?;
    writer.put_large(client, now, "large/dead", &data(1, 500_000)).await?;
    writer.put_large(client, now, "large/alive", &data(2, 500_000)).await?;
    writer.put_part(client, now, b"of an upload that ended").await?;
    writer.delete(client, now, |path| path == b"x").await?;
    writer.delete(client, now, |path| path == b"large/dead").await?;
    writer.delete(client, now, |path| path.starts_with(b"d/0")).await?;
    writer.delete(client, now, |path| path.starts_with(b"e/1")).await?;
    writer.put(client, now, &[one("d/11", "overwritten"), one("k", "kept")]).await?;
    writer.put(client, now, &[one("h", "hidden"), one("h/i", "in a folder")]).await?;
    // The folder hides the file in listings.
    writer.files.remove(&b"h"[..]);
    clock.advance(48 * HOUR);
    Ok(writer)
}

/// Builds a dataset of small chunks alone. Then two days pass.
pub(super) async fn small_chunks(client: &Wire, clock: &ManualClock) -> Result<Writer> {
    let mut writer = Writer::create(client, 9).await?;
    for number in 0..10 {
        writer.put(client, clock.now(), &many("s", number * 5, 5)).await?;
    }
    clock.advance(48 * HOUR);
    Ok(writer)
}

/// The stored chunks and parts, tombstones, and total bytes.
pub(super) async fn stored(store: &Arc<dyn Store>, dataset: DatasetId) -> Result<[u64; 3]> {
    let objects = store.list_sorted(&dl_store::Prefix::new(dataset.to_string())?).await?;
    let is_tombstone = |key: &Key| key.as_str().ends_with(".t");
    let tombstones = objects.iter().filter(|object| is_tombstone(&object.key)).count() as u64;
    let bytes = objects.iter().map(|object| object.size).sum();
    Ok([objects.len() as u64 - tombstones, tombstones, bytes])
}

/// Purges until nothing is left to do; the clock advances so that changes settle.
pub(super) async fn purge_all(client: &Wire, clock: &ManualClock) -> Result<()> {
    for _ in 0..12 {
        let done = client.purge(NAME, GRACE).await?;
        ensure!(done.problems.is_empty() && done.done, "{done:?}");
        clock.advance(SETTLED);
        if done.rewritten + done.removed + done.waiting == 0 {
            return Ok(());
        }
    }
    anyhow::bail!("purging comes to no end")
}

/// The counts of a dataset and its version.
type Version = (u64, u64, u64, bytes::Bytes);

/// Checks files and verify, and compares files and version with metadata rebuilt from the chunks.
pub(super) async fn check(
    store: &Arc<dyn Store>,
    client: &Wire,
    clock: &Arc<ManualClock>,
    writer: &Writer,
) -> Result<()> {
    let version = version(client).await?;
    let again = check_files(store, client, clock, writer).await?;
    ensure!(again == version, "rebuilt metadata have version {again:?}, not {version:?}");
    Ok(())
}

/// Checks the files with any version; returns the version of the rebuilt metadata. An interrupted
/// change may be in one of the versions only.
pub(super) async fn check_files(
    store: &Arc<dyn Store>,
    client: &Wire,
    clock: &Arc<ManualClock>,
    writer: &Writer,
) -> Result<Version> {
    ensure!(client.files(writer.dataset).await? == writer.files, "other files");
    let meta: Arc<dyn MetaStore> = Arc::new(Memory::new());
    let (_server, rebuilt) = serve(store, &meta, clock, Stop::Fresh).await?;
    rebuilt.recover().await?;
    let files = rebuilt.files(writer.dataset).await.context("rebuilt")?;
    ensure!(files == writer.files, "other files in rebuilt metadata");
    version(&rebuilt).await
}

async fn version(client: &Wire) -> Result<Version> {
    let request = dl_proto::pb::GetDatasetRequest { name: NAME.to_owned(), without_counts: false };
    let found = client.stub().get_dataset(request).await?.into_inner();
    Ok((found.objects, found.files, found.bytes, found.version))
}

/// A server over stores in memory, and a dataset.
pub(super) struct Fixture {
    pub(super) store: Arc<dyn Store>,
    pub(super) meta: Arc<dyn MetaStore>,
    pub(super) time: Arc<ManualClock>,
    pub(super) server: Running,
    pub(super) client: Wire,
    pub(super) writer: Writer,
}

impl Fixture {
    pub(super) async fn empty() -> Result<Self> {
        let (store, time) = (dl_store::open("memory:").await?, new_clock());
        let meta: Arc<dyn MetaStore> = Arc::new(Memory::new());
        let (server, client) = serve(&store, &meta, &time, Stop::Fresh).await?;
        let writer = Writer::create(&client, 9).await?;
        Ok(Self { store, meta, time, server, client, writer })
    }

    /// With a chunk of nine files below `a/` and another below `b/`.
    pub(super) async fn with_two_chunks() -> Result<Self> {
        let mut scene = Self::empty().await?;
        for folder in ["a", "b"] {
            let file = |n| (format!("{folder}/{n}"), data(n, 50_000));
            scene.put(&(0..9).map(file).collect::<Vec<_>>()).await?;
        }
        Ok(scene)
    }

    pub(super) async fn put(&mut self, files: &[(String, Vec<u8>)]) -> Result<()> {
        self.writer.put(&self.client, self.time.now(), files).await
    }

    pub(super) async fn delete(&mut self, is_wanted: impl Fn(&[u8]) -> bool) -> Result<()> {
        self.writer.delete(&self.client, self.time.now(), is_wanted).await
    }

    pub(super) async fn purge(&self) -> Result<PurgeProgress> {
        Ok(self.client.purge(NAME, Duration::ZERO).await?)
    }

    /// Purges four times, each time after the changes settled.
    pub(super) async fn purge_settled(&self) -> Result<()> {
        for _ in 0..4 {
            self.time.advance(SETTLED);
            let done = self.purge().await?;
            ensure!(done.problems.is_empty(), "{done:?}");
        }
        Ok(())
    }

    pub(super) async fn check(&self) -> Result<()> {
        check(&self.store, &self.client, &self.time, &self.writer).await
    }

    /// Changes the byte of an object at a position computed from its length.
    pub(super) async fn damage(&self, key: &Key, at: impl Fn(usize) -> usize) -> Result<()> {
        let mut bytes = self.store.read_all(key).await?.to_vec();
        let at = at(bytes.len());
        *bytes.get_mut(at).context("the object is too short")? ^= 1;
        self.store.delete(key).await?;
        Ok(self.store.create(key, bytes.into()).await?)
    }

    /// All findings of verify, as text.
    pub(super) async fn verify(&self, checksums: bool) -> Result<Vec<String>> {
        let found = self.client.verify(NAME, checksums).await?;
        Ok(found.into_iter().map(|one| format!("{}: {}", one.problem, one.remedy)).collect())
    }
}

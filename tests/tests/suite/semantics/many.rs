//! A dataset with so many objects that nobody may hold all of them in memory.

use std::fmt;
use std::fs::read_to_string;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use dl_format::{
    ChunkId, ChunkIdMaker, DatasetId, ObjectKind, Stamp, Verified, dataset_prefix, hash_byte,
    hash_prefix, object_key, parse_object_key,
};
use dl_meta::{Embedded, EmbeddedOptions, MetaStore};
use dl_runtime::{Clock, SystemClock};
use dl_store::{Error, Key, Kind, ObjectInfo, ObjectRange, Prefix, Store};
use dl_tests::wire::chunk;
use dl_tests::{rounds, tell};
use futures::stream::{self, BoxStream, StreamExt};

use super::serve_with;

/// What one transaction of the metadata store and what is in flight take, and 16 bytes for each
/// object.
const MOST: u64 = 128 << 20;

/// A chunk store in which a dataset has many objects, all alike and made when they are read.
#[derive(Debug)]
struct Many {
    inner: Arc<dyn Store>,
    dataset: OnceLock<DatasetId>,
    ids: Vec<ChunkId>,
    length: OnceLock<u64>,
}

impl Many {
    fn object(&self, id: ChunkId) -> Option<Bytes> {
        let path = format!("{id}");
        let dataset = *self.dataset.get()?;
        let sealed = chunk(id, dataset, [(path.as_bytes(), &b"x"[..])]).ok()?;
        let (_, object) = Verified::check(sealed).ok()?.commit(Stamp::new(7)).ok()?;
        Some(object.into())
    }
}

impl fmt::Display for Many {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "many objects over {}", self.inner)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Store for Many {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        self.inner.create(key, body).await
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        let mut read = Vec::new();
        for wanted in wanted {
            read.push(match parse_object_key(wanted.key.as_str()) {
                Some((_, id, _)) => {
                    let object = self.object(id);
                    object.ok_or_else(|| Error::new(Kind::Missing, "make object", &wanted.key))
                }
                None => {
                    let read = self.inner.read(std::slice::from_ref(wanted)).await;
                    read.into_iter().next().expect("one for each")
                }
            });
        }
        read
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.inner.delete(key).await
    }

    async fn settle(&self, _keys: &[Key]) -> Result<(), Error> {
        Ok(())
    }

    async fn prune(&self, prefix: &Prefix) -> Result<(), Error> {
        self.inner.prune(prefix).await
    }

    fn invalidate(&self, key: &Key) {
        self.inner.invalidate(key);
    }

    fn will_read(&self, key: &Key) {
        self.inner.will_read(key);
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>> {
        let (Some(dataset), Some(size)) = (self.dataset.get(), self.length.get()) else {
            return self.inner.list(prefix);
        };
        let folder = match prefix.as_str() {
            all if all == dataset_prefix(*dataset) => None,
            below => match (0..=u8::MAX).find(|byte| hash_prefix(*dataset, *byte) == below) {
                Some(byte) => Some(byte),
                None => return self.inner.list(prefix),
            },
        };
        let ids = self.ids.iter().filter(move |id| folder.is_none_or(|f| hash_byte(**id) == f));
        let objects = ids.map(|id| {
            let key = Key::new(object_key(*dataset, *id, ObjectKind::Chunk));
            let key = key.map_err(|_| Error::new(Kind::Unsupported, "list object", id))?;
            Ok(ObjectInfo { key, size: *size })
        });
        stream::iter(objects).boxed()
    }
}

/// The most memory that this process ever had, in bytes.
fn peak() -> Result<u64> {
    let status = read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")).context("no VmHWM")?;
    Ok(kib.trim().parse::<u64>()? << 10)
}

/// Keeps S-10.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_a_recovery_takes_no_more_memory_for_many_objects() -> Result<()> {
    let count = rounds(200_000, 1_000_000);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut maker = ChunkIdMaker::new([7; 9]);
    let now = clock.now();
    let many = Arc::new(Many {
        inner: dl_store::open("memory:").await?,
        dataset: OnceLock::new(),
        ids: (0..count).map(|_| maker.next(now)).collect(),
        length: OnceLock::new(),
    });
    let store: Arc<dyn Store> = Arc::<Many>::clone(&many);
    let folder = tempfile::tempdir()?;
    let (cache_bytes, row_bytes, tail_bytes) = (4 << 20, 4 << 20, 4 << 20);
    let options =
        EmbeddedOptions { cache_bytes, row_bytes, tail_bytes, ..EmbeddedOptions::default() };
    let (meta, _) = Embedded::open(folder.path(), options, clock).await?;
    let meta: Arc<dyn MetaStore> = Arc::new(meta);
    let (server, client) = serve_with(&store, meta).await?;
    let id = client.create("many").await?;
    ensure!(many.dataset.set(id).is_ok(), "once");
    let one = many.object(*many.ids.first().context("some")?).context("an object")?;
    ensure!(many.length.set(one.len() as u64).is_ok(), "once");
    let before = peak()?;
    for round in 0..2 {
        let told = client.recover().await?;
        let last = told.last().context("it says nothing")?;
        let adopted = if round == 0 { count as u64 } else { 0 };
        let numbers = (last.listed, last.checked, last.adopted);
        ensure!(numbers == (count as u64, count as u64, adopted), "{last:?}");
        let grown = peak()?.saturating_sub(before);
        tell(format_args!("{count} objects: {} MiB more", grown >> 20));
        ensure!(grown < MOST, "it took {} MiB for {count} objects", grown >> 20);
    }
    server.stop().await
}

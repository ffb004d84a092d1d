//! An epoch in whole chunks, beside random reads of single files (paper, Figure 12) and beside
//! sequential chunk reads.
//!
//! The store is slow: 400 requests a second, 5 ms, 200 MB/s, 16 calls at a time. The server runs in
//! this process, so that both sides use the same store in the same state.

use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_format::{Attributes, ChunkShape, DatasetName, FilePath, dataset_prefix, parse_object_key};
use dl_store::{ByteRange, ObjectRange, Prefix, StoreExt, Throttle};
use futures::{StreamExt, stream};
use libdiesel::{Dataset, ShuffleOptions, SnapshotCache};

use crate::measure::{Bar, Bench, in_turns, time};
use crate::setup::{Settings, SlowServer, bytes, connect, in_threads, shuffle};

const SLOW: Throttle = Throttle {
    latency: Duration::from_millis(5),
    bytes_per_second: NonZeroU64::new(200_000_000),
    requests_per_second: NonZeroU64::new(400),
};
const IN_FLIGHT: usize = 16;
/// Bytes of the dataset.
const BYTES: u32 = 512 << 20;
/// Chunks of a group.
const GROUP: u32 = 16;
/// Single reads of a run.
const SINGLE: u32 = 1_600;

/// A server over the slow store, and its dataset.
struct Setup {
    server: SlowServer,
    dataset: Dataset,
    paths: Vec<FilePath>,
    length: usize,
}

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let mut benches = Vec::new();
    for (name, length, bar) in [("4 KiB", 4 << 10, 60.0), ("128 KiB", 128 << 10, 3.0)] {
        let setup = Setup::new(settings, name, length)?;
        let single = settings.scaled(SINGLE) as usize;
        let chunkwise = "files in the order of an epoch, in whole chunks";
        let names = [
            chunkwise.to_owned(),
            format!("random files one by one, {IN_FLIGHT} threads"),
            chunkwise.to_owned(),
            format!("whole chunks from the store, {IN_FLIGHT} at a time"),
        ];
        let sides = in_turns(settings.runs(), names, |round| {
            let (read, reading) = time(|| setup.epoch(round))?;
            let (_, one_by_one) = time(|| setup.one_by_one(single, round))?;
            let (chunk_bytes, streaming) = time(|| setup.stream())?;
            Ok([
                read as f64 / reading,
                single as f64 / one_by_one,
                (read * length) as f64 / reading / 1e6,
                chunk_bytes as f64 / streaming / 1e6,
            ])
        })?;
        let [files, random, bytes, sequential] = sides;
        let settings = format!(
            "{} files of {name}, groups of {GROUP} chunks, a store of 400 requests/s, 5 ms, \
             200 MB/s, {IN_FLIGHT} in flight",
            setup.paths.len()
        );
        let bench = |what: &str, unit, sides, bar| {
            let name = format!("order-read {name} {what}");
            Bench::new(name, &settings, unit, sides, Bar::AtLeastTimes(bar))
        };
        benches.push(bench("beside single files", "files/s", [files, random], bar));
        benches.push(bench("beside the store", "MB/s", [bytes, sequential], 0.85));
    }
    Ok(benches)
}

impl Setup {
    fn new(settings: &Settings, name: &str, length: usize) -> Result<Self> {
        let server = SlowServer::start(Ipv4Addr::LOCALHOST, IN_FLIGHT)?;
        let client = connect(&server.address)?;
        let of = DatasetName::new("slow")?;
        let writer = client.create_dataset(&of, ChunkShape::default())?;
        let data = bytes(length);
        let count = settings.scaled(BYTES) as usize / length;
        let paths =
            (0..count).map(|file| Ok(FilePath::new(format!("{:04}/{file:06}", file / 500))?));
        let paths: Vec<FilePath> = paths.collect::<Result<_>>()?;
        for path in &paths {
            writer.put(path, Attributes::default(), &data)?;
        }
        let _ = writer.flush()?.check()?;
        let cache = SnapshotCache::new(settings.on_disk(name), 1 << 30);
        let dataset = client.dataset(&of)?.with_snapshot(&cache)?;
        server.set_throttle(SLOW);
        Ok(Self { server, dataset, paths, length })
    }

    /// Reads every file in the order of an epoch.
    fn epoch(&self, epoch: u64) -> Result<usize> {
        let epoch = self.dataset.shuffle(ShuffleOptions::new(7, epoch, GROUP))?;
        let mut count = 0;
        while let Some(file) = epoch.next()? {
            ensure!(file.bytes?.len() == self.length, "{} has another length", file.path);
            count += 1;
        }
        ensure!(count == self.paths.len(), "the epoch has {count} files");
        Ok(count)
    }

    /// Reads single files in random order.
    fn one_by_one(&self, count: usize, seed: u64) -> Result<()> {
        let mut paths = self.paths.clone();
        shuffle(&mut paths, seed);
        let paths = paths.get(..count).context("there are enough files")?;
        let next = AtomicUsize::new(0);
        in_threads(0..IN_FLIGHT, |_| {
            while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.dataset.get(path)?;
            }
            Ok(())
        })
    }

    /// Reads all chunks from the store itself; returns their bytes.
    fn stream(&self) -> Result<u64> {
        let prefix = Prefix::new(dataset_prefix(self.dataset.info().id))?;
        self.server.runtime.block_on(async {
            let objects = self.server.store.list_sorted(&prefix).await?;
            let chunks = objects
                .into_iter()
                .filter(|object| parse_object_key(object.key.as_str()).is_some());
            let reads = chunks.map(async |object| {
                let range = ByteRange::exact(0, object.size)?;
                let read = self.server.store.read(&[ObjectRange { key: object.key, range }]).await;
                let body = read.into_iter().next().context("one answer for each range")??;
                anyhow::Ok(body.len() as u64)
            });
            let mut reads = stream::iter(reads).buffer_unordered(IN_FLIGHT);
            let mut bytes = 0;
            while let Some(read) = reads.next().await {
                bytes += read?;
            }
            Ok(bytes)
        })
    }
}

//! Recovery of metadata from a remote bucket, beside a plain client that fetches the same ranges.
//!
//! Must hold: both sides use the same link with as many requests in flight, and get the same
//! ranges.

pub(super) mod bucket;

use std::fs::remove_dir_all;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_format::{Attributes, ChunkShape, FilePath};
use futures::{StreamExt, TryStreamExt, stream};
use libdiesel::admin::RecoverRequest;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use self::bucket::{BUCKET, Bucket, Link, settings};
use crate::measure::{Bar, Bench, in_turns, time};
use crate::setup::{Server, Settings, bytes, connect, in_threads, runtime};

/// Latency of each request, one way.
const LATENCY: Duration = Duration::from_millis(20);
/// Requests in flight, as in a recovery.
const IN_FLIGHT: usize = 64;
/// Bytes of a recovery's first read of each chunk.
const RANGE: u64 = 64 << 10;
/// Files of a chunk, as with ImageNet's photographs.
const FILES: usize = 36;
/// Bytes of a file. A chunk is then longer than the first read of it, as real chunks are.
const LENGTH: usize = 2_000;
const WRITERS: u32 = 4;

pub(in crate::workload) fn run(bench: &Settings) -> Result<Vec<Bench>> {
    let bucket = Bucket::start(&bench.on_disk("bucket"))?;
    let store = format!("s3://{BUCKET}/far");
    let chunks = bench.scaled(8_000).next_multiple_of(WRITERS);
    fill(bench, &bucket, &store, chunks)?;
    let line = Link::start(bucket.address, LATENCY)?;
    let plain = Plain::connect(line.address)?;
    let keys = plain.keys()?;
    ensure!(keys.len() as u64 >= u64::from(chunks), "{} objects were made", keys.len());
    let names = [
        "recover --all into empty embedded metadata",
        "object_store: get_range of the same objects, 64 in flight",
    ];
    let sides = in_turns(bench.runs(), names, |_| {
        let data = bench.on_disk("far");
        let server = Server::start_on(&data, &["--store", &store], &settings(line.address))?;
        let client = connect(&server.address)?;
        let request = RecoverRequest { dataset: None, since: None };
        let (reports, recovering) = time(|| Ok(client.recover(request, &mut |_| {})?))?;
        let adopted: u64 = reports.iter().map(|dataset| dataset.adopted).sum();
        ensure!(adopted == keys.len() as u64, "{adopted} of {} chunks came back", keys.len());
        drop(server);
        remove_dir_all(&data)?;
        let (_, fetching) = time(|| plain.fetch(&keys))?;
        Ok([recovering, fetching].map(|seconds| keys.len() as f64 / seconds))
    })?;
    let settings = format!(
        "{} chunks of {FILES} files of {LENGTH} bytes in s3s-fs behind 20 ms, of each {} KiB read, all on \
         the same cores",
        keys.len(),
        RANGE >> 10
    );
    Ok(vec![Bench::new("recover-s3", settings, "headers/s", sides, Bar::AtLeastTimes(0.8))])
}

/// Puts `chunks` chunks, each with its own flush.
fn fill(bench: &Settings, bucket: &Bucket, store: &str, chunks: u32) -> Result<()> {
    let data = bench.on_disk("near");
    let server = Server::start_on(&data, &["--store", store], &settings(bucket.address))?;
    let client = connect(&server.address)?;
    let name = "far".parse()?;
    client.create_dataset(&name, ChunkShape::default())?;
    let body = bytes(LENGTH);
    in_threads(0..WRITERS, |writer| {
        let dataset = client.dataset(&name)?;
        for chunk in 0..chunks / WRITERS {
            for file in 0..FILES {
                let path = format!("train/{writer}/{chunk:06}/{file:08}.JPEG");
                dataset.put(&FilePath::new(path)?, Attributes::default(), &body)?;
            }
            let flushed = dataset.flush()?.check()?;
            ensure!(flushed.files == FILES as u64, "{} files put", flushed.files);
        }
        Ok(())
    })?;
    drop(server);
    Ok(remove_dir_all(&data)?)
}

/// A client without knowledge of the chunk format.
struct Plain {
    runtime: tokio::runtime::Runtime,
    store: object_store::aws::AmazonS3,
}

impl Plain {
    fn connect(address: SocketAddr) -> Result<Self> {
        let builder = settings(address).into_iter().try_fold(
            AmazonS3Builder::new().with_bucket_name(BUCKET),
            |builder, (name, value)| {
                let key = name.to_lowercase().parse().context("a setting of object_store")?;
                anyhow::Ok(builder.with_config(key, value))
            },
        )?;
        Ok(Self { runtime: runtime()?, store: builder.build()? })
    }

    /// Keys and lengths of the chunks of all datasets.
    fn keys(&self) -> Result<Vec<(Path, u64)>> {
        let listed = self.store.list(Some(&Path::from("far")));
        let objects: Vec<_> = self.runtime.block_on(listed.try_collect())?;
        let chunks = objects.into_iter().filter(|object| object.location.as_ref().ends_with(".c"));
        Ok(chunks.map(|object| (object.location, object.size)).collect())
    }

    fn fetch(&self, keys: &[(Path, u64)]) -> Result<()> {
        let fetched = stream::iter(keys)
            .map(|(key, size)| self.store.get_range(key, 0..RANGE.min(*size)))
            .buffer_unordered(IN_FLIGHT)
            .try_fold(0, |sum, bytes| async move { Ok(sum + bytes.len()) });
        let bytes = self.runtime.block_on(fetched)?;
        ensure!(bytes > 0, "nothing was fetched");
        Ok(())
    }
}

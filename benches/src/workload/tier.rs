//! Reads of a warm fast store before a slow one, beside the fast store alone.
//!
//! At the level of the store, where nothing hides what the layer costs: random ranges of 4 KiB in
//! requests of 64, as a server asks for what several clients want.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::{Clock, Random, SeededRandom, SystemClock};
use dl_store::{ByteRange, Key, ObjectRange, Store, Throttle, ThrottleStore, TierStore};

use crate::measure::{Bar, Bench, Side, Stopwatch};
use crate::setup::{Settings, bytes};

const CHUNK: u64 = 4 << 20;
const RANGE: u64 = 4096;
const TOGETHER: usize = 64;
const IN_FLIGHT: usize = 16;
const SLOW: Throttle = Throttle {
    latency: Duration::from_millis(20),
    bytes_per_second: NonZeroU64::new(50_000_000),
    requests_per_second: None,
};

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the threads of the stores")?;
    let chunks = settings.scaled(64);
    let requests = settings.scaled(4_000);
    let mut ours = Side::new("fast store, warm, before a store of 20 ms and 50 MB/s");
    let mut theirs = Side::new("the fast store alone");
    let stopwatch = Stopwatch::new();
    let (tier, alone) = runtime.block_on(stores(settings, chunks))?;
    let warmed = tier.counts().misses;
    for round in 0..=settings.runs() {
        let wanted = wanted(chunks, requests, round as u64)?;
        let read = |store: &dyn Store| runtime.block_on(read(store, &wanted));
        let (_, from_tier) = stopwatch.time(|| read(&tier))?;
        let (_, from_alone) = stopwatch.time(|| read(&*alone))?;
        if round > 0 {
            let ranges = f64::from(requests) * TOGETHER as f64;
            ours.samples.push(ranges / from_tier);
            theirs.samples.push(ranges / from_alone);
        }
    }
    let misses = tier.counts().misses - warmed;
    ensure!(misses == 0, "{misses} ranges came from the slow store");
    let settings = format!(
        "{requests} requests of {TOGETHER} random ranges of 4 KiB in {chunks} chunks of 4 MiB, \
         one after the other"
    );
    let (name, bar) = ("tier".to_owned(), Bar::AtLeastTimes(0.9));
    Ok(vec![Bench { name, settings, unit: "ranges/s", ours, theirs, bar }])
}

/// A tier that has all chunks in its fast store, and another such store.
async fn stores(settings: &Settings, chunks: u32) -> Result<(TierStore, Arc<dyn Store>)> {
    let open = async |path: &Path| dl_store::open(&path.to_string_lossy()).await;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let slow = open(&settings.on_disk("slow")).await?;
    let alone = open(&settings.on_disk("alone")).await?;
    for number in 0..chunks {
        let body = bytes(CHUNK as usize);
        slow.create(&key(number)?, body.clone().into()).await?;
        alone.create(&key(number)?, body.into()).await?;
    }
    let (slow, _) = ThrottleStore::new(slow, Arc::clone(&clock), SLOW, IN_FLIGHT);
    let fast = open(&settings.on_disk("fast")).await?;
    // Copies have checksums of their own.
    let quota = u64::from(chunks) * CHUNK * 2;
    let tier = TierStore::new(Arc::new(slow), fast, quota, Arc::clone(&clock));
    while tier.counts().brought < u64::from(chunks) {
        let brought = tier.counts().brought;
        let next = u32::try_from(brought)?.min(chunks - 1);
        // The tier counts its fast store first, so that the first read may bring nothing.
        read(&tier, &[vec![range(next, 0)?]]).await?;
        clock.sleep(Duration::from_millis(5)).await;
    }
    Ok((tier, alone))
}

fn key(chunk: u32) -> Result<Key> {
    Ok(Key::new(format!("bench/{chunk:02x}"))?)
}

fn range(chunk: u32, start: u64) -> Result<ObjectRange> {
    Ok(ObjectRange { key: key(chunk)?, range: ByteRange::exact(start, start + RANGE)? })
}

/// Requests, the same for one seed, each in the order of its objects as a server sends them.
fn wanted(chunks: u32, requests: u32, seed: u64) -> Result<Vec<Vec<ObjectRange>>> {
    let random = SeededRandom::new(seed);
    let one = || {
        let chunk = u32::try_from(random.u64() % u64::from(chunks))?;
        Ok((chunk, random.u64() % (CHUNK / RANGE) * RANGE))
    };
    let request = |_| {
        let mut places = (0..TOGETHER).map(|_| one()).collect::<Result<Vec<_>>>()?;
        places.sort_unstable();
        places.into_iter().map(|(chunk, start)| range(chunk, start)).collect()
    };
    (0..requests).map(request).collect()
}

async fn read(store: &dyn Store, wanted: &[Vec<ObjectRange>]) -> Result<()> {
    for request in wanted {
        for read in store.read(request).await {
            ensure!(read?.len() as u64 == RANGE, "a range has another length");
        }
    }
    Ok(())
}

//! Reads of a warm fast store before a slow store, beside the fast store alone.
//!
//! At the level of the store, where the cost of the layer shows: random ranges of 4 KiB in requests of 64, as a
//! server asks for several clients.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_runtime::{Clock, Random, SeededRandom, SystemClock};
use dl_store::{ByteRange, Key, ObjectRange, Store, Throttle, ThrottleStore, TierStore};

use crate::measure::{Bar, Bench, in_turns, time};
use crate::setup::{Settings, bytes, runtime};

const CHUNK: u64 = 4 << 20;
const RANGE: u64 = 4096;
const BATCH_SIZE: usize = 64;
const IN_FLIGHT: usize = 16;
const SLOW: Throttle = Throttle {
    latency: Duration::from_millis(20),
    bytes_per_second: NonZeroU64::new(50_000_000),
    requests_per_second: None,
};

/// Ranges of a single read.
type Request = Vec<ObjectRange>;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let (chunks, requests) = (settings.scaled(64), settings.scaled(4_000));
    // Dropped after the stores.
    let runtime = runtime()?;
    let clock = Arc::new(SystemClock::new());
    let (tier, alone) = runtime.block_on(stores(settings, chunks, clock))?;
    let warmed = tier.counts().misses;
    let names = ["fast store, warm, before a store of 20 ms and 50 MB/s", "the fast store alone"];
    let sides = in_turns(settings.runs(), names, |round| {
        let requests = wanted(chunks, requests, round)?;
        let ranges: usize = requests.iter().map(Vec::len).sum();
        let rate = |store: &dyn Store| {
            let ((), seconds) = time(|| runtime.block_on(read(store, &requests)))?;
            anyhow::Ok(ranges as f64 / seconds)
        };
        Ok([rate(&tier)?, rate(&*alone)?])
    })?;
    let misses = tier.counts().misses - warmed;
    ensure!(misses == 0, "{misses} ranges came from the slow store");
    let settings = format!(
        "{requests} requests of {BATCH_SIZE} random ranges of 4 KiB in {chunks} chunks of 4 MiB, one \
         after the other"
    );
    Ok(vec![Bench::new("tier", settings, "ranges/s", sides, Bar::AtLeastTimes(0.9))])
}

async fn stores(
    settings: &Settings,
    chunks: u32,
    clock: Arc<dyn Clock>,
) -> Result<(TierStore, Arc<dyn Store>)> {
    let open = async |path: &Path| dl_store::open(&path.to_string_lossy()).await;
    let slow = open(&settings.on_disk("slow")).await?;
    let alone = open(&settings.on_disk("alone")).await?;
    for number in 0..chunks {
        let body = bytes(CHUNK as usize);
        slow.create(&key(number)?, body.clone().into()).await?;
        alone.create(&key(number)?, body.into()).await?;
    }
    let (slow, _) = ThrottleStore::new(slow, Arc::clone(&clock), SLOW, IN_FLIGHT);
    let fast = open(&settings.on_disk("fast")).await?;
    let quota = u64::from(chunks) * CHUNK;
    let tier = TierStore::new(Arc::new(slow), fast, quota, Arc::clone(&clock));
    while tier.counts().made < u64::from(chunks) {
        let made = tier.counts().made;
        let next = u32::try_from(made)?.min(chunks - 1);
        // The first read makes no copy while the fast store is being listed.
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

/// Requests by seed.
fn wanted(chunks: u32, requests: u32, seed: u64) -> Result<Vec<Request>> {
    let random = SeededRandom::new(seed);
    let one = || {
        let chunk = u32::try_from(random.u64() % u64::from(chunks))?;
        Ok((chunk, random.u64() % (CHUNK / RANGE) * RANGE))
    };
    let several = |_| request(&mut (0..BATCH_SIZE).map(|_| one()).collect::<Result<Vec<_>>>()?);
    (0..requests).map(several).collect()
}

/// Ranges in the order of their objects, as a server sends them.
fn request(places: &mut [(u32, u64)]) -> Result<Request> {
    places.sort_unstable();
    places.iter().map(|(chunk, start)| range(*chunk, *start)).collect()
}

async fn read(store: &dyn Store, wanted: &[Request]) -> Result<()> {
    for request in wanted {
        for read in store.read(request).await {
            ensure!(read?.len() as u64 == RANGE, "a range has another length");
        }
    }
    Ok(())
}

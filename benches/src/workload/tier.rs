//! Reads of a warm fast store before a slow one, beside the fast store alone.
//!
//! The bench calls the store directly, so that no other cost hides the cost of the tier. Requests
//! have 64 random ranges of 4 KiB, as a server sends them for several clients. In one row most
//! pages were verified within the last quarter of an hour. In the other row no page was, as in
//! longer epochs.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use dl_runtime::{BoxFuture, Clock, Random, SeededRandom, SystemClock};
use dl_store::{ByteRange, Key, ObjectRange, Store, Throttle, ThrottleStore, TierStore};
use tokio::runtime::Runtime;

use crate::measure::{Bar, Bench, Side, Stopwatch};
use crate::setup::{Settings, bytes, shuffle};

const CHUNK: u64 = 4 << 20;
const RANGE: u64 = 4096;
const TOGETHER: usize = 64;
const IN_FLIGHT: usize = 16;
const SLOW: Throttle = Throttle {
    latency: Duration::from_millis(20),
    bytes_per_second: NonZeroU64::new(50_000_000),
    requests_per_second: None,
};

/// Seconds after which the next read verifies a page again.
const TRUSTED: u64 = 15 * 60;
/// Reads of every page in one run.
const EPOCHS: u64 = 4;

/// Ranges of one request.
type Request = Vec<ObjectRange>;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let (chunks, requests) = (settings.scaled(64), settings.scaled(4_000));
    let setup = Setup::new(settings, chunks)?;
    let warmed = setup.tier.counts().misses;
    let marked =
        setup.compare(settings.runs(), 0, |round| Ok(vec![wanted(chunks, requests, round)?]))?;
    let run_out = setup.compare(settings.runs(), TRUSTED, |round| {
        (0..EPOCHS).map(|number| epoch(chunks, round * EPOCHS + number)).collect()
    })?;
    let misses = setup.tier.counts().misses - warmed;
    ensure!(misses == 0, "{misses} ranges came from the slow store");
    let bench = |name: &str, what: &str, settings, [ours, theirs]: [Vec<f64>; 2], bar| Bench {
        name: name.to_owned(),
        settings,
        unit: "ranges/s",
        ours: Side { what: what.to_owned(), samples: ours },
        theirs: Side { what: "the fast store alone".to_owned(), samples: theirs },
        bar,
    };
    let random = format!(
        "{requests} requests of {TOGETHER} random ranges of 4 KiB in {chunks} chunks of 4 MiB, \
         one after the other"
    );
    let every = format!(
        "{EPOCHS} times every page of 4 KiB in {chunks} chunks of 4 MiB, {TOGETHER} random ones a \
         request, one after the other; a quarter of an hour later each time"
    );
    let before = "fast store, warm, before a store of 20 ms and 50 MB/s";
    let checked = "the same fast store, with all that is read checked";
    Ok(vec![
        bench("tier", before, random, marked, Bar::AtLeastTimes(0.9)),
        bench("tier, marks run out", checked, every, run_out, Bar::None),
    ])
}

/// A clock that the bench can advance.
#[derive(Debug, Default)]
struct MovableClock {
    machine: SystemClock,
    /// Advance in seconds.
    ahead: AtomicU64,
}

impl MovableClock {
    fn move_on(&self, seconds: u64) {
        self.ahead.fetch_add(seconds, Ordering::Relaxed);
    }

    fn ahead(&self) -> Duration {
        Duration::from_secs(self.ahead.load(Ordering::Relaxed))
    }
}

impl Clock for MovableClock {
    fn now(&self) -> SystemTime {
        self.machine.now() + self.ahead()
    }

    fn monotonic(&self) -> Duration {
        self.machine.monotonic() + self.ahead()
    }

    // No task sleeps during an advance.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.machine.sleep(duration)
    }
}

/// A tier with all chunks in its fast store, and another fast store.
struct Setup {
    tier: TierStore,
    alone: Arc<dyn Store>,
    clock: Arc<MovableClock>,
    /// The last field: dropped after its users.
    runtime: Runtime,
}

impl Setup {
    fn new(settings: &Settings, chunks: u32) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("start the threads of the stores")?;
        let clock = Arc::new(MovableClock::default());
        let (tier, alone) =
            runtime.block_on(stores(settings, chunks, Arc::<MovableClock>::clone(&clock)))?;
        Ok(Self { tier, alone, clock, runtime })
    }

    /// Reads the requests of `wanted` from both stores in turns, and advances the clock before each
    /// part. Returns ranges a second of each store.
    fn compare(
        &self,
        runs: usize,
        pause: u64,
        wanted: impl Fn(u64) -> Result<Vec<Vec<Request>>>,
    ) -> Result<[Vec<f64>; 2]> {
        let (stopwatch, mut rates) = (Stopwatch::new(), [Vec::new(), Vec::new()]);
        for round in 0..=runs {
            let parts = wanted(round as u64)?;
            let ranges: usize = parts.iter().flatten().map(Vec::len).sum();
            let sides: [&dyn Store; 2] = [&self.tier, &*self.alone];
            for (store, rates) in sides.into_iter().zip(&mut rates) {
                let ((), seconds) = stopwatch.time(|| {
                    parts.iter().try_for_each(|requests| {
                        self.clock.move_on(pause);
                        self.runtime.block_on(read(store, requests))
                    })
                })?;
                // The first round warms up.
                if round > 0 {
                    rates.push(ranges as f64 / seconds);
                }
            }
        }
        Ok(rates)
    }
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
    // Copies have their own checksums.
    let quota = u64::from(chunks) * CHUNK * 2;
    let tier = TierStore::new(Arc::new(slow), fast, quota, Arc::clone(&clock));
    while tier.counts().brought < u64::from(chunks) {
        let brought = tier.counts().brought;
        let next = u32::try_from(brought)?.min(chunks - 1);
        // The tier counts its fast store first; the first read may copy nothing.
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

/// Random requests; the same seed gives the same requests.
fn wanted(chunks: u32, requests: u32, seed: u64) -> Result<Vec<Request>> {
    let random = SeededRandom::new(seed);
    let one = || {
        let chunk = u32::try_from(random.u64() % u64::from(chunks))?;
        Ok((chunk, random.u64() % (CHUNK / RANGE) * RANGE))
    };
    let several = |_| request(&mut (0..TOGETHER).map(|_| one()).collect::<Result<Vec<_>>>()?);
    (0..requests).map(several).collect()
}

/// Requests for every page once; the same seed gives the same requests.
fn epoch(chunks: u32, seed: u64) -> Result<Vec<Request>> {
    let pages = |chunk| (0..CHUNK / RANGE).map(move |page| (chunk, page * RANGE));
    let mut places: Vec<(u32, u64)> = (0..chunks).flat_map(pages).collect();
    shuffle(&mut places, seed);
    places.chunks_mut(TOGETHER).map(request).collect()
}

/// A request in object order, as a server sends it.
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

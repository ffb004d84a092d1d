//! What becomes of ranges that several callers want.

use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use dl_runtime::{ManualClock, SystemClock};
use dl_store::{CountStore, ObjectInfo, Prefix, Throttle, ThrottleStore};
use futures::stream::BoxStream;

use super::*;

fn span(start: u64, end: u64) -> Span {
    Span { start, end }
}

#[test]
fn close_ranges_become_one_read_and_far_ones_stay_apart() {
    let far = 4 << 20;
    let merged = |spans: &[Span]| {
        let mut reads = Vec::new();
        merge(spans.to_vec(), &mut reads);
        reads
    };
    assert_eq!(merged(&[span(5_000, 5_100), span(0, 100)]), [span(0, 5_100)]);
    let apart = [span(0, 100), span(far, far + 100)];
    assert_eq!(merged(&apart), apart);
    // A gap as large as what comes after it.
    let large: Vec<_> = (0..10).map(|n| span(n * 200_000, n * 200_000 + 100_000)).collect();
    assert_eq!(merged(&large), [span(0, 1_900_000)]);
    assert_eq!(merged(&[]), []);
}

#[test]
fn no_more_is_read_than_a_caller_was_told_that_its_ranges_cost() {
    let mut state = 1u64;
    let mut dice = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for round in 0..500 {
        let sparse = 1 + dice(100_000);
        let mut spans: Vec<Span> = Vec::new();
        for _ in 0..dice(60) {
            let start = dice(sparse * 60);
            spans.push(span(start, start + 1 + dice(if round % 2 == 0 { 200 } else { 60_000 })));
        }
        spans.sort_unstable();
        let (mut told, mut end) = (0, None::<u64>);
        for span in &spans {
            told += cost(end, *span);
            end = Some(end.map_or(span.end, |end| end.max(span.end)));
        }
        let (_, read) = merged(spans.clone());
        assert!(read <= told, "{read} bytes are read for {told}: {spans:?}");
    }
}

async fn filled(keys: &[Key]) -> Arc<dyn Store> {
    let store = dl_store::memory();
    let body: Bytes = (0..1u32 << 20).map(|n| (n % 251) as u8).collect::<Vec<_>>().into();
    for key in keys {
        store.create(key, body.clone()).await.unwrap();
    }
    store
}

#[tokio::test]
async fn many_files_of_one_chunk_cost_one_store_read() {
    let key = Key::new("chunk").unwrap();
    let (store, counters) = CountStore::new(filled(std::slice::from_ref(&key)).await);
    let executor = Executor::new(Arc::new(store));
    let wanted: Vec<_> =
        (0..256).rev().map(|n| (key.clone(), span(n * 4096, (n + 1) * 4096))).collect();
    let answers = executor.read(&wanted).await;
    for ((_, span), answer) in wanted.iter().zip(answers) {
        let expected: Vec<u8> = (span.start..span.end).map(|n| (n % 251) as u8).collect();
        assert_eq!(answer.unwrap(), expected);
    }
    assert_eq!(counters.counts().ranges, 1);
}

#[tokio::test]
async fn requests_that_wait_for_a_chunk_share_the_next_read() {
    let key = Key::new("chunk").unwrap();
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
    let slow = Throttle { latency: Duration::from_millis(100), ..Throttle::default() };
    let inner = filled(std::slice::from_ref(&key)).await;
    let (store, _) = ThrottleStore::new(inner, Arc::<ManualClock>::clone(&clock), slow, 64);
    let (store, counters) = CountStore::new(Arc::new(store));
    let executor = Executor::new(Arc::new(store));
    let requests = (0..256u64).map(|n| {
        let wanted = [(key.clone(), span(n * 4096, n * 4096 + 100))];
        let executor = executor.clone();
        async move { executor.read(&wanted).await.remove(0).unwrap().len() }
    });
    let all_wait = async {
        while executor.counts().waits.load(Ordering::Relaxed) < 255 {
            tokio::task::yield_now().await;
        }
    };
    let passes = async {
        all_wait.await;
        pass(&clock, slow.latency).await
    };
    let lengths = tokio::select! {
        lengths = join_all(requests) => lengths,
        () = passes => unreachable!("time passes for ever"),
    };
    assert_eq!(lengths, vec![100; 256]);
    assert_eq!(counters.counts().ranges, 2, "the first one's, and one for all others");
    assert!(executor.lock().is_empty());
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_nobody_waiting() {
    let key = Key::new("chunk").unwrap();
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
    let slow = Throttle { latency: Duration::from_millis(50), ..Throttle::default() };
    let inner = filled(std::slice::from_ref(&key)).await;
    let (store, _) = ThrottleStore::new(inner, Arc::<ManualClock>::clone(&clock), slow, 64);
    let executor = Executor::new(Arc::new(store));
    let wanted = [(key.clone(), span(0, 10))];
    let mut given_up = Box::pin(executor.read(&wanted));
    assert!(futures::poll!(&mut given_up).is_pending());
    drop(given_up);
    let mut answers = tokio::select! {
        answers = executor.read(&wanted) => answers,
        () = pass(&clock, slow.latency) => unreachable!("time passes for ever"),
    };
    assert_eq!(answers.remove(0).unwrap().len(), 10);
}

/// Lets time pass, step by step.
async fn pass(clock: &ManualClock, step: Duration) {
    loop {
        clock.advance(step);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn callers_in_a_circle_of_waits_are_answered() {
    let (a, b) = (Key::new("a").unwrap(), Key::new("b").unwrap());
    let clock = Arc::new(SystemClock::new());
    let slow = Throttle { latency: Duration::from_millis(5), ..Throttle::default() };
    let (store, _) = ThrottleStore::new(filled(&[a.clone(), b.clone()]).await, clock, slow, 64);
    let executor = Executor::new(Arc::new(store));
    let requests = (0..64u64).map(|n| {
        let (first, second) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        // The first object twice, not next to each other.
        let wanted: Vec<_> = [first, second, first].map(|key| (key.clone(), span(n, n + 1))).into();
        let executor = executor.clone();
        dl_runtime::spawn(async move { executor.read(&wanted).await })
    });
    for (n, answers) in join_all(requests).await.into_iter().enumerate() {
        let answers: Vec<_> = answers.unwrap().into_iter().map(Result::unwrap).collect();
        assert!(answers.len() == 3 && answers.iter().all(|answer| **answer == [(n % 251) as u8]));
    }
    assert!(executor.lock().is_empty());
}

#[tokio::test]
async fn a_request_for_a_missing_chunk_fails_alone() {
    let key = Key::new("chunk").unwrap();
    let clock = Arc::new(SystemClock::new());
    let slow = Throttle { latency: Duration::from_millis(500), ..Throttle::default() };
    let inner = filled(std::slice::from_ref(&key)).await;
    let (store, _) = ThrottleStore::new(inner, clock, slow, 64);
    let executor = Executor::new(Arc::new(store));
    let ask = |spans: Vec<Span>| {
        let wanted: Vec<_> = spans.into_iter().map(|span| (key.clone(), span)).collect();
        let executor = executor.clone();
        dl_runtime::spawn(async move { executor.read(&wanted).await })
    };
    let leading = ask(vec![span(0, 10)]);
    while executor.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    let end = 1 << 20;
    let hostile = ask(vec![span(end - 100, 3 << 20)]);
    let honest = ask(vec![span(end - 4096, end)]);
    let waits = || executor.counts().waits.load(Ordering::Relaxed);
    while waits() < 2 {
        tokio::task::yield_now().await;
    }
    let is_corrupt = |answer: &Result<Bytes, Failure>| {
        answer.as_ref().is_err_and(|why| why.kind == dl_store::Kind::Corrupt)
    };
    assert_eq!(leading.await.unwrap()[0].as_ref().unwrap().len(), 10);
    assert!(is_corrupt(&hostile.await.unwrap()[0]));
    assert_eq!(honest.await.unwrap()[0].as_ref().unwrap().len(), 4096);
    // Nor what one asks for itself, who waits alone.
    let leading = ask(vec![span(0, 10)]);
    while executor.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    let both = ask(vec![span(end - 4096, end), span(end - 10, end + 1)]);
    let answers = both.await.unwrap();
    assert_eq!(answers[0].as_ref().unwrap().len(), 4096);
    assert!(is_corrupt(&answers[1]));
    leading.await.unwrap();
    assert_eq!(waits(), 3, "they waited");
}

/// What is read, of a store that is only read.
#[async_trait]
trait Reads: std::fmt::Debug + Send + Sync + 'static {
    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, dl_store::Error>>;
}

#[derive(Debug)]
struct ReadOnly<R>(R);

impl<R> std::fmt::Display for ReadOnly<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("read only")
    }
}

#[async_trait]
impl<R: Reads> Store for ReadOnly<R> {
    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, dl_store::Error>> {
        self.0.read(wanted).await
    }

    async fn create(&self, _: &Key, _: Bytes) -> Result<(), dl_store::Error> {
        unreachable!("it is only read")
    }

    async fn delete(&self, _: &Key) -> Result<(), dl_store::Error> {
        unreachable!("it is only read")
    }

    async fn make_durable(&self, _: &[Key]) -> Result<(), dl_store::Error> {
        unreachable!("it is only read")
    }

    async fn prune(&self, _: &Prefix) -> Result<(), dl_store::Error> {
        unreachable!("it is only read")
    }

    fn list(&self, _: &Prefix) -> BoxStream<'_, Result<ObjectInfo, dl_store::Error>> {
        unreachable!("it is only read")
    }

    fn invalidate(&self, _: &Key) {}

    fn will_read(&self, _: &Key) {}
}

/// A disk with places that can't be read.
#[derive(Debug)]
struct Scratched {
    places: Vec<u64>,
    reads: AtomicU64,
}

impl Scratched {
    /// Reads so many places of 100 bytes; gives the answers and the number of reads.
    async fn read(count: u64, places: &[u64]) -> (Answer, u64) {
        let store = Self { places: places.to_vec(), reads: AtomicU64::new(0) };
        let store = Arc::new(ReadOnly(store));
        let executor = Executor::new(Arc::<ReadOnly<Self>>::clone(&store));
        let key = Key::new("chunk").unwrap();
        let wanted: Vec<_> =
            (0..count).rev().map(|n| (key.clone(), span(n * 100, n * 100 + 100))).collect();
        (executor.read(&wanted).await, store.0.reads.load(Ordering::Relaxed))
    }
}

#[tokio::test]
async fn places_that_a_disk_can_not_read_fail_their_own_files_only() {
    let (answers, reads) = Scratched::read(256, &[150, 151, 9_999, 25_599]).await;
    let failed: Vec<_> =
        (0..256).rev().zip(&answers).filter(|(_, answer)| answer.is_err()).collect();
    let failed: Vec<u64> = failed.into_iter().map(|(number, _)| number).collect();
    assert_eq!(failed, [255, 99, 1]);
    assert!(answers.iter().flatten().all(|bytes| bytes.len() == 100));
    assert_eq!(reads, 1 + 256);
    let everywhere: Vec<_> = (0..1_000).map(|n| n * 100).collect();
    let (answers, reads) = Scratched::read(1_000, &everywhere).await;
    assert!(answers.iter().all(Result::is_err));
    let most = (1 + FAILURES + APART_AT_ONCE) as u64;
    assert!(reads <= most, "a disk that is gone is not asked for each file: {reads} reads");
}

/// Gives zeroes as soon as it is open, and knows how many of them are still in memory.
#[derive(Debug)]
struct Zeroes {
    closed: Semaphore,
    live: Arc<Live>,
}

#[derive(Debug, Default)]
struct Live {
    now: AtomicU64,
    peak: AtomicU64,
}

struct Body(Vec<u8>, Arc<Live>);

impl Body {
    fn alive(length: u64, live: &Arc<Live>) -> Bytes {
        let now = live.now.fetch_add(length, Ordering::Relaxed) + length;
        live.peak.fetch_max(now, Ordering::Relaxed);
        Bytes::from_owner(Self(vec![0; length as usize], Arc::clone(live)))
    }
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.1.now.fetch_sub(self.0.len() as u64, Ordering::Relaxed);
    }
}

#[async_trait]
impl Reads for Zeroes {
    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, dl_store::Error>> {
        // Closed for good once it may be read.
        let _ = self.closed.acquire().await;
        let bodies = wanted.iter().map(|range| Ok(Body::alive(range.range.max_len(), &self.live)));
        let bodies = bodies.collect();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        bodies
    }
}

#[async_trait]
impl Reads for Scratched {
    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, dl_store::Error>> {
        self.reads.fetch_add(wanted.len() as u64, Ordering::Relaxed);
        let read = |wanted: &ObjectRange| {
            let range = wanted.range.within(u64::MAX).unwrap();
            if self.places.iter().any(|place| range.contains(place)) {
                let kind = dl_store::Kind::Unavailable;
                let why = std::io::Error::from_raw_os_error(5);
                return Err(dl_store::Error::because(kind, "read", &wanted.key, why));
            }
            Ok(vec![0; (range.end - range.start) as usize].into())
        };
        wanted.iter().map(read).collect()
    }
}

#[tokio::test]
async fn gaps_between_awaited_ranges_are_bounded_in_sum() {
    const STEP: u64 = 16 << 10;
    let live = Arc::new(Live::default());
    let store = Zeroes { closed: Semaphore::new(0), live: Arc::clone(&live) };
    let store = Arc::new(ReadOnly(store));
    let executor = Executor::new(Arc::<ReadOnly<Zeroes>>::clone(&store));
    let keys: Vec<_> = (0..32).map(|n| Key::new(format!("chunk-{n}")).unwrap()).collect();
    let mut asked = Vec::new();
    let mut ask = |wanted: Vec<(Key, Span)>| {
        let executor = executor.clone();
        asked.push(dl_runtime::spawn(async move { executor.read(&wanted).await }));
    };
    ask(keys.iter().map(|key| (key.clone(), span(0, 1))).collect());
    while executor.lock().len() < keys.len() {
        tokio::task::yield_now().await;
    }
    // Apart, they read few bytes; together, all of each chunk.
    for key in &keys {
        for every_other in 0..2 {
            let starts = (0..128).map(|n| (2 * n + every_other) * STEP);
            ask(starts.map(|start| (key.clone(), span(start, start + 10))).collect());
        }
    }
    while executor.counts().waits.load(Ordering::Relaxed) < 2 * keys.len() as u64 {
        tokio::task::yield_now().await;
    }
    store.0.closed.close();
    let lengths = |answer: Answer| answer.into_iter().map(|bytes| bytes.unwrap().len()).collect();
    for (number, answer) in asked.into_iter().enumerate() {
        let lengths: Vec<_> = lengths(answer.await.unwrap());
        assert_eq!(lengths, if number == 0 { vec![1; 32] } else { vec![10; 128] });
    }
    let peak = live.peak.load(Ordering::Relaxed);
    assert!(peak > 2 * ROUND_BYTES, "several are read at once: {peak} bytes");
    assert!(peak < u64::from(GAPS_BYTES) + (1 << 20), "{peak} bytes");
    assert_eq!(live.now.load(Ordering::Relaxed), 0, "small answers keep no large reads");
}

#[tokio::test]
async fn waiters_share_one_read_of_a_chunk_or_rounds_of_it() {
    let key = Key::new("chunk").unwrap();
    let want = |spans: Vec<Span>| Want { spans, answer: oneshot::channel().0 };
    let files = |count: u64, length: u64| {
        let wants = (0..count).rev().map(|n| want(vec![span(n * length, (n + 1) * length)]));
        vec![(key.clone(), wants.collect())]
    };
    let told = |work| -> Vec<(usize, u64, u64)> {
        let told = |round: Round| (round.wants.len(), round.bytes, round.gaps);
        rounds(work).into_iter().map(told).collect()
    };
    let four = ROUND_BYTES;
    assert_eq!(told(files(256, 16 << 10)), [(256, four, 0)]);
    assert_eq!(told(files(1_024, 16 << 10)), [(256, four, 0); 4]);
    // What one wants by itself is not cut, and what others want twice is read once.
    let wide = want((0..20).map(|n| span(n << 20, (n << 20) + (1 << 19))).collect());
    let same = || want(vec![span(0, 100)]);
    assert_eq!(told(vec![(key.clone(), vec![same(), wide, same()])]).len(), 2);
    assert_eq!(told(vec![(key.clone(), vec![same(), same()])]), [(2, 100, 0)]);
    let small = |n: u64| (Key::new(format!("small-{n}")).unwrap(), vec![same()]);
    assert_eq!(told((0..50).map(small).collect()), [(50, 5_000, 0)]);
}

//! A layer that measures what reaches the chunk store.
//!
//! Must hold: each call and its answer go through as they are; that an object is missing or there
//! already is an answer, not a failure. Of slow calls the log is told of one in ten seconds at most.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dl_runtime::Clock;
use dl_store::{Error, Key, Kind, ObjectInfo, ObjectRange, Prefix, Store};
use futures::StreamExt;
use futures::stream::BoxStream;

use super::histogram::{Operation, Timer};

/// A call that is away for longer is told of in the log: its caller may have gone by then, and tell
/// nothing.
const SLOW: Duration = Duration::from_secs(10);
/// For so long after one was told of, no other is.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// What a [`MeteredStore`] has seen.
#[derive(Debug, Default)]
pub(crate) struct StoreMetrics {
    pub(crate) create: Arc<Operation>,
    pub(crate) read: Arc<Operation>,
    pub(crate) delete: Arc<Operation>,
    pub(crate) settle: Arc<Operation>,
    pub(crate) list: Arc<Operation>,
    pub(crate) created_bytes: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    /// When a slow call was last told of, if one was.
    told: Mutex<Option<Duration>>,
}

/// Tells of a call to an object that was slow when it ends, or when nobody waits for it any more.
#[derive(Debug)]
struct Watch<'a> {
    store: &'a MeteredStore,
    operation: &'static str,
    began: Duration,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let now = self.store.clock.monotonic();
        let took = now.saturating_sub(self.began);
        if took < SLOW {
            return;
        }
        let mut told = self.store.metrics.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|at| now.saturating_sub(at) >= TOLD_EVERY) {
            *told = Some(now);
            let (store, operation) = (&self.store.inner, self.operation);
            tracing::warn!(
                %store, operation, ?took,
                "a call to the chunk store took long: that, or what its caller did meanwhile, is slow"
            );
        }
    }
}

impl StoreMetrics {
    /// All operations, by name.
    pub(crate) fn operations(&self) -> [(&'static str, &Operation); 5] {
        [
            ("create", &self.create),
            ("read", &self.read),
            ("delete", &self.delete),
            ("settle", &self.settle),
            ("list", &self.list),
        ]
    }
}

/// Measures the calls to `inner`.
#[derive(Debug)]
pub(crate) struct MeteredStore {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) metrics: Arc<StoreMetrics>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl MeteredStore {
    fn watch(&self, operation: &'static str) -> Watch<'_> {
        Watch { store: self, operation, began: self.clock.monotonic() }
    }
}

/// Whether a call went wrong: that an object is there, or isn't, is an answer.
fn check(timer: &Timer, error: Option<&Error>) {
    if error.is_some_and(|error| !matches!(error.kind, Kind::Missing | Kind::Exists)) {
        timer.failed();
    }
}

impl fmt::Display for MeteredStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Store for MeteredStore {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        let (timer, length) = (Timer::start(&self.metrics.create, &self.clock), body.len() as u64);
        let _watch = self.watch("create");
        let result = self.inner.create(key, body).await;
        check(&timer, result.as_ref().err());
        if result.is_ok() {
            self.metrics.created_bytes.fetch_add(length, Ordering::Relaxed);
        }
        result
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        let timer = Timer::start(&self.metrics.read, &self.clock);
        let _watch = self.watch("read");
        let results = self.inner.read(wanted).await;
        let lengths = results.iter().flatten().map(|bytes| bytes.len() as u64);
        self.metrics.read_bytes.fetch_add(lengths.sum::<u64>(), Ordering::Relaxed);
        for result in &results {
            check(&timer, result.as_ref().err());
        }
        results
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        let timer = Timer::start(&self.metrics.delete, &self.clock);
        let _watch = self.watch("delete");
        let result = self.inner.delete(key).await;
        check(&timer, result.as_ref().err());
        result
    }

    async fn settle(&self, keys: &[Key]) -> Result<(), Error> {
        let timer = Timer::start(&self.metrics.settle, &self.clock);
        let _watch = self.watch("settle");
        let result = self.inner.settle(keys).await;
        check(&timer, result.as_ref().err());
        result
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
        let timer = Timer::start(&self.metrics.list, &self.clock);
        let checked = move |result: &Result<ObjectInfo, Error>| {
            check(&timer, result.as_ref().err());
        };
        self.inner.list(prefix).inspect(checked).boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use dl_runtime::ManualClock;
    use dl_store::{ByteRange, StoreExt, conformance};

    use super::*;

    fn metered(clock: &Arc<ManualClock>) -> MeteredStore {
        let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(clock);
        MeteredStore { inner: dl_store::memory(), metrics: Arc::default(), clock }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_measured_store_keeps_the_contract() {
        conformance::run(async || {
            let store: Arc<dyn Store> = Arc::new(metered(&Arc::new(ManualClock::new(UNIX_EPOCH))));
            store
        })
        .await;
    }

    #[tokio::test]
    async fn calls_bytes_and_failures_are_counted_and_answers_are_no_failures() {
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        let store = metered(&clock);
        let (key, gone) = (Key::new("a/b").unwrap(), Key::new("a/c").unwrap());
        store.create(&key, "12345".into()).await.unwrap();
        store.create(&key, "12345".into()).await.unwrap_err();
        let beyond = ByteRange::exact(1, 9).unwrap();
        let range = ByteRange::exact(1, 3).unwrap();
        let wanted = [(&key, range), (&key, beyond), (&gone, range)];
        store.read(&wanted.map(|(key, range)| ObjectRange { key: key.clone(), range })).await;
        let listing = store.list(&Prefix::ROOT);
        clock.advance(Duration::from_secs(3));
        drop(listing);
        store.list_sorted(&Prefix::ROOT).await.unwrap();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let metrics = &store.metrics;
        let counted = metrics.operations().map(|(_, operation)| operation.took.read().1);
        let failed = metrics.operations().map(|(_, operation)| read(&operation.failed));
        assert_eq!((counted, failed), ([2, 1, 0, 0, 2], [0, 1, 0, 0, 0]));
        assert_eq!((read(&metrics.created_bytes), read(&metrics.read_bytes)), (5, 2));
        assert!((metrics.list.took.read().2 - 3.0).abs() < 1e-9);
    }
}

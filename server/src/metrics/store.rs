//! A layer that measures calls of the chunk store.
//!
//! Must hold: calls and answers pass unchanged; missing and existing objects are answers, not failures.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use dl_runtime::Clock;
use dl_store::{Error, Key, Kind, ObjectInfo, ObjectRange, Prefix, Store};
use futures::StreamExt;
use futures::stream::BoxStream;

use super::histogram::{Operation, Timer, timed};

/// The operations of a [`MeteredStore`], and their bytes.
#[derive(Debug, Default)]
pub(crate) struct StoreMetrics {
    pub(crate) create: Arc<Operation>,
    pub(crate) read: Arc<Operation>,
    pub(crate) delete: Arc<Operation>,
    pub(crate) settle: Arc<Operation>,
    pub(crate) list: Arc<Operation>,
    pub(crate) created_bytes: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
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
    async fn timed(
        &self,
        operation: &Arc<Operation>,
        call: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        timed(operation, &self.clock, call, is_failure).await
    }
}

fn is_failure(error: &Error) -> bool {
    !matches!(error.kind, Kind::Missing | Kind::Exists)
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
        let length = body.len() as u64;
        self.timed(&self.metrics.create, self.inner.create(key, body)).await?;
        self.metrics.created_bytes.fetch_add(length, Ordering::Relaxed);
        Ok(())
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        let timer = Timer::start(&self.metrics.read, &self.clock);
        let results = self.inner.read(wanted).await;
        let lengths = results.iter().flatten().map(|bytes| bytes.len() as u64);
        self.metrics.read_bytes.fetch_add(lengths.sum::<u64>(), Ordering::Relaxed);
        let failures = results.iter().filter(|result| result.as_ref().is_err_and(is_failure));
        failures.for_each(|_| timer.failed());
        results
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.timed(&self.metrics.delete, self.inner.delete(key)).await
    }

    async fn make_durable(&self, keys: &[Key]) -> Result<(), Error> {
        self.timed(&self.metrics.settle, self.inner.make_durable(keys)).await
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
            if result.as_ref().is_err_and(is_failure) {
                timer.failed();
            }
        };
        self.inner.list(prefix).inspect(checked).boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

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
    async fn calls_bytes_and_failures_are_counted() {
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

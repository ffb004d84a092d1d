//! A layer that counts the calls of a store.
//!
//! Must hold: calls, hints and answers pass unchanged. Failed calls count, too; bytes count when they
//! arrived. No counter decreases.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::{Error, Key, ObjectInfo, ObjectRange, Prefix, Store};

/// Counts the calls to `inner`, and their bytes.
#[derive(Debug)]
pub struct CountStore {
    inner: Arc<dyn Store>,
    counters: Arc<Counters>,
}

/// The counters of a [`CountStore`], shared with their readers.
#[derive(Debug, Default)]
pub struct Counters {
    creates: AtomicU64,
    created_bytes: AtomicU64,
    reads: AtomicU64,
    ranges: AtomicU64,
    read_bytes: AtomicU64,
    deletes: AtomicU64,
    lists: AtomicU64,
    listed: AtomicU64,
    errors: AtomicU64,
}

/// The counts of a [`CountStore`]. Failed calls count, too; bytes count when they arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls of `create`.
    pub creates: u64,
    /// Bytes of the objects created.
    pub created_bytes: u64,
    /// Calls of `read`.
    pub reads: u64,
    /// Ranges in these calls.
    pub ranges: u64,
    /// Bytes given back.
    pub read_bytes: u64,
    /// Calls of `delete`.
    pub deletes: u64,
    /// Listings begun.
    pub lists: u64,
    /// Objects listed.
    pub listed: u64,
    /// Calls, ranges and listings that failed.
    pub errors: u64,
}

impl Counters {
    /// The present counts. Calls in flight may show in part.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            creates: read(&self.creates),
            created_bytes: read(&self.created_bytes),
            reads: read(&self.reads),
            ranges: read(&self.ranges),
            read_bytes: read(&self.read_bytes),
            deletes: read(&self.deletes),
            lists: read(&self.lists),
            listed: read(&self.listed),
            errors: read(&self.errors),
        }
    }

    /// Adds `units` on success, an error otherwise.
    fn outcome<T>(&self, units: &AtomicU64, result: &Result<T, Error>, of: impl Fn(&T) -> u64) {
        match result {
            Ok(done) => add(units, of(done)),
            Err(_) => add(&self.errors, 1),
        }
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl CountStore {
    /// Wraps `inner`; the counters start at zero.
    pub fn new(inner: Arc<dyn Store>) -> (Self, Arc<Counters>) {
        let counters = Arc::<Counters>::default();
        (Self { inner, counters: Arc::clone(&counters) }, counters)
    }
}

impl fmt::Display for CountStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "count({})", self.inner)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Store for CountStore {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        let (counters, length) = (&self.counters, body.len() as u64);
        add(&counters.creates, 1);
        let result = self.inner.create(key, body).await;
        counters.outcome(&counters.created_bytes, &result, |()| length);
        result
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        let counters = &self.counters;
        add(&counters.reads, 1);
        add(&counters.ranges, wanted.len() as u64);
        let results = self.inner.read(wanted).await;
        for result in &results {
            counters.outcome(&counters.read_bytes, result, |bytes| bytes.len() as u64);
        }
        results
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        let result = self.inner.delete(key).await;
        add(&self.counters.deletes, 1);
        if result.is_err() {
            add(&self.counters.errors, 1);
        }
        result
    }

    async fn make_durable(&self, keys: &[Key]) -> Result<(), Error> {
        let result = self.inner.make_durable(keys).await;
        if result.is_err() {
            add(&self.counters.errors, 1);
        }
        result
    }

    async fn prune(&self, prefix: &Prefix) -> Result<(), Error> {
        let result = self.inner.prune(prefix).await;
        if result.is_err() {
            add(&self.counters.errors, 1);
        }
        result
    }

    fn invalidate(&self, key: &Key) {
        self.inner.invalidate(key);
    }

    fn will_read(&self, key: &Key) {
        self.inner.will_read(key);
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>> {
        let counters = &self.counters;
        add(&counters.lists, 1);
        self.inner
            .list(prefix)
            .inspect(|result| counters.outcome(&counters.listed, result, |_| 1))
            .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteRange, StoreExt, memory};

    #[tokio::test]
    async fn calls_count_always_and_bytes_when_they_arrived() {
        let (store, counters) = CountStore::new(memory());
        let (key, gone) = (Key::new("a/b").unwrap(), Key::new("a/c").unwrap());
        store.create(&key, "12345".into()).await.unwrap();
        store.create(&key, "12345".into()).await.unwrap_err();
        let range = ByteRange::exact(1, 3).unwrap();
        store.read(&[&key, &gone].map(|key| ObjectRange { key: key.clone(), range })).await;
        store.list_sorted(&Prefix::ROOT).await.unwrap();
        store.delete(&key).await.unwrap();
        let expected = Counts {
            creates: 2,
            created_bytes: 5,
            reads: 1,
            ranges: 2,
            read_bytes: 2,
            deletes: 1,
            lists: 1,
            listed: 1,
            errors: 2,
        };
        assert_eq!(counters.counts(), expected);
    }
}

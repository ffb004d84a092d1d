//! A store that is opened by its first call, and after a failure again by the next call.
//!
//! Must hold: a failed opening fails the calls, not the program. An open store stays open. At most one
//! opening runs at a time; when its caller is dropped, the next call continues the same opening, so that
//! a disk that hangs takes a single thread.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use dl_runtime::{BoxFuture, locked, masked};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use tokio::sync::OnceCell;

use crate::{Error, Key, ObjectInfo, ObjectRange, Prefix, Store, open};

type Opening = BoxFuture<'static, Result<Arc<dyn Store>, Error>>;

/// The store at an address, for callers that can do without.
pub struct DeferredStore {
    url: String,
    inner: OnceCell<Arc<dyn Store>>,
    /// The opening that runs or waits for the next call.
    opening: Mutex<Option<Opening>>,
}

impl DeferredStore {
    /// Opens `url` at the first call, as [`open`] does.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), inner: OnceCell::new(), opening: Mutex::default() }
    }

    /// Opens the store now, for callers that report a failure.
    ///
    /// # Errors
    /// As [`open`].
    pub async fn reach(&self) -> Result<(), Error> {
        self.inner().await.map(drop)
    }

    async fn inner(&self) -> Result<&Arc<dyn Store>, Error> {
        self.inner.get_or_try_init(|| std::future::poll_fn(|context| self.poll_open(context))).await
    }

    /// Continues the opening, or begins an opening.
    fn poll_open(&self, context: &mut Context<'_>) -> Poll<Result<Arc<dyn Store>, Error>> {
        let mut opening = locked(&self.opening);
        let begin = || -> Opening {
            let url = self.url.clone();
            Box::pin(async move { open(&url).await })
        };
        let mut current = opening.take().unwrap_or_else(begin);
        let opened = current.poll_unpin(context);
        if opened.is_pending() {
            *opening = Some(current);
        }
        opened
    }
}

impl fmt::Debug for DeferredStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("DeferredStore");
        shown.field("url", &masked(&self.url)).field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl fmt::Display for DeferredStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inner.get() {
            Some(inner) => inner.fmt(f),
            None => f.write_str(&masked(&self.url)),
        }
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Store for DeferredStore {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        self.inner().await?.create(key, body).await
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        match self.inner().await {
            Ok(inner) => inner.read(wanted).await,
            Err(error) => {
                let why = Arc::new(error);
                let failed = |range: &ObjectRange| {
                    Err(Error::because(why.kind, "read object", &range.key, Arc::clone(&why)))
                };
                wanted.iter().map(failed).collect()
            }
        }
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.inner().await?.delete(key).await
    }

    async fn make_durable(&self, keys: &[Key]) -> Result<(), Error> {
        self.inner().await?.make_durable(keys).await
    }

    async fn prune(&self, prefix: &Prefix) -> Result<(), Error> {
        self.inner().await?.prune(prefix).await
    }

    fn invalidate(&self, key: &Key) {
        if let Some(inner) = self.inner.get() {
            inner.invalidate(key);
        }
    }

    fn will_read(&self, key: &Key) {
        if let Some(inner) = self.inner.get() {
            inner.will_read(key);
        }
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>> {
        let prefix = prefix.clone();
        let listing = async move { Ok::<_, Error>(self.inner().await?.list(&prefix)) };
        stream::once(listing).try_flatten().boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, StoreExt, conformance};

    #[tokio::test]
    async fn a_store_that_is_opened_late_keeps_the_contract() {
        let make = async || Arc::new(DeferredStore::new("memory:")) as Arc<dyn Store>;
        conformance::run(make).await;
    }

    #[tokio::test]
    async fn a_store_that_can_not_be_opened_fails_each_call_until_it_can() {
        let directory = tempfile::tempdir().unwrap();
        let in_the_way = directory.path().join("disk");
        std::fs::write(&in_the_way, "").unwrap();
        let store = DeferredStore::new(in_the_way.join("fast").to_str().unwrap());
        let (key, all) = (Key::new("x/y").unwrap(), Prefix::new("x").unwrap());
        for _ in 0..2 {
            let kinds = [
                store.reach().await.unwrap_err().kind,
                store.create(&key, "z".into()).await.unwrap_err().kind,
                store.read_all(&key).await.unwrap_err().kind,
                store.list_sorted(&all).await.unwrap_err().kind,
                store.delete(&key).await.unwrap_err().kind,
                store.make_durable(std::slice::from_ref(&key)).await.unwrap_err().kind,
            ];
            assert_eq!(kinds, [Kind::Unsupported; 6]);
        }
        std::fs::remove_file(&in_the_way).unwrap();
        store.create(&key, "z".into()).await.unwrap();
        assert_eq!(store.read_all(&key).await.unwrap(), "z");
        assert_eq!(store.list_sorted(&all).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn an_opening_that_hangs_is_continued_by_the_next_call() {
        let store = DeferredStore::new("memory:");
        let (there, key) = (crate::memory(), Key::new("x/y").unwrap());
        there.create(&key, "z".into()).await.unwrap();
        let (answer, answered) = tokio::sync::oneshot::channel::<()>();
        let hangs = async move {
            answered.await.unwrap();
            Ok(there)
        };
        *store.opening.lock().unwrap() = Some(Box::pin(hangs));
        for _ in 0..2 {
            assert!(futures::poll!(std::pin::pin!(store.reach())).is_pending());
        }
        answer.send(()).unwrap();
        assert_eq!(store.read_all(&key).await.unwrap(), "z");
    }
}

//! Over any `object_store`: memory and clouds.
//!
//! Must hold: nothing here assumes more than a conditional put and ranged gets, and a short
//! answer never passes for a whole one.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error as ObjectError, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
};

use crate::range::Span;
use crate::{Error, Key, Kind, ObjectInfo, ObjectRange, Prefix, Store};

/// Requests of one `read` that are in flight at once: enough to hide the latency of a bucket,
/// few enough for its connection pool.
const READS_IN_FLIGHT: usize = 16;

#[derive(Debug)]
pub(crate) struct RemoteStore {
    inner: Arc<dyn ObjectStore>,
}

impl RemoteStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner }
    }

    async fn read_range(&self, wanted: ObjectRange) -> Result<Bytes, Error> {
        const ACTION: &str = "read object";
        let path = path(&wanted.key);
        let range = match wanted.range.0 {
            Span::Exact { start, end } => Some(GetRange::Bounded(start..end)),
            Span::UpTo(u64::MAX) => None,
            Span::UpTo(length) => Some(GetRange::Bounded(0..length)),
        };
        let answer =
            match self.inner.get_opts(&path, GetOptions { range, ..Default::default() }).await {
                Ok(found) => found.bytes().await,
                Err(error) => Err(error),
            };
        match (answer, wanted.range.0) {
            (Ok(bytes), Span::Exact { start, end }) if bytes.len() as u64 != end - start => {
                Err(too_short(&wanted))
            }
            (Ok(bytes), _) => Ok(bytes),
            (Err(error), _) if kind_of(&error) != Kind::Unavailable => {
                Err(translated(error, ACTION, &wanted.key))
            }
            // A range that starts past the end has no error of its own in object_store, so the
            // size decides whether the object or the store is at fault.
            (Err(error), span) => match (self.inner.head(&path).await, span) {
                (Ok(object), Span::Exact { end, .. }) if object.size < end => {
                    Err(too_short(&wanted))
                }
                (Ok(object), Span::UpTo(_)) if object.size == 0 => Ok(Bytes::new()),
                _ => Err(translated(error, ACTION, &wanted.key)),
            },
        }
    }
}

fn too_short(wanted: &ObjectRange) -> Error {
    let why = format!("the object ends before byte {} of it", wanted.range.max_len());
    Error::because(Kind::Corrupt, "read object", &wanted.key, why)
}

fn path(key: &Key) -> Path {
    Path::from(key.as_str())
}

fn translated(error: ObjectError, action: &'static str, key: impl fmt::Display) -> Error {
    Error::because(kind_of(&error), action, key, error)
}

/// object_store's set of errors is open; what it doesn't tell apart is worth a retry.
fn kind_of(error: &ObjectError) -> Kind {
    match error {
        ObjectError::NotFound { .. } => Kind::Missing,
        ObjectError::AlreadyExists { .. } | ObjectError::Precondition { .. } => Kind::Exists,
        ObjectError::PermissionDenied { .. } | ObjectError::Unauthenticated { .. } => Kind::Denied,
        ObjectError::NotSupported { .. }
        | ObjectError::NotImplemented { .. }
        | ObjectError::InvalidPath { .. }
        | ObjectError::UnknownConfigurationKey { .. } => Kind::Unsupported,
        _ => Kind::Unavailable,
    }
}

impl fmt::Display for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inner)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a store owes the whole contract")]
#[async_trait]
impl Store for RemoteStore {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        let mode = PutOptions { mode: PutMode::Create, ..Default::default() };
        let put = self.inner.put_opts(&path(key), body.into(), mode).await;
        put.map(drop).map_err(|error| translated(error, "create object", key))
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        // Owned, as the compiler cannot follow a borrowed item through a boxed stream.
        let reads = wanted.iter().cloned().map(|range| self.read_range(range));
        stream::iter(reads).buffered(READS_IN_FLIGHT).collect().await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        match self.inner.delete(&path(key)).await {
            // Stores differ on whether this is an error.
            Ok(()) | Err(ObjectError::NotFound { .. }) => Ok(()),
            Err(error) => Err(translated(error, "delete object", key)),
        }
    }

    async fn settle(&self, _: &[Key]) -> Result<(), Error> {
        // What such a store shows is durable.
        Ok(())
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>> {
        let (below, prefix) = (Path::from(prefix.as_str()), prefix.clone());
        let asked = prefix.clone();
        self.inner
            .list(Some(&below))
            .map_err(move |error| translated(error, "list objects below", &asked))
            .try_filter_map(move |object| {
                // A name that is no key was put there by somebody else.
                let key =
                    Key::new(object.location.as_ref()).ok().filter(|key| prefix.contains(key));
                futures::future::ok(key.map(|key| ObjectInfo { key, size: object.size }))
            })
            .boxed()
    }
}

//! Over any `object_store`: memory and clouds.
//!
//! Must hold: a conditional put and ranged gets are all that is assumed of an `object_store`. A short
//! answer never passes for a complete answer.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use dl_runtime::Random;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attribute, Error as ObjectError, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions,
};
use tokio::sync::Semaphore;

use crate::merge::{Fetch, merge};
use crate::range::Span;
use crate::{Error, Key, Kind, ObjectInfo, ObjectRange, Prefix, Store};

/// Requests of one `read` that are in flight at once: enough to hide the latency of a bucket.
const READS_IN_FLIGHT: usize = 64;

/// Most KiB in memory for merged ranges, most of which may be gaps.
const ROOM_KIB: u32 = 32 << 10;

/// No object is longer; servers refuse longer ranges.
const LARGEST: u64 = 1 << 62;

/// An attribute with a random value for each create. A create that was sent again after a lost answer
/// recognises its own object by the value. The name is legal in every cloud.
const MARK: Attribute = Attribute::Metadata(Cow::Borrowed("creation"));

#[derive(Debug)]
pub(crate) struct RemoteStore {
    inner: Arc<dyn ObjectStore>,
    name: String,
    random: Arc<dyn Random>,
    /// Ranges of an object with at most so many bytes between them are merged.
    gap: u64,
    /// Memory for merged ranges, in KiB.
    room: Semaphore,
}

impl RemoteStore {
    pub(crate) fn new(
        inner: Arc<dyn ObjectStore>,
        name: String,
        random: Arc<dyn Random>,
        gap: u64,
    ) -> Self {
        Self { inner, name, random, gap, room: Semaphore::new(ROOM_KIB as usize) }
    }

    async fn is_marked(&self, path: &Path, mark: &str) -> Result<bool, ObjectError> {
        let head = GetOptions { head: true, ..Default::default() };
        let object = self.inner.get_opts(path, head).await?;
        Ok(object.attributes.get(&MARK).is_some_and(|found| found.as_ref() == mark))
    }

    /// Reads for several ranges at once, when there is memory for them.
    async fn fetch(&self, fetch: &Fetch) -> Result<Bytes, Error> {
        let kib = match fetch.members.as_slice() {
            // The caller has memory for a single range.
            [_] => 0,
            _ => fetch.range.range.max_len().div_ceil(1 << 10),
        };
        let kib = u32::try_from(kib).unwrap_or(ROOM_KIB).min(ROOM_KIB);
        let _room = self.room.acquire_many(kib).await.expect("the semaphore is never closed");
        self.read_range(fetch.range.clone()).await
    }

    async fn read_range(&self, wanted: ObjectRange) -> Result<Bytes, Error> {
        const ACTION: &str = "read object";
        let path = path(&wanted.key);
        let range = match wanted.range.0 {
            Span::Exact { start, end } => Some(GetRange::Bounded(start..end)),
            Span::UpTo(length) if length > LARGEST => None,
            Span::UpTo(length) => Some(GetRange::Bounded(0..length)),
        };
        let answer =
            match self.inner.get_opts(&path, GetOptions { range, ..Default::default() }).await {
                Ok(found) => {
                    let length = found.range.end - found.range.start;
                    found.bytes().await.and_then(|bytes| whole(bytes, length))
                }
                Err(error) => Err(error),
            };
        match (answer, wanted.range.0) {
            (Ok(bytes), Span::Exact { start, end }) if bytes.len() as u64 != end - start => {
                Err(too_short(&wanted))
            }
            (Ok(bytes), _) => Ok(bytes),
            (Err(error), _) if kind_of(&error) != Kind::Unavailable || is_silence(&error) => {
                Err(translated(error, ACTION, &wanted.key))
            }
            // object_store does not tell a range past the end: the size decides.
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

fn put(results: &mut [Option<Result<Bytes, Error>>], at: usize, result: Result<Bytes, Error>) {
    if let Some(slot) = results.get_mut(at) {
        *slot = Some(result);
    }
}

/// A body shorter than the length in its head was cut on the way.
fn whole(bytes: Bytes, length: u64) -> Result<Bytes, ObjectError> {
    if bytes.len() as u64 == length {
        return Ok(bytes);
    }
    let why = format!("{} of {length} bytes came", bytes.len());
    Err(ObjectError::Generic { store: "remote", source: why.into() })
}

fn too_short(wanted: &ObjectRange) -> Error {
    let why = format!("the object ends before byte {} of it", wanted.range.max_len());
    Error::because(Kind::Corrupt, "read object", &wanted.key, why)
}

fn path(key: &Key) -> Path {
    Path::from(key.as_str())
}

fn translated(error: ObjectError, action: &'static str, key: impl fmt::Display) -> Error {
    let kind = if is_missing(&error) || kind_of(&error) != Kind::Missing {
        kind_of(&error)
    } else {
        Kind::Unavailable
    };
    // The text contains the causes; a source would repeat them.
    Error::because(kind, action, key, error.to_string())
}

/// Whether the object is missing, and not the whole bucket.
pub(crate) fn is_missing(error: &ObjectError) -> bool {
    let ObjectError::NotFound { source, .. } = error else { return false };
    let why = source.to_string();
    !["NoSuchBucket", "ContainerNotFound"].iter().any(|bucket| why.contains(bucket))
}

/// The beginning of object_store's text for a request without an HTTP answer.
pub(crate) const NO_ANSWER: &str = "HTTP error";

/// Whether the store gave no answer, or a server error, by the text, as the status is not given.
fn is_silence(error: &ObjectError) -> bool {
    let why = error.to_string();
    [NO_ANSWER, "status code: 5"].iter().any(|silence| why.contains(silence))
}

/// object_store's set of errors is open. An unknown error is worth a retry.
pub(crate) fn kind_of(error: &ObjectError) -> Kind {
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
        f.write_str(&self.name)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a store owes the whole contract")]
#[async_trait]
impl Store for RemoteStore {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        const ACTION: &str = "create object";
        let path = path(key);
        let mark = format!("{:016x}{:016x}", self.random.u64(), self.random.u64());
        let options = PutOptions {
            mode: PutMode::Create,
            attributes: [(MARK, mark.clone())].into_iter().collect(),
            ..Default::default()
        };
        let Err(error) = self.inner.put_opts(&path, body.into(), options).await else {
            return Ok(());
        };
        if kind_of(&error) != Kind::Exists {
            return Err(translated(error, ACTION, key));
        }
        match self.is_marked(&path, &mark).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(translated(error, ACTION, key)),
            // Deleted meanwhile, or unreadable: whether the object exists is unknown.
            Err(unseen) => Err(Error::because(Kind::Unavailable, ACTION, key, unseen.to_string())),
        }
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        let reads = merge(wanted, self.gap).into_iter().map(|fetch| async move {
            let body = self.fetch(&fetch).await;
            (fetch, body)
        });
        let mut reads = stream::iter(reads).buffer_unordered(READS_IN_FLIGHT).boxed();
        let mut results: Vec<Option<Result<Bytes, Error>>> =
            std::iter::repeat_with(|| None).take(wanted.len()).collect();
        let mut alone = Vec::new();
        while let Some((fetch, body)) = reads.next().await {
            match (body, fetch.members.as_slice()) {
                (Ok(body), _) => {
                    for (number, bytes) in fetch.cut(&body, wanted) {
                        put(&mut results, number, Ok(bytes));
                    }
                }
                (Err(error), [number]) => put(&mut results, *number, Err(error)),
                // One range may be at fault, and must fail no other.
                (Err(_), members) => alone.extend_from_slice(members),
            }
        }
        // Owned, as the compiler cannot follow a borrowed item through a boxed stream.
        let again =
            alone.into_iter().filter_map(|number| Some((number, wanted.get(number)?.clone())));
        let again =
            again.map(|(number, range)| async move { (number, self.read_range(range).await) });
        let mut again = stream::iter(again).buffer_unordered(READS_IN_FLIGHT).boxed();
        while let Some((number, result)) = again.next().await {
            put(&mut results, number, result);
        }
        let missing =
            |range: &ObjectRange| Err(Error::new(Kind::Corrupt, "read object", &range.key));
        let results = wanted.iter().zip(results);
        results.map(|(range, result)| result.unwrap_or_else(|| missing(range))).collect()
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        match self.inner.delete(&path(key)).await {
            Ok(()) => Ok(()),
            // Stores differ on whether this is an error.
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(translated(error, "delete object", key)),
        }
    }

    async fn make_durable(&self, _: &[Key]) -> Result<(), Error> {
        // Visible objects are durable.
        Ok(())
    }

    async fn prune(&self, _: &Prefix) -> Result<(), Error> {
        // A bucket has no folders.
        Ok(())
    }

    fn invalidate(&self, _: &Key) {
        // There are no copies.
    }

    fn will_read(&self, _: &Key) {
        // There are no copies.
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>> {
        let (below, prefix) = (Path::from(prefix.as_str()), prefix.clone());
        let asked = prefix.clone();
        self.inner
            .list(Some(&below))
            .map_err(move |error| translated(error, "list objects below", &asked))
            .try_filter_map(move |object| {
                // Names that are no keys belong to other programs.
                let key =
                    Key::new(object.location.as_ref()).ok().filter(|key| prefix.contains(key));
                futures::future::ok(key.map(|key| ObjectInfo { key, size: object.size }))
            })
            .boxed()
    }
}

//! A directory as a store, durable by itself.
//!
//! object_store has a local store, too, but leaves staging files after a crash, does not sync deletions,
//! and opens the file again for each read.
//!
//! Must hold: the file calls of [`directory`] run where they may block. A blocking thread is not held
//! between two calls of a caller.

mod descriptors;
mod directory;
mod disk;
mod files;
mod read;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "conformance"))]
mod volatile;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use dl_runtime::{blocking, masked};
use futures::future::join_all;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use self::directory::Directory;
use self::disk::Disk;
use self::files::Files;
#[cfg(any(test, feature = "conformance"))]
pub use self::volatile::VolatileDisk;
use crate::{Error, Key, Kind, ObjectInfo, ObjectRange, Prefix, Store};

/// Bytes that a blocking job reads: for fewer, another thread costs more than the copying.
const BYTES_PER_JOB: u64 = 1 << 20;

/// Blocking jobs for one `read`: enough for the speed of memory, and for a disk's queue.
const JOBS_PER_READ: usize = 4;

/// Most bytes that a read copies on the caller's thread, when all of them are in the page cache: another
/// thread costs more, and so short a copy delays no other task.
const BYTES_AT_ONCE: u64 = 1 << 20;

/// Objects that a blocking job of a listing collects.
const LISTED_PER_JOB: usize = 1024;

/// Opens the directory `root` as a store; a missing directory is made.
pub(crate) async fn open(root: &Path) -> Result<Arc<dyn Store>, Error> {
    let (path, shown) = (root.to_path_buf(), masked(&root.to_string_lossy()).into_owned());
    let opened =
        blocking::run(move || -> std::io::Result<_> { Ok(Directory::open(Disk::open(&path)?)?) });
    let directory = opened
        .await
        .map_err(|stopped| Error::because(Kind::Unavailable, "open store", &shown, stopped))?
        .map_err(|error| {
            let mut error = Error::from_io(error, "open store", &shown);
            if error.kind == Kind::Missing || error.kind == Kind::Exists {
                // A file stands in the place of the directory, or of a directory above.
                error.kind = Kind::Unsupported;
            }
            error
        })?;
    Ok(Arc::new(LocalStore::new(root, directory)))
}

#[derive(Debug)]
struct LocalStore<F: Files> {
    root: PathBuf,
    directory: Arc<Directory<F>>,
}

impl<F: Files> LocalStore<F> {
    fn new(root: &Path, directory: Directory<F>) -> Self {
        Self { root: root.to_path_buf(), directory: Arc::new(directory) }
    }

    async fn run<T: Send + 'static>(
        &self,
        action: &'static str,
        key: impl fmt::Display,
        work: impl FnOnce(&Directory<F>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let directory = Arc::clone(&self.directory);
        match blocking::run(move || work(&directory)).await {
            Ok(result) => result,
            Err(stopped) => Err(Error::because(Kind::Unavailable, action, key, stopped)),
        }
    }
}

impl<F: Files> fmt::Display for LocalStore<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "local({})", masked(&self.root.to_string_lossy()))
    }
}

#[deny(clippy::missing_trait_methods, reason = "a store owes the whole contract")]
#[async_trait]
impl<F: Files> Store for LocalStore<F> {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        let owned = key.clone();
        self.run("create object", key, move |directory| directory.create(&owned, &body)).await
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        let bytes = wanted.iter().map(|range| range.range.max_len()).fold(0, u64::saturating_add);
        let cached =
            if bytes <= BYTES_AT_ONCE { self.directory.read_cached(wanted) } else { Vec::new() };
        let wanted = wanted.get(cached.len()..).unwrap_or_default();
        let mut results: Vec<_> = cached.into_iter().map(Ok).collect();
        if wanted.is_empty() {
            return results;
        }
        let jobs = shares(wanted).into_iter().map(|share| {
            let ranges = wanted.get(share).unwrap_or_default().to_vec();
            let directory = Arc::clone(&self.directory);
            blocking::run(move || directory.read(&ranges))
        });
        let done = join_all(jobs).await;
        for (share, result) in shares(wanted).into_iter().zip(done) {
            match result {
                Ok(read) => results.extend(read),
                Err(_) => {
                    results.extend(
                        wanted.get(share).unwrap_or_default().iter().map(|range| {
                            Err(Error::new(Kind::Unavailable, "read object", &range.key))
                        }),
                    )
                }
            }
        }
        results
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        let owned = key.clone();
        self.run("delete object", key, move |directory| directory.delete(&owned)).await
    }

    async fn make_durable(&self, keys: &[Key]) -> Result<(), Error> {
        let (owned, what) = (keys.to_vec(), format!("{} objects", keys.len()));
        self.run("settle", what, move |directory| directory.make_durable(&owned)).await
    }

    async fn prune(&self, prefix: &Prefix) -> Result<(), Error> {
        let dir = prefix.as_str().to_owned();
        self.run("remove empty folders below", prefix, move |directory| directory.prune(&dir)).await
    }

    fn invalidate(&self, _: &Key) {
        // There are no copies.
    }

    fn will_read(&self, _: &Key) {
        // There are no copies.
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>> {
        let (top, prefix) = (vec![prefix.as_str().to_owned()], prefix.clone());
        stream::try_unfold(top, move |mut dirs| {
            let prefix = prefix.clone();
            async move {
                if dirs.is_empty() {
                    return Ok(None);
                }
                let work = move |directory: &Directory<F>| {
                    let mut objects = Vec::new();
                    while objects.len() < LISTED_PER_JOB
                        && let Some(dir) = dirs.pop()
                    {
                        directory.list(&dir, &mut objects, &mut dirs)?;
                    }
                    Ok((objects, dirs))
                };
                let (objects, dirs) = self.run("list objects below", &prefix, work).await?;
                Ok(Some((stream::iter(objects).map(Ok), dirs)))
            }
        })
        .try_flatten()
        .boxed()
    }
}

/// Cuts the ranges of a call, in order, into shares of about equal bytes, a share for each job.
fn shares(wanted: &[ObjectRange]) -> Vec<Range<usize>> {
    // An object of unknown size is worth a job.
    let weight = |range: &ObjectRange| match range.range.max_len() {
        u64::MAX => BYTES_PER_JOB,
        length => length,
    };
    let total = wanted.iter().map(weight).fold(0_u64, u64::saturating_add);
    let jobs = total.div_ceil(BYTES_PER_JOB).clamp(1, JOBS_PER_READ as u64);
    let per_job = total.div_ceil(jobs).max(1);
    let mut shares = Vec::with_capacity(JOBS_PER_READ);
    let (mut start, mut bytes) = (0, 0_u64);
    for (index, range) in wanted.iter().enumerate() {
        bytes = bytes.saturating_add(weight(range));
        if bytes >= per_job || index + 1 == wanted.len() {
            shares.push(start..index + 1);
            (start, bytes) = (index + 1, 0);
        }
    }
    shares
}

//! Snapshots from the servers: fetched once for all processes of a user, or into a file.
//!
//! Must hold: a broken download resumes at the same offset, at any server. A snapshot is checked
//! before use. Every wait ends. Without room in the cache, a snapshot lies in memory.

use std::cell::{Cell, RefCell};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use dl_format::{DatasetId, Version};
use dl_proto::{GetSnapshotRequest, SnapshotPiece, pb};

use crate::error::{Error, Kind};
use crate::remote::dataset::RemoteDataset;
use crate::remote::failure::Failure;
use crate::remote::session::Session;
use crate::snapshot::{Key, Lock, Origin, Snapshot, SnapshotCache, Target, UserFile, room};

/// Time between looks at another process that fetches the same snapshot.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time for which another process may show no sign of life: enough for a server to build the
/// snapshot.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Downloads of a version that disappears, or of damaged bytes, at most.
const TIMES: u32 = 3;

/// The version and the length of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    version: Version,
    length: u64,
}

impl RemoteDataset {
    /// The snapshot of a version: from the cache, or fetched into the cache, else into memory. Unless
    /// `is_exact`, the servers may give a newer version.
    pub(crate) fn snapshot_of(
        &self,
        version: Version,
        is_exact: bool,
        cache: Option<&SnapshotCache>,
    ) -> Result<Snapshot, Error> {
        let asked = is_exact.then_some(version);
        let session = self.session()?;
        let Some(cache) = cache else { return self.fetch_into_memory(&session, asked) };
        let find = || cache.find(self.key(version), session.process.clock.now());
        if let Some(snapshot) = find() {
            return Ok(snapshot);
        }
        // Another process may have fetched the snapshot meanwhile.
        let kept = lock(self.info().id, &session, cache)
            .and_then(|lock| find().map_or_else(|| self.fetch(&session, asked, cache, &lock), Ok));
        match kept {
            Err(error) if error.kind() == Kind::Local => {
                let snapshot = self.fetch_into_memory(&session, asked)?;
                let (why, bytes) = (error.chain(), snapshot.length());
                tracing::warn!(why, bytes, "keeping a snapshot in memory");
                Ok(snapshot)
            }
            kept => kept,
        }
    }

    /// The cache key of a snapshot from the servers.
    fn key(&self, version: Version) -> Key {
        Key { origin: Origin::Servers, dataset: self.info().id, version }
    }

    /// Writes a snapshot of the current version into a file.
    pub(crate) fn save_snapshot(&self, file: &Path) -> Result<Snapshot, Error> {
        let session = self.session()?;
        let failed = |why| Error::new(Kind::Local, "write", file.display(), why);
        let mut target = Target::begin(file).map_err(failed)?;
        let snapshot = retried(|| {
            let head = self.head(&session, None, &|| ())?;
            target.clear().map_err(failed)?;
            self.download(&session, head, 0, target.file(), &|| (), &failed)?;
            Snapshot::check(target.partial())
        })?;
        target.end().map_err(failed)?;
        Ok(snapshot)
    }

    /// Fetches a snapshot into the cache: the newest, unless a version is given.
    fn fetch(
        &self,
        session: &Session,
        asked: Option<Version>,
        cache: &SnapshotCache,
        lock: &Lock,
    ) -> Result<Snapshot, Error> {
        let failed = |why| cache.failed(why);
        retried(|| {
            let waits = || lock.show_life(session.process.clock.now());
            let head = self.head(session, asked, &waits)?;
            let (key, now) = (self.key(head.version), session.process.clock.now());
            if let Some(snapshot) = cache.find(key, now) {
                return Ok(snapshot);
            }
            let (mut file, path) = cache.begin(lock, key).map_err(failed)?;
            let there = file.seek(SeekFrom::End(0)).map_err(failed)?;
            // A file longer than the snapshot holds other bytes.
            let from = if there > head.length { 0 } else { there };
            file.set_len(from).and_then(|()| file.seek(SeekFrom::Start(from))).map_err(failed)?;
            let done = self.download(session, head, from, &mut file, &waits, &failed);
            let checked = done.and_then(|()| {
                let snapshot = Snapshot::map(&file, &path, cache.marker(key))?;
                snapshot.verify_checksums()?;
                snapshot.check_is(key.dataset, key.version)?;
                Ok(snapshot)
            });
            match &checked {
                Ok(_) => cache.end(lock, key, &file, now),
                // A partial file stays, to be resumed.
                Err(error) if is_useless(error) || error.kind() == Kind::Local => {
                    let _ = std::fs::remove_file(&path);
                }
                Err(_) => {}
            }
            checked
        })
    }

    /// Fetches a snapshot into the memory of the process.
    fn fetch_into_memory(
        &self,
        session: &Session,
        asked: Option<Version>,
    ) -> Result<Snapshot, Error> {
        let subject = self.address();
        let failed = |why| Error::new(Kind::Local, "hold the snapshot in memory of", &subject, why);
        retried(|| {
            let head = self.head(session, asked, &|| ())?;
            let mut bytes = room(head.length).map_err(failed)?;
            self.download(session, head, 0, &mut bytes, &|| (), &failed)?;
            let snapshot = Snapshot::in_memory(bytes, Path::new(&subject))?;
            snapshot.verify_checksums()?;
            snapshot.check_is(self.info().id, head.version)?;
            Ok(snapshot)
        })
    }

    /// Asks for the version and the length of a snapshot, which the servers build if missing; calls
    /// `building` meanwhile.
    fn head(
        &self,
        session: &Session,
        version: Option<Version>,
        building: &(impl Fn() + ?Sized),
    ) -> Result<Head, Error> {
        let dataset = self.info().id;
        let request = GetSnapshotRequest { dataset, version, offset: 0, head_only: true };
        let head = Cell::new(None);
        self.ask(
            session,
            || request,
            |piece| {
                match piece {
                    SnapshotPiece::Head { version, length } => {
                        head.set(Some(Head { version, length }));
                    }
                    SnapshotPiece::Waiting => building(),
                    SnapshotPiece::Data(_) => {}
                }
                Ok(())
            },
            &|why| Error::new(Kind::Internal, "get", "a snapshot", why),
        )?;
        head.get().ok_or_else(|| {
            let subject = self.address();
            Error::new(Kind::Internal, "get the snapshot of", subject, "the answer is empty")
        })
    }

    /// Writes the bytes of a snapshot from an offset on, up to its length; calls `building` while
    /// the servers build the snapshot again.
    fn download(
        &self,
        session: &Session,
        head: Head,
        from: u64,
        target: &mut dyn Write,
        building: &(impl Fn() + ?Sized),
        failed: &dyn Fn(io::Error) -> Error,
    ) -> Result<(), Error> {
        if from == head.length {
            return Ok(());
        }
        let (dataset, at) = (self.info().id, Cell::new(from));
        let target = RefCell::new(target);
        let request = || GetSnapshotRequest {
            dataset,
            version: Some(head.version),
            offset: at.get(),
            head_only: false,
        };
        loop {
            let before = at.get();
            let take = |piece| {
                let bytes = match piece {
                    SnapshotPiece::Data(bytes) => bytes,
                    SnapshotPiece::Waiting => {
                        building();
                        return Ok(());
                    }
                    SnapshotPiece::Head { .. } => return Ok(()),
                };
                let left = head.length.saturating_sub(at.get());
                let left = usize::try_from(left).unwrap_or(usize::MAX);
                let bytes = bytes.get(..left).unwrap_or(&bytes);
                target.borrow_mut().write_all(bytes)?;
                at.set(at.get() + bytes.len() as u64);
                Ok(())
            };
            let asked = self.ask(session, request, take, failed);
            let now = at.get();
            match asked {
                Ok(()) if now == head.length => return Ok(()),
                // The time limit counts from the last bytes.
                Ok(()) if now > before => {}
                Err(error) if error.kind().is_retryable() && now > before => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    let subject = self.address();
                    let why = format!("the answer ends after {now} of {} bytes", head.length);
                    return Err(Error::new(Kind::Corrupt, "get the snapshot of", subject, why));
                }
            }
        }
    }

    /// Asks until an answer is complete; each try calls `request` for its message. `failed` makes the
    /// error for a failure of `take`.
    fn ask(
        &self,
        session: &Session,
        request: impl Fn() -> GetSnapshotRequest,
        take: impl Fn(SnapshotPiece) -> io::Result<()>,
        failed: &dyn Fn(io::Error) -> Error,
    ) -> Result<(), Error> {
        let subject = || self.address();
        let connections = &session.connections;
        let (take, broken) = (&take, Cell::new(None));
        let asked = session.wait(connections.call(
            "get the snapshot of",
            subject,
            connections.usual(),
            |mut server, this| {
                let request = this.request(pb::GetSnapshotRequest::from(request()));
                let broken = &broken;
                async move {
                    let mut stream = this.answer(server.get_snapshot(request)).await?;
                    while let Some(message) = this.message(&mut stream).await? {
                        if let Err(why) = take(SnapshotPiece::try_from(message)?) {
                            let failure = Failure::new(Kind::Local, why.to_string());
                            broken.set(Some(why));
                            return Err(failure);
                        }
                    }
                    Ok(())
                }
            },
        ));
        broken.take().map_or(asked, |why| Err(failed(why)))
    }
}

/// Waits for the lock to write snapshots of a dataset into a cache.
fn lock(dataset: DatasetId, session: &Session, cache: &SnapshotCache) -> Result<Lock, Error> {
    let clock = &session.process.clock;
    let (mut seen, mut until) = (None, clock.monotonic().saturating_add(TIMEOUT));
    loop {
        if let Some(lock) = cache.lock(dataset).map_err(|why| cache.failed(why))? {
            return Ok(lock);
        }
        let sign = Some(cache.sign_of_life(dataset));
        if sign != seen {
            (seen, until) = (sign, clock.monotonic().saturating_add(TIMEOUT));
        }
        if clock.monotonic() >= until {
            let why = format!("another process has been fetching the snapshot for {TIMEOUT:?}");
            let folder = cache.folder().display();
            return Err(Error::new(Kind::TimedOut, "keep a snapshot in", folder, why));
        }
        // A sleep must begin within the runtime.
        session.wait(async { clock.sleep(POLL_INTERVAL).await });
    }
}

/// A snapshot from a file, checked; from the cache if there is a copy.
pub(crate) fn load(
    file: &UserFile,
    cache: Option<&SnapshotCache>,
    session: &Session,
) -> Result<Snapshot, Error> {
    let Some(cache) = cache else { return file.read() };
    if let Some(kept) = kept(file, cache, session) {
        return Ok(kept);
    }
    match keep(file, cache, session) {
        Ok(kept) => kept,
        Err(why) => {
            let why = why.chain();
            tracing::warn!(why, "keeping a snapshot in memory");
            file.read()
        }
    }
}

/// The cached copy of a snapshot file.
fn kept(file: &UserFile, cache: &SnapshotCache, session: &Session) -> Option<Snapshot> {
    let (of, now) = (file.of(), session.process.clock.now());
    Origin::ALL.into_iter().find_map(|origin| {
        let key = Key { origin, dataset: of.dataset, version: of.version };
        cache.find(key, now).filter(|kept| file.is(kept))
    })
}

/// Copies a snapshot file into the cache. The outer error is the cache's, the inner error the
/// file's.
fn keep(
    file: &UserFile,
    cache: &SnapshotCache,
    session: &Session,
) -> Result<Result<Snapshot, Error>, Error> {
    let of = file.of();
    let lock = lock(of.dataset, session, cache)?;
    // Another process may have copied the file meanwhile.
    if let Some(kept) = kept(file, cache, session) {
        return Ok(Ok(kept));
    }
    let failed = |why| cache.failed(why);
    let key = Key { origin: Origin::File, dataset: of.dataset, version: of.version };
    let (mut copy, path) = cache.begin(&lock, key).map_err(failed)?;
    let copied = copy.set_len(0).and_then(|()| file.copy(&mut copy));
    let checked = copied.map(|()| {
        let snapshot = Snapshot::map(&copy, file.path(), cache.marker(key))?;
        snapshot.verify().map(|()| snapshot)
    });
    if let Ok(Ok(snapshot)) = checked {
        cache.end(&lock, key, &copy, session.process.clock.now());
        return Ok(Ok(snapshot));
    }
    let _ = std::fs::remove_file(&path);
    checked.map_err(failed)
}

/// Tries again, a few times, after useless downloads.
fn retried<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..TIMES {
        match attempt() {
            Err(error) if is_useless(&error) => {}
            ended => return ended,
        }
    }
    attempt()
}

/// Whether a download is damaged, or its version is gone.
fn is_useless(error: &Error) -> bool {
    matches!(error.kind(), Kind::Corrupt | Kind::NotFound)
}

#[cfg(test)]
mod tests;

//! Snapshots from the servers: fetched once for all processes of a user, or into a file.
//!
//! Must hold: a download goes on where it broke off, at any server; what is used was checked; every
//! wait ends. What can't be kept is held in memory.

use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dl_format::{DatasetId, Version};
use dl_proto::{GetSnapshotRequest, SnapshotPiece, pb};

use crate::error::{Error, Kind};
use crate::remote::dataset::RemoteDataset;
use crate::remote::failure::Failure;
use crate::remote::session::Session;
use crate::snapshot::{Given, Key, Lock, Snapshot, SnapshotCache, Source, Target, room};

/// How often somebody who fetches the same snapshot is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long somebody who fetches it may show no sign of life: as long as a server may build it.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often a download is begun anew because its version is gone, or it came damaged.
const TIMES: u32 = 3;

/// Which snapshot, and how many bytes it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    version: Version,
    length: u64,
}

impl RemoteDataset {
    /// The snapshot of the newest version, which was `version` just now: that of the cache, or a new one,
    /// or one in memory where it can't be kept, or without a cache.
    pub(crate) fn snapshot_of(
        &self,
        version: Version,
        cache: Option<&SnapshotCache>,
    ) -> Result<Snapshot, Error> {
        self.find_snapshot(version, None, cache)
    }

    /// The same of a version that may be an old one, of which the servers still have a snapshot.
    pub(crate) fn snapshot_at(
        &self,
        version: Version,
        cache: Option<&SnapshotCache>,
    ) -> Result<Snapshot, Error> {
        self.find_snapshot(version, Some(version), cache)
    }

    fn find_snapshot(
        &self,
        version: Version,
        asked: Option<Version>,
        cache: Option<&SnapshotCache>,
    ) -> Result<Snapshot, Error> {
        let session = self.session()?;
        let Some(cache) = cache else { return self.fetch_into_memory(&session, asked) };
        let find = || cache.find(self.key(version), session.process.clock.now());
        if let Some(snapshot) = find() {
            return Ok(snapshot);
        }
        // Somebody else may have fetched it meanwhile.
        let kept = lock(self.info().id, &session, cache)
            .and_then(|lock| find().map_or_else(|| self.fetch(&session, asked, cache, &lock), Ok));
        match kept {
            Err(error) if error.kind() == Kind::Local => {
                let snapshot = self.fetch_into_memory(&session, asked)?;
                let (why, bytes) = (error.chain(), snapshot.length());
                tracing::warn!(why, bytes, "a snapshot is held in the memory of this process");
                Ok(snapshot)
            }
            kept => kept,
        }
    }

    /// The snapshot of a version, as the servers give it.
    fn key(&self, version: Version) -> Key {
        Key { source: Source::Servers, dataset: self.info().id, version }
    }

    /// Writes a snapshot of what the dataset holds now into a file.
    pub(crate) fn save_snapshot(&self, file: &Path) -> Result<Snapshot, Error> {
        let session = self.session()?;
        let failed = |why| Error::new(Kind::Local, "write", file.display(), why);
        let mut target = Target::begin(file).map_err(failed)?;
        let snapshot = anew(|| {
            let head = self.head(&session, None, &|| ())?;
            target.clear().map_err(failed)?;
            let done = self.download(&session, head, 0, target.file(), &|| ());
            done.map_err(|why| why.told(failed))?;
            Snapshot::check(target.partial())
        })?;
        target.end().map_err(failed)?;
        Ok(snapshot)
    }

    /// Fetches a snapshot into the cache, the newest one unless a version is asked for.
    fn fetch(
        &self,
        session: &Session,
        asked: Option<Version>,
        cache: &SnapshotCache,
        lock: &Lock,
    ) -> Result<Snapshot, Error> {
        let failed = |why| cache.failed(why);
        anew(|| {
            let waits = || lock.show_life(session.process.clock.now());
            let head = self.head(session, asked, &waits)?;
            let (key, now) = (self.key(head.version), session.process.clock.now());
            if let Some(snapshot) = cache.find(key, now) {
                return Ok(snapshot);
            }
            let (mut file, path) = cache.begin(lock, key).map_err(failed)?;
            let there = file.seek(SeekFrom::End(0)).map_err(failed)?;
            // More than there should be is none of it.
            let from = if there > head.length { 0 } else { there };
            file.set_len(from).and_then(|()| file.seek(SeekFrom::Start(from))).map_err(failed)?;
            let done = self.download(session, head, from, &mut file, &waits);
            let checked = done.map_err(|why| why.told(failed)).and_then(|()| {
                let snapshot = Snapshot::map(&file, &path, cache.marker(key))?;
                snapshot.verify_checksums()?;
                snapshot.check_is(key.dataset, key.version)?;
                Ok(snapshot)
            });
            match &checked {
                Ok(_) => cache.end(lock, key, &file, now),
                // What broke off is gone on with.
                Err(error) if is_for_nothing(error) || error.kind() == Kind::Local => {
                    let _ = std::fs::remove_file(&path);
                }
                Err(_) => {}
            }
            checked
        })
    }

    /// The same for this process alone.
    fn fetch_into_memory(
        &self,
        session: &Session,
        asked: Option<Version>,
    ) -> Result<Snapshot, Error> {
        let subject = self.address();
        let failed = |why| Error::new(Kind::Local, "hold the snapshot in memory of", &subject, why);
        anew(|| {
            let head = self.head(session, asked, &|| ())?;
            let mut bytes = room(head.length).map_err(failed)?;
            let done = self.download(session, head, 0, &mut bytes, &|| ());
            done.map_err(|why| why.told(failed))?;
            let snapshot = Snapshot::in_memory(bytes, Path::new(&subject))?;
            snapshot.verify_checksums()?;
            snapshot.check_is(self.info().id, head.version)?;
            Ok(snapshot)
        })
    }

    /// Which snapshot the servers have; it is built when there is none, and `building` is called
    /// now and then meanwhile.
    fn head(
        &self,
        session: &Session,
        version: Option<Version>,
        building: &(impl Fn() + ?Sized),
    ) -> Result<Head, Error> {
        let dataset = self.info().id;
        let request = GetSnapshotRequest { dataset, version, offset: 0, head_only: true };
        let head = Mutex::new(None);
        self.ask(
            session,
            || request,
            |piece| {
                match piece {
                    SnapshotPiece::Head { version, length } => {
                        *locked(&head) = Some(Head { version, length });
                    }
                    SnapshotPiece::Waiting => building(),
                    SnapshotPiece::Data(_) => {}
                }
                Ok(())
            },
        )
        .map_err(|broken| {
            broken.told(|why| Error::new(Kind::Internal, "get", "a snapshot", why))
        })?;
        let head = *locked(&head);
        head.ok_or_else(|| {
            let subject = self.address();
            Error::new(Kind::Internal, "get the snapshot of", subject, "the answer says nothing")
        })
    }

    /// Writes the bytes of a snapshot from an offset on, and no more of them than it has; `building` is
    /// called now and then when it has to be built anew.
    fn download(
        &self,
        session: &Session,
        head: Head,
        from: u64,
        target: &mut dyn Write,
        building: &(impl Fn() + ?Sized),
    ) -> Result<(), Broken> {
        if from == head.length {
            return Ok(());
        }
        let (dataset, at) = (self.info().id, Mutex::new(from));
        let target = Mutex::new(target);
        let request = || GetSnapshotRequest {
            dataset,
            version: Some(head.version),
            offset: *locked(&at),
            head_only: false,
        };
        loop {
            let before = *locked(&at);
            let asked = self.ask(session, request, |piece| {
                let bytes = match piece {
                    SnapshotPiece::Data(bytes) => bytes,
                    SnapshotPiece::Waiting => {
                        building();
                        return Ok(());
                    }
                    SnapshotPiece::Head { .. } => return Ok(()),
                };
                let mut at = locked(&at);
                let left = usize::try_from(head.length.saturating_sub(*at)).unwrap_or(usize::MAX);
                let bytes = bytes.get(..left).unwrap_or(&bytes);
                locked(&target).write_all(bytes)?;
                *at += bytes.len() as u64;
                Ok(())
            });
            let now = *locked(&at);
            match asked {
                Ok(()) if now == head.length => return Ok(()),
                // Time counts from the last bytes that came.
                Ok(()) if now > before => {}
                Err(Broken::Request(error)) if error.kind().is_retryable() && now > before => {}
                Err(broken) => return Err(broken),
                Ok(()) => {
                    let subject = self.address();
                    let why = format!("it ends after {now} of {} bytes", head.length);
                    let error = Error::new(Kind::Corrupt, "get the snapshot of", subject, why);
                    return Err(Broken::Request(error));
                }
            }
        }
    }

    /// Asks until an answer came to its end; `request` is what is asked then.
    fn ask(
        &self,
        session: &Session,
        request: impl Fn() -> GetSnapshotRequest,
        take: impl Fn(SnapshotPiece) -> io::Result<()>,
    ) -> Result<(), Broken> {
        let subject = || self.address();
        let connections = &session.connections;
        let (take, broken) = (&take, Mutex::new(None));
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
                            *locked(broken) = Some(why);
                            return Err(failure);
                        }
                    }
                    Ok(())
                }
            },
        ));
        let broken = locked(&broken).take();
        match (asked, broken) {
            (_, Some(why)) => Err(Broken::File(why)),
            (asked, None) => asked.map_err(Broken::Request),
        }
    }
}

/// Waits for the right to write snapshots of a dataset into a cache.
fn lock(dataset: DatasetId, session: &Session, cache: &SnapshotCache) -> Result<Lock, Error> {
    let clock = &session.process.clock;
    let (mut seen, mut until) = (None, clock.monotonic().saturating_add(PATIENCE));
    loop {
        if let Some(lock) = cache.lock(dataset).map_err(|why| cache.failed(why))? {
            return Ok(lock);
        }
        let sign = Some(cache.sign_of_life(dataset));
        if sign != seen {
            (seen, until) = (sign, clock.monotonic().saturating_add(PATIENCE));
        }
        if clock.monotonic() >= until {
            let why = format!("another process has been fetching it for {PATIENCE:?}");
            let folder = cache.folder().display();
            return Err(Error::new(Kind::TimedOut, "keep a snapshot in", folder, why));
        }
        // Sleeps begin inside of the runtime.
        session.wait(async { clock.sleep(LOOK).await });
    }
}

/// A snapshot in a file, checked: that of the cache where it is there.
pub(crate) fn load(
    file: &Path,
    cache: Option<&SnapshotCache>,
    session: &Session,
) -> Result<Snapshot, Error> {
    let given = Given::open(file)?;
    let Some(cache) = cache else { return given.read() };
    if let Some(kept) = kept(&given, cache, session) {
        return Ok(kept);
    }
    match keep(&given, cache, session) {
        Ok(kept) => kept,
        Err(why) => {
            let why = why.chain();
            tracing::warn!(why, "a snapshot is held in the memory of this process");
            given.read()
        }
    }
}

/// What the cache has of a snapshot in a file.
fn kept(given: &Given, cache: &SnapshotCache, session: &Session) -> Option<Snapshot> {
    let (of, now) = (given.of(), session.process.clock.now());
    [Source::Servers, Source::File].into_iter().find_map(|source| {
        let key = Key { source, dataset: of.dataset, version: of.version };
        cache.find(key, now).filter(|kept| given.is(kept))
    })
}

/// A copy of a snapshot in the cache, or what is wrong with it.
fn keep(
    given: &Given,
    cache: &SnapshotCache,
    session: &Session,
) -> Result<Result<Snapshot, Error>, Error> {
    let of = given.of();
    let lock = lock(of.dataset, session, cache)?;
    // Another process may have kept it meanwhile.
    if let Some(kept) = kept(given, cache, session) {
        return Ok(Ok(kept));
    }
    let failed = |why| cache.failed(why);
    let key = Key { source: Source::File, dataset: of.dataset, version: of.version };
    let (mut file, path) = cache.begin(&lock, key).map_err(failed)?;
    let copied = file.set_len(0).and_then(|()| given.copy(&mut file));
    let checked = copied.map(|()| {
        let snapshot = Snapshot::map(&file, given.path(), cache.marker(key))?;
        snapshot.verify().map(|()| snapshot)
    });
    if let Ok(Ok(snapshot)) = checked {
        cache.end(&lock, key, &file, session.process.clock.now());
        return Ok(Ok(snapshot));
    }
    let _ = std::fs::remove_file(&path);
    checked.map_err(failed)
}

/// Asks again, a few times, when what came was for nothing.
fn anew<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..TIMES {
        match attempt() {
            Err(error) if is_for_nothing(&error) => {}
            ended => return ended,
        }
    }
    attempt()
}

/// Whether what came is damaged, or of a version that is gone.
fn is_for_nothing(error: &Error) -> bool {
    matches!(error.kind(), Kind::Corrupt | Kind::NotFound)
}

/// Why there are no more bytes.
#[derive(Debug)]
enum Broken {
    File(io::Error),
    Request(Error),
}

impl Broken {
    fn told(self, local: impl Fn(io::Error) -> Error) -> Error {
        match self {
            Self::File(why) => local(why),
            Self::Request(error) => error,
        }
    }
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

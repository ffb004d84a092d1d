//! Snapshots from the servers: fetched once for all processes of a user, or into a file.
//!
//! Must hold: a download goes on where it broke off, at any server; what is kept was checked; every
//! wait ends; a handle with a snapshot answers from it until something is written through it.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dl_format::{FilePath, Version};
use dl_proto::{GetSnapshotRequest, SnapshotPiece, StatItem, pb};
use dl_runtime::Clock;

use crate::error::{Error, Kind};
use crate::remote::dataset::Dataset;
use crate::remote::failure::Failure;
use crate::remote::lookup::dataset_address;
use crate::remote::read::ReadItem;
use crate::remote::session::Session;
use crate::snapshot::{Lock, Snapshot, SnapshotCache};

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

impl Dataset {
    /// A handle that answers from a snapshot of what the dataset holds now (paper, 4.1.3): without
    /// requests, and the same for ever, whatever is written meanwhile. The snapshot is fetched
    /// unless `cache` has it.
    ///
    /// What is put or deleted through the handle shows: from then on it asks the servers again.
    ///
    /// # Errors
    /// [`Kind::Local`] when it can't be kept in `cache`, and those of the servers and of the way to
    /// them.
    pub fn with_snapshot(&self, cache: &SnapshotCache) -> Result<Self, Error> {
        let session = self.session()?;
        let (id, clock) = (self.info().id, &session.process.clock);
        if let Some(snapshot) = cache.find(id, self.info().version, clock.now()) {
            return Ok(self.answering(snapshot));
        }
        let lock = self.lock(&session, cache)?;
        // Somebody else may have fetched it meanwhile.
        if let Some(snapshot) = cache.find(id, self.info().version, clock.now()) {
            return Ok(self.answering(snapshot));
        }
        self.fetch(&session, cache, &lock).map(|snapshot| self.answering(snapshot))
    }

    /// A handle that answers from a snapshot in a file (paper, DL_load_meta), as
    /// [`save_meta`](Self::save_meta) writes them. It is checked, and copied into `cache` unless it
    /// is there, for a file elsewhere may change or vanish; without a cache, into memory.
    ///
    /// # Errors
    /// [`Kind::Local`] when the file can't be read, [`Kind::Corrupt`] when it is no snapshot or a
    /// damaged one, [`Kind::Conflict`] when it is one of another dataset.
    pub fn load_meta(&self, file: &Path, cache: Option<&SnapshotCache>) -> Result<Self, Error> {
        let clock = &self.session()?.process.clock;
        let snapshot = load(file, cache, clock.as_ref())?;
        if snapshot.dataset() == self.info().id {
            return Ok(self.answering(snapshot));
        }
        let why = format!("it is one of dataset {}, not of {}", snapshot.dataset(), self.info().id);
        Err(Error::new(Kind::Conflict, "load the snapshot", file.display(), why))
    }

    /// Writes a snapshot of what the dataset holds now into a file (paper, DL_save_meta), which it
    /// replaces once all of it is there.
    ///
    /// # Errors
    /// [`Kind::Local`] when the file can't be written, and those of the servers and of the way to
    /// them.
    pub fn save_meta(&self, file: &Path) -> Result<Snapshot, Error> {
        let session = self.session()?;
        let failed = |why| Error::new(Kind::Local, "write", file.display(), why);
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        let partial = file.with_file_name(name);
        let saved = || {
            let mut target = File::options()
                .create(true)
                .truncate(true)
                .read(true)
                .write(true)
                .open(&partial)
                .map_err(failed)?;
            let head = self.head(&session, None)?;
            self.download(&session, head, 0, &mut target).map_err(|why| why.told(failed))?;
            target.sync_all().map_err(failed)?;
            let snapshot = Snapshot::check(&partial)?;
            std::fs::rename(&partial, file).map_err(failed)?;
            Ok(snapshot)
        };
        saved().inspect_err(|_: &Error| {
            // It may not be there.
            let _ = std::fs::remove_file(&partial);
        })
    }

    /// Waits for the right to fetch this dataset's snapshots.
    fn lock(&self, session: &Session, cache: &SnapshotCache) -> Result<Lock, Error> {
        let (id, clock) = (self.info().id, &session.process.clock);
        let (mut seen, mut until) = (None, clock.monotonic().saturating_add(PATIENCE));
        loop {
            if let Some(lock) = cache.lock(id).map_err(|why| cache.failed(why))? {
                return Ok(lock);
            }
            let sign = Some(cache.sign_of_life(id));
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

    /// Fetches the newest snapshot into the cache.
    fn fetch(
        &self,
        session: &Session,
        cache: &SnapshotCache,
        lock: &Lock,
    ) -> Result<Snapshot, Error> {
        let failed = |why| cache.failed(why);
        let id = self.info().id;
        let mut times = 0;
        loop {
            times += 1;
            let head = self.head(session, None)?;
            if let Some(snapshot) = cache.find(id, head.version, session.process.clock.now()) {
                return Ok(snapshot);
            }
            let (mut file, path) = cache.begin(lock, id, head.version).map_err(failed)?;
            let there = file.seek(SeekFrom::End(0)).map_err(failed)?;
            // More than there should be is none of it.
            let from = if there > head.length { 0 } else { there };
            file.set_len(from).and_then(|()| file.seek(SeekFrom::Start(from))).map_err(failed)?;
            let done = self.download(session, head, from, &mut file);
            let checked = match done {
                Ok(()) => Snapshot::map(&path).and_then(|snapshot| {
                    snapshot.verify_checksums()?;
                    let found = (snapshot.dataset(), snapshot.version());
                    if found == (id, head.version) {
                        return Ok(snapshot);
                    }
                    let why = "it is another one than the server said";
                    Err(Error::new(Kind::Corrupt, "check the snapshot", path.display(), why))
                }),
                Err(error) => Err(error.told(failed)),
            };
            let error = match checked {
                Ok(snapshot) => {
                    cache.end(lock, id, head.version, &file).map_err(failed)?;
                    return Ok(snapshot);
                }
                Err(error) => error,
            };
            // What broke off is gone on with; what is damaged, or of a version that is gone, isn't.
            let is_anew = matches!(error.kind(), Kind::Corrupt | Kind::NotFound);
            if is_anew || error.kind() == Kind::Local {
                std::fs::remove_file(&path).map_err(failed)?;
            }
            if !is_anew || times >= TIMES {
                return Err(error);
            }
        }
    }

    /// Which snapshot the servers have; it is built when there is none.
    fn head(&self, session: &Session, version: Option<Version>) -> Result<Head, Error> {
        let dataset = self.info().id;
        let request = GetSnapshotRequest { dataset, version, offset: 0, head_only: true };
        let head = Mutex::new(None);
        self.ask(
            session,
            || request,
            |piece| {
                if let SnapshotPiece::Head { version, length } = piece {
                    *locked(&head) = Some(Head { version, length });
                }
                Ok(())
            },
        )
        .map_err(|broken| {
            broken.told(|why| Error::new(Kind::Internal, "get", "a snapshot", why))
        })?;
        let head = *locked(&head);
        head.ok_or_else(|| {
            let subject = dataset_address(&self.info().name);
            Error::new(Kind::Internal, "get the snapshot of", subject, "the answer says nothing")
        })
    }

    /// Writes the bytes of a snapshot from an offset on, where the file stands.
    fn download(
        &self,
        session: &Session,
        head: Head,
        from: u64,
        file: &mut File,
    ) -> Result<(), Broken> {
        if from == head.length {
            return Ok(());
        }
        let (dataset, at) = (self.info().id, Mutex::new(from));
        let file = Mutex::new(file);
        let request = || GetSnapshotRequest {
            dataset,
            version: Some(head.version),
            offset: *locked(&at),
            head_only: false,
        };
        loop {
            let before = *locked(&at);
            let asked = self.ask(session, request, |piece| {
                let SnapshotPiece::Data(bytes) = piece else { return Ok(()) };
                locked(&file).write_all(&bytes)?;
                *locked(&at) += bytes.len() as u64;
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
                    let subject = dataset_address(&self.info().name);
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
        let subject = || dataset_address(&self.info().name);
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

    /// What stands at paths by the snapshot that answers, if one does.
    pub(crate) fn known(&self, paths: &[FilePath]) -> Option<Result<Vec<StatItem>, Error>> {
        Some(self.snapshot()?.stat_many(paths))
    }

    /// The item with its record where a snapshot answers, or why there is nothing to read.
    pub(crate) fn known_item(&self, item: ReadItem) -> Result<ReadItem, Error> {
        let Some(snapshot) = self.snapshot().filter(|_| item.record.is_none()) else {
            return Ok(item);
        };
        let (kind, why) = match snapshot.stat(&item.path)? {
            StatItem::File(record) => {
                return Ok(ReadItem { path: item.path, record: Some(record) });
            }
            StatItem::Folder => (Kind::Conflict, format!("{} is a folder", item.path)),
            StatItem::Missing => (Kind::NotFound, format!("there is no file {}", item.path)),
        };
        let subject = format!("{}/{}", dataset_address(&self.info().name), item.path);
        Err(Error::new(kind, "read", subject, Failure::new(kind, why)))
    }
}

/// A snapshot in a file, checked: that of the cache where it is there.
pub(crate) fn load(
    file: &Path,
    cache: Option<&SnapshotCache>,
    clock: &dyn Clock,
) -> Result<Snapshot, Error> {
    if let Some(cache) = cache {
        let head = Snapshot::head(file)?;
        if let Some((dataset, version)) = head
            && let Some(kept) = cache.find(dataset, version, clock.now())
            && Snapshot::is_same(&kept, file)
        {
            return Ok(kept);
        }
    }
    match cache.map(|cache| keep(file, cache)) {
        Some(Ok(Some(kept))) => kept,
        // Somebody else is about to keep it: in memory it is as good, for one process.
        None | Some(Ok(None)) => Snapshot::read(file),
        Some(Err(why)) => {
            tracing::warn!(%why, "a snapshot is not kept");
            Snapshot::read(file)
        }
    }
}

/// A copy of a snapshot in the cache, or what is wrong with it; none while another process has the
/// right to that.
fn keep(file: &Path, cache: &SnapshotCache) -> io::Result<Option<Result<Snapshot, Error>>> {
    let Ok(Some((dataset, version))) = Snapshot::head(file) else { return Ok(None) };
    let Some(lock) = cache.lock(dataset)? else { return Ok(None) };
    let (mut kept, path) = cache.begin(&lock, dataset, version)?;
    let copied = kept.set_len(0).and_then(|()| io::copy(&mut File::open(file)?, &mut kept));
    let checked = copied.map(|_| {
        let snapshot = Snapshot::map_for(&path, file)?;
        snapshot.verify().map(|()| snapshot)
    });
    if let Ok(Ok(snapshot)) = checked {
        cache.end(&lock, dataset, version, &kept)?;
        return Ok(Some(Ok(snapshot)));
    }
    std::fs::remove_file(&path)?;
    checked.map(Some)
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
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use tonic::Status;

    use super::*;
    use crate::remote::testing::{Script, dataset, info};
    use crate::snapshot::tests::{empty, version};

    /// A server with a snapshot, which breaks off after some bytes of it, once for each.
    fn serving(bytes: Vec<u8>, breaks: &'static [usize], asked: Arc<Mutex<Vec<u64>>>) -> Dataset {
        let broken = AtomicUsize::new(0);
        let snapshot = move |request: GetSnapshotRequest| {
            let (version, length) = (version(1), bytes.len() as u64);
            let head = SnapshotPiece::Head { version, length };
            let mut pieces = vec![Ok(SnapshotPiece::Waiting.into()), Ok(head.into())];
            if request.head_only {
                return pieces;
            }
            assert_eq!(request.version, Some(version));
            locked(&asked).push(request.offset);
            let from = request.offset as usize;
            let stop = breaks.get(broken.fetch_add(1, Ordering::SeqCst)).copied();
            let rest = bytes.get(from..stop.unwrap_or(bytes.len())).unwrap();
            let some = rest
                .chunks(100)
                .map(|some| Ok(SnapshotPiece::Data(Bytes::copy_from_slice(some)).into()));
            pieces.extend(some);
            if stop.is_some() {
                pieces.push(Err(Status::unavailable("stopping")));
            }
            pieces
        };
        dataset(Script { snapshot: Box::new(snapshot), ..Script::default() })
    }

    #[test]
    fn a_download_goes_on_where_it_broke_off() {
        let bytes = empty(info().id, version(1));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let dataset = serving(bytes.clone(), &[150, 150, 400], Arc::clone(&asked));
        let folder = tempfile::tempdir().unwrap();
        let cache = SnapshotCache::new(folder.path(), 1 << 20);
        let reader = dataset.with_snapshot(&cache).unwrap();
        assert_eq!(reader.snapshot().unwrap().bytes(), bytes);
        assert_eq!(*locked(&asked), [0, 150, 150, 400]);
        let file = folder.path().join("saved");
        dataset.save_meta(&file).unwrap();
        assert!(std::fs::read(&file).unwrap() == bytes);
    }

    #[test]
    fn another_process_goes_on_with_what_one_left() {
        let bytes = empty(info().id, version(1));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let dataset = serving(bytes.clone(), &[], Arc::clone(&asked));
        let folder = tempfile::tempdir().unwrap();
        let cache = SnapshotCache::new(folder.path(), 1 << 20);
        for (left, offset) in [(&bytes[..300], 300), (&[0; 5_000][..], 0)] {
            let lock = cache.lock(info().id).unwrap().unwrap();
            let (mut file, _) = cache.begin(&lock, info().id, version(1)).unwrap();
            file.write_all(left).unwrap();
            drop(lock);
            locked(&asked).clear();
            let reader = dataset.with_snapshot(&cache).unwrap();
            assert_eq!(reader.snapshot().unwrap().bytes(), bytes);
            assert_eq!(*locked(&asked), [offset]);
            std::fs::remove_dir_all(folder.path()).unwrap();
        }
    }

    #[test]
    fn what_comes_damaged_is_fetched_again_and_then_told() {
        let mut bytes = empty(info().id, version(1));
        *bytes.last_mut().unwrap() ^= 1;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let dataset = serving(bytes, &[], Arc::clone(&asked));
        let folder = tempfile::tempdir().unwrap();
        let cache = SnapshotCache::new(folder.path(), 1 << 20);
        assert_eq!(dataset.with_snapshot(&cache).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(*locked(&asked), [0; TIMES as usize]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the lock");
        let file = folder.path().join("saved");
        assert_eq!(dataset.save_meta(&file).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the lock");
    }

    #[test]
    fn servers_without_snapshots_are_read_from_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let cache = SnapshotCache::new(folder.path(), 1 << 20);
        let dataset = dataset(Script::default());
        assert_eq!(dataset.with_snapshot(&cache).unwrap_err().kind(), Kind::Invalid);
    }
}

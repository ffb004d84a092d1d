//! Metadata in a local file: redb below, the tail of the logs in memory above.
//!
//! Must hold: an append is acknowledged once memory has the object, and shows in every later answer. The file
//! follows within about a second. After an unclean stop the file opens at once and may lack the end of the
//! logs; the chunk store brings the end back (rule 10 of the design).

mod apply;
mod database;
mod options;
mod read;
mod retire;
mod rows;
mod tables;
mod tail;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "conformance"))]
mod volatile;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use dl_format::{ChunkId, Committed, DatasetId, DatasetName, EntrySet, FilePath, Stamp, StoreId};
use dl_runtime::{Clock, blocking, locked};
use redb::{ReadTransaction, ReadableTable};
use tokio::sync::{Notify, oneshot, watch};

use self::database::{File, Opener, failed, in_directory};
pub use self::options::EmbeddedOptions;
use self::read::Index;
use self::rows::Rows;
use self::tables::{DATASETS, DatasetRow, FACTS, FORMAT, FORMAT_KEY, IDENTITY_KEY, OPEN_KEY};
use self::tail::{Command, Known, State};
#[cfg(any(test, feature = "conformance"))]
pub use self::volatile::VolatileFile;
use crate::tasks::Tasks;
use crate::{
    Appended, DatasetInfo, DatasetRecord, DatasetState, Datasets, Error, Found, Heartbeat,
    Integrity, Kind, ListEntry, ListQuery, MetaStore, ObjectRecord, Outline, TaskGroup, TaskKey,
    TaskMembers, TaskTerms, walk,
};

/// Most paths looked up in memory by the thread of the call. Larger lookups would occupy the thread for too
/// long: they ask the file for all paths, on a thread that may block.
const PATHS_AT_ONCE: usize = 4_096;

/// How a metadata store was left: whether the store may lack the end of its logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stop {
    /// By [`MetaStore::close`]: the store holds all appended objects.
    Clean,
    /// By a crash: the last appends may be missing. Every dataset is [`DatasetState::Recovering`] until the
    /// dataset is put again, even if the recovery takes several starts.
    Unclean,
    /// The store is new and empty.
    Fresh,
}

/// A metadata store in a file. An append survives the death of the process once the file was closed, or after
/// about [`EmbeddedOptions::sync_interval`]. After a crash, stamps continue from the highest stamp of the
/// log: append the objects of the chunk store before you take a stamp.
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
}

/// The state that the handle and its writer share.
#[derive(Debug)]
struct Shared {
    name: String,
    file: File,
    options: EmbeddedOptions,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Lost at each start: heartbeats bring members back.
    tasks: Tasks,
    rows: Rows,
    /// Wakes the writer when there is work.
    wake: Notify,
    /// Steps when the writer did work, or failed.
    progress: watch::Sender<Progress>,
}

#[derive(Debug, Default)]
struct Progress(u64);

impl Progress {
    fn step(&mut self) {
        self.0 = self.0.wrapping_add(1);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl Embedded {
    /// Opens `dir/meta.redb`, and creates directory and file if missing. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`Kind::InUse`] when another process has the file open, [`Kind::Unsupported`] when a newer program
    /// wrote the file, [`Kind::Corrupt`] when the file is not a metadata store.
    pub async fn open(
        dir: &Path,
        options: EmbeddedOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Stop), Error> {
        let name = format!("embedded:{}", dir.display());
        let (dir, cache_bytes) = (dir.to_path_buf(), options.cache_bytes);
        Self::open_with(name, move || in_directory(dir, cache_bytes), options, clock).await
    }

    async fn open_with(
        name: String,
        opener: impl FnOnce() -> Result<Opener, redb::Error> + Send + 'static,
        options: EmbeddedOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Stop), Error> {
        let opened = blocking::run(move || {
            let file = File::open(opener()?)?;
            let loaded = load(&file)?;
            Ok((file, loaded))
        });
        let opened = opened
            .await
            .map_err(|stopped| Error::because(Kind::Unavailable, "open", &name, stopped))?;
        let (file, loaded) = opened.map_err(failed("open", &name))?;
        let (state, stop) = loaded.ok_or_else(|| {
            let why = "another version of this program wrote it; use the newer one";
            Error::because(Kind::Unsupported, "open", &name, why)
        })?;
        let shared = Arc::new(Shared {
            name,
            file,
            tasks: Tasks::default(),
            rows: Rows::new(options.row_bytes),
            options,
            clock,
            state: Mutex::new(state),
            wake: Notify::new(),
            progress: watch::Sender::default(),
        });
        dl_runtime::spawn_for_all(writer::run(Arc::clone(&shared)));
        Ok((Self { shared }, stop))
    }

    /// Answers from the file, on a thread that may block.
    async fn read<T: Send + 'static>(
        &self,
        action: &'static str,
        what: impl fmt::Display,
        work: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let shared = Arc::clone(&self.shared);
        match blocking::run(move || shared.file.read(work)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if self.shared.file.is_broken() {
                    self.shared.wake.notify_one();
                }
                Err(failed(action, what)(error))
            }
            Err(stopped) => Err(Error::because(Kind::Unavailable, action, what, stopped)),
        }
    }

    /// Answers from the index of a dataset, once the index has all appended objects.
    async fn ask<T: Send + 'static>(
        &self,
        action: &'static str,
        dataset: DatasetId,
        work: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.applied(action, dataset).await?;
        self.read_of(action, dataset, work).await
    }

    /// Reads from a dataset; a dataset dropped meanwhile is missing.
    async fn read_of<T: Send + 'static>(
        &self,
        action: &'static str,
        dataset: DatasetId,
        work: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let answer = self.read(action, dataset, work).await;
        if answer.is_err() {
            self.shared.state().known(dataset, action)?;
        }
        answer
    }

    /// Looks up paths in the file.
    async fn look_up(
        &self,
        action: &'static str,
        dataset: DatasetId,
        paths: Vec<FilePath>,
    ) -> Result<Vec<Found>, Error> {
        let read = move |transaction: &ReadTransaction| {
            let index = Index::open(transaction, dataset)?;
            Ok(paths.iter().map(|path| walk::find(&index, path)).collect())
        };
        self.read_of(action, dataset, read).await?
    }

    /// Waits until all appended objects of a dataset are applied.
    async fn applied(&self, action: &'static str, dataset: DatasetId) -> Result<(), Error> {
        let mut progress = self.shared.progress.subscribe();
        let wanted = self.shared.state().known(dataset, action)?.appended;
        let mut asked = false;
        loop {
            {
                let mut state = self.shared.state();
                if state.applied() >= wanted {
                    return Ok(());
                }
                if state.closed || state.abandoned {
                    return Err(Error::new(Kind::Unavailable, action, dataset));
                }
                match &state.failure {
                    Some(failure) if asked => {
                        let why = failure.why.clone();
                        return Err(Error::because(failure.kind, action, dataset, why));
                    }
                    _ => state.ask(wanted),
                }
                progress.mark_unchanged();
            }
            asked = true;
            self.shared.wake.notify_one();
            if progress.changed().await.is_err() {
                return Err(Error::new(Kind::Unavailable, action, dataset));
            }
        }
    }

    async fn command(&self, command: Command, action: &'static str) -> Result<(), Error> {
        let gone = || Error::new(Kind::Unavailable, action, &self.shared.name);
        let (reply, answer) = oneshot::channel();
        {
            let mut state = self.shared.state();
            if state.closed {
                return Err(gone());
            }
            match command {
                Command::Close => state.closed = true,
                // No call finds the dataset from now on; the file follows.
                Command::Drop(id) => state.forget(id),
                Command::Bind(_) | Command::Put(_) | Command::Retire(..) => {}
            }
            state.commands.push_back((command, reply));
        }
        self.shared.wake.notify_one();
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    async fn info(&self, id: DatasetId) -> Result<Option<DatasetInfo>, Error> {
        let action = "describe dataset";
        match self.applied(action, id).await {
            Err(error) if error.kind == Kind::Missing => return Ok(None),
            applied => applied?,
        }
        let known =
            self.shared.state().datasets.get(&id).map(|known| (known.appended, known.counted));
        let Some((appended, counted)) = known else { return Ok(None) };
        let read = move |transaction: &ReadTransaction| {
            let Some(row) = read::dataset(transaction, id)? else { return Ok(None) };
            let counted = counted.filter(|(version, _)| *version == row.version);
            let counts = match (row.counts, counted) {
                (Some(counts), _) | (None, Some((_, counts))) => counts,
                (None, None) => Index::open(transaction, id)?.count()?,
            };
            Ok(Some((row, counts)))
        };
        let Some((row, counts)) = self.read(action, id, read).await? else { return Ok(None) };
        let mut state = self.shared.state();
        let Some(known) = state.datasets.get_mut(&id) else { return Ok(None) };
        // An append meanwhile may also have restored missing rows of a known object.
        if known.appended == appended {
            known.counted = Some((row.version, counts));
        }
        Ok(Some(DatasetInfo {
            record: known.record.clone(),
            files: counts.files,
            bytes: counts.bytes,
            objects: row.objects,
            version: row.version,
            is_settled: true,
        }))
    }
}

/// Reads the state for memory, and marks the file as open; none when the file has another format.
fn load(file: &File) -> Result<Option<(State, Stop)>, redb::Error> {
    file.write(true, |transaction| {
        let mut state = State::default();
        let mut facts = transaction.open_table(FACTS)?;
        let format = facts.get(FORMAT_KEY)?.map(|format| format.value().to_vec());
        let stop = match format.as_deref() {
            None => Stop::Fresh,
            Some(FORMAT) if facts.get(OPEN_KEY)?.is_some() => Stop::Unclean,
            Some(FORMAT) => Stop::Clean,
            Some(_) => return Ok(None),
        };
        if let Some(id) = facts.get(IDENTITY_KEY)? {
            let id = id.value().try_into();
            let id = id.map_err(|_| redb::Error::Corrupted("the identity".to_owned()))?;
            state.identity = Some(StoreId::from_bytes(id));
        }
        let mut datasets = transaction.open_table(DATASETS)?;
        let mut rows = Vec::new();
        for row in datasets.iter()? {
            let (key, row) = row?;
            rows.push(DatasetRow::decode(key.value(), row.value())?);
        }
        for mut row in rows {
            if stop == Stop::Unclean {
                // Stored: a clean stop before the end of a recovery must not hide the loss.
                row.record.state = DatasetState::Recovering;
                datasets.insert(row.record.id.as_bytes().as_slice(), row.encode()?.as_slice())?;
            }
            let last = row.last().max(row.given);
            state.insert(Known::new(row.record, last));
        }
        facts.insert(FORMAT_KEY, FORMAT)?;
        facts.insert(OPEN_KEY, [].as_slice())?;
        Ok(Some((state, stop)))
    })
}

/// Ends the writer; as after a crash, only durable changes are left.
impl Drop for Embedded {
    fn drop(&mut self) {
        self.shared.state().abandoned = true;
        self.shared.wake.notify_one();
    }
}

impl fmt::Display for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.name)
    }
}

#[async_trait]
impl Datasets for Embedded {
    async fn put_dataset(&self, record: &DatasetRecord) -> Result<(), Error> {
        self.command(Command::Put(record.clone()), "put dataset into").await
    }

    async fn record(&self, id: DatasetId) -> Result<Option<DatasetRecord>, Error> {
        Ok(self.shared.state().datasets.get(&id).map(|known| known.record.clone()))
    }

    async fn record_named(&self, name: &DatasetName) -> Result<Option<DatasetRecord>, Error> {
        Ok(self.shared.state().named(name).map(|known| known.record.clone()))
    }

    async fn records(&self) -> Result<Vec<DatasetRecord>, Error> {
        let state = self.shared.state();
        let known = state.names.values().filter_map(|id| state.datasets.get(id));
        Ok(known.map(|known| known.record.clone()).collect())
    }

    async fn drop_dataset(&self, _: &DatasetName, id: DatasetId) -> Result<(), Error> {
        self.command(Command::Drop(id), "drop dataset from").await
    }
}

#[async_trait]
impl Integrity for Embedded {
    async fn identity(&self) -> Result<Option<StoreId>, Error> {
        Ok(self.shared.state().identity)
    }

    async fn bind(&self, store: StoreId) -> Result<(), Error> {
        self.command(Command::Bind(store), "bind").await
    }
}

#[async_trait]
impl TaskMembers for Embedded {
    async fn join(
        &self,
        beat: &Heartbeat,
        terms: Option<&TaskTerms>,
    ) -> Result<Option<TaskGroup>, Error> {
        self.shared.tasks.join(beat, terms)
    }

    async fn leave(&self, beat: &Heartbeat) -> Result<Option<TaskTerms>, Error> {
        Ok(self.shared.tasks.leave(beat))
    }

    async fn group(
        &self,
        task: &TaskKey,
        now: Stamp,
        dead_after: Duration,
    ) -> Result<Option<TaskGroup>, Error> {
        Ok(self.shared.tasks.group(task, now, dead_after))
    }
}

#[async_trait]
impl MetaStore for Embedded {
    async fn outline(&self, id: DatasetId) -> Result<Option<Outline>, Error> {
        let action = "describe dataset";
        match self.applied(action, id).await {
            Err(error) if error.kind == Kind::Missing => return Ok(None),
            answer => answer?,
        }
        let row = self.read(action, id, move |transaction| read::dataset(transaction, id)).await?;
        let record = self.record(id).await?;
        Ok(row.zip(record).map(|(row, record)| Outline {
            record,
            objects: row.objects,
            version: row.version,
        }))
    }

    async fn dataset(&self, id: DatasetId) -> Result<Option<DatasetInfo>, Error> {
        self.info(id).await
    }

    async fn stamp(&self, dataset: DatasetId, now: Stamp) -> Result<Stamp, Error> {
        let action = "take a stamp of dataset";
        let mut state = self.shared.state();
        if state.closed {
            return Err(Error::new(Kind::Unavailable, action, dataset));
        }
        let known = state.datasets.get_mut(&dataset);
        let known = known.ok_or_else(|| Error::new(Kind::Missing, action, dataset))?;
        known.last = known.last.next(now);
        Ok(known.last)
    }

    async fn append(&self, object: &Committed) -> Result<Appended, Error> {
        let action = "append to dataset";
        let (dataset, id) = (object.header().dataset(), object.header().id());
        let mut progress = self.shared.progress.subscribe();
        let (mut absent_at, mut known, mut is_queued) = (None, None, false);
        loop {
            let wait = {
                let mut state = self.shared.state();
                if state.closed {
                    return Err(Error::new(Kind::Unavailable, action, dataset));
                }
                state.known(dataset, action)?;
                is_queued |= state.is_queued(object);
                let applied = state.applied();
                if absent_at != Some(applied) {
                    absent_at = Some(applied);
                    false
                } else if state.bytes() < self.shared.options.tail_bytes {
                    state.push(object, self.shared.clock.monotonic());
                    let is_known = is_queued || known.is_some();
                    if let Some(known) = state.datasets.get_mut(&dataset).filter(|_| is_known) {
                        // Restored rows were not counted.
                        known.counted = None;
                    }
                    drop(state);
                    self.shared.wake.notify_one();
                    return Ok(match known {
                        Some(stamp) if stamp != object.stamp() => Appended::Restamped,
                        None if !is_queued => Appended::New,
                        _ => Appended::Known,
                    });
                } else if let Some(failure) = &state.failure {
                    let why = failure.why.clone();
                    return Err(Error::because(failure.kind, action, dataset, why));
                } else {
                    progress.mark_unchanged();
                    true
                }
            };
            if wait {
                self.shared.wake.notify_one();
                if progress.changed().await.is_err() {
                    return Err(Error::new(Kind::Unavailable, action, dataset));
                }
            } else {
                // The stamp in the file. The file is asked again when a batch was applied meanwhile.
                let read =
                    move |transaction: &ReadTransaction| read::stamp_of(transaction, dataset, id);
                known = self.read(action, dataset, read).await?;
            }
        }
    }

    async fn retire(&self, dataset: DatasetId, ids: &[ChunkId]) -> Result<(), Error> {
        let action = "retire objects of dataset";
        self.applied(action, dataset).await?;
        self.command(Command::Retire(dataset, ids.to_vec()), action).await
    }

    async fn objects(
        &self,
        dataset: DatasetId,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ObjectRecord>, Error> {
        let read =
            move |transaction: &ReadTransaction| read::objects(transaction, dataset, after, limit);
        self.ask("list objects of dataset", dataset, read).await
    }

    async fn log(&self, dataset: DatasetId) -> Result<Vec<ObjectRecord>, Error> {
        let read = move |transaction: &ReadTransaction| read::log(transaction, dataset);
        self.ask("read the log of dataset", dataset, read).await
    }

    async fn deleted(
        &self,
        dataset: DatasetId,
        chunks: &[ChunkId],
    ) -> Result<Vec<EntrySet>, Error> {
        let chunks = chunks.to_vec();
        let read =
            move |transaction: &ReadTransaction| read::deleted(transaction, dataset, &chunks);
        self.ask("look up deleted entries of dataset", dataset, read).await
    }

    async fn lookup(&self, dataset: DatasetId, paths: &[FilePath]) -> Result<Vec<Found>, Error> {
        let action = "look up paths of dataset";
        self.applied(action, dataset).await?;
        if paths.len() > PATHS_AT_ONCE {
            return self.look_up(action, dataset, paths.to_vec()).await;
        }
        let seen = self.shared.rows.find(dataset, paths);
        let unknown =
            |(path, found): (&FilePath, &Option<Found>)| found.is_none().then(|| path.clone());
        let asked: Vec<_> = paths.iter().zip(&seen.found).filter_map(unknown).collect();
        let mut answers = Vec::new();
        if !asked.is_empty() {
            answers = self.look_up(action, dataset, asked.clone()).await?;
            let unchanged = self.shared.rows.keep(dataset, &seen, asked.iter().zip(&answers));
            if !unchanged && asked.len() < paths.len() {
                // The rows in memory and the answers of the file may be of two different moments.
                return self.look_up(action, dataset, paths.to_vec()).await;
            }
        }
        let mut answers = answers.into_iter();
        let found = seen.found.into_iter().map(|found| found.or_else(|| answers.next()));
        Ok(found.map(|found| found.expect("one answer for each path that was asked")).collect())
    }

    async fn list(&self, dataset: DatasetId, query: &ListQuery) -> Result<Vec<ListEntry>, Error> {
        let query = query.clone();
        let read = move |transaction: &ReadTransaction| {
            Ok(walk::list(&Index::open(transaction, dataset)?, &query))
        };
        self.ask("list dataset", dataset, read).await?
    }

    async fn close(&self) -> Result<(), Error> {
        self.command(Command::Close, "close").await
    }
}

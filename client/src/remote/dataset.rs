//! A dataset handle: what the paper's Table 3 offers for one dataset.
//!
//! Must hold: a handle means one dataset id for ever; when the name is deleted and created again,
//! the old handle finds nothing rather than something else.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use dl_format::{Attributes, Deletions, FilePath};
use dl_proto::{Counts, Dataset as DatasetInfo, DeleteRequest, StatItem, pb};

use crate::error::{Error, Kind};
use crate::process::PerProcess;
use crate::remote::ahead::Ahead;
use crate::remote::lookup::get_dataset;
use crate::remote::session::{Session, Shared};
use crate::remote::stats::Stats;
use crate::remote::writer::{Flushed, Writer};
use crate::snapshot::Snapshot;

/// A dataset at some servers. Cheap to clone; clones share one writer. Usable from any thread.
///
/// What was put is packed into chunks, which are sent when they are full; [`flush`](Self::flush)
/// and [`close`](Self::close) send the rest. What was put after the last of these calls may be
/// lost when the last handle is dropped. A process forked off this one starts with nothing to
/// send.
#[derive(Debug, Clone)]
pub struct Dataset(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    info: DatasetInfo,
    writer: PerProcess<Arc<Writer>>,
    stats: PerProcess<Stats>,
    /// What it answers from, until something is written through it.
    snapshot: Option<Arc<Snapshot>>,
    is_written: AtomicBool,
    /// What reads along an order are answered from.
    ahead: PerProcess<Mutex<Option<Weak<dyn Ahead>>>>,
}

/// What a deletion did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleted {
    /// Files that were deleted.
    pub deleted: u64,
    /// Paths at which no file was: nothing, or a folder.
    pub missing: Vec<FilePath>,
}

impl Dataset {
    pub(crate) fn new(shared: Arc<Shared>, info: DatasetInfo) -> Self {
        Self::with(shared, info, None)
    }

    fn with(shared: Arc<Shared>, info: DatasetInfo, snapshot: Option<Arc<Snapshot>>) -> Self {
        let (writer, stats) = (PerProcess::new(), PerProcess::new());
        let (is_written, ahead) = (AtomicBool::new(false), PerProcess::new());
        Self(Arc::new(Inner { shared, info, writer, stats, snapshot, is_written, ahead }))
    }

    /// The same dataset, answering from a snapshot of it.
    pub(crate) fn answering(&self, snapshot: Snapshot) -> Self {
        let (shared, info) = (Arc::clone(&self.0.shared), self.0.info.clone());
        let info = DatasetInfo { version: snapshot.version(), ..info };
        Self::with(shared, info, Some(Arc::new(snapshot)))
    }

    /// The snapshot that this handle answers from; none when it asks the servers.
    pub fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.0.snapshot.as_ref().filter(|_| !self.0.is_written.load(Ordering::Relaxed))
    }

    /// From now on reads of this process are answered from what is read ahead, as long as that is.
    pub(crate) fn set_ahead(&self, ahead: Weak<dyn Ahead>) -> Result<(), Error> {
        let slot = self.0.ahead.get_or_make(|| Ok::<_, Error>(Mutex::default()))?;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(ahead);
        Ok(())
    }

    /// What reads of this process are answered from, where the snapshot still holds.
    pub(crate) fn ahead(&self) -> Option<(Arc<dyn Ahead>, &Arc<Snapshot>)> {
        let slot = self.0.ahead.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some((slot.as_ref()?.upgrade()?, self.snapshot()?))
    }

    /// Whether anything was written through this handle.
    pub(crate) fn is_written(&self) -> bool {
        self.0.is_written.load(Ordering::Relaxed)
    }

    /// What the servers said of it when the handle was made, without its counts; the version is that
    /// of the snapshot it answers from.
    pub fn info(&self) -> &DatasetInfo {
        &self.0.info
    }

    /// What the servers say of it now, without its counts.
    ///
    /// # Errors
    /// [`Kind::NotFound`] when it was deleted, also when its name was used again;
    /// [`Kind::NeedsRecovery`] while its metadata is being rebuilt.
    pub fn refresh(&self) -> Result<DatasetInfo, Error> {
        self.described(false)
    }

    /// Whether it has changed since the snapshot that this handle answers from, or since the handle
    /// was made when it has none.
    ///
    /// # Errors
    /// Those of [`refresh`](Self::refresh).
    pub fn is_stale(&self) -> Result<bool, Error> {
        Ok(self.refresh()?.version != self.info().version)
    }

    /// What the servers say of it now, with its counts, for which they may have to look at every
    /// file.
    ///
    /// # Errors
    /// Those of [`refresh`](Self::refresh).
    pub fn count(&self) -> Result<DatasetInfo, Error> {
        self.described(true)
    }

    fn described(&self, counts: bool) -> Result<DatasetInfo, Error> {
        let session = self.session()?;
        let info = session.wait(get_dataset(&session.connections, &self.0.info.name, counts))?;
        if info.id != self.0.info.id {
            let why = "it was deleted, and its name was used again";
            return Err(Error::new(Kind::NotFound, "open", self.address(), why));
        }
        match info.counts {
            // Nobody asked for them: nothing of what it holds can be told.
            Counts::Unknown(why) if !counts => {
                Err(Error::new(Kind::NeedsRecovery, "open", self.address(), why))
            }
            _ => Ok(info),
        }
    }

    /// Writes a file from memory (paper, DL_put). It is acknowledged by the next
    /// [`flush`](Self::flush). Of two puts of one path, one after the other, the second holds, unless
    /// the first one was named as failed: that one may still be written within 15 minutes, and then
    /// it is the newer one.
    ///
    /// Blocks while as many chunks are under way as the options allow.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a file too large for the chunks of this dataset; and, until a flush
    /// has reported it, the error of a chunk that could not be written. Nothing is put then.
    pub fn put(&self, path: &FilePath, attributes: Attributes, data: &[u8]) -> Result<(), Error> {
        self.writer()?.put(path, attributes, data)
    }

    /// Writes a file of this machine, with its modification time and permission bits; gives its
    /// length in bytes. A link is followed.
    ///
    /// # Errors
    /// [`Kind::Local`] when it can't be read, is no regular file, or changed meanwhile; and those of
    /// [`put`](Self::put).
    pub fn put_file(&self, path: &FilePath, source: &Path) -> Result<u64, Error> {
        self.writer()?.put_file(path, source)
    }

    /// Writes a file with bounded memory, however large it is: exactly `length` bytes of `reader`.
    /// It may take some 21,600 chunks, which is 84 GiB in those of the usual 4 MiB.
    ///
    /// # Errors
    /// [`Kind::Local`] when `reader` fails or gives fewer; and those of [`put`](Self::put).
    pub fn put_reader(
        &self,
        path: &FilePath,
        attributes: Attributes,
        length: u64,
        reader: &mut dyn Read,
    ) -> Result<(), Error> {
        self.writer()?.put_reader(path, attributes, length, reader)
    }

    /// Waits until every file put before, from any thread, is acknowledged or has failed (paper,
    /// DL_flush). What is acknowledged is durable and visible to all readers.
    ///
    /// # Errors
    /// [`Kind::Local`] when the library can't work in this process. Files that failed are no error
    /// here: look at [`Flushed::failed`], or turn it into one by [`Flushed::check`].
    pub fn flush(&self) -> Result<Flushed, Error> {
        Ok(self.writer()?.flush())
    }

    /// Gives up what was put and is not acknowledged yet, so that whoever waits for it goes on at
    /// once. The next [`flush`](Self::flush) names these files; some may be stored all the same.
    pub fn give_up(&self) {
        if let Some(writer) = self.0.writer.get() {
            writer.give_up();
        }
    }

    /// Flushes, and ends this handle (paper, DL_close).
    ///
    /// # Errors
    /// That of the first write that failed since the last flush.
    pub fn close(self) -> Result<(), Error> {
        match self.0.writer.get() {
            Some(writer) => writer.flush().check().map(|_| ()),
            None => Ok(()),
        }
    }

    /// What stands at a path: a file with its record (size, upload time, ...), a folder or
    /// nothing (paper, DL_stat).
    ///
    /// # Errors
    /// Those of the servers and of the way to them.
    pub fn stat(&self, path: &FilePath) -> Result<StatItem, Error> {
        let found = self.stat_many(std::slice::from_ref(path))?;
        Ok(found.into_iter().next().unwrap_or(StatItem::Missing))
    }

    /// What stands at each of the paths, in their order. What several threads ask at the same time
    /// shares requests.
    ///
    /// # Errors
    /// Those of the servers and of the way to them.
    pub fn stat_many(&self, paths: &[FilePath]) -> Result<Vec<StatItem>, Error> {
        match self.known(paths) {
            Some(known) => known,
            None => self.stat_now(paths),
        }
    }

    /// The same, as the servers say it now.
    fn stat_now(&self, paths: &[FilePath]) -> Result<Vec<StatItem>, Error> {
        let session = self.session()?;
        let stats = self.0.stats.get_or_make(|| Ok::<_, Error>(Stats::default()))?;
        stats.ask(&session, &self.0.info, paths)
    }

    /// Deletes the files that stand at these paths now (paper, DL_delete), those put before
    /// through this handle included. One that is written meanwhile stays.
    ///
    /// # Errors
    /// Those of the servers and of the way to them.
    pub fn delete(&self, paths: &[FilePath]) -> Result<Deleted, Error> {
        self.0.is_written.store(true, Ordering::Relaxed);
        if let Some(writer) = self.0.writer.get() {
            paths.iter().for_each(|path| writer.await_path(path));
        }
        let mut deletions = Deletions::default();
        let (mut missing, mut seen) = (Vec::new(), HashSet::new());
        for (path, item) in paths.iter().zip(self.stat_now(paths)?) {
            match item {
                StatItem::File(record) => _ = deletions.insert(&record.version),
                StatItem::Folder | StatItem::Missing => {
                    if seen.insert(path) {
                        missing.push(path.clone());
                    }
                }
            }
        }
        Ok(Deleted { deleted: self.delete_versions(deletions)?, missing })
    }

    /// Deletes these versions, as [`stat`](Self::stat) and [`list`](Self::list) named them; gives
    /// how many. Versions that are gone already count too. What a snapshot says of a file names no
    /// version: [`Deletions::insert`] refuses it.
    ///
    /// # Errors
    /// Those of the servers and of the way to them; some may be deleted then.
    pub fn delete_versions(&self, deletions: Deletions) -> Result<u64, Error> {
        self.0.is_written.store(true, Ordering::Relaxed);
        let session = self.session()?;
        let count = deletions.count();
        for deletions in deletions.split() {
            session.wait(self.delete_piece(&session, deletions))?;
        }
        Ok(count)
    }

    async fn delete_piece(&self, session: &Session, deletions: Deletions) -> Result<(), Error> {
        let message = pb::DeleteRequest::from(DeleteRequest {
            dataset: self.0.info.id,
            // The same in every try: that makes a try harmless whose answer was lost.
            tombstone: session.process.next_id(),
            deletions,
        });
        let connections = &session.connections;
        let subject = || format!("files of {}", self.address());
        connections
            .call("delete", subject, connections.usual(), |mut server, this| {
                let request = this.request(message.clone());
                async move {
                    this.answer(server.delete(request)).await?;
                    Ok(())
                }
            })
            .await
    }

    pub(crate) fn session(&self) -> Result<Session, Error> {
        self.0.shared.session()
    }

    fn address(&self) -> String {
        format!("dl://{}", self.0.info.name)
    }

    fn writer(&self) -> Result<&Arc<Writer>, Error> {
        self.0.is_written.store(true, Ordering::Relaxed);
        self.0.writer.get_or_make(|| {
            let in_flight = self.0.shared.options.in_flight(self.0.info.shape.size());
            Ok(Writer::new(self.session()?, &self.0.info, in_flight))
        })
    }
}

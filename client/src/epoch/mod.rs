//! Reading a dataset in the order of an epoch (paper, 4.3): which file comes next for which thread and
//! which process, and the token to go on with.
//!
//! Must hold: the files of the rank, or of its worker, each once, in the order of docs/ORDER.md; a
//! file that can't be had is named and the next one follows; no file is passed over while its source
//! can't be asked. Where files come from is the affair of a [`FileSource`].

mod source;
#[cfg(test)]
mod tests;
mod turns;

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use dl_format::FilePath;

use crate::error::{Error, Kind};
use crate::order::{Cursor, Order, OrderSettings, Partition, ResumeToken, Selection, Worker};
use crate::process::PerProcess;
use crate::snapshot::Snapshot;
pub(crate) use source::{FileRead, FileSource, OpenSource};
pub(crate) use turns::Turns;

/// What is being done, in errors.
const SHUFFLE: &str = "shuffle";

/// What one rank, or a worker of its loader, reads in an epoch.
#[derive(Debug, Clone)]
pub struct ShuffleOptions {
    /// Of all ranks of the task.
    pub order: OrderSettings,
    /// Which of them this is, counted from 0.
    pub rank: u32,
    /// The rank's worker that this is; none reads all of the rank's files.
    pub worker: Option<Worker>,
    /// The files to read; none for all.
    pub selection: Option<Selection>,
    /// Where to go on, with any number of ranks. Its seed, epoch and group count, and not those of
    /// the settings.
    pub resume: Option<ResumeToken>,
    /// Files of this rank, or of its worker, that were read already, from where the epoch begins or goes on.
    pub read: u64,
}

impl ShuffleOptions {
    /// Everything, for one process. Twice `group` chunks are held in memory.
    pub fn new(seed: u64, epoch: u64, group: u32) -> Self {
        let order = OrderSettings::new(seed, epoch, group);
        Self { order, rank: 0, worker: None, selection: None, resume: None, read: 0 }
    }

    /// The share of one of `world` processes. Each is a node of its own, so that every chunk but
    /// those at the ends of shares is read by one of them alone.
    #[must_use]
    pub fn of_rank(mut self, rank: u32, world: u32) -> Self {
        self.rank = rank;
        self.order.world = world;
        self.order.partition = Partition::Local { nodes: world };
        self
    }

    /// The share of one of `workers` processes of the rank, which a loader asks for batches of
    /// `batch` files in turns. Each of them fetches the chunks of the rank for itself.
    #[must_use]
    pub fn of_worker(mut self, number: u32, workers: u32, batch: u32) -> Self {
        self.worker = Some(Worker { number, workers, batch });
        self
    }
}

/// A file of an epoch.
#[derive(Debug, Clone)]
pub struct EpochFile {
    /// Which of the rank's files this is, counted from 0 where the epoch begins or goes on.
    pub position: u64,
    /// Its number in the snapshot.
    pub number: u32,
    /// Its path.
    pub path: FilePath,
    /// What it holds, or why it can't be had. The bytes keep up to 256 KiB of their chunk in memory:
    /// copy those of small files that are kept for long.
    pub bytes: Result<Bytes, Error>,
}

/// The files of one rank, or of one of its workers, in one epoch, in their order. Cheap to clone;
/// clones share it, and each file is handed to one of them. Usable from any thread.
///
/// While it lives, reads of files along the order through the handle that it was made with are
/// answered from the chunks that it fetches. A process that is forked off begins where its parent
/// was; its reads go to the servers.
#[derive(Debug, Clone)]
#[must_use = "reads go along the order only while the epoch lives"]
pub struct Epoch(Arc<Inner>);

struct Inner {
    /// As users write it.
    dataset: String,
    snapshot: Arc<Snapshot>,
    order: Arc<Order>,
    rank: u32,
    worker: Worker,
    selection: String,
    /// As far as any process of this line of forks has come.
    position: AtomicU64,
    open: OpenSource,
    reader: PerProcess<Reader>,
}

/// What one process reads an epoch with.
#[derive(Debug)]
struct Reader {
    turns: Turns,
    source: Box<dyn FileSource>,
}

/// An epoch, as long as somebody else holds it.
#[derive(Debug)]
pub(crate) struct WeakEpoch(Weak<Inner>);

impl WeakEpoch {
    pub(crate) fn upgrade(&self) -> Option<Epoch> {
        self.0.upgrade().map(Epoch)
    }
}

/// The source is opened by a function.
impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dataset, order, rank, worker, selection, position, reader, .. } = self;
        f.debug_struct("Epoch")
            .field("dataset", dataset)
            .field("settings", order.settings())
            .field("rank", rank)
            .field("worker", worker)
            .field("selection", selection)
            .field("position", position)
            .field("reader", reader)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn cursor(&self) -> Result<Cursor, Error> {
        Cursor::of_worker(Arc::clone(&self.order), self.rank, self.worker)
            .map_err(|why| Error::new(why.kind(), SHUFFLE, &self.dataset, why))
    }

    /// This process's own.
    fn reader(&self) -> Result<&Reader, Error> {
        self.reader.get_or_make(|| {
            let mut cursor = self.cursor()?;
            cursor.seek(self.position.load(Ordering::Relaxed));
            let source = (self.open)(cursor.clone())?;
            Ok(Reader { turns: Turns::new(cursor), source })
        })
    }
}

impl Reader {
    /// The first file that no thread has, once it may be read.
    fn next(&self) -> Option<(u64, u32, FileRead)> {
        loop {
            let turn = self.turns.give()?;
            let (position, number) = (turn.position, turn.number);
            match self.source.read(position, number) {
                Some(Ok(file)) => {
                    self.turns.end(turn);
                    return Some((position, number, Ok(file)));
                }
                Some(Err(error)) => {
                    self.turns.give_back(turn);
                    return Some((position, number, Err(error)));
                }
                None => self.turns.wait(turn),
            }
        }
    }
}

impl Epoch {
    /// Begins or goes on with an epoch of `dataset`, whose files `open` reads.
    pub(crate) fn begin(
        dataset: String,
        snapshot: Arc<Snapshot>,
        options: ShuffleOptions,
        open: OpenSource,
    ) -> Result<Self, Error> {
        let ShuffleOptions { mut order, rank, worker, selection, resume, read } = options;
        let failed = |kind, why: &dyn Display| Error::new(kind, SHUFFLE, &dataset, why.to_string());
        let selection = selection.unwrap_or_else(|| Selection::all(snapshot.files()));
        let label = selection.label();
        let stages = match resume {
            None => Vec::new(),
            Some(token) => {
                let (of, version) =
                    (snapshot.dataset().to_string(), snapshot.version().to_string());
                token.check(&of, &version, &label).map_err(|why| failed(Kind::Conflict, &why))?;
                (order.seed, order.epoch, order.group) = (token.seed, token.epoch, token.group);
                token.stages
            }
        };
        let made = Order::resumed(snapshot.first_files()?, Arc::new(selection), order, &stages);
        let order = Arc::new(made.map_err(|why| failed(why.kind(), &why))?);
        let inner = Inner {
            dataset,
            snapshot,
            order,
            rank,
            worker: worker.unwrap_or(Worker::ONLY),
            selection: label,
            position: AtomicU64::new(read),
            open,
            reader: PerProcess::new(),
        };
        inner.reader()?;
        Ok(Self(Arc::new(inner)))
    }

    pub(crate) fn downgrade(&self) -> WeakEpoch {
        WeakEpoch(Arc::downgrade(&self.0))
    }

    /// A file out of turn that this process has, or fetches already.
    pub(crate) fn read_ahead(&self, number: u32) -> Option<FileRead> {
        self.0.reader.get()?.source.read_ahead(number)
    }

    /// The next file; none when all were handed out. Waits until its chunk is there.
    ///
    /// A file that can't be had is handed out with the reason in its [`EpochFile::bytes`], after it
    /// was asked for again: the next one follows.
    ///
    /// # Errors
    /// When no server answered for as long as a request may take: the file is not passed over, and
    /// the next call tries it again.
    pub fn next(&self) -> Result<Option<EpochFile>, Error> {
        let reader = self.0.reader()?;
        let Some((position, number, read)) = reader.next() else { return Ok(None) };
        // For a process that is forked off.
        self.0.position.store(reader.turns.position(), Ordering::Relaxed);
        let (bytes, path) = (read?, self.0.snapshot.path(number)?);
        let position = self.0.worker.of_rank(position);
        Ok(Some(EpochFile { position, number, path, bytes }))
    }

    /// The numbers of the next files, at most so many, for a caller who reads them through the handle; none
    /// when all were handed out.
    ///
    /// # Errors
    /// Those of [`Dataset::shuffle`](crate::Dataset::shuffle), in a process that is forked off.
    pub fn take(&self, files: usize) -> Result<Vec<u32>, Error> {
        let reader = self.0.reader()?;
        let mut numbers = Vec::new();
        while numbers.len() < files
            && let Some(turn) = reader.turns.give()
        {
            if numbers.is_empty() {
                reader.source.pass(turn.position);
            }
            numbers.push(turn.number);
            reader.turns.end(turn);
        }
        self.0.position.store(reader.turns.position(), Ordering::Relaxed);
        Ok(numbers)
    }

    /// Files that are handed out here, from where the epoch begins or goes on.
    pub fn length(&self) -> u64 {
        self.0.worker.share(self.0.order.length())
    }

    /// How many of them were handed out, one after the other.
    pub fn position(&self) -> u64 {
        let here = self.0.reader.get().map(|reader| reader.turns.position());
        here.unwrap_or_else(|| self.0.position.load(Ordering::Relaxed))
    }

    /// The numbers of all of them, in their order.
    ///
    /// # Errors
    /// None, after [`Dataset::shuffle`](crate::Dataset::shuffle) found that there is such a rank.
    pub fn cursor(&self) -> Result<Cursor, Error> {
        self.0.cursor()
    }

    /// The snapshot that numbers the files.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.0.snapshot
    }

    /// Where the task is when each of its ranks, by all of its workers, has read the first `read` of
    /// its files; the [`EpochFile::position`] of a file is how many come before it.
    pub fn token(&self, read: u64) -> ResumeToken {
        let settings = self.0.order.settings();
        ResumeToken {
            dataset: self.0.snapshot.dataset().to_string(),
            version: self.0.snapshot.version().to_string(),
            selection: self.0.selection.clone(),
            seed: settings.seed,
            epoch: settings.epoch,
            group: settings.group,
            stages: self.0.order.stages_after(read),
        }
    }
}

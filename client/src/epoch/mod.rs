//! Reading of a dataset in the order of an epoch (paper, 4.3): the next file for each thread and
//! process, and the token to resume.
//!
//! Must hold: the files of the rank, or of its worker, come once each, in the order of
//! docs/ORDER.md. A failed file is named, and the next file follows. While the source fails as a
//! whole, no file is passed over. A [`FileSource`] reads the files.

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

const SHUFFLE: &str = "shuffle";

/// The part of an epoch that a rank, or a worker of its loader, reads.
#[derive(Debug, Clone)]
pub struct ShuffleOptions {
    /// The order of all ranks.
    pub order: OrderSettings,
    /// The rank, counted from 0.
    pub rank: u32,
    /// The worker of the rank; none to read all files of the rank.
    pub worker: Option<Worker>,
    /// The files to read; none for all.
    pub selection: Option<Selection>,
    /// The position to resume, with any number of ranks. The seed, epoch and group of the token
    /// replace those of `order`.
    pub resume: Option<ResumeToken>,
    /// The number of files read before, by the rank or its worker, from the begin or the resumption
    /// on.
    pub read: u64,
}

impl ShuffleOptions {
    /// All files, for a single process. Memory holds twice `group` chunks.
    pub fn new(seed: u64, epoch: u64, group: u32) -> Self {
        let order = OrderSettings::new(seed, epoch, group);
        Self { order, rank: 0, worker: None, selection: None, resume: None, read: 0 }
    }

    /// The share of a process among `world` processes. Each process is its own node, so two
    /// processes share only the chunks at the ends of their shares.
    #[must_use]
    pub fn of_rank(mut self, rank: u32, world: u32) -> Self {
        self.rank = rank;
        self.order.world = world;
        self.order.partition = Partition::Local { nodes: world };
        self
    }

    /// The share of a worker process among `workers`, for a loader that takes batches of `batch`
    /// files in turn. Each worker fetches the chunks of the rank separately.
    #[must_use]
    pub fn of_worker(mut self, number: u32, workers: u32, batch: u32) -> Self {
        self.worker = Some(Worker { number, workers, batch });
        self
    }
}

/// A file of an epoch.
#[derive(Debug, Clone)]
pub struct EpochFile {
    /// The index among the rank's files, from the begin or the resumption on.
    pub position: u64,
    /// The number in the snapshot.
    pub number: u32,
    /// The path.
    pub path: FilePath,
    /// The content or the error of the file. The bytes keep up to 256 KiB of their chunk in memory:
    /// copy small files before keeping them for long.
    pub bytes: Result<Bytes, Error>,
}

/// The files of a rank, or of a worker, in an epoch, in order. A clone is cheap and shares the
/// position, so each file goes to a single clone. Usable from any thread.
///
/// While the epoch lives, its chunks also answer reads of these files through its handle. A forked
/// process continues at the position of its parent; its reads go to the servers.
#[derive(Debug, Clone)]
#[must_use = "reads go along the order only while the epoch lives"]
pub struct Epoch(Arc<Inner>);

struct Inner {
    /// The address of the dataset, as users write addresses.
    dataset: String,
    snapshot: Arc<Snapshot>,
    order: Arc<Order>,
    rank: u32,
    worker: Worker,
    selection: String,
    /// The position, over all processes in a line of forks.
    position: AtomicU64,
    open: OpenSource,
    reader: PerProcess<Reader>,
}

#[derive(Debug)]
struct Reader {
    turns: Turns,
    source: Box<dyn FileSource>,
}

/// An epoch without ownership.
#[derive(Debug)]
pub(crate) struct WeakEpoch(Weak<Inner>);

impl WeakEpoch {
    pub(crate) fn upgrade(&self) -> Option<Epoch> {
        self.0.upgrade().map(Epoch)
    }
}

/// The open function has no useful text.
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
    /// The first file without a thread, once its read is possible.
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
                None => {
                    if !self.turns.wait(turn) {
                        self.source.skip(position);
                    }
                }
            }
        }
    }
}

impl Epoch {
    /// Begins or resumes an epoch of `dataset`; `open` opens the source of its files.
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

    /// A file out of order, if already in memory or in fetching.
    pub(crate) fn read_out_of_order(&self, number: u32) -> Option<FileRead> {
        self.0.reader.get()?.source.read_out_of_order(number)
    }

    /// The next file; none at the end. Waits for the chunk of the file.
    ///
    /// A failed file, after a second try, carries its error in [`EpochFile::bytes`], and the next
    /// file follows.
    ///
    /// # Errors
    /// If no server answers within the time of a request. The next call tries the same file again.
    pub fn next(&self) -> Result<Option<EpochFile>, Error> {
        let reader = self.0.reader()?;
        let Some((position, number, read)) = reader.next() else { return Ok(None) };
        // A forked process starts from here.
        self.0.position.store(reader.turns.position(), Ordering::Relaxed);
        let (bytes, path) = (read?, self.0.snapshot.path(number)?);
        let position = self.0.worker.of_rank(position);
        Ok(Some(EpochFile { position, number, path, bytes }))
    }

    /// The numbers of the next files, at most `files`, for a caller who reads them through the
    /// handle; none at the end.
    ///
    /// # Errors
    /// As for [`Dataset::shuffle`](crate::Dataset::shuffle), in a forked process.
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

    /// The number of all files, from the begin or the resumption on.
    pub fn length(&self) -> u64 {
        self.0.worker.share(self.0.order.length())
    }

    /// The number of files handed out so far, without gaps.
    pub fn position(&self) -> u64 {
        let here = self.0.reader.get().map(|reader| reader.turns.position());
        here.unwrap_or_else(|| self.0.position.load(Ordering::Relaxed))
    }

    /// The numbers of all files, in order.
    ///
    /// # Errors
    /// None in practice: [`Dataset::shuffle`](crate::Dataset::shuffle) has checked the rank.
    pub fn cursor(&self) -> Result<Cursor, Error> {
        self.0.cursor()
    }

    /// The snapshot with the numbers of the files.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.0.snapshot
    }

    /// The position of the task after each rank, with all its workers, has read its first `read`
    /// files. The [`EpochFile::position`] of a file is the number of files before.
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

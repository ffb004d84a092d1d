//! The state in memory: the datasets, and the tail of their logs that the file still lacks.
//!
//! Must hold: an object stays here until a durable commit holds the object, so a failed write of the file
//! loses no acknowledged append. The bytes of the tail are bounded.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use dl_format::{ChunkId, Committed, DatasetId, DatasetName, Stamp, StoreId, Version};
use tokio::sync::oneshot;

use super::apply::Hint;
use super::tables::Counts;
use crate::{DatasetRecord, Error, Kind};

/// Entries applied in a transaction; they bound the memory of a batch.
const BATCH_ENTRIES: u32 = 50_000;

/// Bytes of memory for each chunk named by a tombstone.
const DELETION: usize = 128;

/// A change other than an append; the writer makes such changes singly.
#[derive(Debug)]
pub(super) enum Command {
    Bind(StoreId),
    Put(DatasetRecord),
    Drop(DatasetId),
    Retire(DatasetId, Vec<ChunkId>),
    Close,
}

/// The channel for the answer to a command.
pub(super) type Reply = oneshot::Sender<Result<(), Error>>;

#[derive(Debug)]
pub(super) struct Known {
    pub(super) record: DatasetRecord,
    /// The highest stamp, given or appended.
    pub(super) last: Stamp,
    /// The number of the last append to the dataset.
    pub(super) appended: u64,
    /// The sums of the last walk, and the version of the log at the time.
    pub(super) counted: Option<(Version, Counts)>,
}

impl Known {
    pub(super) fn new(record: DatasetRecord, last: Stamp) -> Self {
        Self { record, last, appended: 0, counted: None }
    }
}

#[derive(Debug)]
struct Queued {
    number: u64,
    object: Committed,
}

/// Why the last write of the file failed.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    pub(super) why: String,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) identity: Option<StoreId>,
    pub(super) datasets: HashMap<DatasetId, Known>,
    pub(super) names: BTreeMap<DatasetName, DatasetId>,
    pub(super) commands: VecDeque<(Command, Reply)>,
    /// The store accepts no more writes.
    pub(super) closed: bool,
    /// The handle is gone: the writer ends without another write.
    pub(super) abandoned: bool,
    /// Objects that are not applied.
    pending: VecDeque<Queued>,
    /// Applied objects that are lost when the file has to be opened again.
    unsynced: VecDeque<Queued>,
    /// The ids of objects that are not applied: pending, or being applied.
    queued: HashSet<(DatasetId, ChunkId)>,
    pending_bytes: usize,
    unsynced_bytes: usize,
    /// The number of the last append.
    appended: u64,
    /// All appends up to this number are applied.
    applied: u64,
    /// A call waits for all appends up to this number.
    asked: u64,
    /// The time since when the tail holds objects that are not durable.
    pub(super) dirty_since: Option<Duration>,
    pub(super) failure: Option<Failure>,
    /// The file could not be opened again.
    pub(super) shut: bool,
}

impl State {
    pub(super) fn known(&self, id: DatasetId, action: &'static str) -> Result<&Known, Error> {
        self.datasets.get(&id).ok_or_else(|| Error::new(Kind::Missing, action, id))
    }

    pub(super) fn named(&self, name: &DatasetName) -> Option<&Known> {
        self.datasets.get(self.names.get(name)?)
    }

    pub(super) fn insert(&mut self, known: Known) {
        self.names.insert(known.record.name.clone(), known.record.id);
        self.datasets.insert(known.record.id, known);
    }

    /// Hides the dataset from all later calls.
    pub(super) fn forget(&mut self, id: DatasetId) {
        if let Some(known) = self.datasets.remove(&id)
            && self.names.get(&known.record.name) == Some(&id)
        {
            self.names.remove(&known.record.name);
        }
    }

    /// Removes the objects of a dropped dataset. Only between batches.
    pub(super) fn purge(&mut self, id: DatasetId) {
        self.pending.retain(|queued| queued.object.header().dataset() != id);
        self.unsynced.retain(|queued| queued.object.header().dataset() != id);
        self.queued.retain(|(dataset, _)| *dataset != id);
        self.measure();
    }

    fn measure(&mut self) {
        self.pending_bytes = self.pending.iter().map(|queued| size(&queued.object)).sum();
        self.unsynced_bytes = self.unsynced.iter().map(|queued| size(&queued.object)).sum();
        self.applied =
            self.pending.front().map_or(self.appended, |first| first.number.saturating_sub(1));
    }

    /// Bytes of headers that are not durable.
    pub(super) fn bytes(&self) -> usize {
        self.pending_bytes.saturating_add(self.unsynced_bytes)
    }

    pub(super) fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether an append up to `last` is pending.
    pub(super) fn is_pending(&self, last: u64) -> bool {
        self.has_pending() && self.applied < last
    }

    pub(super) fn appended(&self) -> u64 {
        self.appended
    }

    pub(super) fn has_unsynced(&self) -> bool {
        !self.unsynced.is_empty()
    }

    pub(super) fn applied(&self) -> u64 {
        self.applied
    }

    /// Whether a call waits for pending objects.
    pub(super) fn is_asked(&self) -> bool {
        self.asked > self.applied
    }

    pub(super) fn ask(&mut self, number: u64) {
        self.asked = self.asked.max(number);
    }

    pub(super) fn is_queued(&self, object: &Committed) -> bool {
        self.queued.contains(&(object.header().dataset(), object.header().id()))
    }

    pub(super) fn push(&mut self, object: &Committed, now: Duration) {
        self.appended = self.appended.saturating_add(1);
        let id = object.header().dataset();
        if let Some(known) = self.datasets.get_mut(&id) {
            known.last = known.last.max(object.stamp());
            known.appended = self.appended;
        }
        self.queued.insert((id, object.header().id()));
        self.pending_bytes = self.pending_bytes.saturating_add(size(object));
        self.pending.push_back(Queued { number: self.appended, object: object.clone() });
        self.dirty_since.get_or_insert(now);
    }

    /// The next objects to apply, in the order of their appends. They stay pending until [`State::done`].
    pub(super) fn batch(&self) -> Vec<Committed> {
        let (mut batch, mut entries) = (Vec::new(), 0u32);
        for Queued { object, .. } in &self.pending {
            entries = entries.saturating_add(entries_of(object));
            if !batch.is_empty() && entries > BATCH_ENTRIES {
                break;
            }
            batch.push(object.clone());
        }
        batch
    }

    /// Knowledge in memory about the datasets of a batch.
    pub(super) fn hints(&self, batch: &[Committed]) -> HashMap<DatasetId, Hint> {
        let ids: HashSet<_> = batch.iter().map(|object| object.header().dataset()).collect();
        let known = ids.into_iter().filter_map(|id| Some((id, self.datasets.get(&id)?)));
        known.map(|(id, known)| (id, Hint { given: known.last, counted: known.counted })).collect()
    }

    /// Notes the first `count` pending objects as applied. If `durable`, all applied objects are durable.
    pub(super) fn done(&mut self, count: usize, durable: bool, now: Duration) {
        for queued in self.pending.drain(..count) {
            let header = queued.object.header();
            self.queued.remove(&(header.dataset(), header.id()));
            self.unsynced.push_back(queued);
        }
        if durable {
            self.unsynced.clear();
            self.dirty_since = self.pending.front().map(|_| now);
        }
        self.failure = None;
        self.measure();
    }

    /// The file falls back to its last durable commit: all later objects are pending again.
    pub(super) fn fall_back(&mut self) {
        while let Some(queued) = self.unsynced.pop_back() {
            let header = queued.object.header();
            self.queued.insert((header.dataset(), header.id()));
            self.pending.push_front(queued);
        }
        self.measure();
    }

    /// The file is open again. The reason of a failed write stays until a write succeeds; otherwise the
    /// writer would retry without a pause.
    pub(super) fn mended(&mut self) {
        if std::mem::take(&mut self.shut) {
            self.failure = None;
        }
        if self.pending.is_empty() {
            self.dirty_since = None;
        }
    }

    /// Notes a failed write of the file; waiting calls have to ask again.
    pub(super) fn fail(&mut self, failure: Failure, now: Duration) {
        self.asked = self.applied;
        self.dirty_since = Some(now);
        self.failure = Some(failure);
    }
}

/// The entries of an object plus the chunks in its deletions.
fn entries_of(object: &Committed) -> u32 {
    let deletions = object.header().deletions().iter().count();
    object.header().entry_count().saturating_add(u32::try_from(deletions).unwrap_or(u32::MAX))
}

/// The approximate bytes of an object in memory: deletions are kept in sets.
fn size(object: &Committed) -> usize {
    object.header().header_length() + object.header().deletions().iter().count() * DELETION
}

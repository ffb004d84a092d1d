//! Rows count only while the log holds their objects.
//!
//! Must hold: a row without its object in the log names no file, whatever restored the row: the failure of a
//! primary after the removal, or an append in flight. An object counts as gone only if no object left the log
//! since before its row was read. Otherwise the row is read again, as its file may have moved. (Not covered:
//! a walk of a large folder longer than the grace period of a purge.)

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::MutexGuard;

use dl_format::{ChunkId, DatasetId};
use dl_runtime::locked;
use redis::Value;

use super::Shared;
use super::command::{Ask, number, strings};
use super::dataset_root::{DatasetRoot, Doubts, ask_root, read_root};
use super::failure::Failure;
use super::keys::Keys;
use super::slots::Shard;

/// Most objects in memory, of all datasets together: about 2 TiB of chunks, in 20 MB.
const KNOWN_MAX: usize = 1 << 19;

/// The objects of a call's rows, compared with the log.
#[derive(Debug)]
pub(super) struct LiveObjects {
    keys: Keys,
    /// The count of changes for [`Shared::is_as`] when the call began.
    places: u64,
    /// The number of objects taken off the log before the rows were read, if known.
    before: Option<u64>,
    gone: HashSet<ChunkId>,
    /// Gone objects that may have left the log after the last rows were read.
    doubtful: HashSet<ChunkId>,
    is_stale: bool,
}

/// The number of objects taken off a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Count {
    pub(super) retired: u64,
    /// The count of changes for [`Shared::is_as`] before the question: a log may lose its end with its
    /// primary.
    pub(super) places: u64,
}

impl LiveObjects {
    fn new(keys: Keys, places: u64, before: Option<u64>) -> Self {
        let (gone, doubtful) = (HashSet::new(), HashSet::new());
        Self { keys, places, before, gone, doubtful, is_stale: false }
    }

    /// For a call with rows read after `root`.
    pub(super) fn after(root: &DatasetRoot, places: u64) -> Self {
        Self::new(root.keys, places, Some(root.retired))
    }

    /// For the next round of a call: gone objects stay gone.
    pub(super) fn again(self, root: &DatasetRoot, places: u64) -> Self {
        let after = Self::after(root, places);
        if self.are_of(root.keys, places) { Self { gone: self.gone, ..after } } else { after }
    }

    /// For a call with rows read beside the root; takes the last count read by the process.
    pub(super) fn heard(shared: &Shared, keys: Keys, places: u64) -> Self {
        Self::new(keys, places, shared.logged().heard(keys, places))
    }

    pub(super) fn are_of(&self, keys: Keys, places: u64) -> bool {
        (self.keys, self.places) == (keys, places)
    }

    /// Whether the last rows have to be read again.
    pub(super) fn are_uncertain(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// Whether the rows of the object have to be read again.
    pub(super) fn doubt(&self, object: ChunkId) -> bool {
        self.doubtful.contains(&object)
    }

    /// Whether the dataset was dropped meanwhile.
    pub(super) fn are_stale(&self) -> bool {
        self.is_stale
    }

    pub(super) fn lack(&self, object: ChunkId) -> bool {
        self.gone.contains(&object)
    }

    /// The shard in which an object was not found.
    pub(super) fn doubted(&self, root: &DatasetRoot) -> Option<Shard> {
        (!self.gone.is_empty()).then(|| root.keys.log().shard)
    }

    /// Asks the log about the objects of rows read together with `beside`. Fails when the log is too short.
    pub(super) async fn load(
        &mut self,
        shared: &Shared,
        root: &DatasetRoot,
        beside: Count,
        objects: impl IntoIterator<Item = ChunkId>,
    ) -> Result<(), Failure> {
        self.doubtful.clear();
        if root.retired == 0 {
            return Ok(());
        }
        let objects: BTreeSet<ChunkId> = objects.into_iter().collect();
        let unknown: Vec<ChunkId> = {
            let logged = shared.logged();
            let has = |id: &ChunkId| logged.has(root.keys, beside, id) || self.gone.contains(id);
            objects.into_iter().filter(|id| !has(id)).collect()
        };
        let mut doubts = Doubts::default();
        while !unknown.is_empty() {
            let asked = shared.ask_log(root.keys, &unknown).await?;
            shared.logged().keep(root.keys, beside, asked.held);
            if asked.lacking.is_empty() {
                break;
            }
            // After the answer: the new root counts all objects gone by then.
            let (dataset, places) = (root.keys.dataset, shared.router.changes());
            let again = read_root(dataset, shared.router.ask_one(ask_root(dataset)).await?)?;
            let is_same = |root_then: &DatasetRoot| root_then.keys == root.keys;
            let roots = asked.root.filter(is_same).zip(again.filter(is_same));
            let Some((then, again)) = roots else {
                shared.forget(dataset);
                self.is_stale = true;
                return Ok(());
            };
            if let Err(short) = then.check_log(&again, asked.count) {
                doubts.meet(short)?;
                continue;
            }
            let retired = again.retired;
            shared.logged().keep(root.keys, Count { retired, places }, Vec::new());
            if self.before != Some(retired) {
                self.doubtful.extend(&asked.lacking);
            }
            self.gone.extend(asked.lacking);
            self.before = Some(retired);
            break;
        }
        // Later rows are read after the count.
        self.before = self.before.max(Some(beside.retired));
        Ok(())
    }
}

/// The answer of a log.
struct Asked {
    root: Option<DatasetRoot>,
    /// The number of its objects.
    count: u64,
    held: Vec<ChunkId>,
    lacking: Vec<ChunkId>,
}

impl Shared {
    /// Asks a log which of the objects are there.
    async fn ask_log(&self, keys: Keys, objects: &[ChunkId]) -> Result<Asked, Failure> {
        let log = keys.log();
        let mut asks = vec![ask_root(keys.dataset), Ask::to(&log, "ZCARD")];
        asks.extend(objects.iter().map(|id| {
            let from = [b"[", id.as_bytes().as_slice()].concat();
            Ask::to(&log, "ZRANGEBYLEX").arg(from).arg("+").arg("LIMIT").arg(0).arg(1)
        }));
        let mut answers = self.router.ask(asks).await?.into_iter();
        let root = read_root(keys.dataset, answers.next().unwrap_or(Value::Nil))?;
        let count = number(&answers.next().unwrap_or(Value::Nil))?;
        let count = u64::try_from(count).unwrap_or_default();
        let (mut held, mut lacking) = (Vec::with_capacity(objects.len()), Vec::new());
        for (id, answer) in objects.iter().zip(answers) {
            let found = strings(answer)?;
            let is_held = found.first().is_some_and(|member| member.starts_with(id.as_bytes()));
            if is_held { held.push(*id) } else { lacking.push(*id) }
        }
        Ok(Asked { root, count, held, lacking })
    }

    pub(super) fn logged(&self) -> MutexGuard<'_, Logged> {
        locked(&self.logged)
    }
}

/// The objects seen in logs.
#[derive(Debug, Default)]
pub(super) struct Logged {
    logs: HashMap<DatasetId, Log>,
    objects: usize,
}

#[derive(Debug)]
struct Log {
    keys: Keys,
    /// The objects stay in the log until the count grows.
    count: Count,
    objects: HashSet<ChunkId>,
}

impl Logged {
    /// The number of objects taken off a log, if read since the last change of places.
    fn heard(&self, keys: Keys, places: u64) -> Option<u64> {
        let log = self.logs.get(&keys.dataset)?;
        (log.keys == keys && log.count.places == places).then_some(log.count.retired)
    }

    fn has(&self, keys: Keys, count: Count, object: &ChunkId) -> bool {
        let log = self.logs.get(&keys.dataset).filter(|log| (log.keys, log.count) == (keys, count));
        log.is_some_and(|log| log.objects.contains(object))
    }

    pub(super) fn forget(&mut self, dataset: DatasetId) {
        let log = self.logs.remove(&dataset);
        self.objects -= log.map_or(0, |log| log.objects.len());
    }

    /// Keeps the objects of a log at this count.
    fn keep(&mut self, keys: Keys, count: Count, objects: Vec<ChunkId>) {
        if self.objects > KNOWN_MAX {
            *self = Self::default();
        }
        let new = || Log { keys, count, objects: HashSet::new() };
        let log = self.logs.entry(keys.dataset).or_insert_with(new);
        let is_older = log.keys == keys
            && (log.count.places, log.count.retired) > (count.places, count.retired);
        if is_older {
            return;
        }
        self.objects -= log.objects.len();
        if (log.keys, log.count) != (keys, count) {
            *log = new();
        }
        log.objects.extend(objects);
        self.objects += log.objects.len();
    }
}

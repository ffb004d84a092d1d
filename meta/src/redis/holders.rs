//! Whether rows still count: the log has to have the object that holds what they tell of.
//!
//! Must hold: a row whose object was taken off the log tells of no file, whatever brought it back: a
//! primary that died with its removal, or an append that was under way. That the log lacks an object is
//! taken only where none left it since before its row was read: otherwise the row is read again, for its
//! file may have been moved. One that was lacking before a row was read is not asked about again. (Not
//! covered: a walk of a large folder that takes longer than a purge waits with what it moved.)

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};

use dl_format::{ChunkId, DatasetId};
use redis::Value;

use super::Shared;
use super::command::{Ask, number, strings};
use super::failure::Failure;
use super::home::{Doubts, Home, ask_home, read_home};
use super::keys::Keys;
use super::slots::Shard;

/// Objects that a process remembers, of all datasets together: about 2 TiB of chunks, in 20 MB.
const KNOWN_MAX: usize = 1 << 19;

/// What the log says to one call about the objects that hold the rows which it reads.
#[derive(Debug)]
pub(super) struct Holders {
    keys: Keys,
    /// What [`Shared::is_as`] wanted to hear when the call began.
    places: u64,
    /// How many objects had left the log before the rows were read, if that is known.
    before: Option<u64>,
    gone: HashSet<ChunkId>,
    /// Those of them that may have left the log behind the rows that were loaded last.
    doubtful: HashSet<ChunkId>,
    is_stale: bool,
}

/// How many objects had left a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Count {
    pub(super) retired: u64,
    /// What [`Shared::is_as`] wants to hear, taken before that was asked for: a log may lose its last
    /// changes with its primary.
    pub(super) places: u64,
}

impl Holders {
    fn new(keys: Keys, places: u64, before: Option<u64>) -> Self {
        let (gone, doubtful) = (HashSet::new(), HashSet::new());
        Self { keys, places, before, gone, doubtful, is_stale: false }
    }

    /// For a call that reads rows behind this home.
    pub(super) fn after(home: &Home, places: u64) -> Self {
        Self::new(home.keys, places, Some(home.retired))
    }

    /// The same for a call that began before and begins anew: what was lacking by then still is.
    pub(super) fn again(self, home: &Home, places: u64) -> Self {
        let after = Self::after(home, places);
        if self.are_of(home.keys, places) { Self { gone: self.gone, ..after } } else { after }
    }

    /// For a call that reads rows beside the home, with what this process heard last.
    pub(super) fn heard(shared: &Shared, keys: Keys, places: u64) -> Self {
        Self::new(keys, places, shared.logged().heard(keys, places))
    }

    pub(super) fn are_of(&self, keys: Keys, places: u64) -> bool {
        (self.keys, self.places) == (keys, places)
    }

    /// Whether rows that were loaded last have to be read again.
    pub(super) fn are_uncertain(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// Whether those that this object holds have to.
    pub(super) fn doubt(&self, object: ChunkId) -> bool {
        self.doubtful.contains(&object)
    }

    /// Whether the dataset was dropped meanwhile, so that nothing is known.
    pub(super) fn are_stale(&self) -> bool {
        self.is_stale
    }

    pub(super) fn lack(&self, object: ChunkId) -> bool {
        self.gone.contains(&object)
    }

    /// Where something was not found, if anything was not.
    pub(super) fn doubted(&self, home: &Home) -> Option<Shard> {
        (!self.gone.is_empty()).then(|| home.keys.log().shard)
    }

    /// Asks the log about the objects that hold rows which were read beside this count. Fails when it is
    /// shorter than the home says.
    pub(super) async fn load(
        &mut self,
        shared: &Shared,
        home: &Home,
        beside: Count,
        objects: impl IntoIterator<Item = ChunkId>,
    ) -> Result<(), Failure> {
        self.doubtful.clear();
        if home.retired == 0 {
            return Ok(());
        }
        let objects: BTreeSet<ChunkId> = objects.into_iter().collect();
        let unknown: Vec<ChunkId> = {
            let logged = shared.logged();
            let has = |id: &ChunkId| logged.has(home.keys, beside, id) || self.gone.contains(id);
            objects.into_iter().filter(|id| !has(id)).collect()
        };
        let mut doubts = Doubts::default();
        while !unknown.is_empty() {
            let asked = shared.ask_log(home.keys, &unknown).await?;
            shared.logged().keep(home.keys, beside, asked.held);
            if asked.lacking.is_empty() {
                break;
            }
            // Behind the answer: what left the log until then is counted there.
            let (dataset, places) = (home.keys.dataset, shared.router.changes());
            let again = read_home(dataset, shared.router.ask_one(ask_home(dataset)).await?)?;
            let is_same = |home_then: &Home| home_then.keys == home.keys;
            let homes = asked.home.filter(is_same).zip(again.filter(is_same));
            let Some((then, again)) = homes else {
                shared.forget(dataset);
                self.is_stale = true;
                return Ok(());
            };
            if let Err(short) = then.check_log(&again, asked.count) {
                doubts.meet(short)?;
                continue;
            }
            let retired = again.retired;
            shared.logged().keep(home.keys, Count { retired, places }, Vec::new());
            if self.before != Some(retired) {
                self.doubtful.extend(&asked.lacking);
            }
            self.gone.extend(asked.lacking);
            self.before = Some(retired);
            break;
        }
        // What is read from now on is read behind that.
        self.before = self.before.max(Some(beside.retired));
        Ok(())
    }
}

/// What a log said.
struct Asked {
    home: Option<Home>,
    /// How many objects it has.
    count: u64,
    held: Vec<ChunkId>,
    lacking: Vec<ChunkId>,
}

impl Shared {
    /// Asks a log whether it has these objects.
    async fn ask_log(&self, keys: Keys, objects: &[ChunkId]) -> Result<Asked, Failure> {
        let log = keys.log();
        let mut asks = vec![ask_home(keys.dataset), Ask::to(&log, "ZCARD")];
        asks.extend(objects.iter().map(|id| {
            let from = [b"[", id.as_bytes().as_slice()].concat();
            Ask::to(&log, "ZRANGEBYLEX").arg(from).arg("+").arg("LIMIT").arg(0).arg(1)
        }));
        let mut answers = self.router.ask(asks).await?.into_iter();
        let home = read_home(keys.dataset, answers.next().unwrap_or(Value::Nil))?;
        let count = number(&answers.next().unwrap_or(Value::Nil))?;
        let count = u64::try_from(count).unwrap_or_default();
        let (mut held, mut lacking) = (Vec::with_capacity(objects.len()), Vec::new());
        for (id, answer) in objects.iter().zip(answers) {
            let found = strings(answer)?;
            let is_held = found.first().is_some_and(|member| member.starts_with(id.as_bytes()));
            if is_held { held.push(*id) } else { lacking.push(*id) }
        }
        Ok(Asked { home, count, held, lacking })
    }

    pub(super) fn logged(&self) -> MutexGuard<'_, Logged> {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What logs were heard to have.
#[derive(Debug, Default)]
pub(super) struct Logged {
    logs: HashMap<DatasetId, Log>,
    objects: usize,
}

#[derive(Debug)]
struct Log {
    keys: Keys,
    /// What it had then, it has until another one leaves it.
    count: Count,
    objects: HashSet<ChunkId>,
}

impl Logged {
    /// How many objects had left a log, as far as that was heard in these places.
    fn heard(&self, keys: Keys, places: u64) -> Option<u64> {
        let log = self.logs.get(&keys.dataset)?;
        (log.keys == keys && log.count.places == places).then_some(log.count.retired)
    }

    fn has(&self, keys: Keys, count: Count, object: &ChunkId) -> bool {
        let log = self.logs.get(&keys.dataset).filter(|log| (log.keys, log.count) == (keys, count));
        log.is_some_and(|log| log.objects.contains(object))
    }

    /// Lets go of what is known of a log.
    pub(super) fn forget(&mut self, dataset: DatasetId) {
        let log = self.logs.remove(&dataset);
        self.objects -= log.map_or(0, |log| log.objects.len());
    }

    /// Keeps what a log was heard to have after so many had left it.
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

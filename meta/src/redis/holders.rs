//! Whether rows still count: the log has to have the object that holds what they tell of.
//!
//! Must hold: a row whose object was taken off the log is none, whatever brought it back: a primary
//! that died with its removal, or an append that was under way. That an object is not in the log is
//! taken only where nothing left the log since before its row was read; otherwise the row is read anew.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};

use dl_format::{ChunkId, DatasetId};
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes, decimal, list, number};
use super::failure::Failure;
use super::home::Home;
use super::keys::Keys;
use super::scripts::{HELD, STALE};
use super::slots::Shard;

/// Objects that are asked about with one question.
const AT_ONCE: usize = 1_000;
/// Objects that a process remembers, of all datasets together.
const KNOWN_MAX: usize = 1 << 18;

/// Which objects hold the rows that a call reads, as far as any ever left the log.
#[derive(Debug)]
pub(super) struct Holders {
    keys: Keys,
    none: bool,
    /// How often the log had changed when the call last heard of it.
    seen: u64,
    /// The same, as far as it is known to have been before the rows were read.
    before: Option<u64>,
    gone: HashSet<ChunkId>,
    is_uncertain: bool,
    is_stale: bool,
}

impl Holders {
    /// For rows that are read after this home was.
    pub(super) fn after(home: &Home) -> Self {
        Self { before: Some(home.changes), ..Self::beside(home) }
    }

    /// For rows that are read at the same time as this home.
    pub(super) fn beside(home: &Home) -> Self {
        Self {
            keys: home.keys,
            none: home.changes == 0,
            seen: home.changes,
            before: None,
            gone: HashSet::new(),
            is_uncertain: false,
            is_stale: false,
        }
    }

    /// The same of a later home of that dataset, beside which rows were read again.
    pub(super) fn again(&mut self, home: &Home) {
        if home.keys == self.keys {
            (self.none, self.seen, self.is_stale) = (home.changes == 0, home.changes, false);
        } else {
            *self = Self::beside(home);
        }
    }

    pub(super) fn are_none(&self) -> bool {
        self.none
    }

    /// Whether the rows have to be read again, and their objects be loaded then.
    pub(super) fn are_uncertain(&self) -> bool {
        self.is_uncertain
    }

    /// Whether the dataset was dropped meanwhile, so that nothing is known.
    pub(super) fn are_stale(&self) -> bool {
        self.is_stale
    }

    /// Whether an object that was loaded last is not in the log.
    pub(super) fn lack(&self, object: ChunkId) -> bool {
        self.gone.contains(&object)
    }

    /// Where it was not found in the log, if any was not.
    pub(super) fn doubted(&self) -> Option<Shard> {
        (!self.gone.is_empty()).then(|| self.keys.log().shard)
    }

    /// Asks the log about the objects that hold rows which were read.
    pub(super) async fn load(
        &mut self,
        shared: &Shared,
        objects: impl IntoIterator<Item = ChunkId>,
    ) -> Result<(), Failure> {
        (self.is_uncertain, self.gone) = (false, HashSet::new());
        if self.none {
            return Ok(());
        }
        let places = shared.router.changes();
        let unknown: Vec<ChunkId> = {
            let objects: BTreeSet<ChunkId> = objects.into_iter().collect();
            let held = shared.held();
            let known = held.of(self.keys, self.seen, places);
            objects.into_iter().filter(|id| !known.is_some_and(|ids| ids.contains(id))).collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        let asks = unknown.chunks(AT_ONCE).map(|ids| {
            let ask = Ask::script(&HELD, &self.keys.home(), &[&self.keys.log()]);
            let ask = ask.arg(self.keys.epoch.to_string());
            ids.iter().fold(ask, |ask, id| ask.arg(id.as_bytes()))
        });
        let answers = shared.router.ask(asks.collect()).await?;
        let before = self.before;
        for (ids, answer) in unknown.chunks(AT_ONCE).zip(answers) {
            if matches!(answer, Value::Int(STALE)) {
                shared.forget(self.keys.dataset);
                self.is_stale = true;
                return Ok(());
            }
            let mut answer = list(answer, Ok)?.into_iter();
            let changes = decimal(bytes(answer.next().unwrap_or(Value::Nil))?.as_ref())?;
            let mut held = Vec::with_capacity(ids.len());
            for id in ids {
                match number(&answer.next().unwrap_or(Value::Nil))? {
                    0 => self.gone.extend([*id]),
                    _ => held.push(*id),
                }
            }
            shared.held().keep(self.keys, changes, places, held);
            self.seen = self.seen.max(changes);
            self.before = Some(self.seen);
        }
        self.is_uncertain = !self.gone.is_empty() && self.before != before;
        Ok(())
    }
}

/// What logs had when they were asked last.
#[derive(Debug, Default)]
pub(super) struct Held {
    logs: HashMap<DatasetId, Log>,
    count: usize,
}

#[derive(Debug)]
struct Log {
    keys: Keys,
    changes: u64,
    /// What [`Shared::is_as`] wants to hear: a log may lose its last changes with its primary.
    places: u64,
    objects: HashSet<ChunkId>,
}

impl Held {
    /// What a log that has changed so often is known to have.
    fn of(&self, keys: Keys, changes: u64, places: u64) -> Option<&HashSet<ChunkId>> {
        let log = self.logs.get(&keys.dataset)?;
        let is_same = log.keys == keys && log.changes == changes && log.places == places;
        is_same.then_some(&log.objects)
    }

    fn keep(&mut self, keys: Keys, changes: u64, places: u64, objects: Vec<ChunkId>) {
        if self.count > KNOWN_MAX {
            *self = Self::default();
        }
        let log = self.logs.entry(keys.dataset);
        let log = log.or_insert_with(|| Log { keys, changes, places, objects: HashSet::new() });
        let is_same = log.keys == keys && log.changes == changes && log.places == places;
        if !is_same {
            self.count -= log.objects.len();
            *log = Log { keys, changes, places, objects: HashSet::new() };
        }
        let before = log.objects.len();
        log.objects.extend(objects);
        self.count += log.objects.len() - before;
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

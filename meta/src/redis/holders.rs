//! Whether rows still count: the log has to have the object that holds what they tell of.
//!
//! Must hold: a row whose object was taken off the log tells of no file, whatever brought it back: a
//! primary that died with its removal, or an append that was under way. That the log lacks an object is
//! taken only where none left it since before its row was read: otherwise the row is read again, for its
//! file may have been moved. One that was lacking before a row was read is not asked about again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};

use dl_format::{ChunkId, DatasetId};
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes, decimal, number, strings};
use super::failure::Failure;
use super::home::{Doubts, Home, ask_home, read_home};
use super::keys::Keys;
use super::slots::Shard;

/// Objects that a process remembers, of all datasets together: about 2 TiB of chunks, in 20 MB.
const KNOWN_MAX: usize = 1 << 19;

/// What the log says to one call about the objects that hold the rows which it reads.
#[derive(Debug)]
pub(super) struct Holders {
    /// How many objects had left the log before the rows were read, if that is known.
    before: Option<u64>,
    gone: HashSet<ChunkId>,
    is_uncertain: bool,
}

impl Holders {
    /// For rows that are read after a home which told of so many objects that had left the log.
    pub(super) fn after(retired: u64) -> Self {
        Self { before: Some(retired), ..Self::beside() }
    }

    /// For rows that are read beside the home.
    pub(super) fn beside() -> Self {
        Self { before: None, gone: HashSet::new(), is_uncertain: false }
    }

    /// Begins to read rows beside the home, with what this process heard last.
    pub(super) fn begin(&mut self, shared: &Shared, keys: Keys) {
        let places = shared.router.changes();
        let logged = shared.logged();
        let log = logged.logs.get(&keys.dataset);
        let heard = log.filter(|log| log.keys == keys && log.places == places);
        self.before = self.before.max(heard.map(|log| log.retired));
    }

    /// What to ask before the next rows are read, for [`Self::hear`]; nothing where it never matters.
    pub(super) fn ask(home: &Home) -> Option<Ask> {
        (home.retired > 0).then(|| Ask::to(&home.keys.home(), "HGET").arg("retired"))
    }

    /// Takes the answer, once nothing is left to be loaded of rows that were read with the question.
    pub(super) fn hear(&mut self, answer: Value) -> Result<(), Failure> {
        self.before = self.before.max(Some(decimal(bytes(answer)?.as_ref())?));
        Ok(())
    }

    /// Whether the rows have to be read again: an object that holds some left the log meanwhile, or the
    /// dataset was dropped.
    pub(super) fn are_uncertain(&self) -> bool {
        self.is_uncertain
    }

    pub(super) fn lack(&self, object: ChunkId) -> bool {
        self.gone.contains(&object)
    }

    /// Where something was not found, if anything was not.
    pub(super) fn doubted(&self, home: &Home) -> Option<Shard> {
        (!self.gone.is_empty()).then(|| home.keys.log().shard)
    }

    /// Asks the log about the objects that hold rows which were read. Fails when it is shorter than the
    /// home says.
    pub(super) async fn load(
        &mut self,
        shared: &Shared,
        home: &Home,
        objects: impl IntoIterator<Item = ChunkId>,
    ) -> Result<(), Failure> {
        self.is_uncertain = false;
        if home.retired == 0 {
            return Ok(());
        }
        let places = shared.router.changes();
        let objects: BTreeSet<ChunkId> = objects.into_iter().collect();
        let unknown: Vec<ChunkId> = {
            let logged = shared.logged();
            let has = |id: &ChunkId| logged.has(home, places, *id) || self.gone.contains(id);
            objects.into_iter().filter(|id| !has(id)).collect()
        };
        let mut doubts = Doubts::default();
        while !unknown.is_empty() {
            let (held, lacking, count) = shared.ask_log(home.keys, &unknown).await?;
            shared.logged().keep(home, places, held);
            if lacking.is_empty() {
                return Ok(());
            }
            // Behind the answer: what left the log until then is counted there.
            let dataset = home.keys.dataset;
            let again = read_home(dataset, shared.router.ask_one(ask_home(dataset)).await?)?;
            let Some(again) = again.filter(|again| again.keys == home.keys) else {
                shared.forget(dataset);
                self.is_uncertain = true;
                return Ok(());
            };
            if let Err(short) = home.check_log(&again, count) {
                doubts.meet(short)?;
                continue;
            }
            shared.logged().keep(&again, places, Vec::new());
            self.gone.extend(lacking);
            self.is_uncertain = self.before != Some(again.retired);
            self.before = Some(again.retired);
            return Ok(());
        }
        Ok(())
    }
}

impl Shared {
    /// Which objects the log has, which not, and how many it has.
    async fn ask_log(
        &self,
        keys: Keys,
        objects: &[ChunkId],
    ) -> Result<(Vec<ChunkId>, Vec<ChunkId>, u64), Failure> {
        let log = keys.log();
        let mut asks = vec![Ask::to(&log, "ZCARD")];
        asks.extend(objects.iter().map(|id| {
            let from = [b"[", id.as_bytes().as_slice()].concat();
            Ask::to(&log, "ZRANGEBYLEX").arg(from).arg("+").arg("LIMIT").arg(0).arg(1)
        }));
        let mut answers = self.router.ask(asks).await?.into_iter();
        let count = number(&answers.next().unwrap_or(Value::Nil))?;
        let (mut held, mut lacking) = (Vec::with_capacity(objects.len()), Vec::new());
        for (id, answer) in objects.iter().zip(answers) {
            let found = strings(answer)?;
            let is_held = found.first().is_some_and(|member| member.starts_with(id.as_bytes()));
            if is_held { held.push(*id) } else { lacking.push(*id) }
        }
        Ok((held, lacking, u64::try_from(count).unwrap_or_default()))
    }

    fn logged(&self) -> MutexGuard<'_, Logged> {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What logs were heard to have.
#[derive(Debug, Default)]
pub(super) struct Logged {
    logs: HashMap<DatasetId, Log>,
    count: usize,
}

#[derive(Debug)]
struct Log {
    keys: Keys,
    /// How many objects had left it: what it had then, it has until another one does.
    retired: u64,
    /// What [`Shared::is_as`] wants to hear: a log may lose its last changes with its primary.
    places: u64,
    objects: HashSet<ChunkId>,
}

impl Logged {
    fn has(&self, home: &Home, places: u64, object: ChunkId) -> bool {
        self.logs.get(&home.keys.dataset).is_some_and(|log| {
            (log.keys, log.retired, log.places) == (home.keys, home.retired, places)
                && log.objects.contains(&object)
        })
    }

    /// Keeps what the log was heard to have after this home had been read.
    fn keep(&mut self, home: &Home, places: u64, objects: Vec<ChunkId>) {
        if self.count > KNOWN_MAX {
            *self = Self::default();
        }
        let new =
            || Log { keys: home.keys, retired: home.retired, places, objects: HashSet::new() };
        let log = self.logs.entry(home.keys.dataset).or_insert_with(new);
        if (log.keys, log.places) == (home.keys, places) && log.retired > home.retired {
            return;
        }
        if (log.keys, log.retired, log.places) != (home.keys, home.retired, places) {
            self.count -= log.objects.len();
            *log = new();
        }
        self.count -= log.objects.len();
        log.objects.extend(objects);
        self.count += log.objects.len();
    }
}

//! Whether Redis still has all that was written to it: a mark in each shard names the run of the process
//! that holds the shard.
//!
//! Must hold: after a restart, a failover, a flush or an eviction, contents are refused until the metadata
//! were rebuilt from the chunk store. A shard that moved to another live primary is whole. A rebuild makes
//! a shard whole only if the shard lost nothing since the rebuild began. Each mark has a copy of the identity.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use dl_format::StoreId;
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes, fields, number};
use super::dataset_root::ask_epoch;
use super::failure::Failure;
use super::keys::{self, Keys};
use super::scripts::{BEGIN_REBUILD, CONFIRM, OTHER_LIFE, OTHER_PROCESS, OTHER_STORE};
use super::slots::Shard;
use crate::types::bound_elsewhere;
use crate::{Damage, Error, Kind, Rebuild};

/// How long to wait for a mark of a shard that moved: a Redis may refuse writes.
const MARK_TIMEOUT: Duration = Duration::from_millis(500);

/// What this process knows about the health of Redis.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// The router's count of changes at the last survey.
    checked: Option<u64>,
    /// When the last survey began.
    at: Duration,
    damage: Option<Damage>,
    /// The damage that was logged last.
    reported: Option<Damage>,
    bound: Option<StoreId>,
    /// Whether the metadata was ever seen to be bound.
    was_bound: bool,
    /// The run and the life of each shard.
    lives: HashSet<(String, String)>,
}

impl Health {
    pub(super) fn damage(&self) -> Option<Damage> {
        self.damage
    }
}

/// The mark of a shard.
#[derive(Debug)]
struct Mark {
    /// Empty without a mark.
    run: String,
    /// A number drawn by the first rebuild of this copy of the shard; empty before.
    life: String,
    /// The copy of the identity.
    store: Option<StoreId>,
}

/// The mark of a shard, and the run of the process that holds the shard now.
#[derive(Debug)]
struct ShardMark {
    shard: Shard,
    mark: Mark,
    process: String,
}

/// The damage that the marks of all shards tell of; `bound` where metadata is bound to a chunk store.
fn judge(marks: &[ShardMark], bound: bool) -> Option<Damage> {
    let live: HashSet<&str> = marks.iter().map(|mark| mark.process.as_str()).collect();
    if bound {
        let is_whole = |of: &ShardMark| live.contains(of.mark.run.as_str());
        return (!marks.iter().all(is_whole)).then_some(Damage::Shards);
    }
    // A rebuild that was cut off, or metadata that lost its identity in all shards.
    let is_used = |of: &ShardMark| !of.mark.run.is_empty() || !of.mark.life.is_empty();
    marks.iter().any(is_used).then_some(Damage::Everything)
}

impl Shared {
    /// Fails while the metadata may lack something; gives the count that [`Shared::is_as`] compares.
    ///
    /// No call is refused for damage that was repaired before the call began. Calls that wait share a
    /// survey, also a survey that fails.
    pub(super) async fn assure(&self) -> Result<u64, Failure> {
        let began = self.clock.monotonic();
        if let Some(verdict) = self.verdict(began) {
            return verdict;
        }
        let _turn = self.surveys.acquire().await.expect("the semaphore is never closed");
        let mut rounds = self.router.rounds();
        loop {
            self.router.again(&mut rounds)?;
            if let Some(verdict) = self.verdict(began) {
                return verdict;
            }
            if let Some((at, failure)) = &*self.failed()
                && *at >= began
            {
                return Err(failure.clone());
            }
            if let Err(failure) = self.survey().await {
                *self.failed() = Some((self.clock.monotonic(), failure));
            }
        }
    }

    /// The result of the last survey, if valid for a call that began at `began`.
    fn verdict(&self, began: Duration) -> Option<Result<u64, Failure>> {
        let (health, changes) = (self.health(), self.router.changes());
        match health.damage {
            None if health.checked == Some(changes) => Some(Ok(changes)),
            Some(damage) if health.at >= began => Some(Err(refused(damage))),
            _ => None,
        }
    }

    /// Whether no process and no shard changed its place since `changes`, and nothing was flushed.
    pub(super) fn is_as(&self, changes: u64) -> bool {
        self.router.changes() == changes
    }

    /// Fails when one of these shards, in which a key was not found, lost its mark. False when the
    /// dataset changed since: the call begins anew.
    pub(super) async fn confirm(
        &self,
        keys: Keys,
        shards: &BTreeSet<Shard>,
    ) -> Result<bool, Failure> {
        if shards.is_empty() {
            return Ok(true);
        }
        let mut asks = vec![ask_epoch(keys)];
        asks.extend(self.ask_marks(shards.iter().copied()));
        let mut marks = self.router.ask(asks).await?;
        let epoch = marks.remove(0);
        let is_whole = self.are_whole(marks).await?;
        Ok(self.is_still(keys, epoch)? && is_whole)
    }

    /// Questions for the marks of these shards; none while metadata is bound to no chunk store.
    pub(super) fn ask_marks(&self, shards: impl Iterator<Item = Shard>) -> Vec<Ask> {
        if self.health().bound.is_none() {
            return Vec::new();
        }
        shards.map(ask_mark).collect()
    }

    /// Whether the answers to [`Shared::ask_marks`] are the marks of the last survey. Fails when a shard
    /// lost its mark; false when the shard is whole again: read everything again.
    pub(super) async fn are_whole(&self, marks: Vec<Value>) -> Result<bool, Failure> {
        let mut is_whole = self.health().damage.is_none();
        for mark in marks {
            let Mark { run, life, .. } = read_mark(mark)?;
            is_whole &= self.health().lives.contains(&(run, life));
        }
        if !is_whole {
            self.survey().await?;
            self.assure().await?;
            // No call keeps anything that it read before.
            self.router.changed();
        }
        Ok(is_whole)
    }

    /// Looks for damage, and logs new damage.
    pub(super) async fn survey(&self) -> Result<(), Failure> {
        self.look().await?;
        let mut health = self.health();
        let damage = health.damage;
        if damage.is_some() && health.reported != damage {
            tracing::error!(store = %self.router.address, ?damage, "metadata may be missing");
        }
        health.reported = damage;
        Ok(())
    }

    /// Compares the marks of all shards with the live processes; gives the damage that the marks show.
    /// Logs nothing: while several servers bind or rebuild at once, intermediate states are no loss.
    pub(super) async fn look(&self) -> Result<Option<Damage>, Failure> {
        let (changes, at) = (self.router.changes(), self.clock.monotonic());
        let mut asks = vec![Ask::to(&keys::identity(), "GET")];
        asks.extend(Shard::all().map(ask_mark));
        let mut answers = self.router.ask(asks).await?.into_iter();
        let identity = store_id(answers.next().unwrap_or(Value::Nil))?;
        let runs = self.router.runs().await?;
        let mut marks = Vec::new();
        for (shard, answer) in Shard::all().zip(answers) {
            let process = self.router.owner(shard).and_then(|node| runs.get(&node));
            let Some(process) = process else { continue };
            marks.push(ShardMark { shard, mark: read_mark(answer)?, process: process.to_string() });
        }
        let copies = marks.iter().map(|of| (of.shard, of.mark.store));
        let bound = self.agreed(identity, copies)?;
        let damage = judge(&marks, bound.is_some());
        if let (Some(id), None) = (bound, damage) {
            self.complete_marks(id, &marks).await?;
            if identity.is_none() {
                let copy = Ask::to(&keys::identity(), "SETNX").arg(id.as_bytes());
                self.router.ask_one(copy).await?;
            }
        }
        let mut health = self.health();
        let is_unbound = health.bound.is_some() && health.bound != bound;
        let lives: HashSet<_> = marks.into_iter().map(|of| (of.process, of.mark.life)).collect();
        // A shard that was flushed and rebuilt since the last survey has another life.
        let is_other = health.checked.is_some() && !lives.is_subset(&health.lives);
        if is_unbound || is_other || health.damage.is_none() && damage.is_some() {
            // Calls that read before are in doubt, and begin anew.
            self.router.changed();
        }
        let (checked, was_bound) = (Some(changes), health.was_bound || bound.is_some());
        // All of Redis was flushed, though it looks like new.
        let is_flushed = was_bound && bound.is_none();
        let shown = damage.or(is_flushed.then_some(Damage::Everything));
        let reported = health.reported;
        *health = Health { checked, at, damage: shown, reported, bound, was_bound, lives };
        Ok(damage)
    }

    /// The chunk store of the metadata, by the identity and by its copies in the marks.
    fn agreed(
        &self,
        identity: Option<StoreId>,
        copies: impl Iterator<Item = (Shard, Option<StoreId>)>,
    ) -> Result<Option<StoreId>, Failure> {
        let mut known = identity.map(|id| (Shard::FIRST, id));
        for (shard, copy) in copies {
            let Some(copy) = copy else { continue };
            let (first, id) = *known.get_or_insert((shard, copy));
            if id != copy {
                let at = |shard: Shard| {
                    let owner = self.router.owner(shard).map(|node| node.to_string());
                    format!("slot {} at {}", shard.slot(), owner.unwrap_or_default())
                };
                let why = format!(
                    "its shards belong to two chunk stores: {} to {id}, {} to {copy}; check --meta, and \
                     empty the primary of the wrong one (FLUSHALL): the servers rebuild its part",
                    at(first),
                    at(shard)
                );
                return Err(Failure::because(Kind::Lost, why));
            }
        }
        Ok(known.map(|(_, id)| id))
    }

    /// Marks moved shards again, and marks without a copy of the identity, as earlier versions wrote them.
    async fn complete_marks(&self, id: StoreId, marks: &[ShardMark]) -> Result<(), Failure> {
        let is_due = |of: &&ShardMark| of.mark.run != of.process || of.mark.store.is_none();
        let due = marks.iter().filter(is_due);
        let due = due.map(|of| (of.shard, "run", of.mark.run.as_str(), of.mark.run.as_str()));
        // Without a new mark, a later loss could not be told from the move.
        let marked = self.confirm_shards(id, due.collect(), MARK_TIMEOUT).await;
        marked.map(drop).map_err(|why| {
            let why = format!("slots moved, and Redis takes no marks of their shards: {why}");
            Failure::because(Kind::Unavailable, why)
        })
    }

    /// Marks shards with the run of the process that holds them now, where a field of the mark has a
    /// certain value that was read from a certain run. Gives the first shard that lost something since.
    async fn confirm_shards(
        &self,
        id: StoreId,
        shards: Vec<(Shard, &str, &str, &str)>,
        patience: Duration,
    ) -> Result<Option<String>, Failure> {
        if shards.is_empty() {
            return Ok(None);
        }
        let mut live = " ".to_owned();
        for run in self.router.runs().await?.values() {
            let _ = write!(live, "{run} ");
        }
        let now = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let asks = shards.iter().map(|(shard, field, value, run)| {
            let ask = Ask::script(&CONFIRM, &keys::shard_mark(*shard), &[]);
            ask.arg(field).arg(value).arg(run).arg(id.as_bytes()).arg(&live).arg(now)
        });
        let answers = self.router.ask_within(patience, asks.collect()).await?;
        for ((shard, ..), answer) in shards.iter().zip(answers) {
            let why = match number(&answer)? {
                1 => continue,
                OTHER_LIFE => "it was flushed, or lost keys",
                OTHER_PROCESS => "another process holds it",
                OTHER_STORE => "it belongs to another chunk store",
                _ => return Err(Failure::unexpected()),
            };
            return Ok(Some(format!("the shard of slot {}: {why}", shard.slot())));
        }
        Ok(None)
    }

    pub(super) async fn identity(&self) -> Result<Option<StoreId>, Failure> {
        let identity = store_id(self.router.ask_one(Ask::to(&keys::identity(), "GET")).await?)?;
        if identity.is_some() {
            return Ok(identity);
        }
        let marks = self.router.ask(Shard::all().map(ask_mark).collect()).await?;
        let copies = marks.into_iter().map(|mark| read_mark(mark).map(|mark| mark.store));
        let copies: Vec<_> = copies.collect::<Result<_, _>>()?;
        self.agreed(None, Shard::all().zip(copies))
    }

    pub(super) async fn bind(&self, store: StoreId) -> Result<Result<(), Error>, Failure> {
        match self.identity().await? {
            Some(bound) if bound != store => Ok(Err(bound_elsewhere(store, bound))),
            Some(_) => Ok(Ok(())),
            None => {
                // Nothing is missing as long as nothing was written.
                let rebuild = self.begin_rebuild().await?;
                self.end_rebuild(&rebuild, store).await
            }
        }
    }

    pub(super) async fn damage(&self) -> Result<Option<Damage>, Failure> {
        let began = self.clock.monotonic();
        // Calls that wait share a survey, as many requests ask during a rebuild.
        let _turn = self.surveys.acquire().await.expect("the semaphore is never closed");
        let is_new = |at: Duration| at >= began;
        let is_surveyed = self.health().checked.is_some() && is_new(self.health().at);
        if !is_surveyed {
            if let Some((at, failure)) = &*self.failed()
                && is_new(*at)
            {
                return Err(failure.clone());
            }
            if let Err(failure) = self.survey().await {
                *self.failed() = Some((self.clock.monotonic(), failure.clone()));
                return Err(failure);
            }
        }
        Ok(self.health().damage)
    }

    /// Notes the life of each shard, and the run of the process that holds the shard.
    pub(super) async fn begin_rebuild(&self) -> Result<Rebuild, Failure> {
        let before = self.look().await?;
        let was_bound = self.health().bound.is_some();
        let life = format!("{:016x}", self.random.u64());
        let begin =
            |shard| Ask::script(&BEGIN_REBUILD, &keys::shard_mark(shard), &[]).arg(life.as_str());
        let answers = self.router.ask(Shard::all().map(begin).collect()).await?;
        let read = |answer| {
            let [run, life] = fields::<2>(answer)?.map(text);
            Ok((run, life))
        };
        let shards = answers.into_iter().map(read).collect::<Result<_, Failure>>()?;
        // Shards may have been lost since the first look. Of unbound metadata, the lives tell nothing.
        let after = self.look().await?.filter(|damage| was_bound || *damage == Damage::Shards);
        Ok(Rebuild { damage: before.or(after), shards })
    }

    /// Makes all shards whole that lost nothing since the rebuild began, and binds the metadata.
    pub(super) async fn end_rebuild(
        &self,
        rebuild: &Rebuild,
        store: StoreId,
    ) -> Result<Result<(), Error>, Failure> {
        let bound = self.identity().await?;
        if let Some(bound) = bound.filter(|bound| *bound != store) {
            return Ok(Err(bound_elsewhere(store, bound)));
        }
        let shards = Shard::all().zip(&rebuild.shards);
        let mut first: Vec<_> = shards
            .map(|(shard, (run, life))| (shard, "life", life.as_str(), run.as_str()))
            .collect();
        // Of servers that bind empty metadata to several chunk stores, the first shard lets one go on.
        let others = first.split_off(first.len().min(1));
        let (mut lost, patience) = (None, self.router.patience());
        for shards in [first, others] {
            if lost.is_none() {
                lost = self.confirm_shards(store, shards, patience).await?;
            }
        }
        // Rows of other epochs of rebuilt datasets.
        self.sweep_now.notify_one();
        let damage = self.look().await?;
        match (self.health().bound, damage) {
            (Some(bound), _) if bound != store => Ok(Err(bound_elsewhere(store, bound))),
            // Another server may have rebuilt the same meanwhile.
            (Some(_), None) => Ok(Ok(())),
            _ => {
                let lost = lost.unwrap_or_else(|| "a shard changed meanwhile".to_owned());
                let why = format!(
                    "Redis lost something again during the rebuild ({lost}); run `dlcmd recover --all` \
                     again"
                );
                Err(Failure::because(Kind::Lost, why))
            }
        }
    }
}

fn ask_mark(shard: Shard) -> Ask {
    Ask::to(&keys::shard_mark(shard), "HMGET").arg(&["run", "life", "id"])
}

fn read_mark(mark: Value) -> Result<Mark, Failure> {
    let [run, life, store] = fields::<3>(mark)?;
    Ok(Mark { run: text(run), life: text(life), store: store.map(read_store).transpose()? })
}

/// The text of a field, empty for a missing field.
fn text(field: Option<Vec<u8>>) -> String {
    String::from_utf8_lossy(&field.unwrap_or_default()).into_owned()
}

fn store_id(value: Value) -> Result<Option<StoreId>, Failure> {
    bytes(value)?.map(read_store).transpose()
}

fn read_store(bytes: Vec<u8>) -> Result<StoreId, Failure> {
    let id = bytes.try_into().map_err(|_| Failure::corrupt("the identity can't be read"))?;
    Ok(StoreId::from_bytes(id))
}

fn refused(damage: Damage) -> Failure {
    match damage {
        Damage::Shards => Failure::because(
            Kind::Unavailable,
            "Redis restarted, failed over or was flushed, and may have lost writes: the servers are \
             rebuilding the metadata from the chunk store; try again, and see the servers' logs if the \
             error remains",
        ),
        Damage::Everything => Failure::because(
            Kind::Lost,
            "no shard of this Redis has the identity of the metadata, as after a flush of all primaries: \
             check --meta, or run `dlcmd recover --all`, unless one is under way",
        ),
    }
}

//! Whether Redis still has all that was written to it: a mark in each shard names the run of the process
//! that holds the shard.
//!
//! Must hold: after a restart, a failover, a flush or an eviction, contents are refused until the metadata
//! were rebuilt from the chunk store. A shard that moved to another live primary is whole. A rebuild makes
//! a shard whole only if the shard lost nothing since the rebuild began.

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
use super::scripts::{BEGIN_REBUILD, CONFIRM, OTHER_LIFE, OTHER_PROCESS};
use super::slots::Shard;
use crate::types::bound_elsewhere;
use crate::{Damage, Error, Kind, Rebuild};

/// How long to wait for a mark of a shard that moved: a Redis may refuse writes.
const MARK_PATIENCE: Duration = Duration::from_millis(500);

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

/// The mark of a shard, and the run of the process that holds the shard now.
#[derive(Debug, Default)]
struct ShardMark {
    /// The run in the mark; empty without a mark.
    run: String,
    /// A number drawn by the first rebuild of this copy of the shard; empty before.
    life: String,
    process: String,
}

/// The damage that the marks of all shards tell of; `bound` where metadata is bound to a chunk store.
fn judge(marks: &[ShardMark], bound: bool) -> Option<Damage> {
    let live: HashSet<&str> = marks.iter().map(|mark| mark.process.as_str()).collect();
    if bound {
        let is_whole = |mark: &ShardMark| live.contains(mark.run.as_str());
        return (!marks.iter().all(is_whole)).then_some(Damage::Shards);
    }
    // A rebuild that was cut off, or metadata that lost its identity.
    let is_used = |mark: &ShardMark| !mark.run.is_empty() || !mark.life.is_empty();
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
            is_whole &= self.health().lives.contains(&read_mark(mark)?);
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
        let bound = store_id(answers.next().unwrap_or(Value::Nil))?;
        let runs = self.router.runs().await?;
        let (mut shards, mut marks) = (Vec::new(), Vec::new());
        for (shard, answer) in Shard::all().zip(answers) {
            let process = self.router.owner(shard).and_then(|node| runs.get(&node));
            let Some(process) = process else { continue };
            let (run, life) = read_mark(answer)?;
            shards.push(shard);
            marks.push(ShardMark { run, life, process: process.to_string() });
        }
        let damage = judge(&marks, bound.is_some());
        if let (Some(id), None) = (bound, damage) {
            let moved = shards.into_iter().zip(&marks).filter(|(_, s)| s.run != s.process);
            let moved = moved.map(|(shard, s)| (shard, "run", s.run.as_str(), s.run.as_str()));
            // Without a new mark, a later loss could not be told from the move.
            let marked = self.confirm_shards(id, moved.collect(), MARK_PATIENCE).await;
            marked.map_err(|why| {
                let why = format!("slots moved, and Redis takes no marks of their shards: {why}");
                Failure::because(Kind::Unavailable, why)
            })?;
        }
        let mut health = self.health();
        let is_unbound = health.bound.is_some() && health.bound != bound;
        let lives: HashSet<_> = marks.into_iter().map(|s| (s.process, s.life)).collect();
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
                _ => return Err(Failure::unexpected()),
            };
            return Ok(Some(format!("the shard of slot {}: {why}", shard.slot())));
        }
        Ok(None)
    }

    pub(super) async fn identity(&self) -> Result<Option<StoreId>, Failure> {
        store_id(self.router.ask_one(Ask::to(&keys::identity(), "GET")).await?)
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
        self.survey().await?;
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
        let shards = answers.into_iter().map(read_mark).collect::<Result<_, Failure>>()?;
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
        let shards =
            shards.map(|(shard, (run, life))| (shard, "life", life.as_str(), run.as_str()));
        let patience = self.router.patience();
        let lost = self.confirm_shards(store, shards.collect(), patience).await?;
        if lost.is_none() && bound.is_none() {
            let bind = Ask::to(&keys::identity(), "SETNX").arg(store.as_bytes());
            self.router.ask_one(bind).await?;
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
    Ask::to(&keys::shard_mark(shard), "HMGET").arg(&["run", "life"])
}

/// The run and the life in a mark, each empty where the mark lacks it.
fn read_mark(mark: Value) -> Result<(String, String), Failure> {
    let text =
        |field: Option<Vec<u8>>| String::from_utf8_lossy(&field.unwrap_or_default()).into_owned();
    let [run, life] = fields::<2>(mark)?.map(text);
    Ok((run, life))
}

fn store_id(value: Value) -> Result<Option<StoreId>, Failure> {
    let Some(bytes) = bytes(value)? else { return Ok(None) };
    let id = bytes.try_into().map_err(|_| Failure::corrupt("the identity can't be read"))?;
    Ok(Some(StoreId::from_bytes(id)))
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
            "Redis lost the identity of its metadata, or is being rebuilt: run `dlcmd recover --all`",
        ),
    }
}

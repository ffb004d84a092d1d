//! Whether Redis still has what was written to it: marks in every shard, and which process wrote
//! them.
//!
//! Must hold: after a restart, a failover or a flush nothing is served from a shard that may lack
//! writes, until it is mended. A shard that only moved to another primary is whole. The time in a
//! mark is written in the order of all other writes of its shard, so what comes back of a shard
//! whose mark came back lacks nothing from before that time.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, UNIX_EPOCH};

use dl_format::{Stamp, StoreId};
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes, decimal, fields, number};
use super::failure::Failure;
use super::keys;
use super::scripts::MARK;
use super::slots::Shard;
use crate::types::bound_elsewhere;
use crate::{Damage, Error, Kind};

/// How old the time in the marks gets while there is no damage.
const AGE: Duration = Duration::from_secs(1);

/// What this process knows about the health of Redis.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// The router's count of changes when everything was whole, or found damaged.
    checked: Option<u64>,
    /// When the last survey began.
    at: Duration,
    seen_at: Option<Duration>,
    damage: Option<Damage>,
    bound: Option<StoreId>,
    /// The runs of all primaries.
    runs: HashSet<String>,
    /// What [`Shared::mended`] will set right.
    broken: Vec<Broken>,
}

/// A shard whose mark is not that of the process that has it.
#[derive(Debug, Clone)]
struct Broken {
    shard: Shard,
    marked: String,
    run: String,
}

impl Shared {
    /// Fails while something may be missing; gives what [`Shared::is_as`] wants to hear.
    ///
    /// No call is refused for what was mended before it began, and calls that wait share a survey,
    /// also one that fails.
    pub(super) async fn assure(&self) -> Result<u64, Failure> {
        let began = self.clock.monotonic();
        if let Some(verdict) = self.verdict(began) {
            return verdict;
        }
        let (mut failed, mut rounds) = (self.surveys.lock().await, self.router.rounds());
        loop {
            self.router.again(&mut rounds)?;
            if let Some(verdict) = self.verdict(began) {
                return verdict;
            }
            if let Some((at, failure)) = &*failed
                && *at >= began
            {
                return Err(failure.clone());
            }
            if let Err(failure) = self.survey().await {
                *failed = Some((self.clock.monotonic(), failure));
            }
        }
    }

    /// What the last survey says, if it holds for a call that began then.
    fn verdict(&self, began: Duration) -> Option<Result<u64, Failure>> {
        let (health, changes) = (self.health(), self.router.changes());
        match health.damage {
            None if health.checked == Some(changes) => Some(Ok(changes)),
            Some(damage) if health.at >= began => Some(Err(refused(damage))),
            _ => None,
        }
    }

    /// Whether no process and no shard changed its place since `changes`.
    pub(super) fn is_as(&self, changes: u64) -> bool {
        self.router.changes() == changes
    }

    /// Fails when one of these shards, in which something was not found, lost its mark.
    pub(super) async fn confirm(&self, shards: &BTreeSet<Shard>) -> Result<(), Failure> {
        if self.health().bound.is_none() || shards.is_empty() {
            return Ok(());
        }
        let asks = shards.iter().map(|shard| Ask::to(&keys::mark(*shard), "HGET").arg("run"));
        let marks = self.router.ask(asks.collect()).await?;
        for mark in marks {
            let run = bytes(mark)?.map(|run| String::from_utf8_lossy(&run).into_owned());
            if !run.is_some_and(|run| self.health().runs.contains(&run)) {
                self.survey().await?;
                self.assure().await?;
            }
        }
        Ok(())
    }

    fn age(&self, since: Duration) -> Duration {
        self.clock.monotonic().saturating_sub(since)
    }

    fn now_ms(&self) -> u64 {
        let now = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
    }

    /// Reads all marks and compares them with the processes that have them.
    async fn survey(&self) -> Result<(), Failure> {
        let (changes, at) = (self.router.changes(), self.clock.monotonic());
        let mut asks = vec![Ask::to(&keys::identity(), "GET")];
        asks.extend(
            Shard::all().map(|shard| Ask::to(&keys::mark(shard), "HMGET").arg(&["run", "seen"])),
        );
        let mut answers = self.router.ask(asks).await?.into_iter();
        let bound = store_id(answers.next().unwrap_or(Value::Nil))?;
        let runs = self.router.runs().await?;
        let live: HashSet<String> = runs.values().map(|run| run.to_string()).collect();
        let (mut broken, mut moved, mut since) = (Vec::new(), Vec::new(), Some(u64::MAX));
        let mut is_marked = false;
        for (shard, answer) in Shard::all().zip(answers) {
            let [marked, seen] = fields(answer)?;
            let owner = self.router.owner(shard).and_then(|node| runs.get(&node));
            let Some(run) = owner.map(|run| run.to_string()) else { continue };
            let marked = String::from_utf8_lossy(&marked.unwrap_or_default()).into_owned();
            is_marked |= !marked.is_empty();
            if marked == run {
                continue;
            }
            if live.contains(&marked) {
                moved.push(Broken { shard, marked, run });
                continue;
            }
            let seen = decimal(seen.as_ref())?;
            let lost_all = marked.is_empty();
            since = since.filter(|_| !lost_all).map(|since| since.min(seen));
            broken.push(Broken { shard, marked, run });
        }
        let damage = match bound {
            None if !is_marked => None,
            None => Some(Damage { since: None }),
            Some(_) if broken.is_empty() => None,
            Some(_) => Some(Damage { since: since.map(|ms| Stamp::new(ms.saturating_mul(1_000))) }),
        };
        if let (Some(id), None) = (bound, damage) {
            self.mark(id, &moved, 0).await?;
        }
        let mut health = self.health();
        if damage.is_some() && health.damage != damage {
            tracing::error!(store = %self.router.address, ?damage, "metadata may be missing");
        }
        let broken = if bound.is_none() { Vec::new() } else { broken };
        let seen_at = health.seen_at;
        *health = Health { checked: Some(changes), at, seen_at, damage, bound, runs: live, broken };
        Ok(())
    }

    async fn mark(&self, id: StoreId, shards: &[Broken], now_ms: u64) -> Result<(), Failure> {
        let asks = shards.iter().map(|Broken { shard, marked, run }| {
            let ask = Ask::script(&MARK, &keys::mark(*shard), &[]);
            ask.arg(marked).arg(id.as_bytes()).arg(run).arg(now_ms)
        });
        for answer in self.router.ask(asks.collect()).await? {
            number(&answer)?;
        }
        Ok(())
    }

    pub(super) async fn identity(&self) -> Result<Option<StoreId>, Failure> {
        store_id(self.router.ask_one(Ask::to(&keys::identity(), "GET")).await?)
    }

    pub(super) async fn bind(&self, store: StoreId) -> Result<Result<(), Error>, Failure> {
        if self.identity().await?.is_none() {
            let (now, runs) = (self.now_ms(), self.router.runs().await?);
            let unmarked: Vec<Broken> = Shard::all()
                .filter_map(|shard| {
                    let run = runs.get(&self.router.owner(shard)?)?.to_string();
                    Some(Broken { shard, marked: String::new(), run })
                })
                .collect();
            self.mark(store, &unmarked, now).await?;
            let ask = Ask::to(&keys::identity(), "SETNX").arg(store.as_bytes());
            self.router.ask_one(ask).await?;
            self.health().checked = None;
        }
        Ok(match self.identity().await? {
            Some(bound) if bound != store => Err(bound_elsewhere(store, bound)),
            _ => Ok(()),
        })
    }

    pub(super) async fn damage(&self) -> Result<Option<Damage>, Failure> {
        let now = self.now_ms();
        self.survey().await?;
        let (damage, bound, is_old) = {
            let health = self.health();
            let is_old = health.seen_at.is_none_or(|at| self.age(at) >= AGE);
            (health.damage, health.bound, is_old)
        };
        if let (None, Some(id), true) = (damage, bound, is_old) {
            let runs = self.router.runs().await?;
            let whole: Vec<Broken> = Shard::all()
                .filter_map(|shard| {
                    let run = runs.get(&self.router.owner(shard)?)?.to_string();
                    Some(Broken { shard, marked: run.clone(), run })
                })
                .collect();
            self.mark(id, &whole, now).await?;
            self.health().seen_at = Some(self.clock.monotonic());
        }
        Ok(damage)
    }

    /// Takes what was found broken for whole. What broke since stays broken.
    pub(super) async fn mended(&self) -> Result<(), Failure> {
        let unknown = self.health().checked.is_none();
        if unknown {
            self.survey().await?;
        }
        let (bound, broken) = {
            let health = self.health();
            (health.bound, health.broken.clone())
        };
        let bound = match bound {
            Some(bound) => Some(bound),
            None => self.identity().await?,
        };
        if let Some(id) = bound {
            self.mark(id, &broken, self.now_ms()).await?;
        }
        self.survey().await
    }
}

fn store_id(value: Value) -> Result<Option<StoreId>, Failure> {
    let Some(bytes) = bytes(value)? else { return Ok(None) };
    let id = bytes.try_into().map_err(|_| Failure::corrupt("the identity can't be read"))?;
    Ok(Some(StoreId::from_bytes(id)))
}

fn refused(damage: Damage) -> Failure {
    let (kind, what) = match damage.since {
        Some(_) => (Kind::Unavailable, "lost its last writes when it restarted or failed over"),
        None => (Kind::Lost, "lost some or all of its data"),
    };
    Failure::because(kind, format!("Redis may have {what}; run `dlcmd recover --all`"))
}

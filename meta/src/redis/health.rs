//! Whether Redis still has what was written to it: marks in every shard, and which process wrote
//! them.
//!
//! Must hold: after a restart, a failover or a flush nothing is served from a shard that may lack
//! writes, until it is mended. A shard that only moved to another primary is whole. The time in a
//! mark is written in the order of all other writes of its shard, so what comes back of a shard
//! whose mark came back lacks nothing from before that time.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dl_format::{Stamp, StoreId};
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes, decimal, number, pairs};
use super::failure::Failure;
use super::home::ask_epoch;
use super::keys::{self, Keys};
use super::scripts::MARK;
use super::slots::Shard;
use crate::types::bound_elsewhere;
use crate::{Brought, Damage, Error, Kind};

/// How old the time in the marks gets while there is no damage, in milliseconds. Whichever server
/// finds it so old writes all of them, for all servers.
const AGE_MS: u64 = 1_000;
/// The same for a server that has appended nothing since it last wrote them: what it might have
/// lost is older.
const IDLE_AGE_MS: u64 = 60_000;
/// A mark that is ahead of its process by this is set back, however old the others are.
const AHEAD_MS: u64 = 5_000;

/// How long to try to write marks: who looks for damage is not to wait for a Redis that takes none.
const MARKS: Duration = Duration::from_millis(500);

/// How often and after which pause is looked again at metadata that others bind at the same time.
pub(super) const BIND_TRIES: u32 = 20;
pub(super) const BIND_PAUSE: Duration = Duration::from_millis(50);

/// What this process knows about the health of Redis.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// The router's count of changes when everything was whole, or found damaged.
    checked: Option<u64>,
    /// When the last survey began.
    at: Duration,
    /// The oldest time in any mark, and the newest.
    seen: u64,
    newest: u64,
    /// How far a mark is ahead of the clock of its process, which was set back since.
    ahead_ms: u64,
    /// The clock of the Redis process that is behind all others, which no mark is ahead of.
    time_ms: Option<u64>,
    damage: Option<Damage>,
    /// The damage that the log tells of.
    told: Option<Damage>,
    bound: Option<StoreId>,
    /// Whether it was ever seen to be bound.
    was_bound: bool,
    /// What stands for the run in the marks while metadata is bound to no chunk store: the recovery
    /// that fills it.
    filling: Option<u64>,
    /// The runs of all primaries.
    runs: HashSet<String>,
}

/// A shard, and what its mark names and shall name.
#[derive(Debug)]
struct Marking {
    shard: Shard,
    marked: String,
    run: String,
}

/// What the mark of a shard says.
#[derive(Debug, Default)]
pub(super) struct Mark {
    /// Nothing when there is none.
    pub(super) run: String,
    /// Milliseconds.
    pub(super) seen: u64,
    pub(super) mends: Vec<Mend>,
}

/// A recovery that began.
#[derive(Debug)]
pub(super) struct Mend {
    pub(super) token: u64,
    /// Since when the objects were sealed that it appends, in milliseconds; 0 for all of them.
    pub(super) since: u64,
    /// In which run of the process it began.
    pub(super) run: String,
    /// When it began, in milliseconds.
    pub(super) begun: u64,
    /// When it ended, in milliseconds.
    pub(super) ended: Option<u64>,
}

/// A shard, its mark and the run of the process that has it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) shard: Shard,
    pub(super) mark: Mark,
    pub(super) run: String,
}

/// The field of a mark that is there as long as its shard has lost nothing.
#[derive(Debug)]
pub(super) struct Sign {
    field: String,
    is_bound: bool,
}

impl Sign {
    pub(super) fn ask(&self, shard: Shard) -> Ask {
        Ask::to(&keys::mark(shard), "HGET").arg(&self.field)
    }
}

/// What the marks say together.
#[derive(Debug)]
pub(super) struct Judgement {
    pub(super) damage: Option<Damage>,
    /// The recovery that fills metadata which is bound to no chunk store, if nothing was lost since
    /// it began.
    pub(super) filling: Option<u64>,
}

impl Health {
    pub(super) fn damage(&self) -> Option<Damage> {
        self.damage
    }

    pub(super) fn bound(&self) -> Option<StoreId> {
        self.bound
    }

    pub(super) fn filling(&self) -> Option<u64> {
        self.filling
    }
}

impl Mark {
    /// Reads the fields of a mark.
    pub(super) fn read(fields: Value) -> Result<Self, Failure> {
        let mut mark = Self::default();
        for (field, value) in pairs(fields)? {
            match field.as_slice() {
                b"run" => mark.run = String::from_utf8_lossy(&value).into_owned(),
                b"seen" => mark.seen = decimal(Some(&value))?,
                field => mark.mends.extend(Mend::read(field, &value)),
            }
        }
        Ok(mark)
    }
}

impl Mend {
    fn read(field: &[u8], value: &[u8]) -> Option<Self> {
        let token = str::from_utf8(field).ok()?.strip_prefix("mend:")?;
        let mut words = str::from_utf8(value).ok()?.split(' ');
        Some(Self {
            token: u64::from_str_radix(token, 16).ok()?,
            since: words.next()?.parse().ok()?,
            run: words.next()?.to_owned(),
            begun: words.nth(1)?.parse().ok()?,
            ended: words.next().map(str::parse).transpose().ok()?,
        })
    }
}

/// What is missing by what the marks say; `bound` where metadata is bound to a chunk store. It is `now_ms`
/// by the clock of this process.
pub(super) fn judge(shards: &[Held], bound: bool, now_ms: u64) -> Judgement {
    let live: HashSet<&str> = shards.iter().map(|held| held.run.as_str()).collect();
    // One that is not everywhere was there before something was lost.
    let begun = |held: &Held| -> BTreeSet<u64> {
        let mends = held.mark.mends.iter().filter(|mend| live.contains(mend.run.as_str()));
        mends.map(|mend| mend.token).collect()
    };
    let first = shards.first().map(begun).unwrap_or_default();
    let is_same = |held: &Held| held.mark.mends.len() == first.len() && begun(held) == first;
    let intact = first.first().copied().filter(|_| shards.iter().all(is_same));
    let everything = Some(Damage { since: None });
    let is_marked = shards.iter().any(|held| !held.mark.run.is_empty());
    let is_begun = shards.iter().any(|held| !held.mark.mends.is_empty());
    if !bound {
        let is_new = !is_marked && (!is_begun || intact.is_some());
        let filling = intact.filter(|_| is_new);
        return Judgement { damage: everything.filter(|_| !is_new), filling };
    }
    let broken = shards.iter().filter(|held| !live.contains(held.mark.run.as_str()));
    // The earliest of all; nothing at all is zero.
    let since = broken.map(|held| match held.mark.run.is_empty() {
        true => 0,
        // Written before the clocks were set back: what was lost since may be of any time until then.
        false if held.mark.seen > now_ms.saturating_add(AHEAD_MS) => 1,
        false => late(held, shards, &live).fold(held.mark.seen, u64::min),
    });
    let damage = since.min().map(|since| match since {
        0 => Damage { since: None },
        since => Damage { since: Some(Stamp::new(since.saturating_mul(1_000))) },
    });
    Judgement { damage, filling: None }
}

/// Since when the objects were sealed that may have been lost with the last writes of a shard, as
/// they were appended late: by recoveries of which the end is not in its mark, though the begin is
/// in that of any shard, and which did not begin after the loss.
fn late<'a>(
    broken: &'a Held,
    shards: &'a [Held],
    live: &'a HashSet<&str>,
) -> impl Iterator<Item = u64> + 'a {
    let is_untouched = |token| {
        let mut mends = broken.mark.mends.iter().filter(|mend| mend.token == token);
        mends.any(|mend| mend.ended.is_some() || live.contains(mend.run.as_str()))
    };
    let mends = shards.iter().flat_map(|held| &held.mark.mends);
    mends.filter(move |mend| !is_untouched(mend.token)).map(|mend| mend.since)
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

    /// What the last survey says, if it holds for a call that began then.
    fn verdict(&self, began: Duration) -> Option<Result<u64, Failure>> {
        let (health, changes) = (self.health(), self.router.changes());
        match health.damage {
            None if health.checked == Some(changes) => Some(Ok(changes)),
            Some(damage) if health.at >= began => Some(Err(refused(damage))),
            _ => None,
        }
    }

    /// Whether no process and no shard changed its place since `changes`, and not all was flushed.
    pub(super) fn is_as(&self, changes: u64) -> bool {
        self.router.changes() == changes
    }

    /// Fails when one of these shards, in which something of a dataset was not found, lost its mark.
    /// Whether the dataset is still the one that was read: otherwise the call begins anew.
    pub(super) async fn confirm(
        &self,
        keys: Keys,
        shards: &BTreeSet<Shard>,
    ) -> Result<bool, Failure> {
        if shards.is_empty() {
            return Ok(true);
        }
        let mut asks = vec![ask_epoch(keys)];
        let sign = self.sign();
        asks.extend(sign.iter().flat_map(|sign| shards.iter().map(|shard| sign.ask(*shard))));
        let mut marks = self.router.ask(asks).await?;
        let epoch = marks.remove(0);
        let is_whole = match sign {
            Some(sign) => self.are_whole(&sign, marks).await?,
            None => true,
        };
        Ok(self.is_still(keys, epoch)? && is_whole)
    }

    /// What to look for in marks; none as long as there may be none, or once all of them are gone.
    pub(super) fn sign(&self) -> Option<Sign> {
        let health = self.health();
        let (field, is_bound) = match (health.bound, health.filling) {
            (Some(_), _) => ("run".to_owned(), true),
            (None, Some(token)) => (mend_field(token), false),
            (None, None) => return None,
        };
        Some(Sign { field, is_bound })
    }

    /// Fails when metadata that was bound to a chunk store is not any more: all of it was lost.
    pub(super) fn refuse_unbound(&self) -> Result<(), Failure> {
        let health = self.health();
        let is_lost = health.was_bound && health.bound.is_none();
        if is_lost { Err(refused(Damage { since: None })) } else { Ok(()) }
    }

    /// Whether all shards have the sign that was asked for. Fails when any has lost it, and false when
    /// that is mended already: what was read before is to be read again.
    pub(super) async fn are_whole(&self, sign: &Sign, marks: Vec<Value>) -> Result<bool, Failure> {
        for mark in marks {
            let mark = bytes(mark)?.map(|mark| String::from_utf8_lossy(&mark).into_owned());
            let run = mark.as_deref().map(|mark| match sign.is_bound {
                true => mark,
                false => mark.split(' ').nth(1).unwrap_or_default(),
            });
            if !run.is_some_and(|run| self.health().runs.contains(run)) {
                self.survey().await?;
                self.assure().await?;
                // Metadata that was bound and is not has lost everything.
                if sign.is_bound && self.health().bound.is_none() {
                    return Err(refused(Damage { since: None }));
                }
                // Nothing that was read until now is taken, by whomever.
                self.router.changed();
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn now_ms(&self) -> u64 {
        let now = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
    }

    /// Looks whether anything is missing, and tells of it in the log.
    pub(super) async fn survey(&self) -> Result<(), Failure> {
        let damage = self.look().await?;
        let mut health = self.health();
        if damage.is_some() && health.told != damage {
            let since_micros = damage.and_then(|damage| damage.since).map(Stamp::get);
            tracing::error!(store = %self.router.address, since_micros, "metadata may be missing");
        }
        health.told = damage;
        Ok(())
    }

    /// Reads all marks and compares them with the processes that have them. Says nothing: where several
    /// servers bind or mend the same at once, what each finds halfway is no loss.
    pub(super) async fn look(&self) -> Result<Option<Damage>, Failure> {
        let (changes, at) = (self.router.changes(), self.clock.monotonic());
        let mut asks = vec![Ask::to(&keys::identity(), "GET")];
        asks.extend(Shard::all().map(|shard| Ask::to(&keys::mark(shard), "HGETALL")));
        let mut answers = self.router.ask(asks).await?.into_iter();
        let bound = store_id(answers.next().unwrap_or(Value::Nil))?;
        let runs = self.router.runs().await?;
        let (mut shards, mut ahead_ms) = (Vec::new(), 0);
        for (shard, answer) in Shard::all().zip(answers) {
            let owner = self.router.owner(shard).and_then(|node| runs.get(&node));
            let Some(process) = owner else { continue };
            let (mark, run) = (Mark::read(answer)?, process.run.to_string());
            let time_ms = process.time_ms.unwrap_or(u64::MAX);
            ahead_ms = ahead_ms.max(mark.seen.saturating_sub(time_ms));
            shards.push(Held { shard, mark, run });
        }
        let Judgement { damage, filling } = judge(&shards, bound.is_some(), self.now_ms());
        if let (Some(id), None) = (bound, damage) {
            let moved = shards.iter().filter(|held| held.mark.run != held.run);
            let moved = moved.map(|Held { shard, mark, run }| Marking {
                shard: *shard,
                marked: mark.run.clone(),
                run: run.clone(),
            });
            // Until they are written, nobody could tell a loss of what is written there from the move.
            let marked = self.mark(id, &moved.collect::<Vec<_>>(), 0).await;
            marked.map_err(|why| {
                let why =
                    format!("slots moved, and all waits until their marks can be written: {why}");
                Failure::because(Kind::Unavailable, why)
            })?;
        }
        let mut health = self.health();
        let time_ms = runs.values().filter_map(|process| process.time_ms).min();
        let runs = runs.values().map(|process| process.run.to_string()).collect();
        let times = shards.iter().map(|held| held.mark.seen);
        let seen = times.clone().min().unwrap_or_default();
        let newest = times.max().unwrap_or_default();
        let is_unbound = health.bound.is_some() && health.bound != bound;
        if is_unbound || health.damage.is_none() && damage.is_some() {
            // Something was flushed: what calls have read until now is doubtful, and they begin anew.
            self.router.changed();
        }
        let (checked, was_bound) = (Some(changes), health.was_bound || bound.is_some());
        let told = health.told;
        *health = Health {
            checked,
            at,
            seen,
            newest,
            ahead_ms,
            time_ms,
            damage,
            told,
            bound,
            was_bound,
            filling,
            runs,
        };
        Ok(damage)
    }

    /// Writes marks, and does not wait where Redis takes no writes: it is tried again in a moment.
    async fn mark(&self, id: StoreId, shards: &[Marking], now_ms: u64) -> Result<(), Failure> {
        let asks = shards.iter().map(|Marking { shard, marked, run }| {
            let ask = Ask::script(&MARK, &keys::mark(*shard), &[]);
            ask.arg(marked).arg(id.as_bytes()).arg(run).arg(now_ms)
        });
        for answer in self.router.ask_within(MARKS, asks.collect()).await? {
            number(&answer)?;
        }
        Ok(())
    }

    pub(super) async fn identity(&self) -> Result<Option<StoreId>, Failure> {
        store_id(self.router.ask_one(Ask::to(&keys::identity(), "GET")).await?)
    }

    pub(super) async fn bind(&self, store: StoreId) -> Result<Result<(), Error>, Failure> {
        let mut tries = 0;
        loop {
            match self.identity().await? {
                Some(bound) if bound != store => return Ok(Err(bound_elsewhere(store, bound))),
                Some(_) => return Ok(Ok(())),
                None => {}
            }
            // Nothing is missing as long as nothing was written.
            let mending = self.mending(Some(Stamp::at(self.clock.now()))).await?;
            match self.mended(&mending, Brought::All, store).await {
                // Another server binds it as well.
                Err(failure) if failure.kind == Kind::Lost && tries < BIND_TRIES => tries += 1,
                bound => return bound,
            }
            self.clock.sleep(BIND_PAUSE).await;
        }
    }

    pub(super) async fn damage(&self) -> Result<Option<Damage>, Failure> {
        let now = self.now_ms();
        let appended = self.appended.load(Ordering::Acquire);
        self.survey().await?;
        let age =
            if appended == self.marked.load(Ordering::Acquire) { IDLE_AGE_MS } else { AGE_MS };
        let (damage, bound, is_old) = {
            let health = self.health();
            // By the clock that the marks go by, where this one is ahead of it.
            let by_redis = health.time_ms.map_or(now, |time| time.min(now));
            let is_old = by_redis.saturating_sub(health.seen) >= age;
            // Of what is lost before its clock is there again, nothing would be told.
            let is_ahead = health.ahead_ms >= AHEAD_MS;
            (health.damage, health.bound, is_old || is_ahead)
        };
        if let (None, Some(id), true) = (damage, bound, is_old) {
            let runs = self.router.runs().await?;
            let whole: Vec<Marking> = Shard::all()
                .filter_map(|shard| {
                    let run = runs.get(&self.router.owner(shard)?)?.run.to_string();
                    Some(Marking { shard, marked: run.clone(), run })
                })
                .collect();
            // Older times name more than was lost.
            let marked = self.mark(id, &whole, now).await;
            if marked.is_ok() {
                self.marked.store(appended, Ordering::Release);
            }
            let was_unmarked = self.is_unmarked.swap(marked.is_err(), Ordering::AcqRel);
            if let (Err(why), false) = (marked, was_unmarked) {
                tracing::warn!(store = %self.router.address, %why, "Redis takes no marks");
            }
        }
        Ok(damage)
    }

    /// The newest time in any mark, by which a loss may be told.
    pub(super) fn newest(&self) -> Option<SystemTime> {
        let newest = self.health().newest;
        (newest > 0).then(|| UNIX_EPOCH + Duration::from_millis(newest))
    }
}

/// The field of a mark that says that a recovery has begun.
pub(super) fn mend_field(token: u64) -> String {
    format!("mend:{token:016x}")
}

fn store_id(value: Value) -> Result<Option<StoreId>, Failure> {
    let Some(bytes) = bytes(value)? else { return Ok(None) };
    let id = bytes.try_into().map_err(|_| Failure::corrupt("the identity can't be read"))?;
    Ok(Some(StoreId::from_bytes(id)))
}

fn refused(damage: Damage) -> Failure {
    match damage.since {
        Some(_) => Failure::because(
            Kind::Unavailable,
            "Redis may have lost its last writes when it restarted or failed over: the servers are \
             putting them back; try again, and where that does not help, see what they log",
        ),
        None => Failure::because(
            Kind::Lost,
            "Redis may have lost some or all of its data; run `dlcmd recover --all`",
        ),
    }
}

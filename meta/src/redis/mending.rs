//! Bringing back what Redis may have lost: from the marks that say that it began to those that say
//! that all is whole.
//!
//! Must hold: a shard is whole again only if nothing happened to it since the bringing back began:
//! what that left in its mark is there, and the process is still in the same run. What it left stays
//! for a while if old objects were appended, so that others tell of a shard that loses its last
//! writes soon after; there are never more than a few of these.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use dl_format::{Stamp, StoreId};
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes, number};
use super::failure::Failure;
use super::health::{BIND_PAUSE, BIND_TRIES, Held, Judgement, Mark, Mend, judge, mend_field};
use super::keys;
use super::scripts::{BEGIN_GONE, MEND, MENDED, OTHER_MARK, OTHER_PROCESS};
use super::slots::Shard;
use crate::types::bound_elsewhere;
use crate::{Brought, Error, Kind, Mending};

/// How long the marks tell that something was appended late, in milliseconds.
const KEPT_MS: u64 = 24 * 60 * 60 * 1_000;

/// How long after its begin one that did not end is taken for cut off, in milliseconds.
const ENDLESS_MS: u64 = 2 * KEPT_MS;

/// Objects that were appended so soon after they were sealed are looked for after any loss, told or
/// not: in milliseconds.
const SOON_MS: u64 = 10 * 60 * 1_000;

/// How many others a mark goes on to tell of. The next one that ends tells in one what the oldest
/// beyond them told.
const OTHERS_MAX: usize = 8;

/// What the marks together say of one bringing back.
#[derive(Debug, Clone, Copy)]
struct Told {
    token: u64,
    since: u64,
    begun: u64,
    /// When it ended at last, if it has in all shards.
    ended: Option<u64>,
}

impl Told {
    fn of(shards: &[Held]) -> Vec<Self> {
        let mut told: BTreeMap<u64, Self> = BTreeMap::new();
        for mend in shards.iter().flat_map(|held| &held.mark.mends) {
            let Mend { token, since, begun, ended, .. } = *mend;
            let one = told.entry(token).or_insert(Self { token, since, begun, ended });
            one.since = one.since.min(since);
            one.ended = one.ended.and_then(|at| Some(at.max(ended?)));
        }
        told.into_values().collect()
    }

    fn is_past(&self, now: u64) -> bool {
        match self.ended {
            Some(ended) => ended + KEPT_MS < now,
            None => self.begun + ENDLESS_MS < now,
        }
    }
}

impl Shared {
    pub(super) async fn mending(&self, since: Option<Stamp>) -> Result<Mending, Failure> {
        self.look().await?;
        let filling = self.health().filling();
        // What was filled in before it was cut off is not filled in again.
        if let Some(token) = filling {
            let (shards, is_bound) = self.begin(token, 0, true).await?;
            if !is_bound && judge(&shards, false, self.now_ms()).filling == Some(token) {
                let token = Some(token);
                return Ok(Mending { token, has_rows: true, ..Mending::default() });
            }
        }
        let token = self.random.u64();
        let since = since.map_or(0, |since| (since.get() / 1_000).max(1));
        let (mut shards, is_bound) = match self.begin(token, since, false).await {
            // Some shards had no room for it: those that had don't keep it.
            Err(full) if full.kind == Kind::Full => {
                let field = mend_field(token);
                let asks =
                    Shard::all().map(|shard| Ask::to(&keys::mark(shard), "HDEL").arg(&field));
                self.router.ask(asks.collect()).await?;
                return Err(full);
            }
            begun => begun?,
        };
        for held in &mut shards {
            held.mark.mends.retain(|mend| mend.token != token);
        }
        let now = self.now_ms();
        let Judgement { damage, .. } = judge(&shards, is_bound, now);
        let (mut over, others): (Vec<_>, Vec<_>) =
            Told::of(&shards).into_iter().partition(|one| one.is_past(now));
        // Those that go back no further are told of by this one, too.
        let (mut covered, mut others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|one| one.since >= since);
        let mut told = None;
        // Otherwise they say what is damaged, until all of it is whole.
        if damage.is_none() {
            over.extend(covered.extract_if(.., |one| one.ended.is_some()));
            others.sort_by_key(|one| (one.ended.is_none(), one.begun));
            let beyond = (others.len() + covered.len()).saturating_sub(OTHERS_MAX);
            let beyond: Vec<_> = others.drain(..beyond.min(others.len())).collect();
            told = beyond.iter().map(|one| one.since).min();
            over.extend(beyond);
        }
        // So that what is lost from now on is not called missing.
        self.look().await?;
        let tokens = |all: Vec<Told>| all.into_iter().map(|one| one.token).collect();
        let (covered, over) = (tokens(covered), tokens(over));
        Ok(Mending { damage, has_rows: false, token: Some(token), covered, over, told })
    }

    /// Says in all marks that it begins, or only reads them where it `goes_on`; gives them, and
    /// whether metadata is bound to a chunk store.
    async fn begin(
        &self,
        token: u64,
        since: u64,
        goes_on: bool,
    ) -> Result<(Vec<Held>, bool), Failure> {
        let now = self.now_ms();
        let mut asks = vec![Ask::to(&keys::identity(), "GET")];
        asks.extend(Shard::all().map(|shard| {
            let ask = Ask::script(&MEND, &keys::mark(shard), &[]);
            ask.arg(format!("{token:016x}")).arg(since).arg(u8::from(goes_on)).arg(now)
        }));
        let mut answers = self.router.ask(asks).await?.into_iter();
        let is_bound = bytes(answers.next().unwrap_or(Value::Nil))?.is_some();
        let shards = Shard::all().zip(answers).map(|(shard, answer)| {
            let Value::Array(answer) = answer else { return Err(Failure::unexpected()) };
            let mut answer = answer.into_iter();
            let (Some(run), Some(mark)) = (answer.next(), answer.next()) else {
                return Err(Failure::unexpected());
            };
            let run = bytes(run)?.unwrap_or_default();
            let run = String::from_utf8_lossy(&run).into_owned();
            Ok(Held { shard, mark: Mark::read(mark)?, run })
        });
        Ok((shards.collect::<Result<_, _>>()?, is_bound))
    }

    pub(super) async fn mended(
        &self,
        mending: &Mending,
        brought: Brought,
        store: StoreId,
    ) -> Result<Result<(), Error>, Failure> {
        let Some(token) = mending.token else { return Ok(Ok(())) };
        let bound = self.identity().await?;
        if let Some(bound) = bound.filter(|bound| *bound != store) {
            return Ok(Err(bound_elsewhere(store, bound)));
        }
        let is_whole = match (brought, bound, mending.damage) {
            (Brought::All, ..) | (Brought::Some, None, None) => true,
            // The rest is still missing, and without a mark nobody would know.
            (Brought::Some, None, Some(_)) => return Ok(Ok(())),
            (Brought::Some, Some(_), _) => false,
        };
        let lost = self.end(mending, token, is_whole, store).await?;
        let is_mended = lost.is_none();
        // What it has left of other epochs.
        self.sweep_now.notify_one();
        if !is_whole {
            return Ok(Ok(()));
        }
        if is_mended && bound.is_none() {
            let bind = Ask::to(&keys::identity(), "SETNX").arg(store.as_bytes());
            self.router.ask_one(bind).await?;
        }
        // Another one that brought back the same may have ended in all marks and not have bound it yet.
        for tries in 0.. {
            self.look().await?;
            let (damage, bound) = {
                let health = self.health();
                (health.damage(), health.bound())
            };
            match bound {
                // Another server may have bound it meanwhile: what is stored holds.
                Some(bound) if bound != store => return Ok(Err(bound_elsewhere(store, bound))),
                // Somebody else may have mended the same meanwhile.
                Some(_) if is_mended || damage.is_none() => return Ok(Ok(())),
                _ if bound.is_some() || tries == BIND_TRIES => break,
                _ => self.clock.sleep(BIND_PAUSE).await,
            }
        }
        let lost = lost.unwrap_or_else(|| "it is bound to no chunk store any more".to_owned());
        let why = format!(
            "Redis lost something again while it was brought back ({lost}); run `dlcmd recover --all` \
             again"
        );
        Err(Failure::because(Kind::Lost, why))
    }

    /// Says in all marks that it has ended; tells of a shard that is not as it was when it began, if
    /// one is not. All of them are whole now otherwise, if it `is_whole`.
    async fn end(
        &self,
        mending: &Mending,
        token: u64,
        is_whole: bool,
        store: StoreId,
    ) -> Result<Option<String>, Failure> {
        let covered = mending.covered.iter().filter(|_| is_whole);
        let others: Vec<_> = mending.over.iter().chain(covered).map(|t| mend_field(*t)).collect();
        let mut live = " ".to_owned();
        for process in self.router.runs().await?.values() {
            let _ = write!(live, "{} ", process.run);
        }
        let now = self.now_ms();
        let asks = Shard::all().map(|shard| {
            let ask = Ask::script(&MENDED, &keys::mark(shard), &[]).arg(format!("{token:016x}"));
            let ask = ask.arg(store.as_bytes()).arg(now).arg(u8::from(is_whole)).arg(&live);
            ask.arg(mending.told.unwrap_or(u64::MAX)).arg(now.saturating_sub(SOON_MS)).arg(&others)
        });
        for (shard, answer) in Shard::all().zip(self.router.ask(asks.collect()).await?) {
            let why = match number(&answer)? {
                1 => continue,
                BEGIN_GONE => "nothing says any more that it began",
                OTHER_PROCESS => "another process has it",
                OTHER_MARK => "it was marked as lost, or by a process that is gone",
                _ => return Err(Failure::unexpected()),
            };
            return Ok(Some(format!("the shard of slot {}: {why}", shard.slot())));
        }
        Ok(None)
    }
}

//! Bringing back what Redis may have lost: from the marks that say that it began to those that say
//! that all is whole.
//!
//! Must hold: a shard is whole again only if nothing happened to it since the bringing back began:
//! what that left in its mark is there, and the process is still in the same run. That is looked at
//! and written down in one step of the shard. What it left stays when it has ended: of a shard that
//! loses its last writes soon after, the others tell that among them were objects sealed long ago.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use dl_format::{Stamp, StoreId};
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes, number};
use super::failure::Failure;
use super::health::{Held, Judgement, Mark, judge, mend_field};
use super::keys;
use super::scripts::{MEND, MENDED};
use super::slots::Shard;
use crate::types::bound_elsewhere;
use crate::{Brought, Error, Kind, Mending};

/// How long the marks tell that something was appended late, in milliseconds.
const KEPT_MS: u64 = 24 * 60 * 60 * 1_000;

impl Shared {
    pub(super) async fn mending(&self, since: Option<Stamp>) -> Result<Mending, Failure> {
        self.survey().await?;
        let filling = self.health().filling();
        // What was filled in before it was cut off is not filled in again.
        if let Some(token) = filling {
            let (shards, is_bound) = self.begin(token, 0, true).await?;
            if !is_bound && judge(&shards, false).filling == Some(token) {
                return Ok(Mending { token: Some(token), ..Mending::default() });
            }
        }
        let token = self.random.u64();
        let since = since.map_or(0, |since| (since.get() / 1_000).max(1));
        let (mut shards, is_bound) = self.begin(token, since, false).await?;
        let (mut covered, mut over) = (BTreeSet::new(), BTreeSet::new());
        let now = self.now_ms();
        for held in &mut shards {
            held.mark.mends.retain(|mend| mend.token != token);
            for mend in &held.mark.mends {
                if mend.ended.is_some_and(|ended| ended + KEPT_MS < now) {
                    over.insert(mend.token);
                } else if since == 0 || mend.since >= since {
                    covered.insert(mend.token);
                }
            }
        }
        let Judgement { damage, .. } = judge(&shards, is_bound);
        // So that what is lost from now on is not called missing.
        self.survey().await?;
        let (covered, over) = (covered.into_iter().collect(), over.into_iter().collect());
        Ok(Mending { damage, token: Some(token), covered, over })
    }

    /// Says in all marks that it begins, or only reads them where it `goes_on`; gives them, and
    /// whether metadata is bound to a chunk store.
    async fn begin(
        &self,
        token: u64,
        since: u64,
        goes_on: bool,
    ) -> Result<(Vec<Held>, bool), Failure> {
        let mut asks = vec![Ask::to(&keys::identity(), "GET")];
        asks.extend(Shard::all().map(|shard| {
            let ask = Ask::script(&MEND, &keys::mark(shard), &[]);
            ask.arg(format!("{token:016x}")).arg(since).arg(u8::from(goes_on))
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
        let is_mended = self.end(mending, token, is_whole, store).await?;
        if !is_whole {
            return Ok(Ok(()));
        }
        if is_mended && bound.is_none() {
            let bind = Ask::to(&keys::identity(), "SETNX").arg(store.as_bytes());
            self.router.ask_one(bind).await?;
        }
        self.survey().await?;
        let (damage, bound) = {
            let health = self.health();
            (health.damage(), health.bound())
        };
        match bound {
            // Another server may have bound it meanwhile: what is stored holds.
            Some(bound) if bound != store => return Ok(Err(bound_elsewhere(store, bound))),
            // Somebody else may have mended the same meanwhile.
            Some(_) if is_mended || damage.is_none() => return Ok(Ok(())),
            _ => {}
        }
        let why = "Redis lost something again while it was brought back; run `dlcmd recover --all` \
                   again";
        Err(Failure::because(Kind::Lost, why))
    }

    /// Says in all marks that it has ended; whether every shard is as it was when it began, so that
    /// it `is_whole` now.
    async fn end(
        &self,
        mending: &Mending,
        token: u64,
        is_whole: bool,
        store: StoreId,
    ) -> Result<bool, Failure> {
        let covered = mending.covered.iter().filter(|_| is_whole);
        let others: Vec<_> = mending.over.iter().chain(covered).map(|t| mend_field(*t)).collect();
        let mut live = " ".to_owned();
        for run in self.router.runs().await?.values() {
            let _ = write!(live, "{run} ");
        }
        let now = self.now_ms();
        let asks = Shard::all().map(|shard| {
            let ask = Ask::script(&MENDED, &keys::mark(shard), &[]).arg(format!("{token:016x}"));
            let ask = ask.arg(store.as_bytes()).arg(now).arg(u8::from(is_whole));
            ask.arg(&live).arg(&others)
        });
        let mut is_mended = true;
        for answer in self.router.ask(asks.collect()).await? {
            is_mended &= number(&answer)? == 1;
        }
        Ok(is_mended)
    }
}

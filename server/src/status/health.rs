//! The health of a server: whether its stores answer and belong together.
//!
//! Must hold: many questions are no load for the stores. A short silence of a store is tolerated.

use std::fmt::Display;
use std::sync::Mutex;
use std::time::Duration;

use dl_format::{IDENTITY_KEY, IdentityRecord, StoreId};
use dl_meta::{Damage, DatasetRecord, DatasetState, Refusal};
use dl_runtime::{Deadline, Elapsed, locked};
use dl_store::StoreExt;
use futures::future;
use tokio::sync::Semaphore;

use crate::datasets::identity;
use crate::error::causes;
use crate::metrics::Loss;
use crate::shared::context::{ServerContext, key};

/// Limit for an answer of each store.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which an answer of the stores is reused, so that many clients are no load.
const HOLDS: Duration = Duration::from_secs(1);

/// Time for which stores may fail to answer before the server is unhealthy: a slow bucket is no reason to take a
/// server away from its clients.
pub(crate) const TOLERATED: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(crate) struct Health {
    at: Duration,
    /// The last known loss.
    pub(crate) loss: Loss,
    /// Datasets refused until their recovery, as last known.
    pub(crate) recovering: u64,
    /// None when the stores are well.
    pub(crate) problem: Option<Problem>,
    /// The first question without an answer since the last good answer; none when the stores are well.
    silent_since: Option<Duration>,
    /// Whether the stores were ever well.
    was_well: bool,
}

impl Health {
    /// Whether a missing answer is tolerated for now.
    pub(crate) fn is_tolerated(&self) -> bool {
        let is_short = self.silent_since.is_some_and(|since| self.at < since + TOLERATED);
        self.was_well && is_short
    }
}

/// A reason not to be well.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) why: String,
    /// Whether a store gave no answer, which may pass.
    is_silence: bool,
}

impl Problem {
    fn certain(why: String) -> Self {
        Self { why, is_silence: false }
    }

    fn silence(why: String) -> Self {
        Self { why, is_silence: true }
    }
}

/// Asks the stores for their health.
#[derive(Debug)]
pub(crate) struct HealthProbe {
    context: ServerContext,
    last: Mutex<Option<Health>>,
    /// A single client at a time asks the stores; other clients take the answer.
    turn: Semaphore,
}

impl HealthProbe {
    pub(crate) fn new(context: ServerContext) -> Self {
        Self { context, last: Mutex::default(), turn: Semaphore::new(1) }
    }

    /// The reason for bad health.
    pub(crate) async fn problem(&self) -> Option<String> {
        let health = self.health().await;
        let is_tolerated = health.is_tolerated();
        health.problem.filter(|_| !is_tolerated).map(|problem| problem.why)
    }

    fn of_another(&self, bound: Option<StoreId>, identity: &[u8]) -> Option<String> {
        match IdentityRecord::decode(identity) {
            Ok(IdentityRecord { store }) => {
                let compared = identity::compare(&self.context, bound?, store);
                compared.err().map(|error| error.chain())
            }
            Err(error) => Some(format!("the chunk store's `{IDENTITY_KEY}` is damaged: {error}")),
        }
    }

    /// The number of datasets refused until their recovery; none without an answer of the metadata store.
    async fn recovering(&self) -> Option<u64> {
        let clock = &*self.context.clock;
        let records = Deadline::after(clock, TIMEOUT).bound(clock, self.context.meta.records());
        let records = records.await.ok()?.ok()?;
        let is_refused = |record: &&DatasetRecord| record.state == DatasetState::Recovering;
        Some(records.iter().filter(is_refused).count() as u64)
    }

    /// The state of the stores, at most [`HOLDS`] old.
    pub(crate) async fn health(&self) -> Health {
        let _turn = self.turn.acquire().await;
        let last = locked(&self.last).clone();
        let now = self.context.clock.monotonic();
        match last {
            Some(health) if now < health.at + HOLDS => health,
            last => {
                let health = self.ask(last).await;
                *locked(&self.last) = Some(health.clone());
                health
            }
        }
    }

    async fn ask(&self, last: Option<Health>) -> Health {
        let clock = &*self.context.clock;
        let (before, refused) =
            last.as_ref().map_or((Loss::None, 0), |last| (last.loss, last.recovering));
        let deadline = Deadline::after(clock, TIMEOUT);
        let identity = key(IDENTITY_KEY.to_owned());
        let meta = &*self.context.meta;
        // A separate call: the refusal is known while a write to the metadata store waits.
        let refusal = deadline.bound(clock, meta.refusal());
        let meta = future::try_join(meta.identity(), meta.damage());
        let meta = deadline.bound::<Result<_, dl_meta::Error>>(clock, meta);
        let store = deadline.bound(clock, self.context.store.read_all(&identity));
        let (meta, refusal, store, recovering) =
            future::join4(meta, refusal, store, self.recovering()).await;
        let loss = match &meta {
            Ok(Ok((None, _) | (_, Some(Damage::Everything)))) => Loss::All,
            Ok(Ok((_, Some(Damage::Shards)))) => Loss::Last,
            Ok(Ok((Some(_), None))) => Loss::None,
            Ok(Err(error)) if error.kind == dl_meta::Kind::Lost => Loss::All,
            Err(_) | Ok(Err(_)) => before,
        };
        // Metadata with losses, or without an answer, has no valid count.
        let recovering = recovering.filter(|_| loss == Loss::None && matches!(meta, Ok(Ok(_))));
        let problem = match (meta, store) {
            (Err(_), _) => Some(self.refused(refusal).unwrap_or_else(|| self.silent_meta())),
            (Ok(Err(error)), _) => Some(failed_meta(&error)),
            (_, Err(_)) => Some(Problem::silence(silent("chunk"))),
            (_, Ok(Err(error))) if error.kind == dl_store::Kind::Missing => {
                Some(Problem::certain(format!(
                    "the chunk store has no `{IDENTITY_KEY}`: check --store; {}",
                    lost(loss).unwrap_or(
                        "where it has all datasets that the metadata knows, the servers write it again \
                         within two minutes, or their logs say why not"
                    )
                )))
            }
            (_, Ok(Err(error))) => {
                let is_silence = error.kind == dl_store::Kind::Unavailable;
                Some(Problem { why: failed("chunk", &error), is_silence })
            }
            (Ok(Ok((bound, _))), Ok(Ok(identity))) => match lost(loss) {
                None => {
                    let other = self.of_another(bound, &identity).map(Problem::certain);
                    other.or_else(|| self.refused(refusal))
                }
                Some(lost) => Some(Problem::certain(lost.to_owned())),
            },
        };
        let at = clock.monotonic();
        let since = last.as_ref().and_then(|last| last.silent_since).unwrap_or(at);
        let is_silence = problem.as_ref().is_some_and(|problem| problem.is_silence);
        let was_well = problem.is_none() || last.is_some_and(|last| last.was_well);
        let recovering = recovering.unwrap_or(refused);
        Health {
            at,
            loss,
            recovering,
            problem,
            silent_since: is_silence.then_some(since),
            was_well,
        }
    }

    /// The reason for refused writes; none if the metadata store takes writes.
    fn refused(
        &self,
        refusal: Result<Result<Option<Refusal>, dl_meta::Error>, Elapsed>,
    ) -> Option<Problem> {
        match refusal {
            Err(Elapsed) => Some(self.silent_meta()),
            Ok(Err(error)) => Some(failed_meta(&error)),
            Ok(Ok(refusal)) => Some(Problem::certain(match refusal? {
                Refusal::Full(why) => format!(
                    "the metadata store takes no writes but deletes ({why}): give it more memory, \
                     or delete something and run `dlcmd purge`"
                ),
                Refusal::All(why) => format!("the metadata store takes no writes: {why}"),
            })),
        }
    }

    fn silent_meta(&self) -> Problem {
        let trouble = self.context.meta.trouble();
        let trouble = trouble.map(|why| format!("; last waited for: {why}"));
        Problem::silence(silent("metadata") + &trouble.unwrap_or_default())
    }
}

fn silent(what: impl Display) -> String {
    format!("the {what} store did not answer within {TIMEOUT:?}")
}

fn failed_meta(error: &dl_meta::Error) -> Problem {
    let is_silence = error.kind == dl_meta::Kind::Unavailable;
    Problem { why: failed("metadata", error), is_silence }
}

fn failed(what: impl Display, error: &dyn std::error::Error) -> String {
    format!("the {what} store can't be asked: {}", causes(error))
}

/// The message about a loss, with the command that helps.
fn lost(loss: Loss) -> Option<&'static str> {
    match loss {
        Loss::None => None,
        Loss::Last => Some(
            "the metadata store may have lost writes: the servers are rebuilding it from the chunk \
             store, which takes a moment",
        ),
        Loss::All => Some(
            "no part of the metadata store has its identity: check --meta, or run `dlcmd recover --all`",
        ),
    }
}

//! Repairs damaged metadata while servers run: rebuilds all datasets from the chunk store (paper, 4.1.2).
//!
//! Must hold: the metadata counts as whole only after a complete rebuild. Metadata without an identity is left
//! to an administrator. Metadata of another chunk store is left alone once known.

use std::convert::Infallible;
use std::time::Duration;

use dl_meta::Damage;
use dl_runtime::{Backoff, Random};

use crate::datasets::identity::Tie;
use crate::error::Error;
use crate::metrics::RebuildMetrics;
use crate::recovery::recover;
use crate::shared::context::ServerContext;

/// How often to look for damage, and to renew the turn to rebuild.
const PERIOD: Duration = Duration::from_secs(1);

/// Time after which the turn of a killed server ends: a few renewals may be late.
const TURN: Duration = Duration::from_secs(5);

/// Time without progress after which a rebuild loses its turn: the chunk store may hang for one server alone.
const STALLED: Duration = Duration::from_secs(30);

/// Pauses after failed rebuilds; each server waits for a different time.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(2), factor: 2, max: Duration::from_secs(60) };

/// Watches the metadata; ends once the metadata belongs to another chunk store, and the server has to end. One of
/// several servers rebuilds, and the others wait: objects appended by a server are in the log for all.
pub(crate) async fn watch(context: &ServerContext, metrics: &RebuildMetrics) -> Error {
    let (mut tries, mut tie, server) = (Tries::default(), Tie::default(), context.random.u64());
    loop {
        context.clock.sleep(PERIOD).await;
        if let Err(foreign) = tie.check(context).await {
            return foreign;
        }
        let damage = match context.meta.damage().await {
            Ok(damage) => damage,
            // Each request reports the same.
            Err(error) => {
                tracing::debug!(%error, "metadata can't be looked at");
                continue;
            }
        };
        let is_new = tries.meet(damage);
        match damage {
            Some(Damage::Shards) => {
                if is_new {
                    tracing::warn!("metadata may lack writes: the servers rebuild all datasets");
                }
                if tries.may(context.clock.monotonic()) && takes_turn(context, server, TURN).await {
                    rebuild(context, server, metrics, &mut tries).await;
                }
            }
            Some(Damage::Everything) if is_new => {
                tracing::error!("metadata was lost: run `dlcmd recover --all`");
            }
            Some(Damage::Everything) | None => {}
        }
    }
}

/// Whether no other server has the turn. Where the metadata store gives no turns, each server rebuilds.
async fn takes_turn(context: &ServerContext, server: u64, lasts: Duration) -> bool {
    context.meta.rebuild_turn(server, lasts).await.unwrap_or(true)
}

async fn rebuild(
    context: &ServerContext,
    server: u64,
    metrics: &RebuildMetrics,
    tries: &mut Tries,
) {
    tracing::info!("rebuilding all datasets from the chunk store");
    let rebuilt = tokio::select! {
        rebuilt = recover::rebuild_all(context, metrics) => rebuilt,
        never = keep_turn(context, server, metrics) => match never {},
    };
    // Another server may do better.
    takes_turn(context, server, Duration::ZERO).await;
    match rebuilt {
        Ok(adopted) => tracing::info!(adopted, "metadata is whole again"),
        Err(error) => {
            tries.fail(context.clock.monotonic(), &*context.random);
            tracing::error!(error = error.chain(), "metadata is not whole: trying again");
        }
    }
}

/// Renews the turn as long as the rebuild makes progress.
async fn keep_turn(context: &ServerContext, server: u64, metrics: &RebuildMetrics) -> Infallible {
    let (mut seen, mut at) = (None, context.clock.monotonic());
    loop {
        let (objects, now) = (metrics.objects(), context.clock.monotonic());
        if objects != seen {
            (seen, at) = (objects, now);
        }
        if now.saturating_sub(at) < STALLED {
            takes_turn(context, server, TURN).await;
        }
        context.clock.sleep(PERIOD).await;
    }
}

#[derive(Debug, Default)]
struct Tries {
    damage: Option<Damage>,
    failures: u32,
    /// The time of the next try.
    next: Duration,
}

impl Tries {
    /// Notes the present damage; whether the damage is new.
    fn meet(&mut self, damage: Option<Damage>) -> bool {
        let is_new = damage != self.damage;
        if is_new {
            *self = Self { damage, ..Self::default() };
        }
        is_new
    }

    fn may(&self, now: Duration) -> bool {
        now >= self.next
    }

    fn fail(&mut self, now: Duration, random: &dyn Random) {
        self.next = now + BACKOFF.wait(self.failures, random);
        self.failures = self.failures.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use dl_runtime::SeededRandom;

    use super::*;

    #[test]
    fn a_rebuild_that_fails_is_tried_less_often() {
        let (mut tries, random) = (Tries::default(), SeededRandom::new(1));
        assert!(tries.meet(Some(Damage::Shards)), "a new damage");
        let mut tried = 0;
        for second in 0..600 {
            let now = PERIOD * second;
            assert!(!tries.meet(Some(Damage::Shards)), "the same damage");
            if tries.may(now) {
                tried += 1;
                tries.fail(now, &random);
            }
        }
        assert!((12..30).contains(&tried), "{tried} tries in ten minutes");
        assert!(tries.meet(None) && tries.meet(Some(Damage::Shards)));
        assert!(tries.may(PERIOD * 600), "new damage is tried at once");
    }
}

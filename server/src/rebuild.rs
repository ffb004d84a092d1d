//! Damage of the metadata store while servers run: noticed, and repaired by a rebuild of all datasets from
//! the chunk store (paper, 4.1.2).
//!
//! Must hold: the metadata counts as whole only after a complete rebuild. Metadata without an identity is
//! left to an administrator. Metadata that turns out to be of another chunk store is not touched any more.

use std::time::Duration;

use dl_meta::{Damage, Kind};
use dl_runtime::{Backoff, Random};

use crate::error::{Error, causes};
use crate::identity::Tie;
use crate::parts::Parts;
use crate::recover;

/// How often to look for damage.
const PERIOD: Duration = Duration::from_secs(1);

/// How long to wait after a rebuild that failed; each server waits for another time.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(2), factor: 2, max: Duration::from_secs(60) };

/// Looks after the metadata for as long as they are those of the chunk store; otherwise the server has to
/// end. Each of several servers does: objects that one server appended, the others find in the log.
pub(crate) async fn watch(parts: &Parts) -> Error {
    let (mut tries, mut tie, mut unfit) = (Tries::default(), Tie::default(), String::new());
    loop {
        parts.clock.sleep(PERIOD).await;
        if let Err(foreign) = tie.check(parts).await {
            return foreign;
        }
        let damage = match parts.meta.damage().await {
            Ok(damage) => damage,
            // Does not pass by itself.
            Err(error) if matches!(error.kind, Kind::Unsupported | Kind::Denied) => {
                let why = causes(&error);
                if why != unfit {
                    tracing::error!(error = why, "metadata can't be looked at");
                }
                unfit = why;
                continue;
            }
            // Each request reports the same.
            Err(error) => {
                tracing::debug!(%error, "metadata can't be looked at");
                continue;
            }
        };
        unfit.clear();
        let is_new = tries.meet(damage);
        match damage {
            Some(Damage::Shards) if tries.may(parts.clock.monotonic()) => {
                rebuild(parts, &mut tries, is_new).await;
            }
            Some(Damage::Everything) if is_new => {
                tracing::error!("metadata was lost: run `dlcmd recover --all`");
            }
            Some(_) | None => {}
        }
    }
}

async fn rebuild(parts: &Parts, tries: &mut Tries, is_new: bool) {
    if is_new {
        tracing::warn!("metadata may lack writes: rebuilding all datasets from the chunk store");
    }
    match recover::rebuild_all(parts).await {
        Ok(adopted) => tracing::info!(adopted, "metadata is whole again"),
        Err(error) => {
            let why = error.chain();
            if tries.fail(&why, parts.clock.monotonic(), &*parts.random) {
                tracing::error!(error = why, "metadata is not whole: trying again");
            }
        }
    }
}

/// The tries to repair one damage.
#[derive(Debug, Default)]
struct Tries {
    damage: Option<Damage>,
    failures: u32,
    /// The time of the next try.
    next: Duration,
    /// The reason that was logged last.
    logged: String,
}

impl Tries {
    /// Takes up the damage of now; whether it differs from the last one.
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

    /// Notes a failed try; whether its reason differs from the one that was logged last.
    fn fail(&mut self, why: &str, now: Duration, random: &dyn Random) -> bool {
        self.next = now + BACKOFF.wait(self.failures, random);
        self.failures = self.failures.saturating_add(1);
        let is_new = self.logged != why;
        why.clone_into(&mut self.logged);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use dl_runtime::SeededRandom;

    use super::*;

    #[test]
    fn a_rebuild_that_fails_is_tried_less_often_and_logged_once_a_reason() {
        let (mut tries, random) = (Tries::default(), SeededRandom::new(1));
        assert!(tries.meet(Some(Damage::Shards)), "a new damage");
        let (mut tried, mut logged) = (0, 0);
        for second in 0..600 {
            let now = PERIOD * second;
            assert!(!tries.meet(Some(Damage::Shards)), "the same damage");
            if tries.may(now) {
                tried += 1;
                let why = if second < 300 { "one reason" } else { "another reason" };
                logged += u32::from(tries.fail(why, now, &random));
            }
        }
        assert!((12..30).contains(&tried), "{tried} tries in ten minutes");
        assert_eq!(logged, 2);
        assert!(tries.meet(None) && tries.meet(Some(Damage::Shards)));
        assert!(tries.may(PERIOD * 600), "new damage is tried at once");
    }
}

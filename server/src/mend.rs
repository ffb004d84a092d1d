//! What a metadata store lost on its own, while servers run: noticed, and brought back from the
//! chunk store where its extent is known (paper, 4.1.2).
//!
//! Must hold: nothing is taken for mended before all that may be missing was appended again; what
//! needs a recovery of everything is told, and left to an administrator. Metadata that turns out to be
//! that of another chunk store is touched no more.

use std::time::Duration;

use dl_meta::{Damage, Kind};
use dl_runtime::{Backoff, Random};

use crate::error::{Error, causes};
use crate::identity::Tie;
use crate::parts::Parts;
use crate::recover;

/// How often is looked; a store that tells its losses by time counts on it.
const PERIOD: Duration = Duration::from_secs(1);

/// How long a loss that could not be mended is left alone; each server waits for another time.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(2), factor: 2, max: Duration::from_secs(60) };

/// Looks after the metadata for as long as it is that of the chunk store; otherwise the server has
/// to end. Of several servers each does: what one of them appends again, the others find there.
pub(crate) async fn watch(parts: &Parts) -> Error {
    let (mut tries, mut tie, mut unfit) = (Tries::default(), Tie::default(), String::new());
    loop {
        parts.clock.sleep(PERIOD).await;
        if let Err(foreign) = tie.check(parts).await {
            return foreign;
        }
        let damage = match parts.meta.damage().await {
            Ok(damage) => damage,
            // What doesn't pass by itself.
            Err(error) if matches!(error.kind, Kind::Unsupported | Kind::Denied) => {
                let why = causes(&error);
                if why != unfit {
                    tracing::error!(error = why, "metadata can't be looked at");
                }
                unfit = why;
                continue;
            }
            // It is told to everybody who asks anything.
            Err(error) => {
                tracing::debug!(%error, "metadata can't be looked at");
                continue;
            }
        };
        unfit.clear();
        let is_new = tries.meet(damage);
        match damage {
            Some(Damage { since: Some(since) }) if tries.may(parts.clock.monotonic()) => {
                if is_new {
                    let since_micros = since.get();
                    tracing::warn!(
                        since_micros,
                        "metadata may lack its last writes: appending them again"
                    );
                }
                match recover::append_again(parts, since).await {
                    Ok(adopted) => tracing::info!(adopted, "metadata is whole again"),
                    Err(error) => {
                        let why = error.chain();
                        if tries.fail(&why, parts.clock.monotonic(), &*parts.random) {
                            tracing::error!(error = why, "metadata is not whole: trying again");
                        }
                    }
                }
            }
            Some(Damage { since: None }) if is_new => {
                tracing::error!("metadata was lost: run `dlcmd recover --all`");
            }
            Some(_) | None => {}
        }
    }
}

/// What was tried against one loss.
#[derive(Debug, Default)]
struct Tries {
    damage: Option<Damage>,
    failures: u32,
    /// Before that it is not tried again.
    next: Duration,
    /// Why it failed, as it was told last.
    told: String,
}

impl Tries {
    /// Takes up what is missing now; whether that is another loss than before.
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

    /// It failed; whether for another reason than was told last.
    fn fail(&mut self, why: &str, now: Duration, random: &dyn Random) -> bool {
        self.next = now + BACKOFF.wait(self.failures, random);
        self.failures = self.failures.saturating_add(1);
        let is_new = self.told != why;
        why.clone_into(&mut self.told);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use dl_format::Stamp;
    use dl_runtime::SeededRandom;

    use super::*;

    #[test]
    fn what_can_not_be_mended_is_tried_ever_less_often_and_told_once_for_each_reason() {
        let (mut tries, random) = (Tries::default(), SeededRandom::new(1));
        let lost = |since| Some(Damage { since: Some(Stamp::new(since)) });
        assert!(tries.meet(lost(1)), "it is new");
        let (mut tried, mut told) = (0, 0);
        for second in 0..600 {
            let now = PERIOD * second;
            assert!(!tries.meet(lost(1)), "it is the same");
            if tries.may(now) {
                tried += 1;
                let why = if second < 300 { "one reason" } else { "another reason" };
                told += u32::from(tries.fail(why, now, &random));
            }
        }
        assert!((12..30).contains(&tried), "it was tried {tried} times in ten minutes");
        assert_eq!(told, 2);
        assert!(tries.meet(lost(2)) && tries.may(PERIOD * 600), "another loss is tried at once");
        assert!(tries.meet(None) && tries.meet(lost(2)), "so is one that came back");
    }
}

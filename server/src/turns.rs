//! Work that looks at all objects of datasets: so much of it at once, however many ask for it.
//!
//! Must hold: who waits for a turn is told so all the time; who is gone takes none.

use std::sync::Arc;
use std::time::Duration;

use dl_proto::Kind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;
use crate::parts::{Budget, Parts};

/// Purges and verifications of datasets that go on at once: each takes memory for every object.
const SURVEYS: usize = 2;
/// Recoveries: each takes memory for the logs of several datasets.
const RECOVERIES: usize = 2;
/// Memory for chunks that are written anew, in bytes: those of the largest ones once.
const REWRITE_BYTES: u32 = 136 << 20;
/// How often those who wait are told.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// The turns of a server. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Turns {
    surveys: Arc<Semaphore>,
    recoveries: Arc<Semaphore>,
    /// Memory for chunks that are written anew.
    pub(crate) rewrites: Budget,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self {
            surveys: Arc::new(Semaphore::new(SURVEYS)),
            recoveries: Arc::new(Semaphore::new(RECOVERIES)),
            rewrites: Budget::new(REWRITE_BYTES, "write chunks anew"),
        }
    }

    /// Waits for the turn of a purge or a verification. `tell` says that somebody waits, and is false
    /// when nobody hears it.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when whoever asked is gone.
    pub(crate) async fn survey(
        &self,
        parts: &Parts,
        tell: impl Fn() -> bool,
    ) -> Result<OwnedSemaphorePermit, Error> {
        let mut turn = std::pin::pin!(Arc::clone(&self.surveys).acquire_owned());
        loop {
            tokio::select! {
                biased;
                turn = &mut turn => return Ok(turn.expect("the semaphore is never closed")),
                () = parts.clock.sleep(SIGN_OF_LIFE) => {
                    if !tell() {
                        let why = "nobody waits for it any more";
                        return Err(Error::new(Kind::Unavailable, "look at", "a dataset", why));
                    }
                }
            }
        }
    }

    /// The place of a recovery.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when others have all of them.
    pub(crate) fn recovery(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.recoveries).try_acquire_owned().map_err(|_| {
            let why = "other recoveries are under way at this server; try again";
            Error::new(Kind::Unavailable, "recover", "datasets", why)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::testing::rig;

    #[tokio::test]
    async fn who_waits_is_told_and_who_is_gone_takes_no_turn() {
        let (rig, turns, told) = (rig().await, Turns::new(), AtomicU32::new(0));
        let first = turns.survey(&rig.parts, || true).await.unwrap();
        let _second = turns.survey(&rig.parts, || true).await.unwrap();
        let gone = turns.survey(&rig.parts, || told.fetch_add(1, Ordering::Relaxed) < 3);
        let (gone, seconds) = rig.run(gone).await;
        assert_eq!(gone.unwrap_err().kind, Kind::Unavailable);
        assert_eq!((told.into_inner(), seconds), (4, 20));
        drop(first);
        drop(turns.survey(&rig.parts, || true).await.unwrap());
    }

    #[test]
    fn a_recovery_more_than_there_are_places_is_refused() {
        let turns = Turns::new();
        let places = (turns.recovery().unwrap(), turns.recovery().unwrap());
        assert!(turns.recovery().unwrap_err().kind.is_retryable());
        drop(places);
        drop(turns.recovery().unwrap());
    }
}

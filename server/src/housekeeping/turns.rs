//! Limits the parallel work on all objects of datasets.
//!
//! Must hold: a client that waits for a turn or memory hears so all the time; a client that is gone takes none.

use std::sync::Arc;
use std::time::Duration;

use dl_proto::Kind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;
use crate::shared::context::ServerContext;

/// Parallel purges and verifications: each takes memory for every object.
const SURVEYS: usize = 2;
/// Parallel recoveries: each takes memory for the logs of several datasets.
const RECOVERIES: usize = 2;
/// Memory for rewrites in bytes: enough for a rewrite of the largest chunks.
const REWRITE_BYTES: u32 = 136 << 20;
/// Interval of the messages to waiting clients.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// The turns of a server. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Turns {
    surveys: Arc<Semaphore>,
    recoveries: Arc<Semaphore>,
    rewrites: Arc<Semaphore>,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self {
            surveys: Arc::new(Semaphore::new(SURVEYS)),
            recoveries: Arc::new(Semaphore::new(RECOVERIES)),
            rewrites: Arc::new(Semaphore::new(REWRITE_BYTES as usize)),
        }
    }

    /// Waits for the turn of a purge or a verification. `tell` reports the wait; false when the client is gone.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when the client is gone.
    pub(crate) async fn survey(
        &self,
        context: &ServerContext,
        tell: impl Fn() -> bool,
    ) -> Result<OwnedSemaphorePermit, Error> {
        let turn = wait(context, tell, Arc::clone(&self.surveys).acquire_owned()).await?;
        Ok(turn.expect("the semaphore is never closed"))
    }

    /// Waits for the memory of a rewrite without a time limit: a finished survey is not to begin again. A
    /// rewrite above the total takes the total; `tell` as for a turn.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when the client is gone.
    pub(crate) async fn rewrite(
        &self,
        context: &ServerContext,
        bytes: u64,
        tell: impl Fn() -> bool,
    ) -> Result<OwnedSemaphorePermit, Error> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(REWRITE_BYTES);
        let room = Arc::clone(&self.rewrites).acquire_many_owned(bytes);
        Ok(wait(context, tell, room).await?.expect("the semaphore is never closed"))
    }

    /// The place of a recovery.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when other recoveries have all places.
    pub(crate) fn recovery(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.recoveries).try_acquire_owned().map_err(|_| {
            let why = "other recoveries are under way at this server; try again";
            Error::new(Kind::Unavailable, "recover", "datasets", why)
        })
    }
}

/// Waits for `turn`, and calls `tell` at intervals; fails once `tell` gives false.
async fn wait<T>(
    context: &ServerContext,
    tell: impl Fn() -> bool,
    turn: impl Future<Output = T>,
) -> Result<T, Error> {
    let mut turn = std::pin::pin!(turn);
    loop {
        tokio::select! {
            biased;
            turn = &mut turn => return Ok(turn),
            () = context.clock.sleep(SIGN_OF_LIFE) => {
                if !tell() {
                    let why = "nobody waits for it any more";
                    return Err(Error::new(Kind::Unavailable, "look at", "a dataset", why));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use dl_runtime::Clock;

    use super::*;
    use crate::testing::rig;

    #[tokio::test]
    async fn who_waits_is_told_and_who_is_gone_takes_no_turn() {
        let (rig, turns, told) = (rig().await, Turns::new(), AtomicU32::new(0));
        let first = turns.survey(&rig.context, || true).await.unwrap();
        let _second = turns.survey(&rig.context, || true).await.unwrap();
        let gone = turns.survey(&rig.context, || told.fetch_add(1, Ordering::Relaxed) < 3);
        let (gone, seconds) = rig.run(gone).await;
        assert_eq!(gone.unwrap_err().kind, Kind::Unavailable);
        assert_eq!((told.into_inner(), seconds), (4, 20));
        drop(first);
        drop(turns.survey(&rig.context, || true).await.unwrap());
    }

    #[tokio::test]
    async fn a_complete_search_waits_for_memory_of_others() {
        let (rig, turns, told) = (rig().await, Turns::new(), AtomicU32::new(0));
        let first = turns.rewrite(&rig.context, u64::MAX, || true).await.unwrap();
        assert_eq!(first.num_permits(), REWRITE_BYTES as usize);
        let others = async {
            rig.clock.sleep(Duration::from_secs(120)).await;
            drop(first);
        };
        let tell = || told.fetch_add(1, Ordering::Relaxed) < u32::MAX;
        let second = turns.rewrite(&rig.context, 1, tell);
        let ((second, ()), seconds) = rig.run(futures::future::join(second, others)).await;
        assert_eq!((second.unwrap().num_permits(), seconds), (1, 120));
        assert!(told.into_inner() >= 20, "it is told every {SIGN_OF_LIFE:?}");
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

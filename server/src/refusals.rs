//! Whether the metadata store takes no new objects at the moment: asked before an object is stored.
//!
//! Must hold: what is refused here left nothing in the chunk store. An object that is stored, and whose
//! append is refused, joins its dataset with the next recovery, also after its files were deleted:
//! so its put is refused before. Nobody is refused for what was true before it came: where there was no
//! room, each is asked for, or waits for one that asks for all who came before. Where there was room a
//! moment ago, no put waits while another one asks; what was said longer ago holds for nobody.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dl_meta::Refusal;
use dl_proto::Kind;
use dl_runtime::Clock;
use tokio::sync::Semaphore;

/// How long it is taken for granted that there is room.
const HOLDS: Duration = Duration::from_millis(100);
/// The same while another put asks whether it still is so.
const LASTS: Duration = Duration::from_millis(300);

/// The kind of error with which a request is refused.
pub(crate) fn kind_of(refusal: &Refusal) -> Kind {
    match refusal {
        Refusal::Full(_) | Refusal::Over(_) => Kind::Full,
        Refusal::All(_) => Kind::Unavailable,
    }
}

/// What the metadata store said last. Clones share it.
#[derive(Debug, Clone)]
pub struct Refusals {
    said: Arc<Mutex<Said>>,
    /// The turn of the one that asks.
    turn: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Said {
    /// When, on the clock that only goes forward.
    at: Option<Duration>,
    why: Option<Refusal>,
    /// How many objects the store itself refused.
    refused: u64,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { said: Arc::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Refusals {
    /// Why nothing new is taken, if so; `ask` is what the metadata store says. What can't be learnt is
    /// left to the append.
    pub(crate) async fn check<Asked>(&self, clock: &dyn Clock, ask: Asked) -> Option<Refusal>
    where
        Asked: Future<Output = Result<Option<Refusal>, dl_meta::Error>>,
    {
        let came = clock.monotonic();
        let holds = |said: &Said| match (said.at, &said.why) {
            (Some(at), None) => came.saturating_sub(at) < HOLDS,
            (Some(at), Some(_)) => came <= at,
            (None, _) => false,
        };
        let goes_on = {
            let said = self.said();
            if holds(&said) {
                return said.why.clone();
            }
            let lasts = |at| came.saturating_sub(at) < LASTS;
            said.why.is_none() && said.at.is_some_and(lasts)
        };
        let turn = match goes_on {
            true => self.turn.try_acquire().ok(),
            false => self.turn.acquire().await.ok(),
        };
        // Another one may have asked while this one waited for its turn.
        if turn.is_some() && !holds(&self.said()) {
            let (at, refused) = (Some(clock.monotonic()), self.said().refused);
            let why = ask.await.ok().flatten();
            let mut said = self.said();
            // An object that was refused meanwhile says more than that there was room.
            if why.is_some() || said.refused == refused {
                *said = Said { at, why, ..*said };
            }
        }
        self.said().why.clone()
    }

    /// The store refused an object just now: it is asked before the next one.
    pub(crate) fn refused(&self, why: Refusal) {
        let mut said = self.said();
        *said = Said { at: None, why: Some(why), refused: said.refused + 1 };
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use dl_runtime::ManualClock;
    use tokio::sync::oneshot;

    use super::*;

    fn full() -> Option<Refusal> {
        Some(Refusal::Full("full".to_owned()))
    }

    #[tokio::test]
    async fn nobody_is_refused_for_what_was_true_before() {
        let (clock, refusals) = (ManualClock::new(UNIX_EPOCH), Refusals::default());
        assert_eq!(refusals.check(&clock, async { Ok(full()) }).await, full());
        clock.advance(Duration::from_millis(1));
        let (say, said) = oneshot::channel();
        let asks = refusals.check(&clock, async { Ok(said.await.unwrap()) });
        let waits = refusals.check(&clock, async { unreachable!("it holds for who waited") });
        let says = async { say.send(None).unwrap() };
        assert_eq!(tokio::join!(biased; asks, waits, says), (None, None, ()));
    }

    #[tokio::test]
    async fn what_the_store_itself_refused_is_not_forgotten_by_one_that_asked_before() {
        let (clock, refusals) = (ManualClock::new(UNIX_EPOCH), Refusals::default());
        let (say, said) = oneshot::channel();
        let asks = refusals.check(&clock, async { Ok(said.await.unwrap()) });
        let refused = async {
            refusals.refused(Refusal::Full("full".to_owned()));
            say.send(None).unwrap();
        };
        assert_eq!(tokio::join!(biased; asks, refused), (full(), ()));
        let asked = refusals.check(&clock, async { Ok(None) });
        assert_eq!(asked.await, None);
    }

    #[tokio::test]
    async fn where_there_was_room_no_put_waits_while_another_one_asks() {
        let (clock, refusals) = (ManualClock::new(UNIX_EPOCH), Refusals::default());
        assert_eq!(refusals.check(&clock, async { Ok(None) }).await, None);
        clock.advance(HOLDS);
        let (say, said) = oneshot::channel();
        let asks = refusals.check(&clock, async { Ok(said.await.unwrap()) });
        let goes_on = async {
            let known = refusals.check(&clock, async { unreachable!("it is asked once") }).await;
            say.send(full()).unwrap();
            known
        };
        assert_eq!(tokio::join!(biased; asks, goes_on), (full(), None));
    }

    #[tokio::test]
    async fn room_that_there_was_long_ago_lets_no_put_go_on_while_another_one_asks() {
        let (clock, refusals) = (ManualClock::new(UNIX_EPOCH), Refusals::default());
        assert_eq!(refusals.check(&clock, async { Ok(None) }).await, None);
        clock.advance(LASTS);
        let (say, said) = oneshot::channel();
        let asks = refusals.check(&clock, async { Ok(said.await.unwrap()) });
        let waits = refusals.check(&clock, async { unreachable!("it holds for who waited") });
        let says = async { say.send(full()).unwrap() };
        assert_eq!(tokio::join!(biased; asks, waits, says), (full(), full(), ()));
    }
}

//! Whether the metadata store takes no new objects at the moment: asked before an object is stored.
//!
//! Must hold: what is refused here left nothing in the chunk store. An object that is stored, and whose
//! append is refused, joins its dataset with the next recovery, also after its files were deleted:
//! so its put is refused before. No put waits while another one asks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dl_meta::MetaStore;
use dl_runtime::Clock;
use tokio::sync::Semaphore;

/// How long an answer holds.
const HOLDS: Duration = Duration::from_millis(100);

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
    why: Option<String>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { said: Arc::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Refusals {
    /// Why nothing new is taken, if so. What can't be learnt is left to the append.
    pub(crate) async fn check(&self, meta: &dyn MetaStore, clock: &dyn Clock) -> Option<String> {
        let now = clock.monotonic();
        let holds = |at: Duration| now.saturating_sub(at) < HOLDS;
        if !self.said().at.is_some_and(holds)
            && let Ok(_turn) = self.turn.try_acquire()
        {
            let why = meta.refusal().await.ok().flatten();
            *self.said() = Said { at: Some(now), why };
        }
        self.said().why.clone()
    }

    /// The store refused an object just now: it is asked before the next one.
    pub(crate) fn refused(&self) {
        self.said().at = None;
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

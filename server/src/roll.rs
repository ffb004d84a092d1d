//! What all names of datasets point to, and the last reading of them, which many share.
//!
//! Must hold: whoever shares a reading knows when it began.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dl_format::{DatasetName, NameRecord, NameState};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::Error;

/// A name's newest generation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    pub(crate) generation: u32,
    pub(crate) record: NameRecord,
}

/// What every name points to. One that can't be read costs its dataset and no others.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By name.
    pub(crate) read: Vec<(DatasetName, Named)>,
    /// Names whose newest generation is damaged, or refuses to be read.
    pub(crate) unread: Vec<(DatasetName, Error)>,
}

impl Names {
    /// The names that point to datasets which live.
    pub(crate) fn live(&self) -> impl Iterator<Item = &(DatasetName, Named)> {
        self.read.iter().filter(|(_, named)| named.record.state == NameState::Live)
    }

    /// Leaves out the names that somebody may not know of.
    pub(crate) fn retain(&mut self, is_seen: impl Fn(&DatasetName) -> bool) {
        self.read.retain(|(name, _)| is_seen(name));
        self.unread.retain(|(name, _)| is_seen(name));
    }

    /// Whether nothing was ever created here.
    pub(crate) fn is_empty(&self) -> bool {
        self.read.is_empty() && self.unread.is_empty()
    }
}

/// When a reading began, and what it gave.
type Read = (Duration, Arc<Names>);

/// What dataset names were last read as, for all who ask at the same time.
#[derive(Debug, Clone)]
pub struct Roll {
    turn: Arc<Semaphore>,
    last: Arc<Mutex<Option<Read>>>,
}

impl Default for Roll {
    fn default() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), last: Arc::default() }
    }
}

impl Roll {
    /// What was read, if that began then or later.
    pub(crate) fn since(&self, began: Duration) -> Option<Arc<Names>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| *at >= began).map(|(_, names)| Arc::clone(names))
    }

    /// Waits until nobody else reads.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'_> {
        self.turn.acquire().await.expect("the semaphore is never closed")
    }

    pub(crate) fn put(&self, began: Duration, names: &Arc<Names>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((began, Arc::clone(names)));
    }
}

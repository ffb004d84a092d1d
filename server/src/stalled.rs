//! What of a connection's answers waits to be taken by its client, by when it began to wait.
//!
//! Must hold: what waits for longer than patience has it is found, however much of the same
//! connection moves meanwhile; counting takes no lock and no memory that grows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Periods in which patience is measured.
pub(crate) const PERIODS: u32 = 2;

/// Periods that are told apart.
const SLOTS: usize = 8;

/// What waits on one connection.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    period: AtomicUsize,
    /// How much of what began to wait in each of the last periods still does.
    since: [AtomicUsize; SLOTS],
}

/// Something that waits, until it is dropped.
#[derive(Debug)]
pub(crate) struct Wait {
    waiting: Arc<Waiting>,
    slot: usize,
}

impl Waiting {
    /// Something begins to wait.
    pub(crate) fn begin(self: &Arc<Self>) -> Wait {
        let slot = self.period.load(Ordering::Relaxed) % SLOTS;
        if let Some(count) = self.since.get(slot) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Wait { waiting: Arc::clone(self), slot }
    }

    /// A period is over. Whether something waits since before the last [`PERIODS`] of them.
    pub(crate) fn turn(&self) -> bool {
        let period = self.period.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let is_old = |slot: usize| period.wrapping_sub(slot) % SLOTS > PERIODS as usize;
        let waits = |count: &AtomicUsize| count.load(Ordering::Relaxed) > 0;
        self.since.iter().enumerate().any(|(slot, count)| is_old(slot) && waits(count))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(count) = self.waiting.since.get(self.slot) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_through_whole_periods_is_found_and_what_moves_is_not() {
        let waiting = Arc::new(Waiting::default());
        for _ in 0..3 * SLOTS {
            // Old at most by the turn that ends the period in which it began, and one more.
            let moving = waiting.begin();
            assert!(!waiting.turn() && !waiting.turn());
            drop(moving);
        }
        let stuck = waiting.begin();
        assert!(!waiting.turn() && !waiting.turn() && waiting.turn());
        let _new = waiting.begin();
        assert!(waiting.turn());
        drop(stuck);
        assert!(!waiting.turn());
    }
}

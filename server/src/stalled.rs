//! What of a connection's answers waits to be taken by its client, by when it began to wait.
//!
//! Must hold: what waits for longer than patience has it is found, however much of the same
//! connection moves meanwhile; counting takes no lock and no memory that grows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Periods in which patience is measured.
pub(crate) const PERIODS: u32 = 2;

/// What began at different times is counted apart, as far as patience tells it apart: by the time
/// all of these are in use, what is in one of them has waited for too long.
const SLOTS: usize = PERIODS as usize + 2;

/// What waits on one connection.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    period: AtomicUsize,
    /// Where what begins to wait now is counted.
    current: AtomicUsize,
    slots: [Slot; SLOTS],
}

#[derive(Debug, Default)]
struct Slot {
    /// The period in which the first of what it counts may have begun.
    since: AtomicUsize,
    waits: AtomicUsize,
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
        let slot = self.current.load(Ordering::Relaxed);
        if let Some(Slot { waits, .. }) = self.slots.get(slot) {
            waits.fetch_add(1, Ordering::Relaxed);
        }
        Wait { waiting: Arc::clone(self), slot }
    }

    /// A period is over. Whether something waits since before the last [`PERIODS`] of them.
    pub(crate) fn turn(&self) -> bool {
        let period = self.period.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let waits = |slot: &Slot| slot.waits.load(Ordering::Relaxed) > 0;
        // Never one in which something waits: it would be taken for new.
        let free = self.slots.iter().enumerate().find(|(_, slot)| !waits(slot));
        if let Some((number, slot)) = free {
            slot.since.store(period, Ordering::Relaxed);
            self.current.store(number, Ordering::Relaxed);
        }
        let age = |slot: &Slot| period.wrapping_sub(slot.since.load(Ordering::Relaxed));
        self.slots.iter().any(|slot| waits(slot) && age(slot) > PERIODS as usize)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(Slot { waits, .. }) = self.waiting.slots.get(self.slot) {
            waits.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_through_whole_periods_is_found_and_what_moves_is_not() {
        let waiting = Arc::new(Waiting::default());
        for _ in 0..20 {
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

    #[test]
    fn what_waits_for_ever_is_old_for_ever() {
        let waiting = Arc::new(Waiting::default());
        let mut stuck = vec![waiting.begin()];
        for _ in 0..PERIODS {
            assert!(!waiting.turn());
        }
        for _ in 0..100 {
            assert!(waiting.turn());
            // Others stay as well, until there is no place to count them apart.
            stuck.push(waiting.begin());
            let _moving = waiting.begin();
        }
        drop(stuck);
        assert!(!waiting.turn());
    }
}

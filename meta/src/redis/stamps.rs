//! The highest stamp given to this process, by dataset: later stamps are higher, even after a loss of Redis.
//!
//! Must hold: dropped stamps lie at least an hour behind the clock, and so below every later stamp: clocks
//! are at most half an hour off, and a corrected clock goes back by an hour at most.

use std::collections::HashMap;

use dl_format::{DatasetId, Stamp};

/// Stamps that are kept at any age.
const KEPT: usize = 10_000;

const HOUR_MICROS: u64 = 60 * 60 * 1_000_000;

#[derive(Debug, Default)]
pub(super) struct Stamps {
    last: HashMap<DatasetId, Stamp>,
    /// The number of stamps after old stamps were last dropped.
    left: usize,
}

impl Stamps {
    /// The lowest permitted stamp.
    pub(super) fn floor(&self, id: DatasetId) -> Stamp {
        self.last.get(&id).map_or(Stamp::default(), |last| Stamp::new(last.get() + 1))
    }

    /// Notes a stamp that was given at `now`.
    pub(super) fn raise(&mut self, id: DatasetId, given: Stamp, now: Stamp) {
        let last = self.last.entry(id).or_default();
        *last = given.max(*last);
        // Old stamps are dropped when the number has doubled, at a small cost per stamp.
        if self.last.len() > KEPT.max(2 * self.left) {
            self.last.retain(|_, last| last.get() > now.get().saturating_sub(HOUR_MICROS));
            self.left = self.last.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> DatasetId {
        DatasetId::from_bytes((number as u128).to_le_bytes())
    }

    #[test]
    fn only_an_excess_of_hour_old_entries_is_forgotten() {
        let (mut stamps, minute) = (Stamps::default(), HOUR_MICROS / 60);
        let stamp = |number: usize| Stamp::new((1_000 + number as u64 % 120) * minute);
        let now = Stamp::new(1_120 * minute);
        (0..KEPT).for_each(|number| stamps.raise(id(number), stamp(number), now));
        assert_eq!(stamps.last.len(), KEPT);
        stamps.raise(id(KEPT), now, now);
        for number in 0..KEPT {
            let kept = number % 120 > 60;
            let floor = if kept { stamp(number).get() + 1 } else { 0 };
            assert_eq!(stamps.floor(id(number)), Stamp::new(floor), "{number}");
        }
        assert_eq!(stamps.floor(id(KEPT)), Stamp::new(now.get() + 1));
    }

    #[test]
    fn there_are_never_more_than_twice_those_of_an_hour() {
        let (mut stamps, mut most) = (Stamps::default(), 0);
        for number in 0..20 * KEPT {
            // As many within an hour as are kept.
            let now = Stamp::new((number as u64 + 1) * HOUR_MICROS / KEPT as u64);
            stamps.raise(id(number), now, now);
            most = most.max(stamps.last.len());
        }
        assert!(most <= 2 * KEPT, "{most}");
    }
}

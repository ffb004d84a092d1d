//! How long the last reads of a source took.
//!
//! Must hold: the number of stored durations is limited; few of them decide nothing.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of stored durations.
const STORED: usize = 32;

/// With fewer durations, no source is called slow.
const LEAST: usize = 8;

/// The durations of the last reads of whole chunks.
#[derive(Debug, Default)]
pub(crate) struct RecentDurations(VecDeque<Duration>);

impl RecentDurations {
    pub(crate) fn add(&mut self, duration: Duration) {
        self.0.truncate(STORED - 1);
        self.0.push_front(duration);
    }

    pub(crate) fn median(&self) -> Option<Duration> {
        let mut durations: Vec<_> = self.0.iter().copied().collect();
        durations.sort_unstable();
        durations.get(durations.len() / 2).copied()
    }

    /// The median of enough durations to be compared with others.
    pub(crate) fn typical(&self) -> Option<Duration> {
        self.median().filter(|_| self.0.len() >= LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_durations_decide_together() {
        let mut reads = RecentDurations::default();
        assert_eq!(reads.median(), None);
        (1..8).for_each(|micros| reads.add(Duration::from_micros(micros)));
        assert_eq!((reads.median(), reads.typical()), (Some(Duration::from_micros(4)), None));
        (0..STORED).for_each(|_| reads.add(Duration::from_micros(70)));
        assert_eq!(reads.typical(), Some(Duration::from_micros(70)));
        (0..STORED / 2 - 1).for_each(|_| reads.add(Duration::from_micros(90)));
        assert_eq!(reads.typical(), Some(Duration::from_micros(70)), "more than a half");
    }
}

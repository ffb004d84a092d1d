//! Whether a disk may be asked.
//!
//! Must hold: after a failure a disk rests, and then a single call tries it.

use std::collections::VecDeque;
use std::time::Duration;

/// How long a disk rests after a failed or hanging call.
const REST: Duration = Duration::from_secs(10);

/// How long a full disk is not written to.
const FULL: Duration = Duration::from_secs(60);

/// The state of a disk. All times are on the agent's clock.
#[derive(Debug, Default)]
pub(super) struct Health {
    rests_until: Option<Duration>,
    full_until: Option<Duration>,
    /// The last failure and its time.
    failure: Option<(String, Duration)>,
    /// Durations of the last reads of chunks.
    reads: VecDeque<Duration>,
}

/// Number of stored durations.
const READS: usize = 32;

impl Health {
    /// Whether a call may be made. After a rest, the first caller tries alone.
    pub(super) fn may_try(&mut self, now: Duration) -> bool {
        match self.rests_until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                self.rests_until = Some(now.saturating_add(REST));
                true
            }
        }
    }

    /// Whether a write may be made.
    pub(super) fn may_write(&self, now: Duration) -> bool {
        self.rests_until.is_none() && self.full_until.is_none_or(|until| now >= until)
    }

    /// Notes a call that worked.
    pub(super) fn worked(&mut self) {
        self.rests_until = None;
    }

    /// Notes the duration of a chunk's read.
    pub(super) fn has_read(&mut self, took: Duration) {
        self.reads.truncate(READS - 1);
        self.reads.push_front(took);
    }

    /// The median duration of a chunk's read.
    pub(super) fn median(&self) -> Option<Duration> {
        let mut times: Vec<_> = self.reads.iter().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }

    /// Notes a call that failed or hangs.
    pub(super) fn failed(&mut self, why: String, now: Duration) {
        self.rests_until = Some(now.saturating_add(REST));
        self.failure = Some((why, now));
    }

    /// Notes that nothing more fits.
    pub(super) fn mark_full(&mut self, why: String, now: Duration) {
        self.full_until = Some(now.saturating_add(FULL));
        self.failure = Some((why, now));
    }

    /// The name of the state: `ready`, `resting` or `full`.
    pub(super) fn state(&self, now: Duration) -> &'static str {
        match (self.rests_until, self.full_until) {
            (Some(_), _) => "resting",
            (None, Some(until)) if now < until => "full",
            _ => "ready",
        }
    }

    /// The last failure, with its age.
    pub(super) fn failure(&self, now: Duration) -> Option<String> {
        let (why, at) = self.failure.as_ref()?;
        Some(format!("{why}, {} s ago", now.saturating_sub(*at).as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_disk_rests_after_a_failure_and_is_tried_once() {
        let mut health = Health::default();
        assert!(health.may_try(at(1)) && health.may_write(at(1)));
        health.failed("input/output error".to_owned(), at(5));
        assert!(!health.may_try(at(14)) && !health.may_write(at(16)));
        assert!(health.may_try(at(15)) && !health.may_try(at(16)), "one try");
        assert_eq!(health.state(at(16)), "resting");
        assert!(health.failure(at(20)).unwrap().contains("error, 15 s ago"));
        health.worked();
        assert!(health.may_try(at(17)) && health.state(at(17)) == "ready");
    }

    #[test]
    fn a_full_disk_is_read_and_not_written() {
        let mut health = Health::default();
        health.mark_full("no space left".to_owned(), at(1));
        assert!(health.may_try(at(2)) && !health.may_write(at(2)));
        assert_eq!(health.state(at(2)), "full");
        assert!(health.may_write(at(61)));
    }
}

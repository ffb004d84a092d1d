//! Whether a disk may be asked.
//!
//! Must hold: after a failure a disk rests, and then a single call tries it.

use std::time::Duration;

use crate::durations::RecentDurations;

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
    pub(super) reads: RecentDurations,
}

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

    /// Whether no call may be made at the moment.
    pub(super) fn is_resting(&self, now: Duration) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Whether a write may be made.
    pub(super) fn may_write(&self, now: Duration) -> bool {
        self.rests_until.is_none() && self.full_until.is_none_or(|until| now >= until)
    }

    /// Notes a call that worked.
    pub(super) fn worked(&mut self) {
        self.rests_until = None;
    }

    /// Whether reads of chunks take longer than those of another source.
    pub(super) fn is_slower_than(&self, other: Option<Duration>) -> bool {
        self.reads.typical().zip(other).is_some_and(|(own, other)| own > other)
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

    /// The name of the state: `ready`, `resting`, `full` or `slow`. `servers`: how long reads of chunks
    /// from the servers take.
    pub(super) fn state(&self, now: Duration, servers: Option<Duration>) -> &'static str {
        match (self.rests_until, self.full_until) {
            (Some(_), _) => "resting",
            (None, Some(until)) if now < until => "full",
            _ if self.is_slower_than(servers) => "slow",
            _ => "ready",
        }
    }

    /// What makes the disk slow, or the last failure with its age.
    pub(super) fn reason(&self, now: Duration, servers: Option<Duration>) -> Option<String> {
        if self.state(now, servers) == "slow" {
            let millis = servers.unwrap_or_default().as_secs_f64() * 1e3;
            return Some(format!("the servers usually take {millis:.1} ms"));
        }
        self.failure(now)
    }

    /// The last failure, with its age.
    fn failure(&self, now: Duration) -> Option<String> {
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
        assert_eq!(health.state(at(16), None), "resting");
        assert!(health.failure(at(20)).unwrap().contains("error, 15 s ago"));
        health.worked();
        assert!(health.may_try(at(17)) && health.state(at(17), None) == "ready");
    }

    #[test]
    fn a_full_disk_is_read_and_not_written() {
        let mut health = Health::default();
        health.mark_full("no space left".to_owned(), at(1));
        assert!(health.may_try(at(2)) && !health.may_write(at(2)));
        assert_eq!(health.state(at(2), None), "full");
        assert!(health.may_write(at(61)));
    }
}

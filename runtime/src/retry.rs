//! Retries: waits between tries, and deadlines.
//!
//! Must hold: no wait passes its deadline, and the waits of many callers that failed together spread out.

use std::time::Duration;

use crate::{Clock, Random};

/// Waits before new tries: `first`, then `factor` times the last, up to `max`, each shortened by a random
/// part of up to half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Before the second try.
    pub first: Duration,
    /// Growth of the waits.
    pub factor: u32,
    /// The longest wait.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), factor: 2, max: Duration::from_secs(2) }
    }
}

impl Backoff {
    /// The wait after failure number `failures`, counted from zero.
    pub fn wait(&self, failures: u32, random: &dyn Random) -> Duration {
        let grown = self.first.saturating_mul(self.factor.saturating_pow(failures)).min(self.max);
        grown.mul_f64(1.0 - random.unit() / 2.0)
    }
}

/// A point of monotonic time after which an answer has no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Duration);

/// The deadline passed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the deadline has passed")]
pub struct Elapsed;

impl Deadline {
    /// `patience` from now, by this clock.
    pub fn after(clock: &dyn Clock, patience: Duration) -> Self {
        Self(clock.monotonic().saturating_add(patience))
    }

    /// The same, so much later.
    pub fn later(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }

    /// Time left; zero when it has passed.
    pub fn remaining(self, clock: &dyn Clock) -> Duration {
        self.0.saturating_sub(clock.monotonic())
    }

    /// Waits for `work` until the deadline, then drops it.
    ///
    /// # Errors
    /// [`Elapsed`] when the deadline passes first.
    pub async fn bound<T>(
        self,
        clock: &dyn Clock,
        work: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = clock.sleep(self.remaining(clock)) => Err(Elapsed),
        }
    }
}

/// Calls `attempt` until a success, a final failure, or until no time is left for another try. The deadline
/// may move, and is asked for after each attempt.
///
/// A running attempt is not cut at the deadline, as only the attempt knows the right error: give the
/// attempt the deadline, too.
///
/// # Errors
/// The last error of `attempt`.
pub async fn retry<T, E, Attempt: Future<Output = Result<T, E>>>(
    clock: &dyn Clock,
    random: &dyn Random,
    backoff: Backoff,
    deadline: impl Fn() -> Deadline,
    is_retryable: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Attempt,
) -> Result<T, E> {
    let mut failures = 0;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let wait = backoff.wait(failures, random);
        if !is_retryable(&error) || wait >= deadline().remaining(clock) {
            return Err(error);
        }
        clock.sleep(wait).await;
        failures = failures.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::{ManualClock, SeededRandom};

    const BACKOFF: Backoff =
        Backoff { first: Duration::from_millis(100), factor: 2, max: Duration::from_millis(350) };

    #[test]
    fn waits_grow_to_the_maximum_and_lose_at_most_half_to_chance() {
        let random = SeededRandom::new(1);
        for (failures, full) in [(0, 100), (1, 200), (2, 350), (40, 350), (u32::MAX, 350)] {
            let wait = BACKOFF.wait(failures, &random);
            assert!(wait <= Duration::from_millis(full) && wait >= Duration::from_millis(full / 2));
        }
    }

    async fn tries_of(
        patience: Duration,
        fails: u32,
        retryable: bool,
    ) -> (Result<u32, u32>, u32, Duration) {
        let clock = ManualClock::jumping(UNIX_EPOCH);
        let deadline = Deadline::after(&clock, patience);
        let tries = Cell::new(0);
        let result = retry(
            &clock,
            &SeededRandom::new(5),
            BACKOFF,
            || deadline,
            |_| retryable,
            || {
                tries.set(tries.get() + 1);
                let tried = tries.get();
                async move { if tried > fails { Ok(tried) } else { Err(tried) } }
            },
        )
        .await;
        (result, tries.get(), clock.monotonic())
    }

    #[tokio::test]
    async fn a_call_is_tried_until_it_succeeds_or_fails_for_good() {
        let minute = Duration::from_secs(60);
        let (result, tries, _) = tries_of(minute, 3, true).await;
        assert_eq!((result, tries), (Ok(4), 4));
        assert_eq!(tries_of(minute, 3, false).await, (Err(1), 1, Duration::ZERO));
    }

    #[tokio::test]
    async fn no_wait_passes_the_deadline_and_the_last_error_is_given() {
        let (result, tries, waited) = tries_of(Duration::from_secs(1), u32::MAX, true).await;
        assert_eq!(result, Err(tries));
        assert!(tries >= 3 && waited < Duration::from_secs(1));
    }

    #[tokio::test]
    async fn bounded_work_is_dropped_at_the_deadline() {
        let clock = ManualClock::jumping(UNIX_EPOCH);
        let deadline = Deadline::after(&clock, Duration::from_secs(1));
        assert_eq!(deadline.bound(&clock, std::future::pending::<()>()).await, Err(Elapsed));
        assert_eq!(deadline.bound(&clock, async { 7 }).await, Ok(7));
    }
}

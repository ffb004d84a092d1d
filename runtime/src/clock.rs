//! Time, as an argument.
//!
//! Must hold: `now` may jump in both directions, like wall clocks; `monotonic` never goes back, and decides
//! all waits and deadlines.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::locked;

/// A boxed future that may cross threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A source of time. Shared as `Arc<dyn Clock>`.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Wall-clock time, for stamps and ids. May step back.
    fn now(&self) -> SystemTime;

    /// Time since the clock's own start. Never goes back.
    fn monotonic(&self) -> Duration;

    /// Completes once `monotonic` has moved on by `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The machine's clocks. `sleep` needs a tokio runtime with time enabled.
#[derive(Debug)]
pub struct SystemClock {
    start: Duration,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    pub fn new() -> Self {
        Self { start: since_boot() }
    }

    /// A clock whose monotonic time is the same in all processes of the machine.
    pub fn of_machine() -> Self {
        Self { start: Duration::ZERO }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the place that reads the machine's clock")]
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn monotonic(&self) -> Duration {
        since_boot().saturating_sub(self.start)
    }

    #[expect(clippy::disallowed_methods, reason = "the place that reads the machine's clock")]
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Time since the machine started, the same in all processes. Never goes back.
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(time).unwrap_or_default()
}

/// A clock that stands still until a test moves it.
#[derive(Debug)]
pub struct ManualClock {
    now: Mutex<SystemTime>,
    monotonic: watch::Sender<Duration>,
    sleep_jumps: bool,
}

impl ManualClock {
    /// Stands at `now`, monotonic time zero. A sleep lasts until [`advance`](Self::advance)
    /// has moved far enough.
    pub fn new(now: SystemTime) -> Self {
        Self {
            now: Mutex::new(now),
            monotonic: watch::Sender::new(Duration::ZERO),
            sleep_jumps: false,
        }
    }

    /// Like [`new`](Self::new), but a sleep moves the clock and completes at once: for tests with a
    /// single waiting task.
    pub fn jumping(now: SystemTime) -> Self {
        Self { sleep_jumps: true, ..Self::new(now) }
    }

    /// Sets the wall clock, forward or back. Monotonic time stays.
    pub fn set(&self, now: SystemTime) {
        *self.wall() = now;
    }

    /// Moves both times forward and wakes the sleeps that are over.
    pub fn advance(&self, by: Duration) {
        *self.wall() += by;
        self.monotonic.send_modify(|time| *time += by);
    }

    fn wall(&self) -> MutexGuard<'_, SystemTime> {
        locked(&self.now)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        *self.wall()
    }

    fn monotonic(&self) -> Duration {
        *self.monotonic.borrow()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let until = self.monotonic() + duration;
        if self.sleep_jumps {
            self.advance(duration);
        }
        let mut time = self.monotonic.subscribe();
        Box::pin(async move {
            if time.wait_for(|time| *time >= until).await.is_err() {
                // Without the clock, the time never comes.
                std::future::pending::<()>().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_wall_clock_set_back_leaves_monotonic_time() {
        let clock = ManualClock::new(UNIX_EPOCH + Duration::from_secs(100));
        clock.advance(Duration::from_secs(5));
        clock.set(UNIX_EPOCH);
        assert_eq!(clock.now(), UNIX_EPOCH);
        assert_eq!(clock.monotonic(), Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_sleep_ends_when_the_clock_has_moved_far_enough() {
        let clock = ManualClock::new(UNIX_EPOCH);
        let sleep = crate::spawn(clock.sleep(Duration::from_secs(2)));
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
        assert!(!sleep.is_finished());
        clock.advance(Duration::from_secs(1));
        sleep.await.unwrap();
    }
}

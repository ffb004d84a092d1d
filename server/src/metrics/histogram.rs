//! Operations: counts, times and failures.
//!
//! Must hold: counts only grow. A call counts once, even if its caller is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dl_runtime::Clock;

/// Upper bounds of the buckets, in microseconds; longer times are in none of the buckets.
pub(crate) const BOUNDS_MICROS: [u64; 15] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000, 60_000_000,
];

/// A histogram of times.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS_MICROS.len()],
    count: AtomicU64,
    sum_micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Times up to each bound, the count of all times, and their sum in seconds.
    pub(crate) fn read(&self) -> (Vec<u64>, u64, f64) {
        let mut sum = 0;
        let up_to = self.buckets.iter().map(|bucket| {
            sum += bucket.load(Ordering::Relaxed);
            sum
        });
        let up_to: Vec<u64> = up_to.collect();
        // Read last, the count is never less than the buckets.
        let count = self.count.load(Ordering::Relaxed).max(sum);
        (up_to, count, self.sum_micros.load(Ordering::Relaxed) as f64 / 1e6)
    }
}

/// An operation.
#[derive(Debug, Default)]
pub(crate) struct Operation {
    pub(crate) took: Histogram,
    pub(crate) failed: AtomicU64,
}

/// Measures a call of an operation, until the drop.
#[derive(Debug)]
pub(crate) struct Timer {
    operation: Arc<Operation>,
    clock: Arc<dyn Clock>,
    began: Duration,
}

impl Timer {
    pub(crate) fn start(operation: &Arc<Operation>, clock: &Arc<dyn Clock>) -> Self {
        let began = clock.monotonic();
        Self { operation: Arc::clone(operation), clock: Arc::clone(clock), began }
    }

    /// Counts the call as failed.
    pub(crate) fn failed(&self) {
        self.operation.failed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Measures a call. `is_failure` separates failures from errors that are answers.
pub(crate) async fn timed<T, E>(
    operation: &Arc<Operation>,
    clock: &Arc<dyn Clock>,
    call: impl Future<Output = Result<T, E>>,
    is_failure: impl FnOnce(&E) -> bool,
) -> Result<T, E> {
    let timer = Timer::start(operation, clock);
    let result = call.await;
    if result.as_ref().is_err_and(is_failure) {
        timer.failed();
    }
    result
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.operation.took.add(self.clock.monotonic().saturating_sub(self.began));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_what_took_no_longer() {
        let histogram = Histogram::default();
        for micros in [1, 250, 251, 1_000_000, 90_000_000] {
            histogram.add(Duration::from_micros(micros));
        }
        let (up_to, count, sum) = histogram.read();
        assert_eq!((up_to[0], up_to[1], up_to[11], up_to[14], count), (2, 3, 4, 4, 5));
        assert!((sum - 91.000_502).abs() < 1e-9, "{sum}");
    }
}

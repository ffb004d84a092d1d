//! A layer that slows a store down for tests and benchmarks: latency, bandwidth, requests per second, and
//! requests at once.
//!
//! Must hold: calls and answers pass unchanged.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dl_runtime::{Clock, locked};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::Semaphore;

use crate::{Error, Key, ObjectInfo, ObjectRange, Prefix, Store};

/// The limits of a [`ThrottleStore`], which the handle changes at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Throttle {
    /// Delay of each call and each listing.
    pub latency: Duration,
    /// Rate of the bytes of all bodies, in both directions; none is no limit.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Rate of all calls, where each range of a read is a call; none is no limit.
    pub requests_per_second: Option<NonZeroU64>,
}

/// Slows the calls to `inner` down.
#[derive(Debug)]
pub struct ThrottleStore {
    inner: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    throttle: Arc<Mutex<Throttle>>,
    in_flight: Semaphore,
    bytes: Line,
    requests: Line,
}

/// When all earlier units have passed.
#[derive(Debug, Default)]
struct Line(Mutex<Duration>);

impl Line {
    /// Waits until all earlier units, and `units` more, have passed at `rate` a second.
    async fn pass(&self, clock: &dyn Clock, units: u64, rate: Option<NonZeroU64>) {
        let Some(rate) = rate else { return };
        let now = clock.monotonic();
        let free_at = {
            let mut line = locked(&self.0);
            *line = now.max(*line) + Duration::from_secs_f64(units as f64 / rate.get() as f64);
            *line
        };
        clock.sleep(free_at.saturating_sub(now)).await;
    }
}

impl ThrottleStore {
    /// Wraps `inner` with at most `in_flight` calls at once. Also gives the handle.
    pub fn new(
        inner: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        throttle: Throttle,
        in_flight: usize,
    ) -> (Self, Arc<Mutex<Throttle>>) {
        let throttle = Arc::new(Mutex::new(throttle));
        let store = Self {
            inner,
            clock,
            throttle: Arc::clone(&throttle),
            in_flight: Semaphore::new(in_flight),
            bytes: Line::default(),
            requests: Line::default(),
        };
        (store, throttle)
    }

    fn throttle(&self) -> Throttle {
        *locked(&self.throttle)
    }

    /// All calls share the line of bytes.
    async fn transfer(&self, bytes: u64) {
        self.bytes.pass(self.clock.as_ref(), bytes, self.throttle().bytes_per_second).await;
    }

    async fn slowly<T>(
        &self,
        sent: u64,
        call: impl Future<Output = T>,
        got: impl Fn(&T) -> u64,
    ) -> T {
        self.slowly_many(1, sent, call, got).await
    }

    async fn slowly_many<T>(
        &self,
        requests: u64,
        sent: u64,
        call: impl Future<Output = T>,
        got: impl Fn(&T) -> u64,
    ) -> T {
        let _place = self.in_flight.acquire().await.expect("the semaphore is never closed");
        let Throttle { latency, requests_per_second, .. } = self.throttle();
        self.requests.pass(self.clock.as_ref(), requests, requests_per_second).await;
        // A timer ends up to a millisecond late.
        if !latency.is_zero() {
            self.clock.sleep(latency).await;
        }
        self.transfer(sent).await;
        let answer = call.await;
        self.transfer(got(&answer)).await;
        answer
    }
}

impl fmt::Display for ThrottleStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "throttle({})", self.inner)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Store for ThrottleStore {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        self.slowly(body.len() as u64, self.inner.create(key, body), |_| 0).await
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        let got = |results: &Vec<Result<Bytes, Error>>| {
            results.iter().flatten().map(|bytes| bytes.len() as u64).sum()
        };
        self.slowly_many(wanted.len() as u64, 0, self.inner.read(wanted), got).await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.slowly(0, self.inner.delete(key), |_| 0).await
    }

    async fn make_durable(&self, keys: &[Key]) -> Result<(), Error> {
        self.slowly(0, self.inner.make_durable(keys), |_| 0).await
    }

    async fn prune(&self, prefix: &Prefix) -> Result<(), Error> {
        self.slowly(0, self.inner.prune(prefix), |_| 0).await
    }

    fn invalidate(&self, key: &Key) {
        self.inner.invalidate(key);
    }

    fn will_read(&self, key: &Key) {
        self.inner.will_read(key);
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>> {
        let prefix = prefix.clone();
        let listing =
            async move { self.slowly(0, async { self.inner.list(&prefix) }, |_| 0).await };
        stream::once(listing).flatten().boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use dl_runtime::ManualClock;

    use super::*;
    use crate::{StoreExt, memory};

    #[tokio::test]
    async fn each_call_costs_its_latency_and_its_bytes() {
        let clock = Arc::new(ManualClock::jumping(UNIX_EPOCH));
        let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let throttle = Throttle {
            latency: Duration::from_millis(5),
            bytes_per_second: NonZeroU64::new(1000),
            ..Throttle::default()
        };
        let (store, handle) = ThrottleStore::new(memory(), time, throttle, 1);
        let key = Key::new("k").unwrap();
        store.create(&key, vec![0; 100].into()).await.unwrap();
        assert_eq!(clock.monotonic(), Duration::from_millis(105));
        store.read_all(&key).await.unwrap();
        assert_eq!(clock.monotonic(), Duration::from_millis(210));
        *handle.lock().unwrap() = Throttle::default();
        store.list_sorted(&Prefix::ROOT).await.unwrap();
        store.delete(&key).await.unwrap();
        assert_eq!(clock.monotonic(), Duration::from_millis(210));
    }

    #[tokio::test]
    async fn each_range_of_a_read_is_a_request() {
        let clock = Arc::new(ManualClock::jumping(UNIX_EPOCH));
        let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let throttle = Throttle { requests_per_second: NonZeroU64::new(10), ..Throttle::default() };
        let (store, _) = ThrottleStore::new(memory(), time, throttle, 1);
        let key = Key::new("k").unwrap();
        store.create(&key, vec![0; 100].into()).await.unwrap();
        assert_eq!(clock.monotonic(), Duration::from_millis(100));
        let range = |start| ObjectRange {
            key: key.clone(),
            range: crate::ByteRange::exact(start, start + 1).unwrap(),
        };
        store.read(&[range(0), range(7), range(9)]).await;
        assert_eq!(clock.monotonic(), Duration::from_millis(400));
    }
}

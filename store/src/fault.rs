//! A layer with faults for tests: errors, lost answers, delays, and the death of the process at a chosen
//! write.
//!
//! Must hold: the faults are a function of the plan in the handles and of the calls. Without a plan, calls
//! pass unchanged.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use dl_runtime::Clock;
use dl_runtime::fault::{CutPoint, FaultLayer, Faults};
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use crate::{Error, Key, Kind, ObjectInfo, ObjectRange, Prefix, Store};

/// Faults in front of `inner`. The operations are `create`, `read` (for each range), `delete`, `settle`,
/// `prune` and `list`. For a read or a listing, a lost answer is an error like any other.
#[derive(Debug)]
pub struct FaultStore {
    inner: Arc<dyn Store>,
    layer: FaultLayer,
}

impl FaultStore {
    /// Wraps `inner`; `faults` and `cut` are the handles for the test.
    pub fn new(
        inner: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        faults: Faults<Kind>,
        cut: CutPoint,
    ) -> Self {
        Self { inner, layer: FaultLayer { clock, faults, cut } }
    }
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fault({})", self.inner)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Store for FaultStore {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        self.layer.write("create", key, self.inner.create(key, body)).await
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        let mut verdicts = Vec::with_capacity(wanted.len());
        let mut passed = Vec::with_capacity(wanted.len());
        for range in wanted {
            let verdict = self.layer.before_read("read", &range.key).await;
            if verdict.is_ok() {
                passed.push(range.clone());
            }
            verdicts.push(verdict);
        }
        let mut found = self.inner.read(&passed).await.into_iter();
        let missing = |range: &ObjectRange| Err(Error::new(Kind::Corrupt, "read", &range.key));
        let results = wanted.iter().zip(verdicts).map(|(range, verdict)| {
            verdict.and_then(|()| found.next().unwrap_or_else(|| missing(range)))
        });
        results.collect()
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.layer.write("delete", key, self.inner.delete(key)).await
    }

    async fn make_durable(&self, keys: &[Key]) -> Result<(), Error> {
        let what = format!("{} objects", keys.len());
        self.layer.write("settle", &what, self.inner.make_durable(keys)).await
    }

    async fn prune(&self, prefix: &Prefix) -> Result<(), Error> {
        self.layer.write("prune", prefix, self.inner.prune(prefix)).await
    }

    fn invalidate(&self, key: &Key) {
        self.inner.invalidate(key);
    }

    fn will_read(&self, key: &Key) {
        self.inner.will_read(key);
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>> {
        let prefix = prefix.clone();
        let listing = async move {
            match self.layer.before_read("list", &prefix).await {
                Ok(()) => self.inner.list(&prefix),
                Err(error) => stream::iter([Err(error)]).boxed(),
            }
        };
        stream::once(listing).flatten().boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use dl_runtime::fault::Fault;
    use dl_runtime::{ManualClock, SeededRandom};

    use super::*;
    use crate::{StoreExt, memory};

    struct Rig {
        inner: Arc<dyn Store>,
        clock: Arc<ManualClock>,
        faults: Faults<Kind>,
        cut: CutPoint,
        store: FaultStore,
        key: Key,
    }

    fn rig() -> Rig {
        let (inner, clock) = (memory(), Arc::new(ManualClock::jumping(UNIX_EPOCH)));
        let (faults, cut) = (Faults::new(Arc::new(SeededRandom::new(1))), CutPoint::new());
        let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let store = FaultStore::new(Arc::clone(&inner), time, faults.clone(), cut.clone());
        Rig { inner, clock, faults, cut, store, key: Key::new("a/b").unwrap() }
    }

    #[tokio::test]
    async fn a_lost_answer_leaves_the_object_and_a_fault_before_does_not() {
        let rig = rig();
        rig.faults.script(
            "create",
            [Some(Fault::Before(Kind::Full)), Some(Fault::AnswerLost(Kind::Unavailable))],
        );
        let refused = rig.store.create(&rig.key, "1".into()).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Full);
        assert_eq!(rig.inner.read_all(&rig.key).await.unwrap_err().kind, Kind::Missing);
        let lost = rig.store.create(&rig.key, "2".into()).await.unwrap_err();
        assert_eq!(lost.kind, Kind::Unavailable);
        assert_eq!(rig.inner.read_all(&rig.key).await.unwrap(), "2");
    }

    #[tokio::test]
    async fn one_faulty_range_fails_no_other() {
        let rig = rig();
        rig.inner.create(&rig.key, "1".into()).await.unwrap();
        rig.faults.script("read", [None, Some(Fault::Before(Kind::Unavailable)), None]);
        let range = ObjectRange { key: rig.key.clone(), range: crate::ByteRange::WHOLE };
        let results = rig.store.read(&[range.clone(), range.clone(), range]).await;
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    }

    #[tokio::test]
    async fn a_delay_is_waited_by_the_clock_and_a_listing_can_fail() {
        let rig = rig();
        rig.faults.script("delete", [Some(Fault::Delay(Duration::from_secs(7)))]);
        rig.store.delete(&rig.key).await.unwrap();
        assert_eq!(rig.clock.monotonic(), Duration::from_secs(7));
        rig.faults.script("list", [Some(Fault::Before(Kind::Unavailable))]);
        rig.store.list_sorted(&Prefix::ROOT).await.unwrap_err();
        rig.store.list_sorted(&Prefix::ROOT).await.unwrap();
    }

    #[tokio::test]
    async fn all_calls_fail_after_the_cut() {
        for (point, done) in [(0, false), (1, true)] {
            let rig = rig();
            rig.cut.arm(point);
            rig.store.create(&rig.key, "1".into()).await.unwrap_err();
            assert_eq!(rig.inner.read_all(&rig.key).await.is_ok(), done);
            assert_eq!(rig.store.read_all(&rig.key).await.unwrap_err().kind, Kind::Unavailable);
            rig.store.list_sorted(&Prefix::ROOT).await.unwrap_err();
            rig.store.delete(&rig.key).await.unwrap_err();
            assert_eq!(rig.inner.read_all(&rig.key).await.is_ok(), done);
        }
    }
}

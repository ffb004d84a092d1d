//! A layer with faults for tests: errors, lost answers, delays, death of the process at a chosen write.
//!
//! Must hold: only the calls and the plan in the handles decide. Without a plan, calls pass unchanged.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dl_format::{ChunkId, Committed, DatasetId, DatasetName, EntrySet, FilePath, Stamp, StoreId};
use dl_runtime::Clock;
use dl_runtime::fault::{CutPoint, FaultLayer, Faults};

use crate::{
    Appended, Damage, DatasetInfo, DatasetRecord, Datasets, Error, Found, Heartbeat, Integrity,
    Kind, ListEntry, ListQuery, MetaStore, ObjectRecord, Outline, Rebuild, Refusal, TaskGroup,
    TaskKey, TaskMembers, TaskTerms,
};

/// Faults in front of `inner`. Operations have the names of the methods. The writes are `bind`,
/// `put_dataset`, `drop_dataset`, `stamp`, `append`, `retire`, `begin_rebuild`, `end_rebuild`,
/// `rebuild_turn`, `join`, `leave` and `close`; for a read, a lost answer is an error like any other.
#[derive(Debug)]
pub struct FaultMeta {
    inner: Arc<dyn MetaStore>,
    layer: FaultLayer,
}

impl FaultMeta {
    /// Wraps `inner`; `faults` and `cut` are the handles for the test.
    pub fn new(
        inner: Arc<dyn MetaStore>,
        clock: Arc<dyn Clock>,
        faults: Faults<Kind>,
        cut: CutPoint,
    ) -> Self {
        Self { inner, layer: FaultLayer { clock, faults, cut } }
    }

    async fn read<T>(
        &self,
        operation: &'static str,
        what: impl fmt::Display + Send + Sync,
        read: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        self.layer.before_read(operation, what).await?;
        read.await
    }
}

impl fmt::Display for FaultMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fault({})", self.inner)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Datasets for FaultMeta {
    async fn put_dataset(&self, record: &DatasetRecord) -> Result<(), Error> {
        self.layer.write("put_dataset", &record.name, self.inner.put_dataset(record)).await
    }

    async fn record(&self, id: DatasetId) -> Result<Option<DatasetRecord>, Error> {
        self.read("record", id, self.inner.record(id)).await
    }

    async fn record_named(&self, name: &DatasetName) -> Result<Option<DatasetRecord>, Error> {
        self.read("record_named", name, self.inner.record_named(name)).await
    }

    async fn records(&self) -> Result<Vec<DatasetRecord>, Error> {
        self.read("records", "metadata", self.inner.records()).await
    }

    async fn remnants(&self) -> Result<Vec<DatasetRecord>, Error> {
        self.read("remnants", "metadata", self.inner.remnants()).await
    }

    async fn drop_dataset(&self, name: &DatasetName, id: DatasetId) -> Result<(), Error> {
        self.layer.write("drop_dataset", id, self.inner.drop_dataset(name, id)).await
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Integrity for FaultMeta {
    async fn identity(&self) -> Result<Option<StoreId>, Error> {
        self.read("identity", "metadata", self.inner.identity()).await
    }

    async fn bind(&self, store: StoreId) -> Result<(), Error> {
        self.layer.write("bind", store, self.inner.bind(store)).await
    }

    async fn damage(&self) -> Result<Option<Damage>, Error> {
        self.read("damage", "metadata", self.inner.damage()).await
    }

    async fn refusal(&self) -> Result<Option<Refusal>, Error> {
        self.read("refusal", "metadata", self.inner.refusal()).await
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }

    async fn begin_rebuild(&self) -> Result<Rebuild, Error> {
        self.layer.write("begin_rebuild", "metadata", self.inner.begin_rebuild()).await
    }

    async fn end_rebuild(&self, rebuild: &Rebuild, store: StoreId) -> Result<(), Error> {
        self.layer.write("end_rebuild", "metadata", self.inner.end_rebuild(rebuild, store)).await
    }

    async fn rebuild_turn(&self, owner: u64, lasts: Duration) -> Result<bool, Error> {
        let turn = self.inner.rebuild_turn(owner, lasts);
        self.layer.write("rebuild_turn", "metadata", turn).await
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl TaskMembers for FaultMeta {
    async fn join(
        &self,
        beat: &Heartbeat,
        terms: Option<&TaskTerms>,
    ) -> Result<Option<TaskGroup>, Error> {
        self.layer.write("join", beat.task.task, self.inner.join(beat, terms)).await
    }

    async fn leave(&self, beat: &Heartbeat) -> Result<Option<TaskTerms>, Error> {
        self.layer.write("leave", beat.task.task, self.inner.leave(beat)).await
    }

    async fn group(
        &self,
        task: &TaskKey,
        now: Stamp,
        dead_after: Duration,
    ) -> Result<Option<TaskGroup>, Error> {
        self.read("group", task.task, self.inner.group(task, now, dead_after)).await
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl MetaStore for FaultMeta {
    async fn outline(&self, id: DatasetId) -> Result<Option<Outline>, Error> {
        self.read("outline", id, self.inner.outline(id)).await
    }

    async fn dataset(&self, id: DatasetId) -> Result<Option<DatasetInfo>, Error> {
        self.read("dataset", id, self.inner.dataset(id)).await
    }

    async fn stamp(&self, dataset: DatasetId, now: Stamp) -> Result<Stamp, Error> {
        self.layer.write("stamp", dataset, self.inner.stamp(dataset, now)).await
    }

    async fn append(&self, object: &Committed) -> Result<Appended, Error> {
        self.layer.write("append", object.header().id(), self.inner.append(object)).await
    }

    async fn retire(&self, dataset: DatasetId, ids: &[ChunkId]) -> Result<(), Error> {
        self.layer.write("retire", dataset, self.inner.retire(dataset, ids)).await
    }

    async fn objects(
        &self,
        dataset: DatasetId,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ObjectRecord>, Error> {
        self.read("objects", dataset, self.inner.objects(dataset, after, limit)).await
    }

    async fn log(&self, dataset: DatasetId) -> Result<Vec<ObjectRecord>, Error> {
        self.read("log", dataset, self.inner.log(dataset)).await
    }

    async fn deleted(
        &self,
        dataset: DatasetId,
        chunks: &[ChunkId],
    ) -> Result<Vec<EntrySet>, Error> {
        self.read("deleted", dataset, self.inner.deleted(dataset, chunks)).await
    }

    async fn lookup(&self, dataset: DatasetId, paths: &[FilePath]) -> Result<Vec<Found>, Error> {
        self.read("lookup", dataset, self.inner.lookup(dataset, paths)).await
    }

    async fn list(&self, dataset: DatasetId, query: &ListQuery) -> Result<Vec<ListEntry>, Error> {
        // A delayed listing counts as begun.
        query.steps.step();
        self.read("list", dataset, self.inner.list(dataset, query)).await
    }

    async fn close(&self) -> Result<(), Error> {
        self.layer.write("close", "metadata", self.inner.close()).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use dl_runtime::fault::Fault;
    use dl_runtime::{ManualClock, SeededRandom};

    use super::*;
    use crate::{Memory, conformance};

    type Parts = (Arc<dyn MetaStore>, Arc<ManualClock>, Faults<Kind>, CutPoint, FaultMeta);

    fn parts() -> Parts {
        let inner: Arc<dyn MetaStore> = Arc::new(Memory::new());
        let clock = Arc::new(ManualClock::jumping(UNIX_EPOCH));
        let (faults, cut) = (Faults::new(Arc::new(SeededRandom::new(1))), CutPoint::new());
        let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let store = FaultMeta::new(Arc::clone(&inner), time, faults.clone(), cut.clone());
        (inner, clock, faults, cut, store)
    }

    const FIRST: StoreId = StoreId::from_bytes([1; 16]);

    #[tokio::test(flavor = "multi_thread")]
    async fn without_a_plan_it_keeps_the_contract() {
        conformance::run(async || {
            let store: Arc<dyn MetaStore> = Arc::new(parts().4);
            store
        })
        .await;
    }

    #[tokio::test]
    async fn faults_leave_no_trace_lost_answers_are_done_delays_wait() {
        let (inner, clock, faults, _, store) = parts();
        let (before, lost) = (Fault::Before(Kind::Full), Fault::AnswerLost(Kind::Unavailable));
        let delay = Fault::Delay(Duration::from_secs(7));
        faults.script("bind", [before, lost, delay].map(Some));
        faults.script("records", [Some(before)]);
        assert_eq!(store.bind(FIRST).await.unwrap_err().kind, Kind::Full);
        assert_eq!(inner.identity().await.unwrap(), None);
        assert_eq!(store.bind(FIRST).await.unwrap_err().kind, Kind::Unavailable);
        assert_eq!(inner.identity().await.unwrap(), Some(FIRST));
        store.bind(FIRST).await.unwrap();
        assert_eq!(clock.monotonic(), Duration::from_secs(7));
        store.records().await.unwrap_err();
        store.records().await.unwrap();
    }

    #[tokio::test]
    async fn after_the_cut_nothing_is_written() {
        for (point, done) in [(0, None), (1, Some(FIRST))] {
            let (inner, _, _, cut, store) = parts();
            cut.arm(point);
            store.bind(FIRST).await.unwrap_err();
            store.identity().await.unwrap_err();
            store.close().await.unwrap_err();
            assert_eq!(inner.identity().await.unwrap(), done);
        }
    }
}

//! A layer that measures calls of the metadata store.
//!
//! Must hold: calls and answers pass unchanged; missing and conflicting objects are answers, not failures.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dl_format::{ChunkId, Committed, DatasetId, DatasetName, EntrySet, FilePath, Stamp, StoreId};
use dl_meta::{
    Appended, Damage, DatasetInfo, DatasetRecord, Datasets, Error, Found, Heartbeat, Integrity,
    Kind, ListEntry, ListQuery, MetaStore, ObjectRecord, Outline, Rebuild, Refusal, TaskGroup,
    TaskKey, TaskMembers, TaskTerms,
};
use dl_runtime::Clock;

use super::histogram::{Operation, timed};

/// The operations of a [`MeteredMeta`], by name.
#[derive(Debug, Default)]
pub(crate) struct MetaMetrics {
    /// Lookups of paths, and of deleted entries.
    pub(crate) lookup: Arc<Operation>,
    /// Pages of folders.
    pub(crate) list: Arc<Operation>,
    /// Stamps given.
    pub(crate) stamp: Arc<Operation>,
    /// Objects that join a log.
    pub(crate) append: Arc<Operation>,
    /// Reads of a log, in pages or whole.
    pub(crate) objects: Arc<Operation>,
    /// Reads of datasets and their sums.
    pub(crate) dataset: Arc<Operation>,
    /// Changes of datasets and of the store itself.
    pub(crate) change: Arc<Operation>,
    /// Heartbeats of training jobs.
    pub(crate) task: Arc<Operation>,
    /// Reads of the store's identity, damage and refusals.
    pub(crate) state: Arc<Operation>,
}

impl MetaMetrics {
    /// All operations, by name.
    pub(crate) fn operations(&self) -> [(&'static str, &Operation); 9] {
        [
            ("lookup", &self.lookup),
            ("list", &self.list),
            ("stamp", &self.stamp),
            ("append", &self.append),
            ("objects", &self.objects),
            ("dataset", &self.dataset),
            ("change", &self.change),
            ("task", &self.task),
            ("state", &self.state),
        ]
    }
}

/// Measures the calls to `inner`.
#[derive(Debug)]
pub(crate) struct MeteredMeta {
    pub(crate) inner: Arc<dyn MetaStore>,
    pub(crate) metrics: Arc<MetaMetrics>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl MeteredMeta {
    async fn timed<T>(
        &self,
        operation: &Arc<Operation>,
        call: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let is_failure = |error: &Error| !matches!(error.kind, Kind::Missing | Kind::Conflict);
        timed(operation, &self.clock, call, is_failure).await
    }
}

impl fmt::Display for MeteredMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Datasets for MeteredMeta {
    async fn put_dataset(&self, record: &DatasetRecord) -> Result<(), Error> {
        self.timed(&self.metrics.change, self.inner.put_dataset(record)).await
    }

    async fn record(&self, id: DatasetId) -> Result<Option<DatasetRecord>, Error> {
        self.timed(&self.metrics.dataset, self.inner.record(id)).await
    }

    async fn record_named(&self, name: &DatasetName) -> Result<Option<DatasetRecord>, Error> {
        self.timed(&self.metrics.dataset, self.inner.record_named(name)).await
    }

    async fn records(&self) -> Result<Vec<DatasetRecord>, Error> {
        self.timed(&self.metrics.dataset, self.inner.records()).await
    }

    async fn remnants(&self) -> Result<Vec<DatasetRecord>, Error> {
        self.timed(&self.metrics.dataset, self.inner.remnants()).await
    }

    async fn drop_dataset(&self, name: &DatasetName, id: DatasetId) -> Result<(), Error> {
        self.timed(&self.metrics.change, self.inner.drop_dataset(name, id)).await
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Integrity for MeteredMeta {
    async fn identity(&self) -> Result<Option<StoreId>, Error> {
        self.timed(&self.metrics.state, self.inner.identity()).await
    }

    async fn bind(&self, store: StoreId) -> Result<(), Error> {
        self.timed(&self.metrics.change, self.inner.bind(store)).await
    }

    async fn damage(&self) -> Result<Option<Damage>, Error> {
        self.timed(&self.metrics.state, self.inner.damage()).await
    }

    async fn refusal(&self) -> Result<Option<Refusal>, Error> {
        self.timed(&self.metrics.state, self.inner.refusal()).await
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }

    async fn begin_rebuild(&self) -> Result<Rebuild, Error> {
        self.timed(&self.metrics.change, self.inner.begin_rebuild()).await
    }

    async fn end_rebuild(&self, rebuild: &Rebuild, store: StoreId) -> Result<(), Error> {
        self.timed(&self.metrics.change, self.inner.end_rebuild(rebuild, store)).await
    }

    async fn rebuild_turn(&self, owner: u64, lasts: Duration) -> Result<bool, Error> {
        self.timed(&self.metrics.change, self.inner.rebuild_turn(owner, lasts)).await
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl TaskMembers for MeteredMeta {
    async fn join(
        &self,
        beat: &Heartbeat,
        terms: Option<&TaskTerms>,
    ) -> Result<Option<TaskGroup>, Error> {
        self.timed(&self.metrics.task, self.inner.join(beat, terms)).await
    }

    async fn leave(&self, beat: &Heartbeat) -> Result<Option<TaskTerms>, Error> {
        self.timed(&self.metrics.task, self.inner.leave(beat)).await
    }

    async fn group(
        &self,
        task: &TaskKey,
        now: Stamp,
        dead_after: Duration,
    ) -> Result<Option<TaskGroup>, Error> {
        self.timed(&self.metrics.task, self.inner.group(task, now, dead_after)).await
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl MetaStore for MeteredMeta {
    async fn outline(&self, id: DatasetId) -> Result<Option<Outline>, Error> {
        self.timed(&self.metrics.dataset, self.inner.outline(id)).await
    }

    async fn dataset(&self, id: DatasetId) -> Result<Option<DatasetInfo>, Error> {
        self.timed(&self.metrics.dataset, self.inner.dataset(id)).await
    }

    async fn stamp(&self, dataset: DatasetId, now: Stamp) -> Result<Stamp, Error> {
        self.timed(&self.metrics.stamp, self.inner.stamp(dataset, now)).await
    }

    async fn append(&self, object: &Committed) -> Result<Appended, Error> {
        self.timed(&self.metrics.append, self.inner.append(object)).await
    }

    async fn objects(
        &self,
        dataset: DatasetId,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ObjectRecord>, Error> {
        self.timed(&self.metrics.objects, self.inner.objects(dataset, after, limit)).await
    }

    async fn log(&self, dataset: DatasetId) -> Result<Vec<ObjectRecord>, Error> {
        self.timed(&self.metrics.objects, self.inner.log(dataset)).await
    }

    async fn deleted(
        &self,
        dataset: DatasetId,
        chunks: &[ChunkId],
    ) -> Result<Vec<EntrySet>, Error> {
        self.timed(&self.metrics.lookup, self.inner.deleted(dataset, chunks)).await
    }

    async fn lookup(&self, dataset: DatasetId, paths: &[FilePath]) -> Result<Vec<Found>, Error> {
        self.timed(&self.metrics.lookup, self.inner.lookup(dataset, paths)).await
    }

    async fn list(&self, dataset: DatasetId, query: &ListQuery) -> Result<Vec<ListEntry>, Error> {
        self.timed(&self.metrics.list, self.inner.list(dataset, query)).await
    }

    async fn retire(&self, dataset: DatasetId, ids: &[ChunkId]) -> Result<(), Error> {
        self.timed(&self.metrics.change, self.inner.retire(dataset, ids)).await
    }

    async fn close(&self) -> Result<(), Error> {
        self.timed(&self.metrics.change, self.inner.close()).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::UNIX_EPOCH;

    use dl_meta::{Memory, conformance};
    use dl_runtime::ManualClock;

    use super::*;

    fn metered() -> MeteredMeta {
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        MeteredMeta { inner: Arc::new(Memory::new()), metrics: Arc::default(), clock }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn measured_metadata_keeps_the_contract() {
        conformance::run(async || {
            let store: Arc<dyn MetaStore> = Arc::new(metered());
            store
        })
        .await;
    }

    #[tokio::test]
    async fn calls_are_counted_and_an_unknown_dataset_is_no_failure() {
        let meta = metered();
        let id = DatasetId::from_bytes([1; 16]);
        meta.identity().await.unwrap();
        meta.stamp(id, Stamp::new(1)).await.unwrap_err();
        let counted = meta.metrics.operations().map(|(_, operation)| operation.took.read().1);
        assert_eq!(counted, [0, 0, 1, 0, 0, 0, 0, 0, 1]);
        let failed = |(_, operation): (_, &Operation)| operation.failed.load(Ordering::Relaxed);
        assert_eq!(meta.metrics.operations().map(failed), [0; 9]);
    }
}

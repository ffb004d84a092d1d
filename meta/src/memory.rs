//! Metadata in memory: a short implementation of the contract. Lost with the last handle.
//!
//! Must hold: each call holds the lock from its first look to its last change, so every step is atomic.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use dl_format::{
    ChunkId, Committed, DatasetId, DatasetName, EntrySet, FilePath, Fold, Stamp, StoreId, Version,
};
use dl_runtime::locked;

use crate::tasks::Tasks;
use crate::types::{bound_elsewhere, deleted_entries, still_in_use};
use crate::walk::{self, Visit, Winners};
use crate::{
    Appended, DatasetInfo, DatasetRecord, Datasets, Error, Found, Heartbeat, Integrity, Kind,
    ListEntry, ListQuery, MetaStore, ObjectRecord, Outline, TaskGroup, TaskKey, TaskMembers,
    TaskTerms,
};

/// A metadata store in memory. Appends survive as long as the store.
#[derive(Debug, Default)]
pub struct Memory {
    state: Mutex<State>,
    tasks: Tasks,
}

#[derive(Debug, Default)]
struct State {
    identity: Option<StoreId>,
    datasets: HashMap<DatasetId, Dataset>,
    names: BTreeMap<DatasetName, DatasetId>,
}

#[derive(Debug)]
struct Dataset {
    record: DatasetRecord,
    objects: BTreeMap<ChunkId, ObjectRecord>,
    fold: Fold,
    last: Stamp,
    version: Version,
    /// Files and bytes, until the log changes.
    counted: Option<(u64, u64)>,
}

impl Memory {
    /// An empty store, bound to nothing.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl State {
    fn dataset(&mut self, id: DatasetId, action: &'static str) -> Result<&mut Dataset, Error> {
        self.datasets.get_mut(&id).ok_or_else(|| Error::new(Kind::Missing, action, id))
    }

    fn forget(&mut self, id: DatasetId) {
        if let Some(dataset) = self.datasets.remove(&id) {
            self.names.remove(&dataset.record.name);
        }
    }
}

impl Dataset {
    /// Computes the version again from all objects of the log.
    fn recount(&mut self) {
        self.version = Version::default();
        self.objects.values().for_each(|object| self.version.add(object.id, object.stamp));
    }

    fn info(&mut self) -> DatasetInfo {
        let fold = &self.fold;
        let (files, bytes) = *self.counted.get_or_insert_with(|| {
            fold.winners().filter(|(_, _, deleted)| !deleted).fold(
                (0, 0),
                |(files, bytes): (u64, u64), (_, record, _)| {
                    (files.saturating_add(1), bytes.saturating_add(record.length))
                },
            )
        });
        DatasetInfo {
            record: self.record.clone(),
            files,
            bytes,
            objects: self.objects.len() as u64,
            version: self.version,
            is_settled: true,
        }
    }
}

impl Winners for Fold {
    fn scan(&self, start: Bound<&[u8]>, visit: &mut Visit<'_>) -> Result<(), Error> {
        for (path, record, deleted) in self.winners_from(start) {
            if let ControlFlow::Break(()) = visit(path.as_bytes(), &|| Ok((*record, deleted)))? {
                break;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory:")
    }
}

#[async_trait]
impl Datasets for Memory {
    async fn put_dataset(&self, record: &DatasetRecord) -> Result<(), Error> {
        let mut state = self.state();
        let named = state.names.get(&record.name).and_then(|id| state.datasets.get(id));
        let known = state.datasets.get(&record.id);
        let replaced =
            record.check_put(named.map(|named| &named.record), known.map(|known| &known.record))?;
        if let Some(replaced) = replaced {
            state.forget(replaced);
        }
        state.names.insert(record.name.clone(), record.id);
        let dataset = state.datasets.entry(record.id).or_insert_with(|| Dataset {
            record: record.clone(),
            objects: BTreeMap::new(),
            fold: Fold::default(),
            last: Stamp::default(),
            version: Version::default(),
            counted: None,
        });
        dataset.record = record.clone();
        Ok(())
    }

    async fn record(&self, id: DatasetId) -> Result<Option<DatasetRecord>, Error> {
        Ok(self.state().datasets.get(&id).map(|dataset| dataset.record.clone()))
    }

    async fn record_named(&self, name: &DatasetName) -> Result<Option<DatasetRecord>, Error> {
        let state = self.state();
        let dataset = state.names.get(name).and_then(|id| state.datasets.get(id));
        Ok(dataset.map(|dataset| dataset.record.clone()))
    }

    async fn records(&self) -> Result<Vec<DatasetRecord>, Error> {
        let mut records: Vec<_> =
            self.state().datasets.values().map(|dataset| dataset.record.clone()).collect();
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(records)
    }

    async fn drop_dataset(&self, _: &DatasetName, id: DatasetId) -> Result<(), Error> {
        self.state().forget(id);
        Ok(())
    }
}

#[async_trait]
impl Integrity for Memory {
    async fn identity(&self) -> Result<Option<StoreId>, Error> {
        Ok(self.state().identity)
    }

    async fn bind(&self, store: StoreId) -> Result<(), Error> {
        let bound = *self.state().identity.get_or_insert(store);
        if bound == store { Ok(()) } else { Err(bound_elsewhere(store, bound)) }
    }
}

#[async_trait]
impl TaskMembers for Memory {
    async fn join(
        &self,
        beat: &Heartbeat,
        terms: Option<&TaskTerms>,
    ) -> Result<Option<TaskGroup>, Error> {
        self.tasks.join(beat, terms)
    }

    async fn leave(&self, beat: &Heartbeat) -> Result<Option<TaskTerms>, Error> {
        Ok(self.tasks.leave(beat))
    }

    async fn group(
        &self,
        task: &TaskKey,
        now: Stamp,
        dead_after: Duration,
    ) -> Result<Option<TaskGroup>, Error> {
        Ok(self.tasks.group(task, now, dead_after))
    }
}

#[async_trait]
impl MetaStore for Memory {
    async fn outline(&self, id: DatasetId) -> Result<Option<Outline>, Error> {
        Ok(self.state().datasets.get(&id).map(|dataset| Outline {
            record: dataset.record.clone(),
            objects: dataset.objects.len() as u64,
            version: dataset.version,
        }))
    }

    async fn dataset(&self, id: DatasetId) -> Result<Option<DatasetInfo>, Error> {
        Ok(self.state().datasets.get_mut(&id).map(Dataset::info))
    }

    async fn stamp(&self, dataset: DatasetId, now: Stamp) -> Result<Stamp, Error> {
        let mut state = self.state();
        let dataset = state.dataset(dataset, "take a stamp of dataset")?;
        dataset.last = dataset.last.next(now);
        Ok(dataset.last)
    }

    async fn append(&self, object: &Committed) -> Result<Appended, Error> {
        let mut state = self.state();
        let dataset = state.dataset(object.header().dataset(), "append to dataset")?;
        let record = ObjectRecord::of(object);
        let known = dataset.objects.insert(record.id, record);
        dataset.fold.add(object);
        dataset.last = dataset.last.max(record.stamp);
        dataset.counted = None;
        match known {
            None => {
                dataset.version.add(record.id, record.stamp);
                Ok(Appended::New)
            }
            Some(known) if known == record => Ok(Appended::Known),
            Some(_) => {
                dataset.recount();
                Ok(Appended::Restamped)
            }
        }
    }

    async fn retire(&self, dataset: DatasetId, ids: &[ChunkId]) -> Result<(), Error> {
        let mut state = self.state();
        let known = state.dataset(dataset, "retire objects of dataset")?;
        let retired: HashSet<ChunkId> = ids.iter().copied().collect();
        if !known.fold.retire(&retired) {
            return Err(still_in_use(dataset));
        }
        known.objects.retain(|id, _| !retired.contains(id));
        known.recount();
        known.counted = None;
        Ok(())
    }

    async fn objects(
        &self,
        dataset: DatasetId,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ObjectRecord>, Error> {
        let mut state = self.state();
        let dataset = state.dataset(dataset, "list objects of dataset")?;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page = dataset.objects.range((start, Bound::Unbounded)).take(limit);
        let fold = &dataset.fold;
        Ok(page
            .map(|(id, record)| ObjectRecord {
                deleted_entries: deleted_entries(fold.deleted_of(*id), record.entry_count),
                ..*record
            })
            .collect())
    }

    async fn log(&self, dataset: DatasetId) -> Result<Vec<ObjectRecord>, Error> {
        let mut state = self.state();
        let dataset = state.dataset(dataset, "read the log of dataset")?;
        Ok(dataset.objects.values().copied().collect())
    }

    async fn deleted(
        &self,
        dataset: DatasetId,
        chunks: &[ChunkId],
    ) -> Result<Vec<EntrySet>, Error> {
        let mut state = self.state();
        let fold = &state.dataset(dataset, "look up deleted entries of dataset")?.fold;
        let deleted = chunks.iter().map(|chunk| fold.deleted_of(*chunk).cloned());
        Ok(deleted.map(Option::unwrap_or_default).collect())
    }

    async fn lookup(&self, dataset: DatasetId, paths: &[FilePath]) -> Result<Vec<Found>, Error> {
        let mut state = self.state();
        let fold = &state.dataset(dataset, "look up paths of dataset")?.fold;
        paths.iter().map(|path| walk::find(fold, path)).collect()
    }

    async fn list(&self, dataset: DatasetId, query: &ListQuery) -> Result<Vec<ListEntry>, Error> {
        let mut state = self.state();
        walk::list(&state.dataset(dataset, "list dataset")?.fold, query)
    }

    async fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::conformance;

    #[tokio::test(flavor = "multi_thread")]
    async fn it_keeps_the_contract() {
        conformance::run(async || {
            let store: Arc<dyn MetaStore> = Arc::new(Memory::new());
            store
        })
        .await;
    }
}

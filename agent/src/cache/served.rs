//! What the cache knows of the open datasets: the table of each, and the owners of its chunks.
//!
//! Must hold: a dataset has the same number here and among the open datasets.

use std::sync::Arc;

use dl_node::Table;

use crate::place::{ChunkKey, OwnerTable};

/// A dataset in the cache.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) table: Arc<Table>,
    /// Chunks and parts of large files.
    pub(crate) chunks: u32,
    owners: Arc<OwnerTable>,
    /// The chunks that other agents were told this agent can keep.
    capacity: Option<u32>,
}

/// All datasets, by number.
#[derive(Debug, Default)]
pub(crate) struct ServedDatasets(Vec<Option<Served>>);

impl ServedDatasets {
    /// Adds a dataset whose chunks this agent owns; gives its number.
    pub(crate) fn push(&mut self, table: Arc<Table>) -> usize {
        let chunks = table.chunks();
        self.0.push(Some(Served { table, chunks, owners: Arc::default(), capacity: None }));
        self.0.len() - 1
    }

    pub(crate) fn remove(&mut self, dataset: usize) {
        self.0.get_mut(dataset).into_iter().for_each(|served| *served = None);
    }

    pub(crate) fn get(&self, dataset: usize) -> Option<&Served> {
        self.0.get(dataset)?.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Served> {
        self.0.iter().flatten()
    }

    /// The number of chunks and parts of a dataset.
    pub(crate) fn chunks(&self, dataset: usize) -> u32 {
        self.get(dataset).map_or(0, |served| served.chunks)
    }

    pub(crate) fn has(&self, key: ChunkKey) -> bool {
        key.chunk < self.chunks(key.dataset)
    }

    /// Sets the owners of a dataset's chunks; returns whether this agent owns further chunks.
    pub(crate) fn set_owners(&mut self, dataset: usize, owners: Arc<OwnerTable>) -> bool {
        let Some(served) = self.0.get_mut(dataset).and_then(Option::as_mut) else { return false };
        let before = std::mem::replace(&mut served.owners, owners);
        (0..served.chunks).any(|chunk| served.owners.owns(chunk) && !before.owns(chunk))
    }

    /// The chunks that this agent can keep, for other agents, rounded down by up to a sixteenth: less
    /// is told at once, more only by an eighth.
    pub(crate) fn tell_capacity(&mut self, dataset: usize, now: u32) -> Option<u32> {
        let served = self.0.get_mut(dataset)?.as_mut()?;
        let now = now - now % (now / 16).max(1);
        let told = served.capacity.filter(|told| *told <= now && now - told <= (told / 8).max(2));
        served.capacity = Some(told.unwrap_or(now));
        served.capacity
    }

    /// Whether this agent owns a chunk.
    pub(crate) fn owns(&self, key: ChunkKey) -> bool {
        self.get(key.dataset).is_some_and(|served| served.owners.owns(key.chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_room_is_told_at_once_and_more_by_an_eighth() {
        let mut datasets = ServedDatasets::default();
        let dataset = datasets.push(Arc::new(Table::create(3).unwrap().0));
        let told: Vec<_> = [80, 90, 95, 83, 90, 3, 5, 6]
            .into_iter()
            .map(|now| datasets.tell_capacity(dataset, now).unwrap())
            .collect();
        assert_eq!(told, [80, 80, 95, 80, 80, 3, 3, 6]);
        assert_eq!(datasets.tell_capacity(9, 1), None);
    }

    #[test]
    fn chunks_belong_to_open_datasets_and_their_owners() {
        let mut datasets = ServedDatasets::default();
        let dataset = datasets.push(Arc::new(Table::create(3).unwrap().0));
        let key = |chunk| ChunkKey { dataset, chunk };
        assert!(datasets.has(key(2)) && !datasets.has(key(3)) && datasets.owns(key(2)));
        datasets.remove(dataset);
        assert!(!datasets.has(key(2)) && !datasets.owns(key(2)));
    }
}

//! Local disks as the tiers of the cache behind memory (MONARCH, 3; HDF5 Cache VOL, 3).
//!
//! Must hold: no byte of a disk reaches a reader unchecked. A disk costs time at most: without it, the
//! chunk comes from the next source.

mod clean;
mod copy;
mod folder;
mod health;
mod network;
mod tier;

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dl_format::{ChunkId, DatasetId};
use dl_runtime::{Clock, locked};
use serde::{Deserialize, Serialize};

pub use clean::{DiskDataset, DiskFate, clean_disk};
pub(crate) use copy::{BLOCK, CopyFile, CopyName, blocks};
use folder::InUse;
use tier::Tier;
pub(crate) use tier::{Read, Unread};

use crate::pins::PinnedFiles;
use crate::place::{Eviction, WriteEnd};

/// A folder for copies of chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// The folder.
    pub path: PathBuf,
    /// Most bytes of all copies of this user there.
    pub quota: u64,
}

/// A local disk in the report of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStatus {
    /// The folder.
    pub path: String,
    /// Most bytes of copies.
    pub quota_bytes: u64,
    /// Bytes of the copies of all agents of the user, as last seen; none before the first answer of the
    /// disk.
    pub used_bytes: Option<u64>,
    /// Chunks read.
    pub chunks_read: u64,
    /// Bytes of `chunks_read`, and of files read without their chunks.
    pub bytes_read: u64,
    /// Chunks written.
    pub chunks_written: u64,
    /// Bytes of `chunks_written`.
    pub bytes_written: u64,
    /// Copies with wrong bytes, which were removed.
    pub damaged: u64,
    /// Calls that failed or hung.
    pub failed: u64,
    /// Median duration of the last reads of a chunk, in microseconds.
    pub read_micros: Option<u64>,
    /// Whether the page cache is used, because the file system has no other access.
    pub is_buffered: bool,
    /// The kind of the network file system, if the folder is on one.
    pub network: Option<String>,
    /// `ready`, `full` (nothing is written), `resting` (nothing is read or written) or `slow` (other
    /// agents are asked first).
    pub state: String,
    /// What makes the disk `slow`, or the last failure with its age.
    pub reason: Option<String>,
}

/// The disks of an agent.
#[derive(Debug)]
pub(crate) struct Disks {
    tiers: Vec<Tier>,
    shelves: Mutex<HashMap<DatasetId, Shelf>>,
}

/// The copies of a dataset.
#[derive(Debug, Default)]
struct Shelf {
    /// Whether the dataset was not open at the last look.
    is_unused: bool,
    /// For each tier in use.
    places: HashMap<usize, Place>,
}

/// The copies of a dataset in a tier.
#[derive(Debug)]
struct Place {
    of: Arc<InUse>,
    /// The time of the folder at the last list.
    listed: Option<(i64, i64)>,
    copies: HashMap<ChunkId, Vec<Range<u32>>>,
}

impl Place {
    fn new(of: Arc<InUse>, listed: Option<(i64, i64)>, names: Vec<CopyName>) -> Self {
        let mut copies: HashMap<ChunkId, Vec<Range<u32>>> = HashMap::new();
        for name in names {
            copies.entry(name.chunk).or_default().push(name.range);
        }
        Self { of, listed, copies }
    }
}

/// A copy of a chunk, and where it is.
#[derive(Debug, Clone)]
pub(crate) struct DiskCopy {
    tier: usize,
    of: Arc<InUse>,
    name: CopyName,
}

impl Disks {
    pub(crate) fn new(
        configs: Vec<DiskConfig>,
        eviction: Eviction,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        let tier = |config| Tier::new(config, eviction, Arc::clone(clock));
        Self { tiers: configs.into_iter().map(tier).collect(), shelves: Mutex::default() }
    }

    /// Whether there is no disk.
    pub(crate) fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }

    fn shelves(&self) -> MutexGuard<'_, HashMap<DatasetId, Shelf>> {
        locked(&self.shelves)
    }

    /// Lists the copies of a dataset, as far as its folders have changed.
    pub(crate) async fn list(&self, dataset: DatasetId, label: &str) {
        for (number, tier) in self.tiers.iter().enumerate() {
            let known = {
                let mut shelves = self.shelves();
                let place = shelves.entry(dataset).or_default().places.get(&number);
                place.map(|place| (Arc::clone(&place.of), place.listed))
            };
            let place = match known {
                None => {
                    tier.enter(dataset, label).await.map(|(of, names)| Place::new(of, None, names))
                }
                Some((of, listed)) => {
                    let listed = tier.list(&of, listed).await;
                    listed.map(|(at, names)| Place::new(of, Some(at), names))
                }
            };
            if let Some(place) = place
                && let Some(shelf) = self.shelves().get_mut(&dataset)
            {
                shelf.places.insert(number, place);
            }
        }
    }

    /// Whether a disk has a copy of a chunk; none before the first list of the dataset.
    pub(crate) fn listed(&self, dataset: DatasetId) -> Option<impl Fn(ChunkId) -> bool + use<>> {
        let shelves = self.shelves();
        let shelf = shelves.get(&dataset).filter(|shelf| !shelf.places.is_empty())?;
        let ids = shelf.places.values().flat_map(|place| place.copies.keys().copied());
        let ids: HashSet<ChunkId> = ids.collect();
        Some(move |id| ids.contains(&id))
    }

    fn rests(&self, tier: usize) -> bool {
        self.tiers.get(tier).is_none_or(Tier::is_resting)
    }

    /// Ends the use of datasets that are not open at two calls: one may be about to be opened.
    pub(crate) fn retain(&self, is_open: impl Fn(DatasetId) -> bool) {
        self.shelves().retain(|dataset, shelf| {
            let was_unused = std::mem::replace(&mut shelf.is_unused, !is_open(*dataset));
            !(was_unused && shelf.is_unused)
        });
    }

    /// Makes room for a chunk on disks whose quota is used up.
    pub(crate) async fn make_room(&self, bytes: u64) {
        for tier in &self.tiers {
            tier.make_room_for(bytes).await;
        }
    }

    /// A copy of a part of a chunk, on a disk that gives answers.
    pub(crate) fn find(
        &self,
        dataset: DatasetId,
        chunk: ChunkId,
        span: &Range<u32>,
    ) -> Option<DiskCopy> {
        let shelves = self.shelves();
        let places = &shelves.get(&dataset)?.places;
        (0..self.tiers.len()).find_map(|tier| {
            let place = places.get(&tier).filter(|_| !self.rests(tier))?;
            let covers = |range: &&Range<u32>| range.start <= span.start && range.end >= span.end;
            let range = place.copies.get(&chunk)?.iter().find(covers)?.clone();
            Some(DiskCopy { tier, of: Arc::clone(&place.of), name: CopyName { chunk, range } })
        })
    }

    /// The folder of a copy.
    pub(crate) fn folder_of(&self, copy: &DiskCopy) -> String {
        let tier = self.tiers.get(copy.tier);
        tier.map(|tier| tier.path().display().to_string()).unwrap_or_default()
    }

    /// Does `work` with the file of a copy, on a thread that may block. The work goes on without the
    /// caller if the disk hangs.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        copy: &DiskCopy,
        what: Read,
        work: impl FnOnce(&CopyFile) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Unread> {
        let tier = self.tiers.get(copy.tier).ok_or(Unread::Gone)?;
        tier.read(&copy.of, &copy.name, what, work).await
    }

    /// Forgets a copy with wrong bytes, which is removed before it is written again.
    pub(crate) fn mark_damaged(&self, dataset: DatasetId, copy: &DiskCopy) {
        self.forget(dataset, copy);
        self.tiers.get(copy.tier).into_iter().for_each(|tier| tier.mark_damaged(&copy.name));
    }

    /// Removes a copy with wrong bytes.
    pub(crate) async fn remove_damaged(&self, copy: &DiskCopy) {
        if let Some(tier) = self.tiers.get(copy.tier) {
            tier.remove_damaged(&copy.of, &copy.name).await;
        }
    }

    /// Removes the copies of a chunk.
    pub(crate) async fn remove(&self, dataset: DatasetId, chunk: ChunkId) {
        for (number, tier) in self.tiers.iter().enumerate() {
            let copies = {
                let mut shelves = self.shelves();
                let place = shelves.get_mut(&dataset).and_then(|one| one.places.get_mut(&number));
                place.and_then(|place| Some((Arc::clone(&place.of), place.copies.remove(&chunk)?)))
            };
            let Some((of, ranges)) = copies else { continue };
            let names = ranges.into_iter().map(|range| CopyName { chunk, range }).collect();
            tier.remove(&of, names).await;
        }
    }

    /// Forgets a copy that is gone.
    pub(crate) fn forget(&self, dataset: DatasetId, copy: &DiskCopy) {
        let mut shelves = self.shelves();
        let place = shelves.get_mut(&dataset).and_then(|shelf| shelf.places.get_mut(&copy.tier));
        place.into_iter().for_each(|place| _ = place.copies.remove(&copy.name.chunk));
    }

    /// How many further copies of a size fit, as last known; none while no disk takes any.
    pub(crate) fn room_for(&self, bytes: u64) -> Option<u32> {
        let rooms = self.tiers.iter().filter_map(Tier::room);
        let chunks = rooms.map(|room| u32::try_from(room / bytes.max(1)).unwrap_or(u32::MAX));
        chunks.reduce(u32::saturating_add)
    }

    /// Whether a disk has room for bytes, as last known.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.tiers.iter().filter_map(Tier::room).any(|room| room >= bytes)
    }

    /// Writes a copy of a chunk into the first tier that takes it. No other copy leaves for an extra
    /// copy.
    pub(crate) async fn write(
        &self,
        dataset: DatasetId,
        name: CopyName,
        pinned: PinnedFiles,
        is_extra: bool,
    ) -> WriteEnd {
        let pinned = Arc::new(pinned);
        for (number, tier) in
            self.tiers.iter().enumerate().filter(|(_, tier)| tier.room().is_some())
        {
            let of = {
                let shelves = self.shelves();
                let place = shelves.get(&dataset).and_then(|shelf| shelf.places.get(&number));
                place.map(|place| Arc::clone(&place.of))
            };
            let Some(of) = of else { continue };
            let end = tier.write(&of, &name, Arc::clone(&pinned), is_extra).await;
            if end != WriteEnd::Failed {
                let mut shelves = self.shelves();
                let shelf = shelves.get_mut(&dataset);
                if let Some(place) = shelf.and_then(|shelf| shelf.places.get_mut(&number)) {
                    place.copies.entry(name.chunk).or_default().push(name.range);
                }
                return end;
            }
        }
        WriteEnd::Failed
    }

    /// Whether the disk of a copy takes longer for a chunk than the servers.
    pub(crate) fn is_slow(&self, copy: &DiskCopy, servers: Option<Duration>) -> bool {
        self.tiers.get(copy.tier).is_some_and(|tier| tier.is_slow(servers))
    }

    /// What is told of each disk. `servers`: how long reads of chunks from the servers take.
    pub(crate) fn status(&self, servers: Option<Duration>) -> Vec<TierStatus> {
        self.tiers.iter().map(|tier| tier.status(servers)).collect()
    }
}

#[cfg(test)]
mod tests;

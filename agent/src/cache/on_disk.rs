//! Chunks on local disks: reading them into slots, and writing them from slots.
//!
//! Must hold: a chunk is written after readers have it, and no reader waits for the write. A chunk
//! whose bytes are wrong on disk comes from the next source.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dl_format::{ChunkId, DatasetId};
use dl_runtime::spawn;
use libdiesel::Snapshot;

use super::{Cache, State};
use crate::dataset::Open;
use crate::disk::{CopyName, DiskCopy};
use crate::pins::PinnedFiles;
use crate::place::{ChunkBits, ChunkKey, Origin, Retention, Stage, WriteEnd};

/// Interval between two looks for copies of other agents.
const LIST_INTERVAL: Duration = Duration::from_secs(10);

/// Interval between two looks for chunks to write while nothing is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time limit for the first list of the copies of a dataset: reads wait for it.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);

/// Chunks counted at once, under the lock.
const COUNTED_AT_ONCE: u32 = 65_536;

/// Most extra copies that leave for one chunk.
const REPLACED_MAX: usize = 4;

/// Follows the copies on the disks, and copies kept chunks there while nothing is read.
pub(crate) async fn watch_disks(cache: Arc<Cache>) {
    if cache.disks.is_empty() {
        return;
    }
    let (mut next, mut counted) = (Duration::ZERO, None);
    loop {
        if cache.now() >= next {
            next = cache.now().saturating_add(LIST_INTERVAL);
            cache.list_disks().await;
        }
        cache.note_room();
        cache.count_if_idle(&mut counted);
        cache.state().queue_an_idle_chunk();
        let is_writing = cache.write_copies();
        tokio::select! {
            () = cache.disk_events.notified(), if is_writing => {}
            () = cache.clock.sleep(POLL_INTERVAL) => {}
        }
    }
}

impl Cache {
    async fn list_disks(&self) {
        let opens = self.state().opens.clone();
        let is_open = |id| opens.iter().any(|(_, open)| open.snapshot.dataset() == id);
        self.disks.retain(is_open);
        for (dataset, open) in opens.iter() {
            self.disks.list(open.snapshot.dataset(), &open.name).await;
            let copies = self.copies_of(&open.snapshot);
            let mut state = self.state();
            if let Some(copies) = copies.filter(|_| state.opens.get(dataset).is_some()) {
                state.disk.set(dataset, copies);
            }
        }
        self.note_missing();
        let slot = {
            let state = self.state();
            state.disk.needs_room().then(|| u64::from(state.slots.slot_bytes()))
        };
        if let Some(slot) = slot {
            self.disks.make_room(slot).await;
        }
        self.moved.notify_one();
    }

    /// The chunks of a new dataset that have copies on the disks, within a time limit.
    pub(crate) async fn first_copies(&self, snapshot: &Snapshot, name: &str) -> Option<ChunkBits> {
        tokio::select! {
            () = self.disks.list(snapshot.dataset(), name) => {}
            () = self.clock.sleep(FIRST_TIMEOUT) => {}
        }
        self.note_room();
        self.copies_of(snapshot)
    }

    /// The chunks of a dataset that have copies; none before the first list.
    fn copies_of(&self, snapshot: &Snapshot) -> Option<ChunkBits> {
        let is_there = self.disks.listed(snapshot.dataset())?;
        let mut chunks = ChunkBits::none(snapshot.holders());
        for chunk in 0..snapshot.holders() {
            if id_of(snapshot, chunk).is_some_and(&is_there) {
                chunks.add(chunk);
            }
        }
        Some(chunks)
    }

    /// Notes whether the disks take chunks.
    fn note_room(&self) {
        let slot = self.state().slots.slot_bytes().max(1);
        let room = self.disks.room_for(slot.into());
        self.state().disk.set_room(room);
    }

    /// Notes how many own chunks are neither on a disk nor kept in memory.
    fn note_missing(&self) {
        let (mut missing, opens) = (0_u32, self.state().opens.clone());
        for (dataset, open) in opens.iter() {
            let chunks = open.snapshot.holders();
            // Workers wait for the lock.
            for first in (0..chunks).step_by(COUNTED_AT_ONCE as usize) {
                let range = first..chunks.min(first.saturating_add(COUNTED_AT_ONCE));
                missing = missing.saturating_add(self.state().missing(dataset, range));
            }
        }
        self.note_room();
        self.state().disk.set_missing(missing);
    }

    /// Notes the missing chunks anew while nothing is read, after a change.
    fn count_if_idle(&self, counted: &mut Option<(u32, u32)>) {
        let generations = {
            let state = self.state();
            let generations = (state.residency.generation(), state.disk.generation());
            (!state.is_busy() && !state.disk.has_spare()).then_some(generations)
        };
        if generations.is_some() && generations != *counted {
            *counted = generations;
            self.note_missing();
        }
    }

    /// Queues a chunk that has just arrived to be written, unless memory keeps it.
    pub(crate) fn keep_on_disk(self: &Arc<Self>, key: ChunkKey, origin: Origin) {
        if self.disks.is_empty() {
            return;
        }
        let open = self.state().opens.get(key.dataset).map(Arc::clone);
        // Another agent keeps the chunk, and was too slow or busy.
        let is_elsewhere = open.is_some_and(|open| open.peers.holder(key.chunk).is_some());
        self.state().queue_for_disk(key, origin, is_elsewhere);
        self.write_copies();
    }

    /// Begins to write chunks that wait for it; true if a chunk is being written.
    pub(crate) fn write_copies(self: &Arc<Self>) -> bool {
        loop {
            let next = self.state().next_to_write();
            let Some((key, pinned)) = next else { break };
            self.write_copy(key, pinned);
        }
        self.state().disk.is_writing()
    }

    /// Forgets a copy that is gone, or `is_damaged`; a damaged copy is removed.
    pub(super) fn drop_copy(
        self: &Arc<Self>,
        dataset: DatasetId,
        key: ChunkKey,
        copy: &DiskCopy,
        is_damaged: bool,
    ) {
        {
            let mut state = self.state();
            state.disk.remove(key);
            state.backlog.is_absent_again(key);
        }
        if !is_damaged {
            self.disks.forget(dataset, copy);
            return;
        }
        self.disks.mark_damaged(dataset, copy);
        let (cache, copy) = (Arc::clone(self), copy.clone());
        spawn(async move { cache.disks.remove_damaged(&copy).await });
    }

    /// Removes extra copies until an own chunk fits.
    async fn replace_extra(&self, bytes: u64) {
        for _ in 0..REPLACED_MAX {
            let takes_none = self.disks.room_for(bytes).is_none();
            if takes_none || self.disks.has_room(bytes) {
                return;
            }
            let extra = self.state().take_extra();
            let Some((open, chunk)) = extra else { return };
            if let Some(id) = id_of(&open.snapshot, chunk) {
                self.disks.remove(open.snapshot.dataset(), id).await;
            }
        }
    }

    fn write_copy(self: &Arc<Self>, key: ChunkKey, pinned: PinnedFiles) {
        let cache = Arc::clone(self);
        spawn(async move {
            let (open, is_extra) = {
                let state = cache.state();
                (state.opens.get(key.dataset).map(Arc::clone), state.disk.is_extra(key))
            };
            let named = open.and_then(|open| {
                Some((open.snapshot.dataset(), copy_name(&open.snapshot, key.chunk, &pinned)?))
            });
            let end = match named {
                Some((dataset, name)) => {
                    if !is_extra {
                        cache.replace_extra(name.bytes()).await;
                    }
                    cache.disks.write(dataset, name, pinned, is_extra).await
                }
                None => WriteEnd::Failed,
            };
            cache.state().disk.end(key, end);
            cache.note_room();
            cache.write_copies();
            cache.moved.notify_one();
            if end != WriteEnd::Failed {
                cache.disk_events.notify_one();
            }
        });
    }
}

/// The object of a chunk, or of a part of a large file.
pub(super) fn id_of(snapshot: &Snapshot, chunk: u32) -> Option<ChunkId> {
    let id = match chunk < snapshot.chunks() {
        true => snapshot.chunk(chunk).map(|(id, ..)| id),
        false => snapshot.part(chunk).map(|(id, ..)| id),
    };
    id.ok()
}

/// The copy of a chunk in a slot.
fn copy_name(snapshot: &Snapshot, chunk: u32, pinned: &PinnedFiles) -> Option<CopyName> {
    let (start, bytes) = pinned.bytes().next()??;
    let end = start.checked_add(u32::try_from(bytes.len()).ok()?)?;
    Some(CopyName { chunk: id_of(snapshot, chunk)?, range: start..end })
}

impl State {
    /// Queues a chunk that memory does not keep: an own chunk, or a chunk that its owner had no room
    /// for.
    pub(super) fn queue_for_disk(&mut self, key: ChunkKey, origin: Origin, is_elsewhere: bool) {
        let is_of_servers = matches!(origin, Origin::Servers | Origin::ServersInstead);
        let is_mine = is_of_servers && !is_elsewhere || self.served.owns(key);
        let stage = self.residency.get(key).map(|held| held.stage);
        let passes =
            matches!(stage, Some(Stage::Full { retention, .. }) if retention != Retention::Kept);
        if !self.keeps || !passes {
            return;
        }
        match is_mine {
            true if self.disk.may_queue(key) => self.disk.queue(key),
            false if self.disk.may_queue_extra(key) => self.disk.queue_extra(key),
            _ => {}
        }
    }

    /// Queues own chunks in memory that no tier keeps, as far as the queue has room: chunks that memory
    /// keeps no longer, and chunks that left a full queue.
    pub(super) fn queue_passing(&mut self) {
        if !self.keeps || !self.disk.takes() {
            return;
        }
        let is_own = |key: &ChunkKey| self.served.owns(*key) && self.disk.may_queue(*key);
        let passing = self.residency.transient().filter(is_own);
        let passing: Vec<_> = passing.take(self.disk.room_in_queue()).collect();
        passing.into_iter().for_each(|key| self.disk.queue(key));
    }

    /// How many own chunks of a part of a dataset are neither on a disk nor kept in memory.
    fn missing(&self, dataset: usize, chunks: Range<u32>) -> u32 {
        let is_missing = |chunk: &u32| {
            let key = ChunkKey { dataset, chunk: *chunk };
            self.served.owns(key) && !self.disk.holds(key) && !self.residency.is_kept(key)
        };
        chunks.filter(is_missing).count() as u32
    }

    /// Whether chunks are needed now, or on their way to disks.
    fn is_busy(&self) -> bool {
        self.orders.are_read() || self.waiters.awaited().next().is_some() || self.disk.is_writing()
    }

    /// Queues the next chunk in memory without a copy, while nothing is read.
    pub(super) fn queue_an_idle_chunk(&mut self) {
        if self.is_busy() {
            return;
        }
        let is_new = |key: &ChunkKey| self.served.owns(*key) && self.disk.may_queue_extra(*key);
        let next = self.residency.staying().find(is_new);
        next.into_iter().for_each(|key| self.disk.queue_extra(key));
    }

    /// Takes an extra copy that makes room for an own chunk; with its dataset and its chunk.
    fn take_extra(&mut self) -> Option<(Arc<Open>, u32)> {
        let (served, residency, opens) = (&self.served, &self.residency, &self.opens);
        let of = |key: ChunkKey| opens.get(key.dataset).map(|open| open.snapshot.dataset());
        let is_needed = |key: ChunkKey| {
            let versions =
                opens.iter().filter(|(_, open)| of(key) == Some(open.snapshot.dataset()));
            served.owns(key) && !residency.is_kept(key) || versions.count() > 1
        };
        let key = self.disk.take_extra(is_needed)?;
        Some((Arc::clone(self.opens.get(key.dataset)?), key.chunk))
    }

    /// The next chunk to be written, pinned.
    pub(super) fn next_to_write(&mut self) -> Option<(ChunkKey, PinnedFiles)> {
        let residency = &self.residency;
        let is_there = |key| match residency.get(key).map(|held| held.stage) {
            Some(Stage::Filling(_)) => false,
            // A chunk that has left memory leaves the queue.
            Some(Stage::Full { .. }) | None => true,
        };
        loop {
            let key = self.disk.next(is_there)?;
            let pinned = self.residency.get(key).and_then(|held| match held.stage {
                Stage::Full { span, .. } if span.0 < span.1 => {
                    self.slots.pin_chunk(held.slot, span)
                }
                _ => None,
            });
            match pinned {
                Some(pinned) => return Some((key, pinned)),
                None => self.disk.end(key, WriteEnd::Failed),
            }
        }
    }
}

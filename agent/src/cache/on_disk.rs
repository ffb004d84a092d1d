//! Chunks on local disks: reading them into slots, and writing them from slots.
//!
//! Must hold: a chunk is written after readers have it, and no reader waits for the write. A chunk
//! whose bytes are wrong on disk comes from the next source.

use std::sync::Arc;
use std::time::Duration;

use dl_format::ChunkId;
use dl_runtime::spawn;
use libdiesel::Snapshot;

use super::{Cache, PinnedFiles, State};
use crate::disk::CopyName;
use crate::place::{ChunkBits, ChunkKey, Retention, Stage};

/// Interval between two looks for copies of other agents.
const LIST_INTERVAL: Duration = Duration::from_secs(10);

/// Interval between two looks for chunks to write while nothing is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time limit for the first list of the copies of a dataset: reads wait for it.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);

/// Follows the copies on the disks, and copies kept chunks there while nothing is read.
pub(crate) async fn watch_disks(cache: Arc<Cache>) {
    if cache.disks.is_empty() {
        return;
    }
    let mut next = Duration::ZERO;
    loop {
        if cache.now() >= next {
            next = cache.now().saturating_add(LIST_INTERVAL);
            cache.list_disks().await;
        }
        cache.note_room();
        let is_writing = cache.write_an_idle_chunk();
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
            copies.into_iter().for_each(|copies| self.state().disk.set(dataset, copies));
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
        let bytes = self.disks.room();
        let mut state = self.state();
        let chunks = bytes.unwrap_or(0) / u64::from(state.slots.slot_bytes().max(1));
        state.disk.set_room(bytes.is_some(), u32::try_from(chunks).unwrap_or(u32::MAX));
    }

    /// Writes a chunk that has just arrived, unless memory keeps it.
    pub(crate) fn keep_on_disk(self: &Arc<Self>, key: ChunkKey) {
        if self.disks.is_empty() {
            return;
        }
        let pinned = self.state().to_disk(key, false);
        pinned.into_iter().for_each(|pinned| self.write_copy(key, pinned));
    }

    /// Writes a chunk kept in memory if nothing is read; true if one is under way.
    fn write_an_idle_chunk(self: &Arc<Self>) -> bool {
        let chunk = self.state().next_idle_chunk();
        let is_there = chunk.is_some();
        chunk.into_iter().for_each(|(key, pinned)| self.write_copy(key, pinned));
        is_there
    }

    fn write_copy(self: &Arc<Self>, key: ChunkKey, pinned: PinnedFiles) {
        let cache = Arc::clone(self);
        spawn(async move {
            let open = cache.state().opens.get(key.dataset).map(Arc::clone);
            let named = open.and_then(|open| {
                Some((open.snapshot.dataset(), copy_name(&open.snapshot, key.chunk, &pinned)?))
            });
            let is_there = match named {
                Some((dataset, name)) => cache.disks.write(dataset, name, pinned).await,
                None => false,
            };
            cache.state().disk.end(key, is_there);
            cache.note_room();
            cache.moved.notify_one();
            if is_there {
                cache.disk_events.notify_one();
            }
        });
    }
}

/// The object of a chunk, or of a part of a large file.
fn id_of(snapshot: &Snapshot, chunk: u32) -> Option<ChunkId> {
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
    /// Pins a chunk to be written. `is_idle`: also a chunk that memory keeps.
    fn to_disk(&mut self, key: ChunkKey, is_idle: bool) -> Option<PinnedFiles> {
        let was_begun = self.disk.is_begun(key);
        let pinned = self.pin_for_disk(key, is_idle || was_begun, was_begun);
        match pinned {
            Some(_) => self.disk.begin(key),
            None if was_begun => self.disk.end(key, false),
            None => {}
        }
        pinned
    }

    fn pin_for_disk(
        &self,
        key: ChunkKey,
        also_kept: bool,
        was_begun: bool,
    ) -> Option<PinnedFiles> {
        let may_begin = was_begun || self.disk.may_begin(key);
        let is_mine = self.keeps && may_begin && self.served.owns(key);
        let held = self.residency.get(key).filter(|_| is_mine)?;
        let Stage::Full { retention, span } = held.stage else { return None };
        let is_wanted = span.0 < span.1 && (also_kept || retention != Retention::Kept);
        is_wanted.then(|| self.slots.pin_chunk(held.slot, span)).flatten()
    }

    /// The next chunk in memory without a copy, while no order is read and no chunk is awaited.
    fn next_idle_chunk(&mut self) -> Option<(ChunkKey, PinnedFiles)> {
        if self.orders.are_read() || self.waiters.awaited().next().is_some() {
            return None;
        }
        let is_new = |key: &ChunkKey| self.served.owns(*key) && self.disk.may_begin(*key);
        let next = self.residency.staying().find(is_new)?;
        Some((next, self.to_disk(next, true)?))
    }
}

//! Requests of other agents of the job for chunks and files.
//!
//! Must hold: no kept chunk is dropped for another agent, and no slot is waited for.

use std::sync::Arc;

use dl_runtime::since_boot;
use libdiesel::FilePlace;
use libdiesel::agent::MemberId;
use tokio::sync::oneshot;

use crate::cache::{Cache, ChunkState, Fetch, Retention, State};
use crate::dataset::ChunkKey;
use crate::peer_pins::{ChunkReply, PeerWaiter, PinnedFiles};
use crate::peers::FILES_BYTES_MAX;
use crate::progress::Progress;

impl Cache {
    /// Pins a chunk for another agent, or starts its fetch.
    pub(crate) fn reply_to_peer(self: &Arc<Self>, key: ChunkKey, member: MemberId) -> ChunkReply {
        let (reply, fetch) = self.state().reply_to_peer(key, member);
        fetch.into_iter().for_each(|fetch| self.fetch(fetch));
        reply
    }
}

impl State {
    fn reply_to_peer(&mut self, key: ChunkKey, member: MemberId) -> (ChunkReply, Option<Fetch>) {
        if !self.has(key) {
            return (ChunkReply::Elsewhere, None);
        }
        let (sender, receiver) = oneshot::channel();
        let peer_waiter = PeerWaiter { sender, member, since: since_boot() };
        let can_keep = self.can_keep();
        // Agents with the same list agree on the owner, who waits for none of them.
        let is_own = self.datasets.get(key.dataset).is_some_and(|open| open.peers.owns(key.chunk));
        match self.chunks.get_mut(&key) {
            Some(ChunkState::Full { slot, span, .. }) => {
                let (slot, span) = (*slot, *span);
                let pinned = self.pin_chunk(key.dataset, slot, span);
                (pinned.map_or(ChunkReply::Elsewhere, ChunkReply::Here), None)
            }
            Some(ChunkState::Filling { progress, .. }) if !is_own && !progress.may_be_awaited() => {
                (ChunkReply::Elsewhere, None)
            }
            Some(ChunkState::Filling { peer_waiters, .. }) => {
                peer_waiters.push(peer_waiter);
                (ChunkReply::Coming(receiver), None)
            }
            None if !can_keep => (ChunkReply::Elsewhere, None),
            None => match self.slot_for_kept(key) {
                None => (ChunkReply::Elsewhere, None),
                Some(slot) => {
                    let fetch = self.begin_for_peer(key, slot, peer_waiter);
                    (ChunkReply::Coming(receiver), Some(fetch))
                }
            },
        }
    }

    fn pin_chunk(&mut self, dataset: usize, slot: u32, span: (u32, u32)) -> Option<PinnedFiles> {
        let (arena, _) = self.arena.as_ref()?;
        if let Some(counts) = self.counts.get_mut(dataset) {
            counts.chunks_to_peers += 1;
        }
        Some(PinnedFiles::chunk(&self.peer_pins, arena, slot, span))
    }

    /// Answers the waiting agents after a chunk has arrived.
    pub(crate) fn answer_peers(
        &mut self,
        peer_waiters: Vec<PeerWaiter>,
        key: ChunkKey,
        slot: u32,
        span: (u32, u32),
    ) {
        for PeerWaiter { sender, .. } in peer_waiters {
            if let Some(pinned) = self.pin_chunk(key.dataset, slot, span) {
                // The receiver may be gone; the pins end at once then.
                let _ = sender.send(pinned);
            }
        }
    }

    /// Pins files of a dataset, as far as they are in memory and fit into one answer.
    pub(crate) fn pin_files(
        &mut self,
        dataset: usize,
        numbers: impl Iterator<Item = u32>,
    ) -> Option<PinnedFiles> {
        let mut bytes = 0;
        let files = numbers.map(|number| {
            self.file_here(dataset, number).filter(|(_, place)| {
                bytes += place.length;
                bytes <= FILES_BYTES_MAX as u64
            })
        });
        let files: Vec<_> = files.collect();
        if let Some(counts) = self.counts.get_mut(dataset) {
            counts.files_to_peers += files.iter().flatten().count() as u64;
        }
        let (arena, _) = self.arena.as_ref()?;
        Some(PinnedFiles::files(&self.peer_pins, arena, files))
    }

    /// The slot and the place of a file whose chunk is in memory.
    fn file_here(&self, dataset: usize, number: u32) -> Option<(u32, FilePlace)> {
        let place = self.datasets.get(dataset)?.snapshot.place(number).ok()?;
        match self.chunks.get(&ChunkKey { dataset, chunk: place.chunk })? {
            ChunkState::Full { slot, span: (start, end), .. } => {
                let last = u64::from(place.offset).checked_add(place.length)?;
                let is_whole = place.offset >= *start && last <= u64::from(*end);
                is_whole.then_some((*slot, place))
            }
            ChunkState::Filling { .. } => None,
        }
    }

    /// Notes that a chunk comes from the servers, for other agents that look for the chunk.
    pub(crate) fn ask_servers(&mut self, progress: &Progress) {
        progress.asks_servers();
        self.staying_generation = self.staying_generation.wrapping_add(1);
    }

    /// The current generation of kept chunks, and whether there is room for more. A bit for each
    /// chunk of the dataset says whether the chunk is kept, or on its way from the servers; no bits
    /// if the generation is `known`.
    pub(crate) fn kept_bits(&self, dataset: usize, known: u32) -> (u32, bool, Vec<u8>) {
        // An agent without a list sends 0.
        let now = self.staying_generation.wrapping_add(1).max(1);
        if now == known {
            return (now, self.can_keep(), Vec::new());
        }
        let chunks = self.datasets.get(dataset).map_or(0, |open| open.snapshot.holders());
        let mut bits = vec![0; (chunks as usize).div_ceil(8)];
        for (key, held) in &self.chunks {
            let stays = match held {
                ChunkState::Full { stay, .. } => *stay != Retention::Transient,
                ChunkState::Filling { progress, .. } => progress.is_of_servers(),
            };
            if stays && key.dataset == dataset {
                let byte = bits.get_mut(key.chunk as usize / 8);
                byte.into_iter().for_each(|byte| *byte |= 1 << (key.chunk % 8));
            }
        }
        (now, self.can_keep(), bits)
    }
}

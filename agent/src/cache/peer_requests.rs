//! Requests of other agents of the job for chunks and files.
//!
//! Must hold: no kept chunk is dropped for another agent, and no slot is waited for.

use std::sync::Arc;
use std::time::Duration;

use dl_format::MemberId;
use libdiesel::FilePlace;
use tokio::sync::oneshot;

use super::ahead::{FOR_PEERS_MAX, Stays};
use super::peer_pins::{ChunkReply, PeerWaiter};
use super::wants::Fetch;
use super::{Cache, State};
use crate::peers::FILES_BYTES_MAX;
use crate::pins::PinnedFiles;
use crate::place::{ChunkBits, ChunkKey, Retention, Stage};

impl Cache {
    /// Pins a chunk for another agent, or starts its fetch.
    pub(crate) fn reply_to_peer(self: &Arc<Self>, key: ChunkKey, member: MemberId) -> ChunkReply {
        let (reply, fetch) = self.state().reply_to_peer(key, member, self.now());
        fetch.into_iter().for_each(|fetch| self.fetch(fetch));
        reply
    }
}

impl State {
    pub(super) fn reply_to_peer(
        &mut self,
        key: ChunkKey,
        member: MemberId,
        now: Duration,
    ) -> (ChunkReply, Option<Fetch>) {
        if !self.has(key) {
            return (ChunkReply::Elsewhere, None);
        }
        let (sender, receiver) = oneshot::channel();
        let waiter = PeerWaiter { sender, member, since: now };
        match self.residency.get(key).map(|held| (held.slot, held.stage)) {
            Some((slot, Stage::Full { span, .. })) => {
                let pinned = self.pin_chunk(key.dataset, slot, span);
                (pinned.map_or(ChunkReply::Elsewhere, ChunkReply::Here), None)
            }
            // Agents with the same list agree on the owner, who waits for none of them.
            Some((_, Stage::Filling(filling)))
                if filling.may_be_awaited || self.served.owns(key) =>
            {
                self.waiters.add_peer(key, waiter);
                (ChunkReply::Coming(receiver), None)
            }
            Some(_) => (ChunkReply::Elsewhere, None),
            None => match self.slot_for_peer(key, now) {
                None if self.disk.holds(key) => (ChunkReply::Later, None),
                None => (ChunkReply::Elsewhere, None),
                Some((slot, stays)) => {
                    let fetch = self.begin_for_peer(key, slot, waiter, now);
                    if stays == Stays::OnDisk {
                        self.disk.queue(key);
                    }
                    (ChunkReply::Coming(receiver), Some(fetch))
                }
            },
        }
    }

    /// A slot for a chunk that another agent asks for: the chunk is on disk, or stays here.
    fn slot_for_peer(&mut self, key: ChunkKey, now: Duration) -> Option<(u32, Stays)> {
        if self.disk.holds(key) {
            return Some((self.empty_a_slot(key, false, now)?, Stays::AsItComes));
        }
        let (slot, stays) = match self.can_keep() {
            true => (self.slot_to_keep(key, now), Stays::InMemory),
            false => self.slot_for_tiers(key, FOR_PEERS_MAX, now),
        };
        Some((slot?, stays))
    }

    fn pin_chunk(&mut self, dataset: usize, slot: u32, span: (u32, u32)) -> Option<PinnedFiles> {
        let pinned = self.slots.pin_chunk(slot, span)?;
        self.counts.get_mut(dataset).into_iter().for_each(|counts| counts.chunks_to_peers += 1);
        Some(pinned)
    }

    /// Answers the waiting agents after a chunk has arrived.
    pub(super) fn answer_peers(
        &mut self,
        waiters: Vec<PeerWaiter>,
        key: ChunkKey,
        slot: u32,
        span: (u32, u32),
    ) {
        for PeerWaiter { sender, .. } in waiters {
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
        self.slots.pin_files(files)
    }

    /// The slot and the place of a file whose chunk is in memory.
    pub(super) fn file_here(&self, dataset: usize, number: u32) -> Option<(u32, FilePlace)> {
        let place = self.opens.get(dataset)?.snapshot.place(number).ok()?;
        let held = self.residency.get(ChunkKey { dataset, chunk: place.chunk })?;
        let Stage::Full { span: (start, end), .. } = held.stage else { return None };
        let last = u64::from(place.offset).checked_add(place.length)?;
        let is_whole = place.offset >= start && last <= u64::from(end);
        is_whole.then_some((held.slot, place))
    }

    /// The current generation of kept chunks, and whether there is room for more. A bit for each
    /// chunk of the dataset says whether the chunk is kept, or on its way from the servers; no bits
    /// if the generation is `known`.
    pub(crate) fn kept_bits(&self, dataset: usize, known: u32) -> (u32, bool, Vec<u8>) {
        // An agent without a list sends 0.
        let generation = self.residency.generation().wrapping_add(self.disk.generation());
        let (now, can_keep) =
            (generation.wrapping_add(1).max(1), self.can_keep() || self.disk.takes());
        if now == known {
            return (now, can_keep, Vec::new());
        }
        let mut bits = ChunkBits::none(self.served.chunks(dataset));
        self.disk.of(dataset).into_iter().for_each(|copies| bits.add_all(copies));
        for (key, held) in self.residency.iter() {
            let stays = match held.stage {
                Stage::Full { retention, .. } => retention != Retention::Transient,
                Stage::Filling(filling) => filling.is_of_servers,
            };
            if stays && key.dataset == dataset {
                bits.add(key.chunk);
            }
        }
        (now, can_keep, bits.into_bytes())
    }
}

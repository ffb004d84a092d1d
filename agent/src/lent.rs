//! Chunks that are lent to other agents of the job.
//!
//! Must hold: a lent chunk stays in its slot until it is given back; for another agent no chunk leaves that
//! is kept, and no slot is waited for.

use std::collections::HashMap;
use std::sync::Arc;

use dl_runtime::spawn;
use libdiesel::agent::Arena;
use tokio::sync::oneshot;

use crate::cache::{Cache, Fetch, Held, State, Stay};
use crate::dataset::ChunkKey;

/// The slots that are lent, and how often.
#[derive(Debug, Default)]
pub(crate) struct LentSlots(HashMap<u32, u32>);

impl LentSlots {
    pub(crate) fn holds(&self, slot: u32) -> bool {
        self.0.contains_key(&slot)
    }

    fn lend(&mut self, slot: u32) {
        *self.0.entry(slot).or_default() += 1;
    }

    fn give_back(&mut self, slot: u32) {
        if let Some(times) = self.0.get_mut(&slot) {
            *times -= 1;
            if *times == 0 {
                self.0.remove(&slot);
            }
        }
    }
}

/// A chunk that stays for as long as this lives.
#[derive(Debug)]
pub(crate) struct Lent {
    cache: Arc<Cache>,
    arena: Arc<Arena>,
    slot: u32,
    start: u32,
    length: u32,
}

/// The answer to another agent that asks for a chunk.
#[derive(Debug)]
pub(crate) enum Asked {
    Here(Lent),
    /// It is fetched from the servers; ends without a chunk when it can't be had.
    Coming(oneshot::Receiver<Lent>),
    /// There is no room to keep it, or it comes from another agent.
    Elsewhere,
}

impl Lent {
    /// Where its first file begins in the chunk.
    pub(crate) fn start(&self) -> u32 {
        self.start
    }

    /// From there to the end of its last file.
    pub(crate) fn bytes(&self) -> &[u8] {
        let bytes = self.arena.written(self.slot, self.start, self.length as usize);
        bytes.unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.cache.state().lent.give_back(self.slot);
        self.cache.moved.notify_one();
    }
}

impl Cache {
    /// Lends a chunk to another agent, or begins to fetch it for that.
    pub(crate) fn lend(self: &Arc<Self>, key: ChunkKey) -> Asked {
        let (asked, fetch) = self.state().ask(key, self);
        fetch.into_iter().for_each(|fetch| self.fetch(fetch));
        asked
    }
}

impl State {
    fn ask(&mut self, key: ChunkKey, cache: &Arc<Cache>) -> (Asked, Option<Fetch>) {
        if !self.has(key) {
            return (Asked::Elsewhere, None);
        }
        let (sender, coming) = oneshot::channel();
        let borrower = Borrower { cache: Arc::clone(cache), sender };
        let can_keep = self.can_keep();
        match self.held.get_mut(&key) {
            Some(Held::Full { slot, span, .. }) => {
                let (slot, span) = (*slot, *span);
                let lent = self.lend_slot(cache, key.dataset, slot, span);
                (lent.map_or(Asked::Elsewhere, Asked::Here), None)
            }
            Some(Held::Filling { progress, .. }) if !progress.is_of_servers() => {
                (Asked::Elsewhere, None)
            }
            Some(Held::Filling { borrowers, .. }) => {
                borrowers.push(borrower);
                (Asked::Coming(coming), None)
            }
            None if !can_keep => (Asked::Elsewhere, None),
            None => match self.take_slot(key, false) {
                None => (Asked::Elsewhere, None),
                Some(slot) => {
                    let fetch = self.begin_for_peer(key, slot, borrower);
                    (Asked::Coming(coming), Some(fetch))
                }
            },
        }
    }

    /// A number that changes with the chunks that are kept, whether more can be, and, unless the number is
    /// `known`, a bit for each chunk of a dataset: whether it stays.
    pub(crate) fn kept_bits(&self, dataset: usize, known: u32) -> (u32, bool, Vec<u8>) {
        // Each chunk that is shown or shown again has a new generation; 0 is known by who knows nothing.
        let now = (self.generation as u32).wrapping_add(1).max(1);
        if now == known {
            return (now, self.can_keep(), Vec::new());
        }
        let chunks = self.datasets.get(dataset).map_or(0, |open| open.snapshot.holders());
        let mut bits = vec![0; (chunks as usize).div_ceil(8)];
        for (key, held) in &self.held {
            let stays = matches!(held, Held::Full { stay: Stay::Kept | Stay::Copy, .. });
            if stays && key.dataset == dataset {
                let byte = bits.get_mut(key.chunk as usize / 8);
                byte.into_iter().for_each(|byte| *byte |= 1 << (key.chunk % 8));
            }
        }
        (now, self.can_keep(), bits)
    }

    fn lend_slot(
        &mut self,
        cache: &Arc<Cache>,
        dataset: usize,
        slot: u32,
        (start, end): (u32, u32),
    ) -> Option<Lent> {
        let (arena, _) = self.arena.as_ref()?;
        let arena = Arc::clone(arena);
        self.lent.lend(slot);
        if let Some(counts) = self.counts.get_mut(dataset) {
            counts.chunks_to_peers += 1;
        }
        Some(Lent { cache: Arc::clone(cache), arena, slot, start, length: end - start })
    }

    /// A chunk is there: whoever waits for it in other agents gets it.
    pub(crate) fn lend_to(
        &mut self,
        borrowers: Vec<Borrower>,
        key: ChunkKey,
        slot: u32,
        span: (u32, u32),
    ) {
        for Borrower { cache, sender } in borrowers {
            if let Some(lent) = self.lend_slot(&cache, key.dataset, slot, span)
                && let Err(lent) = sender.send(lent)
            {
                // Nobody waits any more. Giving it back takes the lock that is held here.
                spawn(async move { drop(lent) });
            }
        }
    }
}

/// Another agent that waits for a chunk.
#[derive(Debug)]
pub(crate) struct Borrower {
    cache: Arc<Cache>,
    sender: oneshot::Sender<Lent>,
}

//! Chunks that are lent to other agents of the job.
//!
//! Must hold: a lent chunk stays in its slot until it is given back; for another agent no chunk leaves that
//! is kept, and no slot is waited for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dl_runtime::{since_boot, spawn};
use libdiesel::FilePlace;
use libdiesel::agent::{Arena, MemberId};
use tokio::sync::oneshot;

use crate::cache::{Cache, Fetch, Held, State, Stay};
use crate::dataset::ChunkKey;
use crate::peers::FILES_BYTES_MAX;

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

/// Files that stay for as long as this lives; none for those that are not here.
#[derive(Debug)]
pub(crate) struct LentFiles {
    cache: Arc<Cache>,
    arena: Option<Arc<Arena>>,
    /// The slot and the place of each.
    files: Vec<Option<(u32, FilePlace)>>,
}

impl LentFiles {
    /// The bytes of each file.
    pub(crate) fn files(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.files.iter().map(|file| {
            let (slot, place) = (*file)?;
            self.arena.as_ref()?.written(slot, place.offset, place.length as usize)
        })
    }
}

impl Drop for LentFiles {
    fn drop(&mut self) {
        let mut state = self.cache.state();
        self.files.iter().flatten().for_each(|(slot, _)| state.lent.give_back(*slot));
    }
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
    pub(crate) fn lend(self: &Arc<Self>, key: ChunkKey, member: MemberId) -> Asked {
        let (asked, fetch) = self.state().ask(key, member, self);
        fetch.into_iter().for_each(|fetch| self.fetch(fetch));
        asked
    }

    /// Lends files of a dataset, by their numbers, as far as they are here and fit into one answer.
    pub(crate) fn lend_files(
        self: &Arc<Self>,
        dataset: usize,
        numbers: impl Iterator<Item = u32>,
    ) -> LentFiles {
        let mut state = self.state();
        let (mut bytes, mut files) = (0, Vec::new());
        for number in numbers {
            let found = state.file_here(dataset, number).filter(|(_, place)| {
                bytes += place.length;
                bytes <= FILES_BYTES_MAX as u64
            });
            found.iter().for_each(|(slot, _)| state.lent.lend(*slot));
            files.push(found);
        }
        if let Some(counts) = state.counts.get_mut(dataset) {
            counts.files_to_peers += files.iter().flatten().count() as u64;
        }
        let arena = state.arena.as_ref().map(|(arena, _)| Arc::clone(arena));
        LentFiles { cache: Arc::clone(self), arena, files }
    }
}

impl State {
    fn ask(
        &mut self,
        key: ChunkKey,
        member: MemberId,
        cache: &Arc<Cache>,
    ) -> (Asked, Option<Fetch>) {
        if !self.has(key) {
            return (Asked::Elsewhere, None);
        }
        let (sender, coming) = oneshot::channel();
        let since = since_boot();
        let borrower = Borrower { cache: Arc::clone(cache), sender, member, since };
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

    /// The slot and the place of a file whose chunk is here.
    fn file_here(&self, dataset: usize, number: u32) -> Option<(u32, FilePlace)> {
        let place = self.datasets.get(dataset)?.snapshot.place(number).ok()?;
        match self.held.get(&ChunkKey { dataset, chunk: place.chunk })? {
            Held::Full { slot, span: (start, end), .. } => {
                let last = u64::from(place.offset).checked_add(place.length)?;
                let is_whole = place.offset >= *start && last <= u64::from(*end);
                is_whole.then_some((*slot, place))
            }
            Held::Filling { .. } => None,
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
        for Borrower { cache, sender, .. } in borrowers {
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
    pub(crate) member: MemberId,
    /// Since boot.
    pub(crate) since: Duration,
}

//! Slots that are lent to other agents of the job.
//!
//! Must hold: what is lent stays in its slot until it is given back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libdiesel::FilePlace;
use libdiesel::agent::{Arena, MemberId};
use tokio::sync::oneshot;

/// The slots that are lent, and how often.
#[derive(Debug, Default)]
pub(crate) struct LentSlots(Mutex<HashMap<u32, u32>>);

impl LentSlots {
    fn slots(&self) -> MutexGuard<'_, HashMap<u32, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn holds(&self, slot: u32) -> bool {
        self.slots().contains_key(&slot)
    }

    fn lend(&self, slot: u32) {
        *self.slots().entry(slot).or_default() += 1;
    }

    fn give_back(&self, slot: u32) {
        let mut slots = self.slots();
        if let Some(times) = slots.get_mut(&slot) {
            *times -= 1;
            if *times == 0 {
                slots.remove(&slot);
            }
        }
    }
}

/// Files that stay in their slots for as long as this lives.
#[derive(Debug)]
pub(crate) struct Lent {
    slots: Arc<LentSlots>,
    arena: Arc<Arena>,
    /// The slot and the place of each; none for one that is not here.
    files: Vec<Option<(u32, u32, usize)>>,
}

impl Lent {
    /// All files of a chunk, which begin and end somewhere in its slot.
    pub(crate) fn chunk(
        slots: &Arc<LentSlots>,
        arena: &Arc<Arena>,
        slot: u32,
        (start, end): (u32, u32),
    ) -> Self {
        Self::new(slots, arena, vec![Some((slot, start, (end - start) as usize))])
    }

    /// Single files, each with its slot.
    pub(crate) fn files(
        slots: &Arc<LentSlots>,
        arena: &Arc<Arena>,
        files: impl IntoIterator<Item = Option<(u32, FilePlace)>>,
    ) -> Self {
        let place = |(slot, place): (u32, FilePlace)| (slot, place.offset, place.length as usize);
        Self::new(slots, arena, files.into_iter().map(|file| file.map(place)).collect())
    }

    fn new(
        slots: &Arc<LentSlots>,
        arena: &Arc<Arena>,
        files: Vec<Option<(u32, u32, usize)>>,
    ) -> Self {
        files.iter().flatten().for_each(|(slot, ..)| slots.lend(*slot));
        Self { slots: Arc::clone(slots), arena: Arc::clone(arena), files }
    }

    /// The bytes of each file, with where they begin in the slot.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = Option<(u32, &[u8])>> {
        self.files.iter().map(|file| {
            let (slot, offset, length) = (*file)?;
            Some((offset, self.arena.written(slot, offset, length)?))
        })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.files.iter().flatten().for_each(|(slot, ..)| self.slots.give_back(*slot));
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

/// Another agent that waits for a chunk.
#[derive(Debug)]
pub(crate) struct Borrower {
    pub(crate) sender: oneshot::Sender<Lent>,
    pub(crate) member: MemberId,
    /// Since boot.
    pub(crate) since: Duration,
}

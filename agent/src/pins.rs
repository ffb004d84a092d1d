//! Slots pinned while their bytes are sent to other agents of the job, or move to and from a disk.
//!
//! Must hold: a pinned slot keeps its bytes until the pin is dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use dl_node::Arena;
use dl_runtime::locked;
use libdiesel::FilePlace;

/// The pinned slots, each with its number of pins.
#[derive(Debug, Default)]
pub(crate) struct PeerPins(Mutex<HashMap<u32, u32>>);

impl PeerPins {
    fn slots(&self) -> MutexGuard<'_, HashMap<u32, u32>> {
        locked(&self.0)
    }

    pub(crate) fn holds(&self, slot: u32) -> bool {
        self.slots().contains_key(&slot)
    }

    fn pin(&self, slot: u32) {
        *self.slots().entry(slot).or_default() += 1;
    }

    fn unpin(&self, slot: u32) {
        let mut slots = self.slots();
        if let Some(times) = slots.get_mut(&slot) {
            *times -= 1;
            if *times == 0 {
                slots.remove(&slot);
            }
        }
    }
}

/// Files whose slots stay pinned for the lifetime of the value.
#[derive(Debug)]
pub(crate) struct PinnedFiles {
    slots: Arc<PeerPins>,
    arena: Arc<Arena>,
    /// Slot, offset and length of each file; none for an absent file.
    files: Vec<Option<(u32, u32, usize)>>,
}

impl PinnedFiles {
    /// All files of a chunk, given their start and end in the slot.
    pub(crate) fn chunk(
        slots: &Arc<PeerPins>,
        arena: &Arc<Arena>,
        slot: u32,
        (start, end): (u32, u32),
    ) -> Self {
        Self::new(slots, arena, vec![Some((slot, start, (end - start) as usize))])
    }

    /// Single files, each with its slot.
    pub(crate) fn files(
        slots: &Arc<PeerPins>,
        arena: &Arc<Arena>,
        files: impl IntoIterator<Item = Option<(u32, FilePlace)>>,
    ) -> Self {
        let place = |(slot, place): (u32, FilePlace)| (slot, place.offset, place.length as usize);
        Self::new(slots, arena, files.into_iter().map(|file| file.map(place)).collect())
    }

    fn new(
        slots: &Arc<PeerPins>,
        arena: &Arc<Arena>,
        files: Vec<Option<(u32, u32, usize)>>,
    ) -> Self {
        files.iter().flatten().for_each(|(slot, ..)| slots.pin(*slot));
        Self { slots: Arc::clone(slots), arena: Arc::clone(arena), files }
    }

    /// The whole blocks with the bytes of the first file, and their offset in the slot.
    pub(crate) fn blocks(&self, block: u32) -> Option<(u32, &[u8])> {
        let (slot, offset, length) = (*self.files.first()?)?;
        let start = offset / block * block;
        let end = (offset as usize + length).next_multiple_of(block as usize);
        Some((start, self.arena.written(slot, start, end - start as usize)?))
    }

    /// The bytes of each file, with its offset in the slot.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = Option<(u32, &[u8])>> {
        self.files.iter().map(|file| {
            let (slot, offset, length) = (*file)?;
            Some((offset, self.arena.written(slot, offset, length)?))
        })
    }
}

impl Drop for PinnedFiles {
    fn drop(&mut self) {
        self.files.iter().flatten().for_each(|(slot, ..)| self.slots.unpin(*slot));
    }
}

//! The slot of each chunk in memory, and how long the chunk stays.
//!
//! Must hold: a chunk has one slot and a slot one chunk. A kept chunk leaves for another chunk only
//! by an eviction, or when every other slot is in use.

use std::collections::{HashMap, VecDeque};

use super::ChunkKey;
use super::replacement::{Eviction, Replacement};

/// How long a chunk stays in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Until its slot is needed.
    Transient,
    /// Until a kept chunk needs the slot; another agent keeps the chunk too.
    Copy,
    /// Until the agent ends, or until its eviction.
    Kept,
}

/// A chunk with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The number of the slot.
    pub slot: u32,
    /// Whether the bytes are there.
    pub stage: Stage,
}

impl Held {
    /// Whether room to keep a chunk on its way is reserved.
    pub fn is_reserved(self) -> bool {
        matches!(self.stage, Stage::Filling(Filling { is_reserved: true, .. }))
    }
}

/// Whether the bytes of a chunk are in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The bytes are on their way.
    Filling(Filling),
    /// All bytes are there and correct.
    Full {
        /// How long the chunk stays.
        retention: Retention,
        /// Start and end of the chunk's files in the slot.
        span: (u32, u32),
    },
}

/// A chunk on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Filling {
    /// Whether other agents may wait for the chunk: its source does not wait for them.
    pub may_be_awaited: bool,
    /// Whether the servers send the chunk.
    pub is_of_servers: bool,
    /// Whether room to keep the chunk is reserved.
    is_reserved: bool,
}

/// The chunks in memory.
#[derive(Debug)]
pub struct Residency {
    chunks: HashMap<ChunkKey, Held>,
    kept: Replacement<ChunkKey>,
    copies: Replacement<ChunkKey>,
    /// The first to leave first.
    transient: VecDeque<ChunkKey>,
    /// Chunks on their way with a reservation.
    reserved: u32,
    eviction: Eviction,
    evicted: u64,
    /// Changes with the set of chunks that other agents may ask for.
    generation: u32,
}

impl Residency {
    /// Without chunks.
    pub fn new(eviction: Eviction) -> Self {
        let new = || Replacement::new(eviction);
        Self {
            chunks: HashMap::new(),
            kept: new(),
            copies: new(),
            transient: VecDeque::new(),
            reserved: 0,
            eviction,
            evicted: 0,
            generation: 0,
        }
    }

    /// The slot of a chunk.
    pub fn get(&self, key: ChunkKey) -> Option<Held> {
        self.chunks.get(&key).copied()
    }

    /// The slot of a chunk whose bytes are there.
    pub fn get_full(&self, key: ChunkKey) -> Option<u32> {
        let held = self.get(key)?;
        matches!(held.stage, Stage::Full { .. }).then_some(held.slot)
    }

    /// Whether memory keeps a chunk.
    pub fn is_kept(&self, key: ChunkKey) -> bool {
        let stage = self.get(key).map(|held| held.stage);
        matches!(stage, Some(Stage::Full { retention: Retention::Kept, .. }))
    }

    /// Whether a chunk is in memory or on its way.
    pub fn holds(&self, key: ChunkKey) -> bool {
        self.chunks.contains_key(&key)
    }

    /// All chunks.
    pub fn iter(&self) -> impl Iterator<Item = (ChunkKey, Held)> {
        self.chunks.iter().map(|(key, held)| (*key, *held))
    }

    /// The number of chunks whose bytes are there, of one dataset.
    pub fn full(&self, dataset: usize) -> u64 {
        let of = self.chunks.iter().filter(|(key, _)| key.dataset == dataset);
        of.filter(|(_, held)| matches!(held.stage, Stage::Full { .. })).count() as u64
    }

    /// The number of kept chunks.
    pub fn kept(&self) -> u32 {
        self.kept.len() as u32
    }

    /// The number of kept chunks of all datasets but one.
    pub fn kept_of_others(&self, dataset: usize) -> u32 {
        self.kept.victims().filter(|key| key.dataset != dataset).count() as u32
    }

    /// The number of copies.
    pub fn copies(&self) -> u32 {
        self.copies.len() as u32
    }

    /// The policy.
    pub fn eviction(&self) -> Eviction {
        self.eviction
    }

    /// Chunks on their way with a reservation.
    pub fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Kept chunks that left for others.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The number of the set of chunks that other agents may ask for.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether there is room to keep one more chunk, if `most` may be kept.
    pub fn can_keep(&self, most: u32) -> bool {
        self.kept() + self.reserved < most
    }

    /// Whether there is room for a copy of another agent's chunk.
    pub fn can_copy(&self, most: u32) -> bool {
        self.kept() + self.copies() < most
    }

    /// Begins to fill an empty slot with an absent chunk.
    pub fn begin(&mut self, key: ChunkKey, slot: u32, may_be_awaited: bool) {
        let stage = Stage::Filling(Filling { may_be_awaited, ..Filling::default() });
        self.chunks.insert(key, Held { slot, stage });
    }

    fn filling(&mut self, key: ChunkKey) -> Option<&mut Filling> {
        match &mut self.chunks.get_mut(&key)?.stage {
            Stage::Filling(filling) => Some(filling),
            Stage::Full { .. } => None,
        }
    }

    /// Notes the source of a chunk on its way: another agent, which `keeps` the chunk or waits too.
    pub fn comes_from_peer(&mut self, key: ChunkKey, keeps: bool) {
        if let Some(filling) = self.filling(key) {
            filling.may_be_awaited = keeps;
        }
    }

    /// Notes the servers as the source of a chunk on its way.
    pub fn comes_from_servers(&mut self, key: ChunkKey) {
        if let Some(filling) = self.filling(key) {
            (filling.may_be_awaited, filling.is_of_servers) = (true, true);
        }
        self.changed();
    }

    /// Reserves room to keep a chunk on its way; false if there is none.
    pub fn reserve(&mut self, key: ChunkKey, most: u32) -> bool {
        let has_room = self.can_keep(most);
        if let Some(filling) = self.filling(key)
            && has_room
            && !filling.is_reserved
        {
            filling.is_reserved = true;
            self.reserved += 1;
        }
        has_room
    }

    /// Ends the reservation of a chunk; returns whether there was one.
    pub fn end_reservation(&mut self, key: ChunkKey) -> bool {
        let was_reserved =
            self.filling(key).is_some_and(|filling| std::mem::take(&mut filling.is_reserved));
        self.reserved -= u32::from(was_reserved);
        was_reserved
    }

    /// Notes that all bytes of a chunk are there; gives its slot. `is_mine`: no other agent keeps
    /// the chunk. `may_evict`: a kept chunk may leave for it.
    pub fn filled(
        &mut self,
        key: ChunkKey,
        span: (u32, u32),
        is_mine: bool,
        may_evict: bool,
        most: u32,
    ) -> Option<u32> {
        self.filling(key)?;
        let is_reserved = self.end_reservation(key);
        let retention = self.retention(is_mine, is_reserved, may_evict, most);
        let held = self.chunks.get_mut(&key)?;
        held.stage = Stage::Full { retention, span };
        let slot = held.slot;
        self.list(key, retention);
        self.changed();
        Some(slot)
    }

    /// How long an arrived chunk stays. Copies make room for chunks kept by no other agent.
    fn retention(
        &mut self,
        is_mine: bool,
        is_reserved: bool,
        may_evict: bool,
        most: u32,
    ) -> Retention {
        let promised = if is_reserved { 0 } else { self.reserved };
        if is_mine && self.kept() + promised < most {
            if self.kept() + self.copies() >= most {
                self.demote(Retention::Copy);
            }
            return Retention::Kept;
        }
        if !is_mine && self.can_copy(most) {
            return Retention::Copy;
        }
        let retention = if is_mine { Retention::Kept } else { Retention::Copy };
        if may_evict && self.demote(retention) {
            self.evicted += 1;
            // The victim leaves before the chunks that are transient already.
            self.transient.rotate_right(1);
            return retention;
        }
        Retention::Transient
    }

    fn list(&mut self, key: ChunkKey, retention: Retention) {
        match retention {
            Retention::Transient => self.transient.push_back(key),
            Retention::Copy => self.copies.added(key),
            Retention::Kept => self.kept.added(key),
        }
    }

    fn unlist(&mut self, key: ChunkKey, retention: Retention) {
        match retention {
            Retention::Transient if self.transient.back() == Some(&key) => {
                self.transient.pop_back();
            }
            Retention::Transient => self.transient.retain(|other| *other != key),
            Retention::Copy => _ = self.copies.removed(key),
            Retention::Kept => _ = self.kept.removed(key),
        }
    }

    /// Changes how long a chunk stays.
    fn retain(&mut self, key: ChunkKey, to: Retention) {
        let Some(Held { stage: Stage::Full { retention, .. }, .. }) = self.chunks.get_mut(&key)
        else {
            return;
        };
        let from = std::mem::replace(retention, to);
        self.unlist(key, from);
        self.list(key, to);
        if from == Retention::Transient || to == Retention::Transient {
            self.changed();
        }
    }

    /// Makes one kept chunk or copy transient; false if there is none.
    pub fn demote(&mut self, what: Retention) -> bool {
        let victim = match what {
            Retention::Transient => None,
            Retention::Copy => self.copies.victims().next(),
            Retention::Kept => self.kept.victims().next(),
        };
        victim.into_iter().for_each(|key| self.retain(key, Retention::Transient));
        victim.is_some()
    }

    /// Makes chunks transient until at most `most` stay.
    pub fn shrink(&mut self, most: u32) {
        while self.kept() + self.copies() > most {
            if !self.demote(Retention::Copy) && !self.demote(Retention::Kept) {
                return;
            }
        }
    }

    /// Notes uses of a chunk.
    pub fn used(&mut self, key: ChunkKey, times: u32) {
        self.kept.used(key, times);
        self.copies.used(key, times);
    }

    /// Adapts to other owners: a copy of an own chunk is kept, as far as there is room, and a kept
    /// chunk that its owner keeps becomes a copy.
    pub fn owners_changed(
        &mut self,
        most: u32,
        is_own: impl Fn(ChunkKey) -> bool,
        is_at_owner: impl Fn(ChunkKey) -> bool,
    ) {
        let elsewhere: Vec<_> = self.kept.victims().filter(|key| is_at_owner(*key)).collect();
        elsewhere.into_iter().for_each(|key| self.retain(key, Retention::Copy));
        let own: Vec<_> = self.copies.victims().filter(|key| is_own(*key)).collect();
        for key in own {
            if !self.can_keep(most) {
                break;
            }
            self.retain(key, Retention::Kept);
        }
    }

    /// The transient chunks, the first to leave first.
    pub fn transient(&self) -> impl Iterator<Item = ChunkKey> {
        self.transient.iter().copied()
    }

    /// Moves the first transient chunk behind the others; gives the chunk.
    pub fn next_transient(&mut self) -> Option<ChunkKey> {
        self.transient.rotate_left(usize::from(!self.transient.is_empty()));
        self.transient.back().copied()
    }

    /// The copies, and then the kept chunks, the first to leave first.
    pub fn staying(&self) -> impl Iterator<Item = ChunkKey> {
        self.copies.victims().chain(self.kept.victims())
    }

    /// Keeps the first transient chunk: its slot can't be emptied in place of another.
    pub fn keep_a_transient(&mut self) {
        if let Some(key) = self.transient.front().copied() {
            self.retain(key, Retention::Kept);
        }
    }

    /// Removes a chunk, or gives up its fill; gives its slot, and how long it stayed.
    pub fn remove(&mut self, key: ChunkKey) -> Option<(u32, Option<Retention>)> {
        self.end_reservation(key);
        let Held { slot, stage } = self.chunks.remove(&key)?;
        self.changed();
        match stage {
            Stage::Filling(_) => Some((slot, None)),
            Stage::Full { retention, .. } => {
                self.unlist(key, retention);
                Some((slot, Some(retention)))
            }
        }
    }

    fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }
}

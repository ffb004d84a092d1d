//! The layout of the memory of a node's cache, and the pin protocol between readers and the agent.
//! docs/AGENT.md has the proofs.
//!
//! Must hold: a reader reads a slot only between its pin and its unpin, and only if the table's
//! word was unchanged after the pin. The agent writes a slot only after withdrawing the word and
//! then seeing no pin in any page. Generations never repeat.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::mapped::HUGE_PAGE;
use super::memory::{Access, SharedMemory};

/// Bytes of a memory segment, at most.
const SEGMENT_BYTES: u64 = 1 << 30;

/// Bytes before the first word of a table, and before the first pin of a page.
const HEAD: usize = 128;

/// Bits of the slot in a table's word.
const SLOT_BITS: u32 = 20;

/// Slots of an arena, at most.
pub const SLOTS_MAX: u32 = (1 << SLOT_BITS) - 2;

/// Attempts of a reader to pin a moving chunk.
const LOOKS: u32 = 64;

/// The position of a chunk: a slot, and the generation of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word(u64);

impl Word {
    /// The word of an absent chunk.
    pub const ABSENT: Self = Self(0);

    /// The word of a slot below [`SLOTS_MAX`].
    pub fn new(generation: u64, slot: u32) -> Self {
        Self((generation << SLOT_BITS) | (u64::from(slot) + 1))
    }

    /// The slot; none for an absent chunk.
    #[inline]
    pub fn slot(self) -> Option<u32> {
        ((self.0 & ((1 << SLOT_BITS) - 1)) as u32).checked_sub(1)
    }
}

/// The sizes of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a slot: at least the bytes of a chunk.
    pub slot_bytes: u32,
    /// The number of slots.
    pub slots: u32,
}

impl Shape {
    fn slots_of_a_segment(self) -> u32 {
        (SEGMENT_BYTES / u64::from(self.slot_bytes.max(1))).max(1) as u32
    }

    fn segments(self) -> impl Iterator<Item = usize> {
        let (slots, most) = (self.slots, self.slots_of_a_segment());
        let counts = (0..slots.div_ceil(most)).map(move |index| most.min(slots - index * most));
        counts.map(move |count| count as usize * self.slot_bytes as usize)
    }
}

/// The slots.
#[derive(Debug)]
pub struct Arena {
    shape: Shape,
    segments: Vec<SharedMemory>,
    /// Slots below this number have memory.
    populated: AtomicU32,
}

impl Arena {
    /// A new arena, with the descriptors of its segments.
    ///
    /// # Errors
    /// Errors of the kernel, for example without enough memory.
    pub fn create(shape: Shape) -> io::Result<(Self, Vec<OwnedFd>)> {
        let made = shape
            .segments()
            .map(|length| SharedMemory::create("diesel-arena", length, Access::Maker));
        let (segments, files) = made.collect::<io::Result<(Vec<_>, Vec<_>)>>()?;
        Ok((Self { shape, segments, populated: AtomicU32::new(0) }, files))
    }

    /// Maps the arena of an agent for reading.
    ///
    /// # Errors
    /// Errors of the kernel, and for files of other lengths.
    pub fn map(shape: Shape, files: &[OwnedFd]) -> io::Result<Self> {
        let lengths: Vec<usize> = shape.segments().collect();
        if shape.slots > SLOTS_MAX || lengths.len() != files.len() {
            let why = "the arena has another size than the agent announced";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let maps =
            lengths.iter().zip(files).map(|(length, file)| SharedMemory::map(file, *length, false));
        let segments = maps.collect::<io::Result<_>>()?;
        Ok(Self { shape, segments, populated: AtomicU32::new(shape.slots) })
    }

    /// The sizes.
    #[inline]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The segment of a slot, and the offset in the segment of the slot's byte `offset`.
    #[inline]
    fn place(&self, slot: u32, offset: u32, length: usize) -> Option<(&SharedMemory, usize)> {
        let end = (offset as usize).checked_add(length)?;
        if end > self.shape.slot_bytes as usize || slot >= self.shape.slots {
            return None;
        }
        let most = self.shape.slots_of_a_segment();
        let segment = self.segments.get((slot / most) as usize)?;
        let start = (slot % most) as usize * self.shape.slot_bytes as usize;
        Some((segment, start + offset as usize))
    }

    /// Bytes of a slot pinned by the caller.
    #[inline]
    fn bytes(&self, slot: u32, offset: u32, length: usize) -> Option<&[u8]> {
        let (segment, at) = self.place(slot, offset, length)?;
        segment.bytes(at, length)
    }

    /// Takes memory for a new slot. Slots are first used in the order of their numbers.
    pub fn populate(&self, slot: u32) {
        let length = self.shape.slot_bytes as usize;
        if self.populated.fetch_max(slot + 1, Ordering::Relaxed) > slot {
            return;
        }
        if let Some((segment, at)) = self.place(slot, 0, length) {
            segment.populate(at, length);
        }
    }

    /// Slots below the number have memory, or will have memory soon.
    pub fn populated(&self) -> u32 {
        self.populated.load(Ordering::Relaxed)
    }

    /// The number of huge pages that lie in the arena as a whole.
    pub fn huge_pages(&self) -> usize {
        self.segments.iter().map(SharedMemory::huge_pages).sum()
    }

    /// Moves the memory of slots into a huge page, by its number; false while a slot in the page has
    /// no memory. The kernel copies 2 MiB, and may have to free them first.
    ///
    /// # Errors
    /// Errors of the kernel, for example without room in one piece.
    pub fn collapse(&self, page: usize) -> io::Result<bool> {
        let (mut page, mut first_slot) = (page, 0);
        for segment in &self.segments {
            if page < segment.huge_pages() {
                let end = (page + 1) * HUGE_PAGE - 1;
                let last = first_slot + end as u64 / u64::from(self.shape.slot_bytes.max(1));
                if last >= u64::from(self.populated()) {
                    return Ok(false);
                }
                return segment.collapse(page).map(|()| true);
            }
            page -= segment.huge_pages();
            first_slot += u64::from(self.shape.slots_of_a_segment());
        }
        Err(io::ErrorKind::InvalidInput.into())
    }

    /// Writes into a slot without word and pin; false if the bytes don't fit.
    pub fn write(&self, slot: u32, offset: u32, bytes: &[u8]) -> bool {
        let place = self.place(slot, offset, bytes.len());
        place.is_some_and(|(segment, at)| segment.write(at, bytes))
    }

    /// Passes bytes of a slot without word and pin to `write`; none for bytes outside of the slot.
    pub fn write_with<T>(
        &self,
        slot: u32,
        offset: u32,
        length: usize,
        write: impl FnOnce(&mut [u8]) -> T,
    ) -> Option<T> {
        let (segment, at) = self.place(slot, offset, length)?;
        segment.write_with(at, length, write)
    }

    /// Bytes of a slot written by the process.
    pub fn written(&self, slot: u32, offset: u32, length: usize) -> Option<&[u8]> {
        let (segment, at) = self.place(slot, offset, length)?;
        segment.written(at, length)
    }
}

/// The position of each chunk of a dataset version.
#[derive(Debug)]
pub struct Table {
    memory: SharedMemory,
    chunks: u32,
}

impl Table {
    fn length(chunks: u32) -> usize {
        HEAD + chunks as usize * size_of::<u64>()
    }

    /// A new table of absent chunks, and its descriptor.
    ///
    /// # Errors
    /// Errors of the kernel, for example without enough memory.
    pub fn create(chunks: u32) -> io::Result<(Self, OwnedFd)> {
        let length = Self::length(chunks);
        let (memory, file) = SharedMemory::create("diesel-table", length, Access::Maker)?;
        memory.populate(0, length);
        Ok((Self { memory, chunks }, file))
    }

    /// Maps the table of an agent for reading.
    ///
    /// # Errors
    /// Errors of the kernel, and for a file of another length.
    pub fn map(file: impl AsFd, chunks: u32) -> io::Result<Self> {
        Ok(Self { memory: SharedMemory::map(file, Self::length(chunks), false)?, chunks })
    }

    /// The number of chunks and parts of the dataset version.
    #[inline]
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    #[inline]
    fn word(&self, chunk: u32) -> Option<&AtomicU64> {
        self.memory.word(HEAD + chunk as usize * size_of::<u64>())
    }

    /// The position of a chunk.
    #[inline]
    pub fn load(&self, chunk: u32) -> Word {
        // Acquire: the bytes written before the word are visible.
        Word(self.word(chunk).map_or(0, |word| word.load(Ordering::Acquire)))
    }

    /// Publishes a chunk with all its bytes in a slot.
    pub fn publish(&self, chunk: u32, place: Word) {
        if let Some(word) = self.word(chunk) {
            word.store(place.0, Ordering::Release);
        }
    }

    /// Hides a chunk. After the call the agent sees the pins of all readers with the old word.
    pub fn withdraw(&self, chunk: u32) {
        if let Some(word) = self.word(chunk) {
            word.store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Stores a sign of life of the agent: milliseconds of the monotonic clock.
    pub fn beat(&self, milliseconds: u64) {
        if let Some(word) = self.memory.word(0) {
            word.store(milliseconds, Ordering::Relaxed);
        }
    }

    /// The last sign of life, in milliseconds of the monotonic clock.
    pub fn last_beat(&self) -> u64 {
        self.memory.word(0).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

/// The numbers of a reader in its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gauge {
    /// Files read from shared memory.
    Hits = 0,
    /// Files requested from the agent.
    Misses = 1,
    /// Bytes of the hits.
    HitBytes = 2,
    /// Files read of the order: a position of the rank.
    Position = 3,
    /// The chunk that the reader waits for, plus 1.
    Awaited = 4,
    /// The begin of the wait, in milliseconds of the monotonic clock.
    AwaitedSince = 5,
    /// Files read from the servers instead.
    Fallbacks = 6,
    /// Slots held by views.
    Views = 7,
    /// Bytes of the fallbacks.
    FallbackBytes = 8,
    /// The chunk of a current read from the servers, plus 1.
    Elsewhere = 9,
    /// The begin of the read, in milliseconds of the monotonic clock.
    ElsewhereSince = 10,
    /// Slots that views may hold, set by the agent.
    ViewsMax = 12,
    /// How absent files come, set by the agent: a [`FilesAlone`](crate::FilesAlone).
    FilesAlone = 13,
    /// Microseconds of all waits that have ended.
    WaitedMicros = 14,
    /// Chunks of the largest group that fits, plus 1, while the groups of the reader's order are
    /// larger and no further chunk fits; else 0. Set by the agent.
    GroupMax = 15,
}

/// The offset of the wait word in a page, behind the gauges. The word has the number of the wait
/// and, after the handover of a chunk, the slot, as in a [`Word`]; 0 without a wait.
const WAIT: usize = 11 * 8;

/// The pins in a slot's word of a page. The bits above count the uses of the slot, modulo 256: each
/// pin adds a use in the same step.
const PINS: u32 = USE - 1;
const USE: u32 = 1 << 24;

/// The pins of a connection, and the numbers of its reader.
#[derive(Debug)]
pub struct PinPage {
    memory: SharedMemory,
    slots: u32,
}

impl PinPage {
    fn length(slots: u32) -> usize {
        HEAD + slots as usize * size_of::<u32>()
    }

    /// A new page without pins, and its descriptor.
    ///
    /// # Errors
    /// Errors of the kernel, for example without enough memory.
    pub fn create(slots: u32) -> io::Result<(Self, OwnedFd)> {
        let made = SharedMemory::create("diesel-pins", Self::length(slots), Access::All)?;
        Ok((Self { memory: made.0, slots }, made.1))
    }

    /// Maps a page of the agent for its reader.
    ///
    /// # Errors
    /// Errors of the kernel, and for a file of another length.
    pub fn map(file: impl AsFd, slots: u32) -> io::Result<Self> {
        Ok(Self { memory: SharedMemory::map(file, Self::length(slots), true)?, slots })
    }

    /// The word of a slot: its pins and its uses.
    #[inline]
    pub fn count(&self, slot: u32) -> Option<&AtomicU32> {
        self.memory.half(HEAD + slot as usize * size_of::<u32>())
    }

    /// Whether the reader pins a slot.
    pub fn holds(&self, slot: u32) -> bool {
        // Acquire: the reads before the unpin have ended.
        self.count(slot).is_some_and(|pins| pins.load(Ordering::Acquire) & PINS != 0)
    }

    /// The number of the reader's pins of a slot up to now, modulo 256.
    pub fn uses(&self, slot: u32) -> u8 {
        self.count(slot).map_or(0, |pins| (pins.load(Ordering::Relaxed) / USE) as u8)
    }

    /// Pins a slot for a wait of the reader; the reader unpins. False without a pin if the wait has
    /// ended.
    pub fn pin_for_reader(&self, slot: u32, wait: u64) -> bool {
        let (Some(pins), Some(word)) = (self.count(slot), self.memory.word(WAIT)) else {
            return false;
        };
        pins.fetch_add(USE | 1, Ordering::SeqCst);
        let (waits, given) = (wait << SLOT_BITS, Word::new(wait, slot).0);
        // Release: the bytes and the pin precede the slot in the reader's view.
        let is_given =
            word.compare_exchange(waits, given, Ordering::Release, Ordering::Relaxed).is_ok();
        if !is_given {
            pins.fetch_sub(USE | 1, Ordering::Release);
        }
        is_given
    }

    /// Begins a wait of the reader; waits are numbered from 1.
    pub fn begin_wait(&self, wait: u64) {
        if let Some(word) = self.memory.word(WAIT) {
            word.store(wait << SLOT_BITS, Ordering::Release);
        }
    }

    /// Ends the wait of the reader; gives the slot pinned for the wait, if any. No pin follows.
    pub fn end_wait(&self) -> Option<u32> {
        Word(self.memory.word(WAIT)?.swap(0, Ordering::AcqRel)).slot()
    }

    /// The number of pinned slots.
    pub fn held(&self) -> u32 {
        (0..self.slots).filter(|slot| self.holds(*slot)).count() as u32
    }

    #[inline]
    fn gauge(&self, gauge: Gauge) -> Option<&AtomicU64> {
        self.memory.word(gauge as usize * 8)
    }

    /// The value of a gauge.
    #[inline]
    pub fn get(&self, gauge: Gauge) -> u64 {
        self.gauge(gauge).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Changes the value of a gauge.
    #[inline]
    pub fn set(&self, gauge: Gauge, value: u64) {
        if let Some(word) = self.gauge(gauge) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Adds to the value of a gauge.
    #[inline]
    pub fn add(&self, gauge: Gauge, value: u64) {
        if let Some(word) = self.gauge(gauge) {
            // Two separate steps: an atomic step for each file costs more than a lost count.
            word.store(word.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
        }
    }

    /// Removes a pin of the reader.
    #[inline]
    pub fn unpin(&self, slot: u32) {
        if let Some(pins) = self.count(slot) {
            // Release: the reads of the slot precede the unpin in the agent's view.
            pins.fetch_sub(1, Ordering::Release);
        }
    }

    /// Adds the views of a child, whose parent still holds the same views.
    pub fn add_views(&self, views: impl Iterator<Item = (u32, u32)>) {
        for (slot, count) in views {
            if let Some(pins) = self.count(slot) {
                pins.fetch_add(count, Ordering::SeqCst);
            }
            self.count_viewed_slot();
        }
    }

    /// Sets the pins of a page to the given views, in a process with a single thread.
    pub fn keep_views(&self, views: impl Iterator<Item = (u32, u32)>) {
        self.set(Gauge::Views, 0);
        let mut views = views.peekable();
        for slot in 0..self.slots {
            let count = views.next_if(|(of, _)| *of == slot).map_or(0, |(_, count)| count);
            if let Some(pins) = self.count(slot) {
                pins.store(count, Ordering::Release);
            }
            if count > 0 {
                self.count_viewed_slot();
            }
        }
    }

    /// Counts a slot with a first view.
    #[inline]
    pub fn count_viewed_slot(&self) {
        if let Some(counted) = self.gauge(Gauge::Views) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes the pin of a view; `is_last` for the last view of the slot.
    #[inline]
    pub fn end_view(&self, slot: u32, is_last: bool) {
        self.unpin(slot);
        if is_last && let Some(counted) = self.gauge(Gauge::Views) {
            counted.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The maps of a reader for a dataset version.
#[derive(Debug)]
pub struct Maps {
    /// The slots.
    pub arena: Arena,
    /// The positions of the chunks.
    pub table: Table,
    /// The pins of the reader.
    pub pins: PinPage,
}

/// A pinned slot, whose content is fixed while the value lives.
#[derive(Debug)]
pub struct Pinned<'a> {
    maps: &'a Maps,
    /// The page with the pin.
    pins: &'a PinPage,
    slot: u32,
}

impl Maps {
    /// Pins a chunk; none for an absent chunk.
    #[inline]
    pub fn pin(&self, chunk: u32) -> Option<Pinned<'_>> {
        for _ in 0..LOOKS {
            let word = self.table.load(chunk);
            let slot = word.slot()?;
            self.pins.count(slot)?.fetch_add(USE | 1, Ordering::Relaxed);
            let pinned = Pinned { maps: self, pins: &self.pins, slot };
            // Either the agent sees the pin after its withdrawal, or the second load sees the withdrawal.
            fence(Ordering::SeqCst);
            if self.table.load(chunk) == word {
                return Some(pinned);
            }
        }
        None
    }

    /// Takes over a pin set by the agent for the reader, in a page.
    #[inline]
    pub fn take_over<'a>(&'a self, pins: &'a PinPage, slot: u32) -> Pinned<'a> {
        Pinned { maps: self, pins, slot }
    }

    /// Adds a pin to a pinned slot, in the same page: the agent looks at one page after the other.
    #[inline]
    pub fn pin_again<'a>(pinned: &Pinned<'a>) -> Option<Pinned<'a>> {
        pinned.pins.count(pinned.slot)?.fetch_add(1, Ordering::Relaxed);
        Some(Pinned { maps: pinned.maps, pins: pinned.pins, slot: pinned.slot })
    }

    /// Bytes of a slot whose pin was taken from a [`Pinned`].
    #[inline]
    pub fn pinned_bytes(&self, slot: u32, offset: u32, length: usize) -> Option<&[u8]> {
        self.arena.bytes(slot, offset, length)
    }

    /// Prefetches the first bytes of a file, without a pin.
    #[inline]
    pub fn prefetch(&self, chunk: u32, offset: u32, lines: usize) {
        let place =
            self.table.load(chunk).slot().and_then(|slot| self.arena.place(slot, offset, 1));
        if let Some((segment, at)) = place {
            segment.prefetch(at, lines);
        }
    }
}

impl Pinned<'_> {
    /// Bytes of the chunk; none for bytes outside of the slot.
    #[inline]
    pub fn bytes(&self, offset: u32, length: usize) -> Option<&[u8]> {
        self.maps.arena.bytes(self.slot, offset, length)
    }

    /// The slot.
    #[inline]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Whether the pin is in the page of the process's first connection, where views have theirs.
    #[inline]
    pub fn may_become_view(&self) -> bool {
        std::ptr::eq(self.pins, &raw const self.maps.pins)
    }

    /// The slot; the caller must remove the pin by [`PinPage::unpin`].
    #[inline]
    pub fn into_slot(self) -> u32 {
        let slot = self.slot;
        std::mem::forget(self);
        slot
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        self.pins.unpin(self.slot);
    }
}

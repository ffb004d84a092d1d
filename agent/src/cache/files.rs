//! Small files fetched from other agents and local disks without their chunks, for reads in no order
//! while there is no room for whole chunks.
//!
//! Must hold: a worker's wait gets one answer. A slot with such files is in no table, and is filled
//! again only when no worker pins it. Files of a disk are checked before they are used.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use dl_format::MemberId;
use dl_node::{Arena, FromAgent, NO_FILE, WantFiles};
use dl_runtime::spawn;
use libdiesel::FilePlace;
use tokio::sync::SemaphorePermit;

use super::fill::{is_right, range_of};
use super::on_disk::id_of;
use super::{Cache, State};
use crate::dataset::Open;
use crate::disk::{CopyFile, DiskCopy, Read, Unread, blocks};
use crate::peers::{FILES_BYTES_MAX, FILES_MAX, IncomingFiles, Link};
use crate::pins::PinnedFiles;
use crate::place::ChunkKey;

/// A file with its index in a request.
type Indexed = (usize, (u32, FilePlace));

/// Files requested from one source.
struct Part {
    source: Source,
    /// Offset of the first file in the slot.
    start: u32,
    files: Vec<Indexed>,
}

/// Files of a source, with the sum of their bytes.
type OfSource = (Source, u64, Vec<Indexed>);

/// Where files come from.
enum Source {
    Agent(Arc<Link>),
    /// A copy of the chunk with this number.
    Disk(DiskCopy, u32),
}

/// A slot for files, and what comes there.
struct Gathering {
    dataset: usize,
    open: Arc<Open>,
    arena: Arc<Arena>,
    slot: u32,
    parts: Vec<Part>,
}

/// The files that came.
struct Gathered {
    /// The offset of each file in the slot, [`NO_FILE`] for an absent file.
    offsets: Vec<u32>,
    from_agents: u64,
    from_disk: u64,
}

impl Cache {
    /// Answers a worker's request for files: the offsets in a slot of the files received from disks
    /// and other agents.
    pub(crate) fn want_files(self: &Arc<Self>, connection: u64, want: WantFiles) {
        let WantFiles { id, files } = want;
        let dataset = self.state().connections.get(connection).map(|one| one.dataset);
        let wanted = files.iter().copied().enumerate();
        let gathering = dataset.and_then(|dataset| self.begin_files(dataset, wanted, true));
        let count = files.len();
        let Some(gathering) = gathering else {
            let gathered = Gathered { offsets: vec![NO_FILE; count], from_agents: 0, from_disk: 0 };
            self.state().answer_files(connection, id, None, gathered);
            return;
        };
        let cache = Arc::clone(self);
        spawn(async move {
            let slot = gathering.slot;
            let gathered = cache.gather(gathering, count).await;
            cache.state().answer_files(connection, id, Some(slot), gathered);
            cache.moved.notify_one();
        });
    }

    /// Pins files for another agent that are on a disk, and not in memory. A few requests have slots at
    /// a time, as long as the permit lives.
    pub(crate) async fn pin_files_of_disks(
        self: &Arc<Self>,
        dataset: usize,
        numbers: impl Iterator<Item = u32>,
    ) -> Option<(PinnedFiles, SemaphorePermit<'_>)> {
        if self.disks.is_empty() {
            return None;
        }
        let permit = self.files_for_peers.try_acquire().ok()?;
        let files: Vec<u32> = numbers.collect();
        let absent: Vec<_> = {
            let state = self.state();
            let is_absent = |(_, file): &(usize, u32)| state.file_here(dataset, *file).is_none();
            files.iter().copied().enumerate().filter(is_absent).collect()
        };
        let gathering = self.begin_files(dataset, absent.into_iter(), false)?;
        let (slot, open) = (gathering.slot, Arc::clone(&gathering.open));
        let gathered = self.gather(gathering, files.len()).await;
        let found = files.into_iter().zip(gathered.offsets).map(|(file, offset)| {
            let place = (offset != NO_FILE).then(|| open.snapshot.place(file).ok())??;
            Some((slot, FilePlace { offset, ..place }))
        });
        let mut state = self.state();
        if let Some(counts) = state.counts.get_mut(dataset) {
            counts.files_to_peers += gathered.from_disk;
        }
        let pinned = state.slots.pin_files(found);
        state.slots.drain(slot);
        Some((pinned?, permit))
    }

    /// A slot for files, and the sources of the files. None if no source has any of the files, or
    /// there is no slot.
    fn begin_files(
        &self,
        dataset: usize,
        wanted: impl Iterator<Item = (usize, u32)>,
        with_agents: bool,
    ) -> Option<Gathering> {
        let (open, arena) = {
            let state = self.state();
            (Arc::clone(state.opens.get(dataset)?), state.slots.arena()?)
        };
        let parts = self.parts(&open, wanted, arena.shape().slot_bytes, with_agents);
        if parts.is_empty() {
            return None;
        }
        let slot = self.state().slot_for_files(self.now())?;
        Some(Gathering { dataset, open, arena, slot, parts })
    }

    /// The files by source, as many as fit into a slot and a request.
    fn parts(
        &self,
        open: &Open,
        wanted: impl Iterator<Item = (usize, u32)>,
        slot_bytes: u32,
        with_agents: bool,
    ) -> Vec<Part> {
        let most = u64::from(slot_bytes).min(FILES_BYTES_MAX as u64);
        // The bytes of each source, in whole blocks from a disk.
        let mut parts: BTreeMap<(Option<MemberId>, u32), OfSource> = BTreeMap::new();
        for (index, number) in wanted.take(FILES_MAX) {
            let Ok(place) = open.snapshot.place(number) else { continue };
            if place.length == 0 || place.length > most {
                continue;
            }
            let (key, source, bytes) = if let Some(copy) = self.copy_of(open, place) {
                let range = blocks(&range_of(&place));
                let source = Source::Disk(copy, place.chunk);
                ((None, place.chunk), source, u64::from(range.end - range.start))
            } else if let Some(link) = open.peers.holder(place.chunk).filter(|_| with_agents) {
                ((Some(link.member), 0), Source::Agent(link), place.length)
            } else {
                continue;
            };
            let (_, sum, files) = parts.entry(key).or_insert((source, 0, Vec::new()));
            if *sum + bytes <= most {
                *sum += bytes;
                files.push((index, (number, place)));
            }
        }
        let mut next = 0;
        let parts = parts.into_values().filter_map(|(source, bytes, files)| {
            // Parts of disks come first, in whole blocks.
            let (start, end) = (next, next + bytes);
            let fits = bytes > 0 && end <= slot_bytes.into();
            next = if fits { end } else { next };
            fits.then_some(Part { source, start: start as u32, files })
        });
        parts.collect()
    }

    /// The copy with a file.
    fn copy_of(&self, open: &Open, place: FilePlace) -> Option<DiskCopy> {
        if self.disks.is_empty() {
            return None;
        }
        let id = id_of(&open.snapshot, place.chunk)?;
        self.disks.find(open.snapshot.dataset(), id, &range_of(&place))
    }

    /// Fetches files into their slot.
    async fn gather(self: &Arc<Self>, gathering: Gathering, count: usize) -> Gathered {
        let Gathering { dataset, open, arena, slot, parts } = gathering;
        arena.populate(slot);
        let mut waiting = Vec::new();
        for Part { source, start, files } in parts {
            let (indexes, files) = files.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
            let is_disk = matches!(source, Source::Disk(..));
            let incoming = IncomingFiles { arena: Arc::clone(&arena), slot, start, files };
            let fetching = match source {
                Source::Agent(link) => spawn(async move { link.files(incoming).await }),
                Source::Disk(copy, chunk) => {
                    let (cache, open) = (Arc::clone(self), Arc::clone(&open));
                    let key = ChunkKey { dataset, chunk };
                    spawn(async move { cache.read_files(&open, key, &copy, incoming).await })
                }
            };
            waiting.push((indexes, is_disk, fetching));
        }
        let mut gathered = Gathered { offsets: vec![NO_FILE; count], from_agents: 0, from_disk: 0 };
        for (indexes, is_disk, fetching) in waiting {
            let places = fetching.await.ok().flatten().unwrap_or_default();
            let found = places.iter().filter(|place| **place != NO_FILE).count() as u64;
            *if is_disk { &mut gathered.from_disk } else { &mut gathered.from_agents } += found;
            for (index, place) in indexes.into_iter().zip(places) {
                gathered.offsets.get_mut(index).into_iter().for_each(|offset| *offset = place);
            }
        }
        gathered
    }

    /// Reads files of a chunk from a copy. Returns the offset of each file in the slot.
    async fn read_files(
        self: &Arc<Self>,
        open: &Open,
        key: ChunkKey,
        copy: &DiskCopy,
        incoming: IncomingFiles,
    ) -> Option<Vec<u32>> {
        let IncomingFiles { arena, slot, start, files } = incoming;
        let mut next = start;
        let mut places = Vec::with_capacity(files.len());
        for (_, place) in &files {
            let range = blocks(&range_of(place));
            let offset = next + (place.offset - range.start);
            places.push((range, next, FilePlace { offset, ..*place }));
            next += places.last().map_or(0, |(range, ..)| range.end - range.start);
        }
        let bytes = u64::from(next - start);
        // The slot stays pinned while the disk hangs.
        let pinned = self.state().slots.pin_chunk(slot, (start, next));
        let (memory, to_read) = (Arc::clone(&arena), places.clone());
        let read = move |file: &CopyFile| {
            let _pinned = pinned;
            for (range, at, place) in &to_read {
                let least = (place.offset - at) as usize + place.length as usize;
                let read = |memory: &mut [u8]| file.read(memory, range.start, least);
                let read = memory.write_with(slot, *at, range.len(), read);
                match read.unwrap_or_else(|| Err(io::ErrorKind::InvalidInput.into())) {
                    // A file cut short by a power failure.
                    Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                    read => read?,
                }
            }
            Ok(true)
        };
        let read = self.disks.read(copy, Read::Files(bytes), read).await;
        if read.is_err_and(|why| why != Unread::Gone) {
            return None;
        }
        let is_good = |place: &FilePlace| read == Ok(true) && is_right(&arena, slot, *place);
        let offset = |place: FilePlace| if is_good(&place) { place.offset } else { NO_FILE };
        let offsets: Vec<_> = places.iter().map(|(.., place)| offset(*place)).collect();
        if offsets.contains(&NO_FILE) {
            self.drop_copy(open.snapshot.dataset(), key, copy, read.is_ok());
        }
        Some(offsets)
    }
}

impl State {
    fn answer_files(&mut self, connection: u64, id: u64, slot: Option<u32>, gathered: Gathered) {
        if let Some(one) = self.connections.get(connection) {
            if let Some(counts) = self.counts.get_mut(one.dataset) {
                counts.files_from_peers += gathered.from_agents;
                counts.files_from_disk += gathered.from_disk;
            }
            let is_waiting = slot.is_none_or(|slot| one.pins.pin_for_reader(slot, id));
            if is_waiting {
                one.send(&FromAgent::HereFiles { id, offsets: gathered.offsets });
            }
        }
        slot.into_iter().for_each(|slot| self.slots.drain(slot));
    }
}

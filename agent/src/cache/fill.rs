//! Fetching a chunk into its slot.
//!
//! Must hold: a chunk is published only after the checksum of each file matched the snapshot.
//! Damaged bytes are fetched once more, bypassing the copies of a fast store. A file awaited by a
//! worker is handed over before the rest of its chunk arrives. Bytes missing from another agent
//! come from the servers.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dl_format::{ChunkId, Crc32c};
use dl_node::Arena;
use dl_proto::ChunkRange;
use dl_runtime::spawn_on;
use libdiesel::{Error, FilePlace, Kind};

use super::Cache;
use super::wants::{Fetch, Filled};
use crate::dataset::{Open, chain};
use crate::disk::{CopyFile, Read, Unread, blocks};
use crate::peers::{ChunkOutcome, Incoming, Link};
use crate::place::{ASKED_MAX, ChunkKey, Origin};
use crate::progress::Progress;

/// Delay of the next fetch ahead after a fetch without an answer from any server.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Maximum of concurrent fetches ahead.
const FETCHES_MAX: usize = 12;

impl Cache {
    /// Begins a fetch.
    pub(crate) fn fetch(self: &Arc<Self>, fetch: Fetch) {
        // Fetches for other agents don't count against this limit.
        self.fetches.fetch_add((!fetch.is_for_peer).into(), Ordering::Relaxed);
        start(self, fetch);
    }

    /// Starts fetches ahead up to the limit.
    pub(crate) fn fetch_ahead(self: &Arc<Self>) {
        while self.fetches.load(Ordering::Relaxed) < FETCHES_MAX {
            let fetch = self.state().fetch_ahead(self.policy, self.now());
            let Some(fetch) = fetch else { return };
            self.fetch(fetch);
        }
    }

    /// Ends a fetch; the next fetches may start.
    fn ended_a_fetch(self: &Arc<Self>, is_for_peer: bool) {
        self.fetches.fetch_sub((!is_for_peer).into(), Ordering::Relaxed);
        self.fetch_ahead();
        let mut state = self.state();
        // The next read in no order may come at once.
        state.announce_file_requests();
        if state.waiters.is_short() {
            self.moved.notify_one();
        }
    }
}

/// A chunk being fetched, with the places of its files.
struct Wanted {
    key: ChunkKey,
    slot: u32,
    id: ChunkId,
    /// Sorted by end.
    files: Arc<[(u32, FilePlace)]>,
    /// The first file needed.
    first: Option<u32>,
    progress: Arc<Progress>,
    is_for_peer: bool,
}

/// The reason for a failed fetch.
enum Failure {
    /// Another fetch of the chunk would fail too.
    Final(String),
    /// No server answered.
    Away(String),
}

/// Starts the fetch of a chunk.
fn start(cache: &Arc<Cache>, fetch: Fetch) {
    let (open, arena) = {
        let state = cache.state();
        (state.opens.get(fetch.key.dataset).map(Arc::clone), state.slots.arena())
    };
    let (Some(open), Some(arena)) = (open, arena) else { return };
    let cache = Arc::clone(cache);
    let runtime = open.source.runtime().clone();
    spawn_on(&runtime, async move {
        let (key, is_for_peer) = (fetch.key, fetch.is_for_peer);
        let filled = match wanted(&open, fetch) {
            Ok(wanted) => fill(&cache, &open, &arena, &wanted).await,
            Err(why) => Err(Failure::Final(why)),
        };
        match filled {
            Ok(filled) => {
                cache.state().filled(key, filled, cache.now());
                cache.keep_on_disk(key, filled.origin);
            }
            Err(Failure::Final(why)) => {
                tracing::warn!(dataset = open.name, chunk = key.chunk, why, "fetch a chunk");
                cache.state().lost(key, &why, true);
            }
            Err(Failure::Away(why)) => {
                tracing::warn!(
                    dataset = open.name,
                    chunk = key.chunk,
                    why,
                    "fetch a chunk: no source answered"
                );
                cache.state().lost(key, &why, false);
                cache.clock.sleep(RETRY_DELAY).await;
            }
        }
        cache.ended_a_fetch(is_for_peer);
    });
}

/// The files of a chunk, or the piece of a large file.
fn wanted(open: &Open, fetch: Fetch) -> Result<Wanted, String> {
    let text = |error: Error| chain(&error);
    let Fetch { key, slot, first, progress, is_for_peer } = fetch;
    let of_files = |id, files: Vec<_>| {
        let files = files.into();
        Wanted { key, slot, id, files, first, progress, is_for_peer }
    };
    if key.chunk >= open.snapshot.chunks() {
        let (id, number, place) = open.snapshot.part(key.chunk).map_err(text)?;
        return Ok(of_files(id, vec![(number, place)]));
    }
    let (id, length, numbers) = open.snapshot.chunk(key.chunk).map_err(text)?;
    let mut files = Vec::with_capacity(numbers.len());
    for number in numbers {
        let mut place = open.snapshot.place(number).map_err(text)?;
        // A large file has its last piece in this chunk.
        place = open.snapshot.pieces(number).map_err(text)?.pop().unwrap_or(place);
        if u64::from(place.offset).saturating_add(place.length) > u64::from(length) {
            return Err(format!("file {number} ends behind the end of its chunk"));
        }
        if place.length > 0 {
            files.push((number, place));
        }
    }
    files.sort_unstable_by_key(|(_, place)| range_of(place).end);
    Ok(of_files(id, files))
}

/// Fetches all files of a chunk.
async fn fill(
    cache: &Arc<Cache>,
    open: &Open,
    arena: &Arc<Arena>,
    wanted: &Wanted,
) -> Result<Filled, Failure> {
    let span = span_of(&wanted.files);
    wanted.progress.length.store((span.end - span.start).into(), Ordering::Relaxed);
    arena.populate(wanted.slot);
    let (mut right, mut origin) = (0, Origin::Servers);
    if !span.is_empty() {
        let of_disk = Filled { span: (span.start, span.end), origin: Origin::Disk };
        let is_spared = wanted.spares_disk(cache, open);
        let read = if is_spared { None } else { wanted.read_disk(cache, open, arena).await? };
        if read == Some(true) {
            return Ok(of_disk);
        }
        // Two agents with unreadable copies must not wait for each other.
        if read.is_none() || !wanted.is_for_peer {
            (right, origin) = wanted.ask_peers(cache, open, arena, !is_spared).await;
        }
        let is_left = is_spared && origin != Origin::Peer && right == 0;
        if is_left && wanted.read_disk(cache, open, arena).await? == Some(true) {
            return Ok(of_disk);
        }
    }
    if origin == Origin::Peer {
        return Ok(Filled { span: (span.start, span.end), origin });
    }
    cache.state().residency.comes_from_servers(wanted.key);
    wanted.progress.comes_from(None);
    let began = cache.now();
    wanted.ask_servers(cache, open, arena, right).await?;
    if right == 0 && !span.is_empty() {
        cache.state().server_reads.add(cache.now().saturating_sub(began));
    }
    Ok(Filled { span: (span.start, span.end), origin })
}

impl Wanted {
    /// Whether another agent is asked before a slow disk. If that agent asks here for the chunk, it
    /// gets no answer to wait for.
    fn spares_disk(&self, cache: &Cache, open: &Open) -> bool {
        if cache.disks.is_empty() || self.is_for_peer {
            return false;
        }
        let copy = cache.disks.find(open.snapshot.dataset(), self.id, &span_of(&self.files));
        let servers = cache.state().server_reads.typical();
        copy.is_some_and(|copy| cache.disks.is_slow(&copy, servers))
            && open.peers.holder(self.key.chunk).is_some()
    }

    /// Reads the chunk from a local disk; false if the disk does not give all its files, none without a
    /// copy. While a disk hangs, the slot stays pinned, and the fetch fails.
    async fn read_disk(
        &self,
        cache: &Arc<Cache>,
        open: &Open,
        arena: &Arc<Arena>,
    ) -> Result<Option<bool>, Failure> {
        if cache.disks.is_empty() {
            return Ok(None);
        }
        let (dataset, span) = (open.snapshot.dataset(), span_of(&self.files));
        let Some(copy) = cache.disks.find(dataset, self.id, &span) else {
            // A copy of another version may have a part of the files.
            cache.state().disk.remove(self.key);
            return Ok(None);
        };
        let pinned = {
            let mut state = cache.state();
            // The disk waits for no other agent.
            state.residency.comes_from_peer(self.key, true);
            state.slots.pin_chunk(self.slot, (span.start, span.end))
        };
        let folder = cache.disks.folder_of(&copy);
        self.progress.comes_from(Some(&folder));
        let (memory, slot) = (Arc::clone(arena), self.slot);
        let read = move |file: &CopyFile| {
            let (_pinned, blocks) = (pinned, blocks(&span));
            let least = (span.end - blocks.start) as usize;
            let read = |memory: &mut [u8]| file.read(memory, blocks.start, least);
            let read = memory.write_with(slot, blocks.start, blocks.len(), read);
            match read.unwrap_or_else(|| Err(io::ErrorKind::InvalidInput.into())) {
                // A file cut short by a power failure.
                Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
                read => read.map(|()| true),
            }
        };
        let are_right = || self.files.iter().all(|(_, place)| is_right(arena, slot, *place));
        match cache.disks.read(&copy, Read::Chunk, read).await {
            Ok(is_whole) if is_whole && are_right() => return Ok(Some(true)),
            Ok(_) => cache.drop_copy(dataset, self.key, &copy, true),
            Err(Unread::Gone) => cache.drop_copy(dataset, self.key, &copy, false),
            Err(Unread::Resting) => return Ok(Some(false)),
            Err(Unread::Hanging) => {
                return Err(Failure::Away(format!("the disk {folder} gives no answer")));
            }
        }
        Ok(Some(false))
    }

    /// Asks other agents for the chunk. Returns the number of correct files, and the origin of the
    /// chunk if the servers deliver the rest. A chunk for another agent comes only from agents that
    /// keep the chunk, so no two agents wait for each other. `may_be_awaited`: other agents may wait
    /// for the chunk from an agent that keeps it.
    async fn ask_peers(
        &self,
        cache: &Cache,
        open: &Open,
        arena: &Arc<Arena>,
        may_be_awaited: bool,
    ) -> (usize, Origin) {
        let (mut asked, mut has_failed) = (Vec::new(), false);
        loop {
            // Members may come and go during each request.
            let can_keep = cache.state().reserve_in_a_tier(self.key);
            let mut sources = open.peers.sources(self.key.chunk, can_keep).await;
            if self.is_for_peer {
                sources.links.truncate(sources.holders);
            } else if !sources.is_mine {
                cache.state().residency.end_reservation(self.key);
            }
            let is_new = |(_, link): &(usize, &Arc<Link>)| !asked.contains(&link.member);
            let next = sources.links.iter().enumerate().find(is_new);
            let Some((number, link)) = next.filter(|_| asked.len() < ASKED_MAX) else {
                let is_mine = (sources.is_mine || self.is_for_peer) && !has_failed;
                return (0, if is_mine { Origin::Servers } else { Origin::ServersInstead });
            };
            asked.push(link.member);
            let may_be_awaited = may_be_awaited && number < sources.holders;
            cache.state().residency.comes_from_peer(self.key, may_be_awaited);
            self.progress.comes_from(Some(&link.address));
            let (files, progress) = (Arc::clone(&self.files), Arc::clone(&self.progress));
            let incoming = Incoming::new(Arc::clone(arena), self.slot, files, progress);
            let is_right = |right| self.hand_over_first(cache, right);
            match link.chunk(self.key.chunk, incoming, is_right).await {
                ChunkOutcome::Complete => {
                    let span = span_of(&self.files);
                    link.add_bytes((span.end - span.start).into());
                    return (self.files.len(), Origin::Peer);
                }
                ChunkOutcome::Absent => {}
                ChunkOutcome::Disconnected => has_failed = true,
                ChunkOutcome::Failed { right, why } => {
                    let (dataset, chunk, peer) = (&open.name, self.key.chunk, &link.address);
                    tracing::debug!(dataset, chunk, peer, why, "fetch a chunk from another agent");
                    return (right, Origin::ServersInstead);
                }
            }
        }
    }

    /// Answers the workers waiting for the first needed file, once the file is among the first
    /// `right` files.
    fn hand_over_first(&self, cache: &Cache, right: usize) {
        let Some(first) = self.first else { return };
        let right = self.files.get(..right).unwrap_or_default();
        if right.iter().any(|(number, _)| *number == first) {
            // Readers may use the file from now on, so its bytes are not written again.
            cache.state().file_is_there(self.key, first);
        }
    }

    /// Asks the servers for the files behind the correct files. The first needed file has its own
    /// request, because a server reads all ranges of a request before sending.
    async fn ask_servers(
        &self,
        cache: &Cache,
        open: &Open,
        arena: &Arena,
        right: usize,
    ) -> Result<(), Failure> {
        let files = self.files.get(right..).unwrap_or_default();
        let first = files.iter().find(|(number, _)| Some(*number) == self.first);
        let (range, mut left) = ranges(files, first);
        if let (Some(range), Some((number, place))) = (range, first) {
            self.fetch(open, arena, std::slice::from_ref(&range), false).await?.ok();
            if is_right(arena, self.slot, *place) {
                cache.state().file_is_there(self.key, *number);
            } else {
                left.push(range);
            }
        }
        if files.is_empty() {
            return Ok(());
        }
        let mut why = String::new();
        for passes_copies in [false, true] {
            if let Err(damage) = self.fetch(open, arena, &left, passes_copies).await? {
                why = damage;
                continue;
            }
            match files.iter().find(|file| !is_right(arena, self.slot, file.1)) {
                None => return Ok(()),
                Some((number, _)) => why = format!("file {number} is damaged"),
            }
        }
        Err(Failure::Final(why))
    }

    /// Fetches ranges into the slot; the inner error describes damage.
    async fn fetch(
        &self,
        open: &Open,
        arena: &Arena,
        ranges: &[Range<u32>],
        passes_copies: bool,
    ) -> Result<Result<(), String>, Failure> {
        if ranges.is_empty() {
            return Ok(Ok(()));
        }
        let requests = ranges.iter().map(|range| ChunkRange {
            chunk: self.id,
            offset: range.start,
            length: range.end - range.start,
        });
        let requests: Vec<ChunkRange> = requests.collect();
        let take = |index: usize, offset: u64, bytes: &[u8]| {
            let start = ranges.get(index).map_or(0, |range| u64::from(range.start));
            let at = u32::try_from(start.saturating_add(offset)).unwrap_or(u32::MAX);
            arena.write(self.slot, at, bytes);
            self.progress.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        };
        let fetched = open.source.fetch(&requests, passes_copies, take).await;
        let fetched = fetched.map_err(|error| Failure::Away(chain(&error)))?;
        let Some(error) = fetched.into_iter().find_map(Result::err) else { return Ok(Ok(())) };
        match error.kind() {
            Kind::Corrupt => Ok(Err(chain(&error))),
            Kind::NotFound => Err(Failure::Final(chain(&error))),
            _ => Err(Failure::Away(chain(&error))),
        }
    }
}

/// The parts of the object to fetch: the first needed file, and the rest.
fn ranges(
    files: &[(u32, FilePlace)],
    first: Option<&(u32, FilePlace)>,
) -> (Option<Range<u32>>, Vec<Range<u32>>) {
    let span = span_of(files);
    let first = first.map(|(_, place)| range_of(place));
    let gap = first.clone().unwrap_or(span.start..span.start);
    let rest = [span.start..gap.start, gap.end..span.end];
    (first, rest.into_iter().filter(|range| !range.is_empty()).collect())
}

/// Start and end of files in their chunk.
fn span_of(files: &[(u32, FilePlace)]) -> Range<u32> {
    let start = files.iter().map(|(_, place)| place.offset).min().unwrap_or(0);
    let end = files.iter().map(|(_, place)| range_of(place).end).max().unwrap_or(0);
    start..end
}

/// The bytes of a file in its chunk.
pub(super) fn range_of(place: &FilePlace) -> Range<u32> {
    place.offset..place.offset.saturating_add(place.length as u32)
}

/// Whether the bytes of a file are in a slot.
pub(super) fn is_right(arena: &Arena, slot: u32, place: FilePlace) -> bool {
    let bytes = arena.written(slot, place.offset, place.length as usize);
    bytes.is_some_and(|bytes| Crc32c::of(bytes) == place.crc)
}

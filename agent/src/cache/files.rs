//! Small files fetched from other agents without their chunks, for reads in no order while there is
//! no room for whole chunks.
//!
//! Must hold: a worker's wait gets one answer. A slot with such files is in no table, and is filled
//! again only when no worker pins it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dl_format::MemberId;
use dl_node::{Arena, FromAgent, NO_FILE, WantFiles};
use dl_runtime::spawn;
use libdiesel::FilePlace;

use super::{Cache, State};
use crate::dataset::Open;
use crate::peers::{FILES_BYTES_MAX, FILES_MAX, IncomingFiles, Link};

/// Files requested from one agent.
struct Part {
    link: Arc<Link>,
    /// Offset of the first file in the slot.
    start: u32,
    /// Each file with its index in the worker's request.
    files: Vec<(usize, (u32, FilePlace))>,
}

impl Cache {
    /// Answers a worker's request for files: the offsets in a slot of the files received from other
    /// agents.
    pub(crate) fn want_files(self: &Arc<Self>, connection: u64, want: WantFiles) {
        let WantFiles { id, files } = want;
        let begun = self.state().begin_files(connection, &files, self.now());
        let Some((parts, arena, slot)) = begun else {
            self.state().answer_files(connection, id, None, vec![NO_FILE; files.len()]);
            return;
        };
        let cache = Arc::clone(self);
        spawn(async move {
            arena.populate(slot);
            let mut offsets = vec![NO_FILE; files.len()];
            let mut waiting = Vec::new();
            for Part { link, start, files } in parts {
                let (indexes, files) = files.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
                let incoming = IncomingFiles { arena: Arc::clone(&arena), slot, start, files };
                let asking = spawn(async move { link.files(incoming).await });
                waiting.push((indexes, asking));
            }
            for (indexes, asking) in waiting {
                let places = asking.await.ok().flatten().unwrap_or_default();
                for (index, place) in indexes.into_iter().zip(places) {
                    offsets.get_mut(index).into_iter().for_each(|offset| *offset = place);
                }
            }
            cache.state().answer_files(connection, id, Some(slot), offsets);
            cache.moved.notify_one();
        });
    }
}

impl State {
    /// The requests to other agents for the given files, and the slot for the files. None if no
    /// agent has any of the files, or there is no slot.
    fn begin_files(
        &mut self,
        connection: u64,
        files: &[u32],
        now: Duration,
    ) -> Option<(Vec<Part>, Arc<Arena>, u32)> {
        let dataset = self.connections.get(connection)?.dataset;
        let open = Arc::clone(self.opens.get(dataset)?);
        let arena = self.slots.arena()?;
        let parts = parts(&open, files, arena.shape().slot_bytes);
        if parts.is_empty() {
            return None;
        }
        let slot = self.slot_for_files(now)?;
        Some((parts, arena, slot))
    }

    fn answer_files(&mut self, connection: u64, id: u64, slot: Option<u32>, offsets: Vec<u32>) {
        if let Some(one) = self.connections.get(connection) {
            if let Some(counts) = self.counts.get_mut(one.dataset) {
                let found = offsets.iter().filter(|offset| **offset != NO_FILE);
                counts.files_from_peers += found.count() as u64;
            }
            let is_waiting = slot.is_none_or(|slot| one.pins.pin_for_reader(slot, id));
            if is_waiting {
                one.send(&FromAgent::HereFiles { id, offsets });
            }
        }
        slot.into_iter().for_each(|slot| self.slots.drain(slot));
    }
}

/// The files kept by other agents, by agent, as many as fit into a slot and a request.
fn parts(open: &Open, files: &[u32], slot_bytes: u32) -> Vec<Part> {
    let most = u64::from(slot_bytes).min(FILES_BYTES_MAX as u64);
    let mut parts: BTreeMap<MemberId, (Arc<Link>, u64, Vec<_>)> = BTreeMap::new();
    for (index, number) in files.iter().enumerate().take(FILES_MAX) {
        let Ok(place) = open.snapshot.place(*number) else { continue };
        if place.length == 0 {
            continue;
        }
        let Some(link) = open.peers.holder(place.chunk) else { continue };
        let (_, bytes, files) = parts.entry(link.member).or_insert((link, 0, Vec::new()));
        if *bytes + place.length <= most {
            *bytes += place.length;
            files.push((index, (*number, place)));
        }
    }
    let mut next = 0;
    let parts = parts.into_values().filter_map(|(link, bytes, files)| {
        let (start, end) = (next, next + bytes);
        let fits = bytes > 0 && end <= slot_bytes.into();
        next = if fits { end } else { next };
        fits.then_some(Part { link, start: start as u32, files })
    });
    parts.collect()
}

//! The owners of chunks, computed beside the work of the cache, and what follows from new owners.
//!
//! Must hold: the cache is not locked while owners are computed. Another agent is told that it is
//! known only after the cache has the new owners. Every own chunk that another agent keeps comes here
//! in the end, as far as there is room.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dl_runtime::blocking;

use super::wants::Fetch;
use super::{Cache, State};
use crate::place::{ChunkKey, OwnerTable};

/// Interval between two looks at the links, beside the looks after each change.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between the adoptions of two chunks.
const ADOPTION_INTERVAL: Duration = Duration::from_millis(50);

/// Follows the members and their lists of kept chunks.
pub(crate) async fn watch_owners(cache: Arc<Cache>) {
    let mut adoption = Adoption::default();
    loop {
        let (of_cache, before) = (Arc::clone(&cache), adoption);
        match blocking::run(move || of_cache.follow_owners(before)).await {
            Ok(after) => adoption = after,
            Err(_) => return,
        }
        let pause = match adoption.is_pending() {
            true => ADOPTION_INTERVAL,
            false => POLL_INTERVAL,
        };
        tokio::select! {
            () = cache.link_events.next() => {}
            () = cache.clock.sleep(pause) => {}
        }
    }
}

/// Own chunks that other agents keep.
#[derive(Debug, Default)]
struct Adoption {
    /// The number of the lists of kept chunks.
    lists: u64,
    waiting: VecDeque<ChunkKey>,
    /// The chunk on its way.
    current: Option<ChunkKey>,
}

impl Adoption {
    fn is_pending(&self) -> bool {
        self.current.is_some() || !self.waiting.is_empty()
    }
}

impl Cache {
    /// Computes new owners, and hands over and adopts chunks.
    fn follow_owners(self: &Arc<Self>, mut adoption: Adoption) -> Adoption {
        let (opens, lists) = (self.state().opens.clone(), self.link_events.lists());
        let mut has_changed = lists != adoption.lists;
        for (dataset, open) in opens.iter() {
            open.peers.find_owners(open.snapshot.holders(), |owners| {
                has_changed = true;
                self.state().owners_changed(dataset, owners);
                self.moved.notify_one();
            });
        }
        if has_changed {
            adoption.lists = lists;
            self.state().hand_over();
            let own = opens.iter().flat_map(|(dataset, open)| {
                let chunks = open.peers.own_elsewhere(open.snapshot.holders());
                chunks.into_iter().map(move |chunk| ChunkKey { dataset, chunk })
            });
            adoption.waiting = own.collect();
        }
        let fetch = self.state().adopt(&mut adoption, self.now());
        fetch.into_iter().for_each(|fetch| self.fetch(fetch));
        adoption
    }
}

impl State {
    /// Takes new owners of a dataset's chunks.
    pub(super) fn owners_changed(&mut self, dataset: usize, owners: Arc<OwnerTable>) {
        self.served.set_owners(dataset, owners);
        self.backlog.begin_again(dataset, self.served.chunks(dataset));
    }

    /// Hands over: kept chunks with another owner become copies once the owner has the chunk; copies
    /// of own chunks become kept.
    fn hand_over(&mut self) {
        let (most, served, opens) = (self.keep_max(), &self.served, &self.opens);
        let is_at_owner = |key: ChunkKey| {
            opens.get(key.dataset).is_some_and(|open| open.peers.is_at_owner(key.chunk))
        };
        self.residency.owners_changed(most, |key| served.owns(key), is_at_owner);
    }

    /// The fetch of the next own chunk that another agent keeps, one at a time.
    fn adopt(&mut self, adoption: &mut Adoption, now: Duration) -> Option<Fetch> {
        if adoption.current.is_some_and(|key| self.waiters.of(key).is_some()) {
            return None;
        }
        adoption.current = None;
        while let Some(key) = adoption.waiting.pop_front() {
            if !self.has(key) || self.residency.holds(key) {
                continue;
            }
            if !self.can_keep() {
                adoption.waiting.clear();
                return None;
            }
            let slot = self.slot_to_keep(key, now)?;
            adoption.current = Some(key);
            return Some(self.begin(key, slot, None, now));
        }
        None
    }

    /// The chunks of a dataset that this agent can keep, for the other agents.
    pub(crate) fn capacity(&mut self, dataset: usize) -> Option<u32> {
        let others = self.residency.staying().filter(|key| key.dataset != dataset).count() as u32;
        let now = self.keep_max().saturating_sub(others);
        self.served.tell_capacity(dataset, now)
    }
}

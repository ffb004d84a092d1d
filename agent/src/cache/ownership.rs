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
use crate::peers::KeptElsewhere;
use crate::place::{ChunkBits, ChunkKey, OwnerTable};

/// Interval between two looks at the links, beside the looks after each change.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between the adoptions of two chunks.
const ADOPTION_INTERVAL: Duration = Duration::from_millis(50);

/// Interval between two looks at the lists of kept chunks, at least: a multiple of the time of a look.
const LISTS_INTERVAL: Duration = Duration::from_secs(1);
const LISTS_FACTOR: u32 = 10;

/// Interval between two looks at unchanged lists: room may have come since.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);

/// Chunks checked under the lock at a time.
const CHECKED_MAX: usize = 1 << 16;

/// Follows the members and their lists of kept chunks.
pub(crate) async fn watch_owners(cache: Arc<Cache>) {
    let mut adoption = Adoption::default();
    loop {
        let (of_cache, before) = (Arc::clone(&cache), adoption);
        adoption = match blocking::run(move || of_cache.follow_owners(before)).await {
            Ok(after) => after,
            Err(why) => {
                tracing::error!(%why, "follow the owners of chunks");
                cache.clock.sleep(POLL_INTERVAL).await;
                Adoption::default()
            }
        };
        // Without room or a slot, nothing is on its way.
        let is_adopting = adoption.current.is_some();
        let pause = if is_adopting { ADOPTION_INTERVAL } else { POLL_INTERVAL };
        tokio::select! {
            () = cache.link_events.next() => {}
            () = cache.clock.sleep(pause) => {}
        }
    }
}

/// Own chunks that other agents keep.
#[derive(Debug, Default)]
struct Adoption {
    /// The number of the lists of kept chunks at the last look.
    lists: u64,
    /// The time of the next look, at the earliest, and at the latest.
    after: Duration,
    until: Duration,
    waiting: VecDeque<ChunkKey>,
    /// The chunk on its way.
    current: Option<ChunkKey>,
}

impl Cache {
    /// Computes new owners, and hands over and adopts chunks.
    fn follow_owners(self: &Arc<Self>, mut adoption: Adoption) -> Adoption {
        let (opens, lists, began) =
            (self.state().opens.clone(), self.link_events.lists(), self.now());
        let mut has_changed = false;
        for (dataset, open) in opens.iter() {
            open.peers.find_owners(open.snapshot.holders(), |owners| {
                has_changed = true;
                self.state().owners_changed(dataset, owners);
                self.moved.notify_one();
            });
        }
        let is_due = lists != adoption.lists && began >= adoption.after || began >= adoption.until;
        if has_changed || is_due {
            adoption.waiting.clear();
            for (dataset, open) in opens.iter().filter(|(_, open)| open.peers.has_links()) {
                let KeptElsewhere { own, at_owner } =
                    open.peers.kept_elsewhere(open.snapshot.holders());
                self.state().hand_over(dataset, &at_owner);
                adoption.waiting.extend(own.map(|chunk| ChunkKey { dataset, chunk }));
            }
            let pause = self.now().saturating_sub(began).saturating_mul(LISTS_FACTOR);
            adoption.lists = lists;
            adoption.after = self.now().saturating_add(pause.max(LISTS_INTERVAL));
            adoption.until = self.now().saturating_add(pause.max(REPEAT_INTERVAL));
        }
        let fetch = self.state().adopt(&mut adoption, self.now());
        fetch.into_iter().for_each(|fetch| self.fetch(fetch));
        adoption
    }
}

impl State {
    /// Takes new owners of a dataset's chunks.
    pub(super) fn owners_changed(&mut self, dataset: usize, owners: Arc<OwnerTable>) {
        if self.served.set_owners(dataset, owners) {
            self.backlog.begin_again(dataset, self.served.chunks(dataset));
        }
    }

    /// Hands over: kept chunks whose owner has them become copies; copies of own chunks become kept.
    fn hand_over(&mut self, dataset: usize, at_owner: &ChunkBits) {
        let (most, served) = (self.keep_max(), &self.served);
        let is_own = |key: ChunkKey| key.dataset == dataset && served.owns(key);
        let is_at_owner = |key: ChunkKey| key.dataset == dataset && at_owner.holds(key.chunk);
        self.residency.owners_changed(most, is_own, is_at_owner);
    }

    /// The fetch of the next own chunk that another agent keeps, one at a time, as far as there is
    /// room beside the chunks that readers need.
    fn adopt(&mut self, adoption: &mut Adoption, now: Duration) -> Option<Fetch> {
        if adoption.current.is_some_and(|key| self.waiters.of(key).is_some()) {
            return None;
        }
        adoption.current = None;
        if !self.can_keep() {
            return None;
        }
        for _ in 0..CHECKED_MAX {
            let key = adoption.waiting.pop_front()?;
            if !self.has(key) || self.residency.holds(key) || self.disk.holds(key) {
                continue;
            }
            let Some(slot) = self.empty_a_slot(key, false, now) else {
                adoption.waiting.push_front(key);
                return None;
            };
            adoption.current = Some(key);
            return Some(self.begin(key, slot, None, now));
        }
        None
    }

    /// The chunks of a dataset that this agent can keep in memory and on disk, for the other agents.
    pub(crate) fn capacity(&mut self, dataset: usize) -> Option<u32> {
        let others = self.residency.kept_of_others(dataset);
        let in_memory = self.keep_max().saturating_sub(others);
        let is_own = |chunk| self.served.owns(ChunkKey { dataset, chunk });
        let now = in_memory.saturating_add(self.disk.capacity(dataset, is_own));
        self.served.tell_capacity(dataset, now)
    }
}

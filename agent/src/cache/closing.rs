//! Closing of versions that no process reads any more, while another version of the dataset is read.
//!
//! Must hold: the version of the task stays open as long as the agent lives. A version with a reader, or
//! with a chunk under way, stays open.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::State;
use crate::place::{ChunkKey, Stage};

/// The versions without a reader, with the time since when.
#[derive(Debug, Default)]
pub(crate) struct Unread(HashMap<usize, Duration>);

impl Unread {
    /// Closes the versions that have had no reader for `idle`. `now` is a time of the same clock at each
    /// call.
    pub(crate) fn close(&mut self, state: &mut State, now: Duration, idle: Duration) {
        let unread: HashSet<usize> = state.unread().collect();
        self.0.retain(|number, _| unread.contains(number));
        for number in unread {
            let since = *self.0.entry(number).or_insert(now);
            if now.saturating_sub(since) >= idle {
                state.close(number);
            }
        }
    }
}

impl State {
    /// The versions that a worker's snapshot has opened and no process reads, beside a version that is
    /// read.
    fn unread(&self) -> impl Iterator<Item = usize> {
        let read = self.connections.datasets();
        let opens = self.opens.iter().filter(|(_, open)| open.found.get().is_none());
        let unread = opens.filter(move |(number, open)| {
            let id = open.snapshot.dataset();
            let mut others = read.iter().filter_map(|other| self.opens.get(*other));
            !read.contains(number) && others.any(|other| other.snapshot.dataset() == id)
        });
        unread.map(|(number, _)| number)
    }

    /// Drops the chunks of a version, and then the version. Does nothing while a chunk is under way or
    /// read by another agent, but fetches nothing ahead any more.
    fn close(&mut self, number: usize) {
        self.orders.forget(number);
        self.backlog.forget(number);
        let chunks: Vec<_> =
            self.residency.iter().filter(|(key, _)| key.dataset == number).collect();
        let is_idle = chunks.iter().all(|(_, held)| {
            matches!(held.stage, Stage::Full { .. }) && !self.slots.is_sent(held.slot)
        });
        if !is_idle || !chunks.into_iter().all(|(key, _)| self.empty(key)) {
            return;
        }
        self.served.remove(number);
        self.disk.forget(number);
        if let Some(open) = self.opens.remove(number) {
            open.closed.request();
            let version = open.snapshot.version();
            tracing::info!(dataset = open.name, %version, "closed a version that nobody reads");
        }
    }

    /// Gives back the slot of a chunk; false for a chunk that is being read.
    fn empty(&mut self, key: ChunkKey) -> bool {
        let slot = self.drop_chunk(key);
        slot.into_iter().for_each(|slot| self.slots.give_back(slot));
        slot.is_some()
    }
}

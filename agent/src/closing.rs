//! Closing of versions that no process reads any more, while another version of the dataset is read.
//!
//! Must hold: the version of the task stays open as long as the agent lives. A version with a reader, or
//! with a chunk under way, stays open.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::cache::{ChunkState, Retention, State};
use crate::dataset::ChunkKey;

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
        let read: HashSet<usize> = self.connections.values().map(|one| one.dataset).collect();
        let opens = self.datasets.iter().filter(|(_, open)| open.found.get().is_none());
        let unread = opens.filter(move |(number, open)| {
            let id = open.snapshot.dataset();
            let mut others = read.iter().filter_map(|other| self.datasets.get(*other));
            !read.contains(number) && others.any(|other| other.snapshot.dataset() == id)
        });
        unread.map(|(number, _)| number)
    }

    /// Drops the chunks of a version, and then the version. Does nothing while a chunk is under way or
    /// read by another agent, but fetches nothing ahead any more.
    fn close(&mut self, number: usize) {
        self.orders.forget(number);
        self.backlog.forget(number);
        let chunks = self.chunks.iter().filter(|(key, _)| key.dataset == number);
        let is_idle = |held: &ChunkState| match held {
            ChunkState::Full { slot, .. } => !self.peer_pins.holds(*slot),
            ChunkState::Filling { .. } => false,
        };
        if !chunks.clone().all(|(_, held)| is_idle(held)) {
            return;
        }
        let chunks: Vec<ChunkKey> = chunks.map(|(key, _)| *key).collect();
        let dropped = chunks.iter().filter(|key| self.drop_chunk(**key)).count();
        if dropped < chunks.len() {
            return;
        }
        if let Some(open) = self.datasets.remove(number) {
            open.closed.request();
            let version = open.snapshot.version();
            tracing::info!(dataset = open.name, %version, "closed a version that nobody reads");
        }
    }

    /// Frees the slot of a chunk; false for a chunk under way, or read by another agent.
    fn drop_chunk(&mut self, key: ChunkKey) -> bool {
        let Some(ChunkState::Full { slot, stay, .. }) = self.chunks.get(&key) else { return false };
        let (slot, stay) = (*slot, *stay);
        if !self.withdraw(key, slot) {
            return false;
        }
        self.chunks.remove(&key);
        self.staying_generation = self.staying_generation.wrapping_add(1);
        match stay {
            Retention::Kept => self.kept -= 1,
            Retention::Copy => self.copies -= 1,
            Retention::Transient => self.passing.retain(|passing| *passing != key),
        }
        self.free.push(slot);
        true
    }
}

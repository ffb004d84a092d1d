//! The orders that workers of this node read along, and what they need next.
//!
//! Must hold: workers with the same settings and rank share one window; an order whose group does not
//! fit into memory fetches nothing ahead.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use libdiesel::agent::Begin;
use libdiesel::order::{OrderError, Selection};

use crate::dataset::ChunkKey;
use crate::window::{At, Window};

/// What tells an order from others, without its epoch and position.
type Key = (usize, Begin);

/// All orders.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    plans: Vec<Plan>,
    /// Chunks that can't be had: they are not fetched ahead.
    passed_over: HashSet<ChunkKey>,
    /// Slots of the arena.
    pub(crate) slots: u32,
}

/// One order of one rank.
#[derive(Debug)]
struct Plan {
    key: Key,
    window: Window,
    /// Where each connection is.
    readers: HashMap<u64, At>,
}

impl Plan {
    /// Whether one group and a slot for each reader fit into memory.
    fn fits(&self, slots: u32) -> bool {
        self.window.largest.saturating_add(self.readers.len() as u32) <= slots
    }
}

impl Plans {
    /// A connection reads along an order from now on.
    pub(crate) fn begin(
        &mut self,
        connection: u64,
        dataset: usize,
        first_files: Arc<[u32]>,
        begin: Begin,
    ) -> Result<(), OrderError> {
        self.leave(connection);
        let at = At { epoch: begin.epoch, position: begin.position };
        let key = (dataset, Begin { epoch: 0, position: 0, ..begin.clone() });
        let found = self.plans.iter_mut().find(|plan| plan.key == key && plan.window.holds(at));
        if let Some(plan) = found {
            plan.readers.insert(connection, at);
            return Ok(());
        }
        let files = first_files.last().copied().unwrap_or(0);
        let selection = match &begin.selection {
            None => Selection::all(files),
            Some(runs) => Selection::of(files, runs.iter().flat_map(|(from, to)| *from..*to))?,
        };
        let (settings, rank) = (begin.settings(), begin.rank);
        let window = Window::new(first_files, Arc::new(selection), settings, rank, begin.position)?;
        self.plans.push(Plan { key, window, readers: HashMap::from([(connection, at)]) });
        Ok(())
    }

    /// A connection reads along no order any more. Its window stays until another order of the same
    /// kind or none is read: the next epoch goes on with it.
    pub(crate) fn leave(&mut self, connection: u64) {
        for plan in &mut self.plans {
            plan.readers.remove(&connection);
        }
    }

    /// Whether a connection reads along an order whose group does not fit into memory.
    pub(crate) fn is_too_large(&self, connection: u64) -> bool {
        let of = self.plans.iter().find(|plan| plan.readers.contains_key(&connection));
        of.is_some_and(|plan| !plan.fits(self.slots))
    }

    /// Slots that chunks of the windows pass through: two groups of each order.
    pub(crate) fn passing_slots(&self) -> u32 {
        let read = self.plans.iter().filter(|plan| plan.fits(self.slots));
        read.map(|plan| plan.window.largest.saturating_mul(2)).sum()
    }

    /// Whether an order needs a chunk soon.
    pub(crate) fn needs(&self, key: ChunkKey) -> bool {
        let of = |plan: &Plan| plan.key.0 == key.dataset && plan.fits(self.slots);
        self.plans.iter().any(|plan| of(plan) && plan.window.needs(key.chunk))
    }

    /// The chunk that is needed first and is absent.
    pub(crate) fn next(&self, is_there: impl Fn(ChunkKey) -> bool) -> Option<ChunkKey> {
        self.plans.iter().filter(|plan| plan.fits(self.slots)).find_map(|plan| {
            let keys = plan.window.in_order().map(|chunk| ChunkKey { dataset: plan.key.0, chunk });
            keys.into_iter().find(|key| !is_there(*key) && !self.passed_over.contains(key))
        })
    }

    /// A chunk that can't be had is not fetched ahead any more.
    pub(crate) fn pass_over(&mut self, key: ChunkKey) {
        self.passed_over.insert(key);
    }

    /// Whether a chunk can't be had.
    pub(crate) fn is_passed_over(&self, key: ChunkKey) -> bool {
        self.passed_over.contains(&key)
    }

    /// Follows all readers, whose positions `position_of` tells.
    pub(crate) fn turn(&mut self, position_of: impl Fn(u64) -> Option<u64>) {
        for plan in &mut self.plans {
            for (connection, at) in &mut plan.readers {
                at.position = position_of(*connection).unwrap_or(at.position);
            }
            let (slowest, fastest) = (plan.readers.values().min(), plan.readers.values().max());
            if let (Some(slowest), Some(fastest)) = (slowest, fastest) {
                plan.window.follow(*slowest, *fastest);
            }
        }
        // Of orders of one kind only those that are read stay, or the last one.
        let mut index = 0;
        while index < self.plans.len() {
            let plan = self.plans.get(index);
            let is_idle = plan.is_some_and(|plan| plan.readers.is_empty());
            let has_next = self.plans.len() > index + 1;
            if is_idle && has_next { _ = self.plans.remove(index) } else { index += 1 }
        }
    }

    /// Whether somebody reads along an order.
    pub(crate) fn are_read(&self) -> bool {
        self.plans.iter().any(|plan| !plan.readers.is_empty())
    }

    /// Connections with the position of their rank.
    pub(crate) fn positions(&self) -> HashMap<u64, (u64, u64)> {
        let readers = self.plans.iter().flat_map(|plan| &plan.readers);
        readers.map(|(connection, at)| (*connection, (at.epoch, at.position))).collect()
    }
}

//! The orders read by workers of this node, and the chunks needed next.
//!
//! Must hold: workers with the same settings and rank share one window. Orders take turns, so each
//! rank of a node has its share of the fetches. An order whose group does not fit into memory
//! fetches nothing ahead.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use libdiesel::agent::Begin;
use libdiesel::order::{OrderError, Selection};

use crate::dataset::ChunkKey;
use crate::epochs::Epochs;
use crate::window::{At, Window};

/// Identity of an order: its dataset and settings without epoch and position.
type Key = (usize, Begin);

/// All orders.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    plans: Vec<Plan>,
    /// Chunks whose fetch failed for good: they are not fetched ahead.
    passed_over: HashSet<ChunkKey>,
    /// Slots of the arena.
    pub(crate) slots: u32,
    /// The order asked first for the next chunk to fetch.
    turn: usize,
    /// Counts of each epoch.
    pub(crate) epochs: Epochs,
}

/// One order of one rank.
#[derive(Debug)]
struct Plan {
    key: Key,
    window: Window,
    /// The position of each connection.
    readers: HashMap<u64, At>,
    /// Whether a warning was logged because a group does not fit.
    is_told: bool,
    /// Whether a group fits into memory beside the groups of earlier orders.
    fits: bool,
    /// Largest group, in chunks, that fits.
    group_max: u32,
}

/// The presence of a chunk in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    Absent,
    /// In a slot or being fetched, until another chunk needs the slot.
    Passing,
    Kept,
}

/// An order being read, for the status report.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) dataset: usize,
    pub(crate) rank: u32,
    pub(crate) readers: usize,
    /// Chunks needed soon; empty when a group does not fit.
    pub(crate) chunks: Vec<u32>,
    /// Chunks of the largest group, and the largest group that would fit.
    pub(crate) group: u32,
    pub(crate) group_max: u32,
}

impl Plans {
    /// Starts an order for a connection.
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
            self.settle();
            return Ok(());
        }
        let files = first_files.last().copied().unwrap_or(0);
        let selection = match &begin.selection {
            None => Selection::all(files),
            Some(runs) => Selection::of(files, runs.iter().flat_map(|(from, to)| *from..*to))?,
        };
        let (settings, rank) = (begin.settings(), begin.rank);
        let window = Window::new(first_files, Arc::new(selection), settings, rank, begin.position)?;
        let readers = HashMap::from([(connection, at)]);
        let plan = Plan { key, window, readers, is_told: false, fits: false, group_max: 0 };
        self.plans.push(plan);
        self.settle();
        Ok(())
    }

    /// Ends the order of a connection. The window stays until another order of the same kind starts
    /// or no order is read: the next epoch continues with the window.
    pub(crate) fn leave(&mut self, connection: u64) {
        for plan in &mut self.plans {
            plan.readers.remove(&connection);
        }
        self.settle();
    }

    /// Decides which orders fit into memory: the orders being read, one after the other. If no
    /// order is read, idle orders are considered.
    fn settle(&mut self) {
        let are_read = self.are_read();
        let mut used = 0_u32;
        for plan in &mut self.plans {
            let readers = plan.readers.len() as u32;
            plan.group_max = self.slots.saturating_sub(used).saturating_sub(readers);
            plan.fits =
                are_read != plan.readers.is_empty() && plan.window.largest <= plan.group_max;
            if plan.fits {
                used = used.saturating_add(plan.window.largest).saturating_add(readers);
            }
        }
        self.tell_of_large_groups();
    }

    /// Whether a connection reads along an order whose group does not fit into memory.
    pub(crate) fn is_too_large(&self, connection: u64) -> bool {
        let of = self.plans.iter().find(|plan| plan.readers.contains_key(&connection));
        of.is_some_and(|plan| !plan.fits)
    }

    /// Slots for transient chunks of the windows: two groups of each order.
    pub(crate) fn passing_slots(&self) -> u32 {
        let read = self.plans.iter().filter(|plan| plan.fits);
        read.map(|plan| plan.window.largest.saturating_mul(2)).sum()
    }

    /// Whether an order needs a chunk soon.
    pub(crate) fn needs(&self, key: ChunkKey) -> bool {
        let of = |plan: &Plan| plan.key.0 == key.dataset && plan.fits;
        self.plans.iter().any(|plan| of(plan) && plan.window.needs(key.chunk))
    }

    /// The absent chunk needed first by the next order in turn. Of `room` slots for chunks that are
    /// not kept, each order has its share.
    pub(crate) fn next(
        &mut self,
        room: u32,
        presence: impl Fn(ChunkKey) -> Presence,
    ) -> Option<ChunkKey> {
        let passed_over = &self.passed_over;
        let fitting = self.plans.iter().filter(|plan| plan.fits).count() as u32;
        let share = room / fitting.max(1);
        take_turns(&mut self.plans, &mut self.turn, |plan| {
            let (dataset, mut left) = (plan.key.0, share);
            if !plan.fits {
                return None;
            }
            let mut seen = HashSet::new();
            for chunk in plan.window.in_order() {
                let key = ChunkKey { dataset, chunk };
                if passed_over.contains(&key) || !seen.insert(chunk) {
                    continue;
                }
                match presence(key) {
                    Presence::Kept => {}
                    _ if left == 0 => return None,
                    Presence::Passing => left -= 1,
                    Presence::Absent => return Some(key),
                }
            }
            None
        })
    }

    /// The lateness of the chunks of all windows: the later the need, the larger the number.
    pub(crate) fn lateness(&self) -> HashMap<ChunkKey, usize> {
        let mut found: HashMap<ChunkKey, usize> = HashMap::new();
        for plan in self.plans.iter().filter(|plan| plan.fits) {
            let fastest = plan.readers.values().max().copied();
            for (chunk, lateness) in plan.window.lateness(fastest) {
                let key = ChunkKey { dataset: plan.key.0, chunk };
                let of_all = found.entry(key).or_insert(lateness);
                *of_all = (*of_all).min(lateness);
            }
        }
        found
    }

    /// The absent chunk needed first by the next order in turn, however late.
    pub(crate) fn beyond(&mut self, is_there: impl Fn(ChunkKey) -> bool) -> Option<ChunkKey> {
        let passed_over = &self.passed_over;
        take_turns(&mut self.plans, &mut self.turn, |plan| {
            let key = |chunk| ChunkKey { dataset: plan.key.0, chunk };
            let is_settled = |chunk| is_there(key(chunk)) || passed_over.contains(&key(chunk));
            plan.window.beyond(is_settled).map(key)
        })
    }

    /// Excludes a chunk from further fetches.
    pub(crate) fn pass_over(&mut self, key: ChunkKey) {
        self.passed_over.insert(key);
    }

    /// Whether a chunk is excluded from fetches.
    pub(crate) fn is_passed_over(&self, key: ChunkKey) -> bool {
        self.passed_over.contains(&key)
    }

    /// Updates all readers with the positions from `position_of`.
    pub(crate) fn turn(&mut self, position_of: impl Fn(u64) -> Option<u64>) {
        for plan in &mut self.plans {
            for (connection, at) in &mut plan.readers {
                at.position = position_of(*connection).unwrap_or(at.position);
            }
            let (slowest, fastest) = (plan.readers.values().min(), plan.readers.values().max());
            if let (Some(slowest), Some(fastest)) = (slowest, fastest) {
                plan.window.follow(*slowest, *fastest);
            }
            for (epoch, chunks) in plan.window.take_passed() {
                self.epochs.of(epoch).chunks += chunks;
            }
        }
        self.settle();
        // Idle orders are dropped; only the last order stays while idle.
        let mut index = 0;
        while index < self.plans.len() {
            let plan = self.plans.get(index);
            let is_idle = plan.is_some_and(|plan| plan.readers.is_empty());
            let has_next = self.plans.len() > index + 1;
            if is_idle && has_next { _ = self.plans.remove(index) } else { index += 1 }
        }
    }

    /// Logs a warning once for each order whose group does not fit.
    fn tell_of_large_groups(&mut self) {
        let is_new = |plan: &&mut Plan| !plan.is_told && !plan.fits && !plan.readers.is_empty();
        for plan in self.plans.iter_mut().filter(is_new) {
            plan.is_told = true;
            tracing::warn!(
                rank = plan.key.1.rank,
                group_chunks = plan.window.largest,
                group_chunks_max = plan.group_max,
                "a group of the order does not fit into memory: nothing is fetched ahead"
            );
        }
    }

    /// The orders being read.
    pub(crate) fn followed(&self) -> impl Iterator<Item = Followed> + '_ {
        let read = self.plans.iter().filter(|plan| !plan.readers.is_empty());
        read.map(|plan| Followed {
            dataset: plan.key.0,
            rank: plan.key.1.rank,
            readers: plan.readers.len(),
            chunks: if plan.fits { plan.window.distinct() } else { Vec::new() },
            group: plan.window.largest,
            group_max: plan.group_max,
        })
    }

    /// Counts a chunk for the earliest epoch in need of the chunk.
    pub(crate) fn came(&mut self, key: ChunkKey, is_of_peer: bool) {
        let of = self.plans.iter().filter(|plan| plan.key.0 == key.dataset);
        if let Some(epoch) = of.filter_map(|plan| plan.window.epoch_of(key.chunk)).min() {
            let epoch = self.epochs.of(epoch);
            let count = if is_of_peer { &mut epoch.from_peers } else { &mut epoch.from_servers };
            *count += 1;
        }
    }

    /// Whether a connection reads along an order.
    pub(crate) fn reads(&self, connection: u64) -> bool {
        self.plans.iter().any(|plan| plan.readers.contains_key(&connection))
    }

    /// Whether any connection reads along an order.
    pub(crate) fn are_read(&self) -> bool {
        self.plans.iter().any(|plan| !plan.readers.is_empty())
    }

    /// The epoch and position of each connection.
    pub(crate) fn positions(&self) -> HashMap<u64, (u64, u64)> {
        let readers = self.plans.iter().flat_map(|plan| &plan.readers);
        readers.map(|(connection, at)| (*connection, (at.epoch, at.position))).collect()
    }
}

/// Asks the orders one after the other. The next call starts behind the order that answered.
fn take_turns<T>(
    plans: &mut [Plan],
    turn: &mut usize,
    mut ask: impl FnMut(&mut Plan) -> Option<T>,
) -> Option<T> {
    let count = plans.len();
    for step in 0..count {
        let index = (*turn + step) % count;
        if let Some(found) = plans.get_mut(index).and_then(&mut ask) {
            *turn = index + 1;
            return Some(found);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use libdiesel::order::{Cursor, Order};

    use super::*;

    const FILES: u32 = 4;
    const ROOM: u32 = 100;

    fn presence(there: &HashSet<ChunkKey>, key: ChunkKey) -> Presence {
        if there.contains(&key) { Presence::Passing } else { Presence::Absent }
    }

    /// An order for each rank, with chunks of four files.
    fn plans(ranks: u32, chunks: u32, group: u32, slots: u32) -> Plans {
        let first_files: Arc<[u32]> = (0..=chunks).map(|chunk| chunk * FILES).collect();
        let mut plans = Plans { slots, ..Plans::default() };
        for rank in 0..ranks {
            let begin = Begin {
                seed: 3,
                epoch: 0,
                group,
                world: ranks,
                nodes: Some(ranks),
                is_padded: false,
                rank,
                position: 0,
                selection: None,
            };
            plans.begin(rank.into(), 0, Arc::clone(&first_files), begin).unwrap();
        }
        plans
    }

    /// The sequence of fetched chunks.
    fn fetched(mut next: impl FnMut(&HashSet<ChunkKey>) -> Option<ChunkKey>) -> Vec<u32> {
        let (mut there, mut came) = (HashSet::new(), Vec::new());
        while let Some(key) = next(&there) {
            assert!(there.insert(key), "twice");
            came.push(key.chunk);
        }
        came
    }

    #[test]
    fn ranks_of_a_node_take_turns() {
        let plans = RefCell::new(plans(4, 40, 5, 100));
        let came = fetched(|there| plans.borrow_mut().next(ROOM, |key| presence(there, key)));
        assert_eq!(came.len(), 4 * 5, "the group of each rank");
        let plans = plans.borrow();
        for round in came.chunks(4) {
            let ranks = round.iter().map(|chunk| {
                plans.plans.iter().position(|plan| plan.window.needs(*chunk)).unwrap()
            });
            assert_eq!(ranks.collect::<HashSet<_>>().len(), 4, "{round:?}");
        }
    }

    #[test]
    fn beyond_the_window_come_all_chunks_of_the_epoch_in_the_order_of_first_need() {
        let plans = RefCell::new(plans(1, 30, 5, 100));
        let came = fetched(|there| {
            let is_there = |key| there.contains(&key);
            let mut plans = plans.borrow_mut();
            plans.next(ROOM, |key| presence(there, key)).or_else(|| plans.beyond(is_there))
        });
        let begun = plans.borrow_mut().plans.remove(0);
        let settings = begun.key.1.settings();
        let first_files = (0..=30).map(|chunk| chunk * FILES).collect::<Vec<_>>();
        let selection = Arc::new(Selection::all(30 * FILES));
        let order = Order::new(first_files.into(), selection, settings).unwrap();
        let mut wanted = Vec::new();
        for file in Cursor::new(Arc::new(order), 0).unwrap() {
            if !wanted.contains(&(file / FILES)) {
                wanted.push(file / FILES);
            }
        }
        assert_eq!(came, wanted);
    }

    #[test]
    fn orders_fit_beside_each_other_and_one_that_does_not_is_told_what_would() {
        let plans = plans(3, 90, 10, 25);
        let groups: Vec<_> =
            plans.followed().map(|order| (order.group_max, order.chunks.len())).collect();
        assert_eq!(groups, [(24, 10), (13, 10), (2, 0)]);
    }

    #[test]
    fn a_group_that_does_not_fit_is_shown_and_not_fetched() {
        let mut plans = plans(1, 30, 10, 10);
        assert!(plans.is_too_large(0) && plans.next(ROOM, |_| Presence::Absent).is_none());
        let followed: Vec<Followed> = plans.followed().collect();
        let [order] = &followed[..] else { panic!("{followed:?}") };
        assert_eq!((order.group, order.group_max, order.chunks.len()), (10, 9, 0));
    }
}

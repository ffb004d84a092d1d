//! The orders read by workers of this node, and the chunks needed next.
//!
//! Must hold: workers with the same settings and rank share one window. Orders take turns, so each
//! rank of a node has its share of the fetches. An order whose group does not fit into memory
//! fetches only as many chunks as fit.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dl_node::Begin;
use libdiesel::order::{OrderError, OrderSettings, Selection};

use super::epochs::Epochs;
use super::window::{Position, Window};
use super::{ChunkKey, Origin};

/// Identity of an order: its dataset and settings without epoch and position.
type Key = (usize, Begin);

/// All orders.
#[derive(Debug, Default)]
pub struct Orders {
    orders: Vec<OrderState>,
    /// Chunks whose fetch failed for good: they are not fetched ahead.
    excluded: HashSet<ChunkKey>,
    /// Slots of the arena.
    pub slots: u32,
    /// The order asked first for the next chunk to fetch.
    turn: usize,
    /// Counts of each epoch.
    pub epochs: Epochs,
}

/// One order of one rank.
#[derive(Debug)]
struct OrderState {
    key: Key,
    window: Window,
    /// The position of each connection.
    readers: HashMap<u64, Position>,
    /// Whether a warning was logged because a group does not fit.
    has_warned: bool,
    /// Whether a group fits into memory beside the groups of earlier orders.
    fits: bool,
    /// Largest group, in chunks, that fits.
    group_max: u32,
}

/// The presence of a chunk in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Absent,
    /// In a slot or being fetched, until another chunk needs the slot.
    Transient,
    Kept,
}

/// The progress of an epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of the epoch, from 0.
    pub epoch: u64,
    /// Files already read.
    pub position: u64,
    /// Files of the epoch.
    pub files: u64,
}

/// An order being read, for the status report.
#[derive(Debug)]
pub struct OrderView {
    pub dataset: usize,
    pub rank: u32,
    pub readers: usize,
    /// Chunks needed soon; empty when a group does not fit.
    pub chunks: Vec<u32>,
    /// Chunks of the largest group, and the largest group that would fit.
    pub group: u32,
    pub group_max: u32,
}

impl Orders {
    /// Starts an order for a connection.
    pub fn begin(
        &mut self,
        connection: u64,
        dataset: usize,
        first_files: Arc<[u32]>,
        begin: Begin,
    ) -> Result<(), OrderError> {
        self.leave(connection);
        let at = Position { epoch: begin.epoch, position: begin.position };
        let key = (dataset, Begin { epoch: 0, position: 0, ..begin.clone() });
        let found = self.orders.iter_mut().find(|order| order.key == key && order.window.holds(at));
        if let Some(order) = found {
            order.readers.insert(connection, at);
            self.fit_groups();
            return Ok(());
        }
        let files = first_files.last().copied().unwrap_or(0);
        let selection = match &begin.selection {
            None => Selection::all(files),
            Some(runs) => Selection::of(files, runs.iter().flat_map(|(from, to)| *from..*to))?,
        };
        let (settings, rank) = (OrderSettings::from(&begin), begin.rank);
        let window = Window::new(first_files, Arc::new(selection), settings, rank, begin.position)?;
        let readers = HashMap::from([(connection, at)]);
        let order =
            OrderState { key, window, readers, has_warned: false, fits: false, group_max: 0 };
        self.orders.push(order);
        self.fit_groups();
        Ok(())
    }

    /// Ends the order of a connection. The window stays until another order of the same kind starts
    /// or no order is read: the next epoch continues with the window.
    pub fn leave(&mut self, connection: u64) {
        for order in &mut self.orders {
            order.readers.remove(&connection);
        }
        self.fit_groups();
    }

    /// Removes all orders of a dataset without readers.
    pub fn forget(&mut self, dataset: usize) {
        self.orders.retain(|order| order.key.0 != dataset || !order.readers.is_empty());
        self.excluded.retain(|key| key.dataset != dataset);
        self.fit_groups();
    }

    /// Decides which orders fit into memory: the orders being read, one after the other. If no
    /// order is read, idle orders are considered.
    fn fit_groups(&mut self) {
        let are_read = self.are_read();
        let mut used = 0_u32;
        for order in &mut self.orders {
            let readers = order.readers.len() as u32;
            order.group_max = self.slots.saturating_sub(used).saturating_sub(readers);
            order.fits =
                are_read != order.readers.is_empty() && order.window.largest <= order.group_max;
            if order.fits {
                used = used.saturating_add(order.window.largest).saturating_add(readers);
            }
        }
        self.warn_of_large_groups();
    }

    /// The largest group that would fit, for a connection that reads along an order whose group does
    /// not fit into memory.
    pub fn group_max(&self, connection: u64) -> Option<u32> {
        let of = self.orders.iter().find(|order| order.readers.contains_key(&connection));
        of.filter(|order| !order.fits).map(|order| order.group_max)
    }

    /// The absent chunk needed first by an order whose group does not fit into memory.
    pub fn next_of_large(&self, is_there: impl Fn(ChunkKey) -> bool) -> Option<ChunkKey> {
        let large = self.orders.iter().filter(|order| !order.fits && !order.readers.is_empty());
        let keys = large.flat_map(|order| {
            let key = |chunk| ChunkKey { dataset: order.key.0, chunk };
            order.window.in_order().map(key)
        });
        let mut absent = keys.filter(|key| !is_there(*key) && !self.excluded.contains(key));
        absent.next()
    }

    /// Slots for transient chunks of the windows: a number of groups of each order.
    pub fn transient_slots(&self, groups: u32) -> u32 {
        let read = self.orders.iter().filter(|order| order.fits);
        read.map(|order| order.window.largest.saturating_mul(groups)).sum()
    }

    /// Whether an order needs a chunk soon.
    pub fn needs(&self, key: ChunkKey) -> bool {
        let of = |order: &OrderState| order.key.0 == key.dataset && order.fits;
        self.orders.iter().any(|order| of(order) && order.window.needs(key.chunk))
    }

    /// The absent chunk needed first by the next order in turn. Of `room` slots for chunks that are
    /// not kept, each order has its share.
    pub fn next(&mut self, room: u32, presence: impl Fn(ChunkKey) -> Presence) -> Option<ChunkKey> {
        let excluded = &self.excluded;
        let fitting = self.orders.iter().filter(|order| order.fits).count() as u32;
        let share = room / fitting.max(1);
        take_turns(&mut self.orders, &mut self.turn, |order| {
            let (dataset, mut left) = (order.key.0, share);
            if !order.fits {
                return None;
            }
            let mut seen = HashSet::new();
            for chunk in order.window.in_order() {
                let key = ChunkKey { dataset, chunk };
                if excluded.contains(&key) || !seen.insert(chunk) {
                    continue;
                }
                match presence(key) {
                    Presence::Kept => {}
                    _ if left == 0 => return None,
                    Presence::Transient => left -= 1,
                    Presence::Absent => return Some(key),
                }
            }
            None
        })
    }

    /// The lateness of the chunks of all windows: the later the need, the larger the number.
    pub fn lateness(&self) -> HashMap<ChunkKey, usize> {
        let mut found: HashMap<ChunkKey, usize> = HashMap::new();
        for order in self.orders.iter().filter(|order| order.fits) {
            let fastest = order.readers.values().max().copied();
            for (chunk, lateness) in order.window.lateness(fastest) {
                let key = ChunkKey { dataset: order.key.0, chunk };
                let of_all = found.entry(key).or_insert(lateness);
                *of_all = (*of_all).min(lateness);
            }
        }
        found
    }

    /// The absent chunk needed first by the next order in turn, however late.
    pub fn next_after_window(&mut self, is_there: impl Fn(ChunkKey) -> bool) -> Option<ChunkKey> {
        let excluded = &self.excluded;
        take_turns(&mut self.orders, &mut self.turn, |order| {
            let key = |chunk| ChunkKey { dataset: order.key.0, chunk };
            let is_done = |chunk| is_there(key(chunk)) || excluded.contains(&key(chunk));
            order.window.next_after_window(is_done).map(key)
        })
    }

    /// Excludes a chunk from further fetches.
    pub fn exclude(&mut self, key: ChunkKey) {
        self.excluded.insert(key);
    }

    /// Whether a chunk is excluded from fetches.
    pub fn is_excluded(&self, key: ChunkKey) -> bool {
        self.excluded.contains(&key)
    }

    /// Updates all readers with the positions from `position_of`.
    pub fn follow(&mut self, position_of: impl Fn(u64) -> Option<u64>) {
        for order in &mut self.orders {
            for (connection, at) in &mut order.readers {
                at.position = position_of(*connection).unwrap_or(at.position);
            }
            let (slowest, fastest) = (order.readers.values().min(), order.readers.values().max());
            if let (Some(slowest), Some(fastest)) = (slowest, fastest) {
                order.window.follow(*slowest, *fastest);
            }
            for (epoch, chunks) in order.window.take_passed() {
                self.epochs.of(epoch).chunks += chunks;
            }
        }
        self.fit_groups();
        // Idle orders are dropped; only the last order stays while idle.
        let mut index = 0;
        while index < self.orders.len() {
            let order = self.orders.get(index);
            let is_idle = order.is_some_and(|order| order.readers.is_empty());
            let has_next = self.orders.len() > index + 1;
            if is_idle && has_next { _ = self.orders.remove(index) } else { index += 1 }
        }
    }

    /// Logs a warning once for each order whose group does not fit.
    fn warn_of_large_groups(&mut self) {
        let is_new =
            |order: &&mut OrderState| !order.has_warned && !order.fits && !order.readers.is_empty();
        for order in self.orders.iter_mut().filter(is_new) {
            order.has_warned = true;
            tracing::warn!(
                rank = order.key.1.rank,
                group_chunks = order.window.largest,
                group_chunks_max = order.group_max,
                "a group of the order does not fit into memory: its readers fetch the other chunks"
            );
        }
    }

    /// The orders being read.
    pub fn followed(&self) -> impl Iterator<Item = OrderView> + '_ {
        let read = self.orders.iter().filter(|order| !order.readers.is_empty());
        read.map(|order| OrderView {
            dataset: order.key.0,
            rank: order.key.1.rank,
            readers: order.readers.len(),
            chunks: if order.fits { order.window.distinct() } else { Vec::new() },
            group: order.window.largest,
            group_max: order.group_max,
        })
    }

    /// Counts a chunk for the earliest epoch in need of the chunk.
    pub fn arrived(&mut self, key: ChunkKey, origin: Origin) {
        let of = self.orders.iter().filter(|order| order.key.0 == key.dataset);
        if let Some(epoch) = of.filter_map(|order| order.window.epoch_of(key.chunk)).min() {
            let epoch = self.epochs.of(epoch);
            *match origin {
                Origin::Peer => &mut epoch.from_peers,
                Origin::Disk => &mut epoch.from_disk,
                Origin::Servers | Origin::ServersInstead => &mut epoch.from_servers,
            } += 1;
        }
    }

    /// Whether a connection reads along an order.
    pub fn reads(&self, connection: u64) -> bool {
        self.orders.iter().any(|order| order.readers.contains_key(&connection))
    }

    /// Whether any connection reads along an order.
    pub fn are_read(&self) -> bool {
        self.orders.iter().any(|order| !order.readers.is_empty())
    }

    /// The newest epoch of a dataset that is being read, for all ranks of this node.
    pub fn progress(&self, dataset: usize) -> Option<Progress> {
        let of = self.orders.iter().filter(|order| order.key.0 == dataset);
        let read = of.filter_map(|order| {
            let at = order.readers.values().max()?;
            Some(Progress {
                epoch: at.epoch,
                position: at.position.min(order.window.length()),
                files: order.window.length(),
            })
        });
        read.reduce(|one, other| match one.epoch.cmp(&other.epoch) {
            Ordering::Less => other,
            Ordering::Greater => one,
            Ordering::Equal => Progress {
                epoch: one.epoch,
                position: one.position + other.position,
                files: one.files + other.files,
            },
        })
    }

    /// The epoch and position of each connection.
    pub fn positions(&self) -> HashMap<u64, (u64, u64)> {
        let readers = self.orders.iter().flat_map(|order| &order.readers);
        readers.map(|(connection, at)| (*connection, (at.epoch, at.position))).collect()
    }
}

/// Asks the orders one after the other. The next call starts behind the order that answered.
fn take_turns<T>(
    orders: &mut [OrderState],
    turn: &mut usize,
    mut ask: impl FnMut(&mut OrderState) -> Option<T>,
) -> Option<T> {
    let count = orders.len();
    for step in 0..count {
        let index = (*turn + step) % count;
        if let Some(found) = orders.get_mut(index).and_then(&mut ask) {
            *turn = index + 1;
            return Some(found);
        }
    }
    None
}

#[cfg(test)]
mod tests;

//! The connections of the worker processes.
//!
//! Must hold: a connection's pins end with the connection. A worker that takes no answer loses its
//! connection.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use dl_node::{FromAgent, Gauge, PinPage, Socket};

use super::waiters::Waiter;
use crate::place::ChunkKey;

/// Maximum waits of a connection: a worker waits once for each of its reading threads.
const WAITS_MAX: usize = 64;

/// A worker's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) pid: u32,
    pub(crate) dataset: usize,
    pub(crate) pins: PinPage,
    socket: Arc<Socket>,
    /// Chunks to be read next by the worker.
    hints: VecDeque<u32>,
    /// Unanswered waits.
    open: usize,
    /// The uses of each slot at the last look; empty before.
    seen: Vec<u8>,
    /// Whether the process has another connection, for all but waits.
    pub(crate) is_beside: bool,
}

impl Connection {
    pub(crate) fn new(
        pid: u32,
        dataset: usize,
        pins: PinPage,
        socket: Arc<Socket>,
        is_beside: bool,
    ) -> Self {
        Self {
            pid,
            dataset,
            pins,
            socket,
            hints: VecDeque::new(),
            open: 0,
            seen: Vec::new(),
            is_beside,
        }
    }

    /// Sends without waiting. A worker has few open requests, so its socket has room.
    pub(crate) fn send(&self, message: &FromAgent) {
        if let Err(why) = self.socket.send(message, &[], Duration::ZERO) {
            tracing::debug!(pid = self.pid, %why, "send an answer to a worker");
            self.socket.end();
        }
    }
}

/// All connections, by number. A number is never used again.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    all: BTreeMap<u64, Connection>,
    next: u64,
}

impl Connections {
    /// Adds a connection, one of `slots` slots; gives its number.
    pub(crate) fn enter(&mut self, connection: Connection, slots: u32) -> u64 {
        let number = self.next;
        self.next += 1;
        self.all.insert(number, connection);
        self.share_views(slots);
        number
    }

    /// Removes a connection with all its pins.
    pub(crate) fn leave(&mut self, number: u64, slots: u32) -> Option<Connection> {
        let gone = self.all.remove(&number);
        self.share_views(slots);
        gone
    }

    /// All workers' views together may pin half of the slots.
    fn share_views(&self, slots: u32) {
        let share = slots / 2 / (self.processes().count() as u32).max(1);
        self.processes().for_each(|(_, one)| one.pins.set(Gauge::ViewsMax, share.into()));
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Connection> {
        self.all.get(&number)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Connection)> {
        self.all.iter().map(|(number, one)| (*number, one))
    }

    /// The connections of processes, one of each.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (u64, &Connection)> {
        self.iter().filter(|(_, one)| !one.is_beside)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Processes, and their further waits at the moment; at least 1.
    pub(crate) fn workers(&self) -> u32 {
        let counted = self.all.values().filter(|one| !one.is_beside || one.open > 0).count();
        (counted as u32).max(1)
    }

    /// The datasets that a process reads.
    pub(crate) fn datasets(&self) -> HashSet<usize> {
        self.all.values().map(|one| one.dataset).collect()
    }

    /// The sum of a gauge over the connections of a dataset, or of all datasets.
    pub(crate) fn sum(&self, gauge: Gauge, dataset: Option<usize>) -> u64 {
        let of = self.all.values().filter(|one| dataset.is_none_or(|of| one.dataset == of));
        of.map(|one| one.pins.get(gauge)).sum()
    }

    /// Whether a connection pins a slot.
    pub(crate) fn pin(&self, slot: u32) -> bool {
        self.all.values().any(|one| one.pins.holds(slot))
    }

    /// The uses of a slot since the last call for it, at most 255 by each connection.
    pub(crate) fn uses(&mut self, slot: u32) -> u32 {
        let new = self.all.values_mut().map(|one| {
            let at = slot as usize;
            if one.seen.len() <= at {
                one.seen.resize(at + 1, 0);
            }
            let now = one.pins.uses(slot);
            let before = one.seen.get_mut(at).map(|seen| std::mem::replace(seen, now));
            u32::from(now.wrapping_sub(before.unwrap_or(now)))
        });
        new.sum()
    }

    /// Counts a wait; false for an unknown connection, and for one that waits too often, which ends.
    pub(crate) fn begin_wait(&mut self, number: u64) -> bool {
        let Some(one) = self.all.get_mut(&number) else { return false };
        one.open += 1;
        if one.open > WAITS_MAX {
            one.socket.end();
        }
        one.open <= WAITS_MAX
    }

    /// Pins a slot for a waiter and answers, unless the waiter has given up.
    pub(crate) fn hand_over(&mut self, waiter: Waiter, slot: u32) {
        let Some(one) = self.all.get_mut(&waiter.connection) else { return };
        one.open = one.open.saturating_sub(1);
        if one.pins.pin_for_reader(slot, waiter.id) {
            one.send(&FromAgent::Here { id: waiter.id });
        }
    }

    /// Answers a waiter that its chunk does not come.
    pub(crate) fn refuse(&mut self, waiter: Waiter, why: &str) {
        if let Some(one) = self.all.get_mut(&waiter.connection) {
            one.open = one.open.saturating_sub(1);
            one.send(&FromAgent::NotHere { id: waiter.id, reason: why.to_owned() });
        }
    }

    /// Notes the next chunks of a process, as far as half of its share of the slots.
    pub(crate) fn hint(&mut self, number: u64, chunks: Vec<u32>, slots: u32) {
        let most = slots as usize / 2 / self.processes().count().max(1);
        let Some(one) = self.all.get(&number) else { return };
        let (pid, dataset) = (one.pid, one.dataset);
        let is_same = |one: &Connection| one.pid == pid && one.dataset == dataset;
        // The hints of a further wait replace the hints of the process.
        let first = self.processes().find(|(_, one)| is_same(one)).map(|(number, _)| number);
        if let Some(first) = first.and_then(|first| self.all.get_mut(&first)) {
            first.hints = chunks.into_iter().take(most).collect();
        }
    }

    /// The first chunk of the hints that is worth a fetch; others before it are dropped.
    pub(crate) fn next_hint(&mut self, is_wanted: impl Fn(ChunkKey) -> bool) -> Option<ChunkKey> {
        self.all.values_mut().find_map(|one| {
            loop {
                let key = ChunkKey { dataset: one.dataset, chunk: *one.hints.front()? };
                if is_wanted(key) {
                    return Some(key);
                }
                one.hints.pop_front();
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 8;

    /// A connection, and the worker's end.
    fn connect(to: &mut Connections, pid: u32, is_beside: bool) -> (u64, Socket) {
        let (pins, _file) = PinPage::create(SLOTS).unwrap();
        let (socket, worker) = Socket::pair().unwrap();
        let one = Connection::new(pid, 0, pins, Arc::new(socket), is_beside);
        (to.enter(one, SLOTS), worker)
    }

    fn answer(worker: &Socket) -> Option<FromAgent> {
        worker.try_receive().ok()?.map(|(answer, _)| answer)
    }

    #[test]
    fn a_waiter_is_answered_and_its_pins_end_with_its_connection() {
        let mut all = Connections::default();
        let (number, worker) = connect(&mut all, 1, false);
        let waiter = |id| Waiter { connection: number, id, file: 0, until: Duration::ZERO };
        assert!(all.begin_wait(number) && all.begin_wait(number) && !all.begin_wait(9));
        all.get(number).unwrap().pins.begin_wait(1);
        all.hand_over(waiter(1), 5);
        assert!(matches!(answer(&worker), Some(FromAgent::Here { id: 1 })));
        all.hand_over(waiter(2), 6);
        assert!(answer(&worker).is_none(), "the reader waits no more");
        assert!(all.pin(5) && !all.pin(6));
        all.refuse(waiter(3), "no");
        assert!(matches!(answer(&worker), Some(FromAgent::NotHere { id: 3, .. })));
        all.leave(number, SLOTS);
        assert!(!all.pin(5) && all.is_empty());
        all.refuse(waiter(4), "gone");
    }

    #[test]
    fn uses_are_counted_once_and_do_not_end_with_their_pins() {
        let mut all = Connections::default();
        let (number, _worker) = connect(&mut all, 1, false);
        let pins = |all: &Connections, times: u64| {
            for wait in 1..=times {
                let pins = &all.get(number).unwrap().pins;
                pins.begin_wait(wait);
                assert!(pins.pin_for_reader(5, wait));
                pins.unpin(5);
            }
        };
        pins(&all, 3);
        assert_eq!((all.uses(5), all.uses(5), all.uses(4)), (3, 0, 0));
        pins(&all, 255);
        assert_eq!((all.uses(5), all.pin(5)), (255, false));
    }

    #[test]
    fn a_connection_with_too_many_waits_ends() {
        let mut all = Connections::default();
        let (number, worker) = connect(&mut all, 1, false);
        assert!((0..WAITS_MAX).all(|_| all.begin_wait(number)));
        assert!(!worker.is_closed() && !all.begin_wait(number));
        assert!(worker.is_closed());
    }

    #[test]
    fn processes_share_views_and_hints() {
        let mut all = Connections::default();
        let (first, _one) = connect(&mut all, 1, false);
        let (beside, _two) = connect(&mut all, 1, true);
        let share = |all: &Connections| all.get(first).unwrap().pins.get(Gauge::ViewsMax);
        assert_eq!((share(&all), all.workers()), (4, 1));
        assert!(all.begin_wait(beside));
        assert_eq!(all.workers(), 2, "a further wait needs a slot");
        let (second, _three) = connect(&mut all, 2, false);
        assert_eq!((share(&all), all.workers()), (2, 3));
        all.hint(beside, vec![5, 6, 7], SLOTS);
        let next = |all: &mut Connections, there: u32| all.next_hint(|key| key.chunk > there);
        assert_eq!(next(&mut all, 5).map(|key| key.chunk), Some(6), "of the process");
        assert_eq!(next(&mut all, 9), None, "only as many as its share");
        all.leave(second, SLOTS);
        assert_eq!(share(&all), 4);
    }
}

//! The reads of a process along an order, as the agent knows them.
//!
//! Must hold: the agent hears of the order with the first read, and of its end with the last. For an
//! order that no message can describe, each wait names the chunks needed next.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, Once};

use bytes::Bytes;
use dl_node::{Begin, HINTS_MAX};
use dl_runtime::locked;

use super::begin::message_of;
use super::obstacle::Obstacle;
use super::read::AgentReader;
use crate::order::{Cursor, Worker};

/// Files ahead whose chunks a wait names.
const FILES_AHEAD: usize = 4_096;

/// An order read through the agent.
#[derive(Debug)]
pub(crate) struct AgentOrder {
    worker: Arc<AgentReader>,
    /// The message that announces the order; none for a resumed order, or if too long.
    begin: Option<Begin>,
    /// The files of the order, for orders without a message.
    ahead: Mutex<Cursor>,
    begun: Once,
    /// The rank's worker in the process.
    of: Worker,
}

impl AgentOrder {
    /// The order of a cursor.
    pub(crate) fn new(worker: Arc<AgentReader>, cursor: &Cursor) -> Self {
        let of = cursor.worker();
        let begin = message_of(cursor.order(), cursor.rank(), of.of_rank(cursor.position()));
        let ahead = Mutex::new(cursor.clone());
        Self { worker, begin, ahead, begun: Once::new(), of }
    }

    /// The reader of the memory of the node.
    pub(crate) fn worker(&self) -> &Arc<AgentReader> {
        &self.worker
    }

    /// Notes that all files before a position are read, or come from elsewhere.
    pub(crate) fn pass(&self, position: u64) {
        let position = self.of.of_rank(position);
        // Only at the first read: a process whose children read would stay at the begin, and delay
        // the order.
        self.begun.call_once(|| {
            if let Some(begin) = self.begin.clone() {
                self.worker.begin(Begin { position, ..begin });
            }
        });
        self.worker.reached(position);
    }

    /// A file at a position; none if the caller must read from the servers.
    pub(crate) fn read(&self, position: u64, number: u32) -> Option<Bytes> {
        self.pass(position);
        if self.begin.is_some() {
            return self.worker.read(number);
        }
        let place = self.worker.snapshot().place(number).ok()?;
        if self.large_group().is_some() && !self.worker.has(place.chunk) {
            return None;
        }
        self.worker.read_with(number, || self.chunks_from(position))
    }

    /// The reason why the agent gives no absent chunk of the order now, if any.
    pub(crate) fn obstacle(&self) -> Option<Obstacle> {
        self.worker.obstacle().or_else(|| self.large_group())
    }

    /// Whether the agent has too few slots for a group, for an order unknown to the agent.
    fn large_group(&self) -> Option<Obstacle> {
        let group = u64::from(locked(&self.ahead).order().settings().group);
        let chunks = u64::from(self.worker.snapshot().chunks());
        let most = self.worker.slots()?.saturating_sub(1).into();
        let is_large = self.begin.is_none() && most < group.min(chunks);
        is_large.then_some(Obstacle::LargeGroup { most })
    }

    /// The chunks of the next files, in the order of first need.
    fn chunks_from(&self, position: u64) -> Vec<u32> {
        let mut ahead = locked(&self.ahead);
        ahead.seek(position);
        let places = ahead.by_ref().take(FILES_AHEAD);
        let chunks = places.filter_map(|file| Some(self.worker.snapshot().place(file).ok()?.chunk));
        let mut seen = HashSet::new();
        chunks.filter(|chunk| seen.insert(*chunk)).take(HINTS_MAX).collect()
    }
}

impl Drop for AgentOrder {
    fn drop(&mut self) {
        if self.begun.is_completed() {
            self.worker.end();
        }
    }
}

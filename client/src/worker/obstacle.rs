//! The reasons for an agent that gives no absent chunk, for readers with another source.
//!
//! Must hold: a check costs no request. A check attaches again when an attempt is due.

use std::sync::atomic::Ordering;

use dl_node::{Gauge, milliseconds};
use dl_runtime::since_boot;

use super::read::AgentReader;

/// The reason why the agent gives no absent chunk now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// No agent runs, or the process could not attach.
    Detached,
    /// The agent gives no answers.
    Silent,
    /// The agent has just refused chunk after chunk: it reaches no server.
    Refusing,
    /// A group of the order does not fit into the memory of the agent, and no chunk more.
    LargeGroup {
        /// Chunks of the largest group that fits.
        most: u64,
    },
}

impl AgentReader {
    /// The reason why the agent gives no absent chunk now, if any.
    pub(crate) fn obstacle(&self) -> Option<Obstacle> {
        let attached = self.attached();
        let Some(attached) = attached.as_ref() else { return Some(Obstacle::Detached) };
        let now = milliseconds(since_boot());
        if attached.is_silent(now) {
            self.drop_if_over(attached);
            return Some(Obstacle::Silent);
        }
        if attached.is_refusing(now) {
            return Some(Obstacle::Refusing);
        }
        attached.group_max().map(|most| Obstacle::LargeGroup { most })
    }

    /// Whether the caller is the first to note an obstacle.
    pub(crate) fn is_first_note(&self) -> bool {
        !self.has_noted.swap(true, Ordering::Relaxed)
    }

    /// Whether a chunk is in the memory of the node.
    pub(crate) fn has(&self, chunk: u32) -> bool {
        let attached = self.attached_now();
        attached.is_some_and(|attached| attached.maps.table.load(chunk).slot().is_some())
    }

    /// The slots of the agent's memory.
    pub(super) fn slots(&self) -> Option<u32> {
        Some(self.attached_now()?.maps.arena.shape().slots)
    }

    /// Counts a file that came from the servers with its chunk.
    pub(crate) fn count_fallback(&self, bytes: usize) {
        if let Some(attached) = self.attached_now() {
            attached.maps.pins.add(Gauge::Fallbacks, 1);
            attached.maps.pins.add(Gauge::FallbackBytes, bytes as u64);
        }
    }
}

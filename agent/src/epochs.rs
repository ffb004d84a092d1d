//! Where the chunks of each epoch came from: the share of this node's own memory grows as copies stay.
//!
//! Must hold: a bounded number of epochs is remembered, the last ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Epochs that are remembered.
const EPOCHS_MAX: usize = 64;

/// Chunks of one epoch, over all orders of this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochStatus {
    /// Counted from 0.
    pub epoch: u64,
    /// Chunks of the groups that were read to their end, each group's for itself.
    pub chunks: u64,
    /// Chunks that came from other agents for it.
    pub from_peers: u64,
    /// Chunks that came from the servers for it.
    pub from_servers: u64,
}

/// The last epochs.
#[derive(Debug, Default)]
pub(crate) struct Epochs(BTreeMap<u64, EpochStatus>);

impl Epochs {
    /// The counts of an epoch.
    pub(crate) fn of(&mut self, epoch: u64) -> &mut EpochStatus {
        if self.0.len() >= EPOCHS_MAX && !self.0.contains_key(&epoch) {
            self.0.pop_first();
        }
        self.0.entry(epoch).or_insert(EpochStatus { epoch, ..EpochStatus::default() })
    }

    /// All of them, the first one first.
    pub(crate) fn all(&self) -> Vec<EpochStatus> {
        self.0.values().copied().collect()
    }
}

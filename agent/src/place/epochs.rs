//! The origins of each epoch's chunks: the share of this node's own memory grows as copies stay.
//!
//! Must hold: only a bounded number of epochs is stored, the last ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Number of stored epochs.
const EPOCHS_MAX: usize = 64;

/// Chunks of one epoch, over all orders of this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochStatus {
    /// The number of the epoch, from 0.
    pub epoch: u64,
    /// Chunks of the groups read to their end; a chunk in two groups counts twice.
    pub chunks: u64,
    /// Chunks read from local disks for the epoch.
    #[serde(default)]
    pub from_disk: u64,
    /// Chunks fetched from other agents for the epoch.
    pub from_peers: u64,
    /// Chunks fetched from the servers for the epoch.
    pub from_servers: u64,
}

/// The last epochs.
#[derive(Debug, Default)]
pub struct Epochs(BTreeMap<u64, EpochStatus>);

impl Epochs {
    /// The counts of an epoch.
    pub fn of(&mut self, epoch: u64) -> &mut EpochStatus {
        if self.0.len() >= EPOCHS_MAX && !self.0.contains_key(&epoch) {
            self.0.pop_first();
        }
        self.0.entry(epoch).or_insert(EpochStatus { epoch, ..EpochStatus::default() })
    }

    /// All counts, the first epoch first.
    pub fn all(&self) -> Vec<EpochStatus> {
        self.0.values().copied().collect()
    }
}

//! The node's cache: reads from shared memory beside memcpy and memcached.
//!
//! Must hold: readers are separate processes and use the public API of the library. The agent is
//! `dlcmd agent start`. Both sides of a ratio run in turns in one process.

pub(super) mod capi;
mod disk;
mod fill;
mod hot;
pub(super) mod memcached;
mod no_disk;
pub(super) mod node;
mod plain;
mod policies;
pub(super) mod reader;
mod small;
mod without;

use anyhow::Result;
use clap::ValueEnum;

use super::run_parts;
use crate::measure::Bench;
use crate::setup::Settings;
pub(super) use reader::{AgentReader, read_cached};

/// Bytes of a dataset.
const BYTES: u32 = 2 << 30;

/// Least number of runs of each side.
const RUNS_MIN: usize = 5;

/// A part of the rows of the agent workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AgentPart {
    /// Reads from a filled cache
    Hot,
    /// Reads while the cache is filled
    Fill,
    /// Epochs through a cache smaller than the dataset
    Small,
    /// Epochs with an agent that can't serve
    Without,
    /// Reads of the store with each policy of eviction
    Policies,
    /// Epochs through memory and a local disk
    Disk,
}

pub(super) fn run(part: Option<AgentPart>, settings: &Settings) -> Result<Vec<Bench>> {
    run_parts(part, |part| match part {
        AgentPart::Hot => hot::run(settings),
        AgentPart::Fill => fill::run(settings),
        AgentPart::Small => small::run(settings),
        AgentPart::Without => without::run(settings),
        AgentPart::Policies => policies::run(settings),
        AgentPart::Disk => disk::run(settings),
    })
}

/// Runs of each side.
pub(super) fn runs(settings: &Settings) -> usize {
    settings.runs().max(RUNS_MIN)
}

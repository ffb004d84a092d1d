//! The node's cache: reads from shared memory beside memcpy and memcached.
//!
//! Must hold: readers are separate processes and use the public API of the library. The agent is
//! `dlcmd agent start`. Both sides of a ratio run in turns in one process.

mod fill;
mod hot;
pub(super) mod memcached;
pub(super) mod node;
mod plain;
pub(super) mod reader;
mod small;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::measure::Bench;
use crate::setup::Settings;
pub use reader::{AgentReader, read_cached};

/// Bytes of a dataset.
const BYTES: u32 = 2 << 30;

/// Least number of runs of each side.
const RUNS_MIN: usize = 5;

/// Options of the agent workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct AgentParts {
    /// Part of the rows; default: all rows
    part: Option<Part>,
}

impl AgentParts {
    pub(super) const ALL: Self = Self { part: None };
}

/// A part of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Reads from a filled cache
    Hot,
    /// Reads while the cache is filled
    Fill,
    /// Epochs through a cache smaller than the dataset
    Small,
}

pub(super) fn run(parts: AgentParts, settings: &Settings) -> Result<Vec<Bench>> {
    let mut benches = Vec::new();
    for part in Part::value_variants() {
        if parts.part.is_none_or(|only| only == *part) {
            benches.extend(match part {
                Part::Hot => hot::run(settings)?,
                Part::Fill => fill::run(settings)?,
                Part::Small => small::run(settings)?,
            });
        }
    }
    Ok(benches)
}

/// Runs of each side.
fn runs(settings: &Settings) -> usize {
    settings.runs().max(RUNS_MIN)
}

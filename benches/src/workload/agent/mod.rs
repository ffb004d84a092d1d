//! The node's cache: reads out of shared memory beside memcpy and memcached.
//!
//! Must hold: readers are processes of their own and use the public API of the library; the agent is
//! `dlcmd agent start`; both sides of a ratio run in turns in one process.

mod bare;
mod hot;
mod memcached;
mod node;
mod reader;

use anyhow::Result;

use crate::measure::Bench;
use crate::setup::Settings;
pub use reader::{AgentReader, read_cached};

/// Bytes of a dataset.
const BYTES: u32 = 2 << 30;

/// Runs of each side at least.
const RUNS_MIN: usize = 5;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    hot::run(settings)
}

/// Runs of each side.
fn runs(settings: &Settings) -> usize {
    settings.runs().max(RUNS_MIN)
}

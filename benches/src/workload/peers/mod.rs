//! Agents of several nodes that send chunks to each other (paper, Figures 6, 11a and 11b).
//! References are a plain TCP stream, each node alone, and memcached.
//!
//! Must hold: each node has its own agent with its own folders, and agents find each other through
//! the server. Where the network or the store limits the speed, each node has a network namespace
//! with a shaped link.

mod budget;
mod cluster;
mod figure;
mod first;
mod keys;
mod load;
mod loss;
mod reuse;
mod small;
mod speed;
mod stream;
mod trace;
mod transfer;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::measure::Bench;
use crate::setup::Settings;
pub use stream::{Stream, stream};
pub use trace::{PeersReader, trace};

/// Options of the peers workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct PeersParts {
    /// Part of the rows; default: all rows
    part: Option<Part>,
}

impl PeersParts {
    pub(super) const ALL: Self = Self { part: None };
}

/// A part of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Chunks between two agents, beside a TCP stream
    Transfer,
    /// Random files of 4 KiB from another agent, beside memcached
    Small,
    /// Store reads of four nodes whose memory fits all or half of the dataset
    Budget,
    /// First epoch, beside the servers alone
    First,
    /// Reading speed around the loss of a node (paper, Figure 6), beside memcached
    Loss,
    /// Load and recovery (paper, Figure 11b), beside memcached
    Load,
    /// Random reads (paper, Figure 11a), beside memcached and the servers alone
    Speed,
}

pub(super) fn run(parts: PeersParts, settings: &Settings) -> Result<Vec<Bench>> {
    let mut benches = Vec::new();
    for part in Part::value_variants() {
        if parts.part.is_none_or(|only| only == *part) {
            benches.extend(match part {
                Part::Transfer => transfer::run(settings, reuse::run)?,
                Part::Small => small::run(settings)?,
                Part::Budget => budget::run(settings)?,
                Part::First => first::run(settings)?,
                Part::Loss => loss::run(settings)?,
                Part::Load => load::run(settings)?,
                Part::Speed => speed::run(settings)?,
            });
        }
    }
    Ok(benches)
}

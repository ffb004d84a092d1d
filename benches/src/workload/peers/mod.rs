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
use clap::ValueEnum;

use super::run_parts;
use crate::measure::Bench;
use crate::setup::Settings;
pub(super) use stream::{Stream, stream};
pub(super) use trace::{PeersReader, trace};

/// A part of the rows of the peers workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PeersPart {
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

pub(super) fn run(part: Option<PeersPart>, settings: &Settings) -> Result<Vec<Bench>> {
    run_parts(part, |part| match part {
        PeersPart::Transfer => transfer::run(settings, reuse::run),
        PeersPart::Small => small::run(settings),
        PeersPart::Budget => budget::run(settings),
        PeersPart::First => first::run(settings),
        PeersPart::Loss => loss::run(settings),
        PeersPart::Load => load::run(settings),
        PeersPart::Speed => speed::run(settings),
    })
}

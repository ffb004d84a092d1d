//! Workloads. Each one makes its data, runs both sides in turns and returns the figures.
//!
//! Must hold: the workload that measures file creation precedes the workloads that delete many
//! files, because these slow it down.

mod agent;
mod commit;
mod many;
mod memory;
mod mount;
mod order;
mod order_read;
mod pack;
mod peers;
mod recover;
mod recover_s3;
mod snapshot;
mod stat;
mod tier;
mod tree;

use anyhow::Result;
use clap::{Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::measure::Bench;
use crate::setup::Settings;
pub use agent::AgentPart;
pub use mount::MountPart;
pub use peers::PeersPart;

/// The role of another process of the program.
#[derive(Debug, Serialize, Deserialize)]
enum Role {
    Floor(mount::FloorProcess),
    Put(memory::Worker),
    Query(snapshot::Reader),
    Read(agent::AgentReader),
    Stream(peers::Stream),
    Trace(peers::PeersReader),
}

/// Body of a process started by a workload; `role` is JSON.
///
/// # Errors
/// The work of the process fails.
pub fn play(role: &str) -> Result<()> {
    match serde_json::from_str(role)? {
        Role::Floor(floor) => mount::serve_floor(&floor),
        Role::Put(worker) => memory::work(&worker),
        Role::Query(reader) => snapshot::read(&reader),
        Role::Read(reader) => agent::read_cached(&reader),
        Role::Stream(stream) => peers::stream(&stream),
        Role::Trace(reader) => peers::trace(&reader),
    }
}

fn run_parts<Part: ValueEnum + PartialEq>(
    only: Option<Part>,
    run: impl Fn(&Part) -> Result<Vec<Bench>>,
) -> Result<Vec<Bench>> {
    let is_wanted = |part: &&Part| only.as_ref().is_none_or(|only| only == *part);
    let parts = Part::value_variants().iter().filter(is_wanted).map(run);
    Ok(parts.collect::<Result<Vec<_>>>()?.concat())
}

/// One workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum Workload {
    /// Packing chunks from memory on one core, beside memcpy
    Pack,
    /// `dlcmd put` of 200,000 files of 4 KiB, beside tar with sync
    PutSmall,
    /// `dlcmd put` of 12,000 files of 20 to 500 KiB, beside tar with sync
    PutMixed,
    /// Puts from memory by 1, 2 and 4 processes (paper, Figure 9), beside memcached and ext4
    PutMemory,
    /// `dlcmd put --unpack` of 200,000 members of 4 KiB, beside tar and `dlcmd put`
    Unpack,
    /// `dlcmd get` of 200,000 files of 4 KiB into a tmpfs, beside tar
    Get,
    /// All files in random batches of 256 by two threads, beside files of the file system
    GetMany,
    /// Recovery of 200,000 files with empty metadata, beside a bulk insert into redb
    Recover,
    /// Recovery from an S3 server behind 20 ms, beside a plain client with the same ranges
    RecoverS3,
    /// `dlcmd ls -lR` of 200,000 files, beside ls
    Ls,
    /// Build and queries of a snapshot of 1.28 million files (paper, Figures 10b and 10c)
    Snapshot,
    /// Build and queries of a snapshot of 10 million files
    SnapshotLarge,
    /// Order of an epoch of 10 million files, without their bytes
    Order,
    /// Epoch from a slow store (paper, Figure 12), beside single files and beside the store
    OrderRead,
    /// Reads of a warm fast store before a slow one, beside the fast store alone
    Tier,
    /// Reads from the cache of a node (paper, 4.2), beside memcpy, memcached and the server
    Agent {
        /// Part of the rows; default: all rows
        part: Option<AgentPart>,
    },
    /// Reads by the library for C, beside memcpy and the library for Rust
    Capi,
    /// Chunks between the caches of several nodes (paper, 4.2), beside TCP, each node alone,
    /// memcached
    Peers {
        /// Part of the rows; default: all rows
        part: Option<PeersPart>,
    },
    /// Files of a mount (paper, 6.3 to 6.6), beside the file system of the machine; needs root
    Mount {
        /// Part of the rows; default: all rows
        part: Option<MountPart>,
    },
    /// Commits of packed chunks into a Redis Cluster, beside SET of redis-benchmark
    RedisCommit,
    /// Path queries through one server over Redis (paper, Figure 10a), beside GET
    Stat,
    /// Path queries through 1, 2 and 3 servers
    Servers,
}

impl Workload {
    /// All workloads in order. File creation comes before deletes: ext4 avoids deleted inodes for 5 minutes.
    pub const ALL: &[Self] = &[
        Self::Pack,
        Self::PutMemory,
        Self::PutSmall,
        Self::PutMixed,
        Self::Unpack,
        Self::Get,
        Self::GetMany,
        Self::Ls,
        Self::Recover,
        Self::RecoverS3,
        Self::Snapshot,
        Self::SnapshotLarge,
        Self::Order,
        Self::OrderRead,
        Self::Tier,
        Self::Agent { part: None },
        Self::Capi,
        Self::Peers { part: None },
        Self::Mount { part: None },
        Self::RedisCommit,
        Self::Stat,
        Self::Servers,
    ];

    /// Measures the workload.
    ///
    /// # Errors
    /// A program is missing or fails.
    pub fn run(self, settings: &Settings) -> Result<Vec<Bench>> {
        match self {
            Self::Pack => pack::run(settings),
            Self::PutSmall => tree::put_small(settings),
            Self::PutMixed => tree::put_mixed(settings),
            Self::Unpack => tree::unpack(settings),
            Self::PutMemory => memory::run(settings),
            Self::Get => tree::get(settings),
            Self::GetMany => many::run(settings),
            Self::Recover => recover::run(settings),
            Self::RecoverS3 => recover_s3::run(settings),
            Self::Ls => tree::ls(settings),
            Self::Snapshot => snapshot::run(settings),
            Self::SnapshotLarge => snapshot::run_large(settings),
            Self::Order => order::run(settings),
            Self::OrderRead => order_read::run(settings),
            Self::Tier => tier::run(settings),
            Self::Agent { part } => agent::run(part, settings),
            Self::Capi => agent::capi::run(settings),
            Self::Peers { part } => peers::run(part, settings),
            Self::Mount { part } => mount::run(part, settings),
            Self::RedisCommit => commit::run(settings),
            Self::Stat => stat::run(settings),
            Self::Servers => stat::servers(settings),
        }
    }
}

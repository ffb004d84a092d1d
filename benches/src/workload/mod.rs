//! Workloads. Each one makes its data, runs both sides in turns and returns the figures.
//!
//! Must hold: the workload that measures file creation precedes the workloads that delete many
//! files, because these slow it down.

mod agent;
mod commit;
mod many;
mod memory;
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
use clap::Subcommand;

use crate::measure::Bench;
use crate::setup::Settings;
pub use agent::{AgentParts, AgentReader, read_cached};
pub use memory::{Worker, work};
pub use peers::{PeersParts, PeersReader, Stream, stream, trace};
pub use snapshot::{Reader, read};

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
    Agent(AgentParts),
    /// Chunks between the caches of several nodes (paper, 4.2), beside TCP, each node alone,
    /// memcached
    Peers(PeersParts),
    /// Commits of packed chunks into a Redis Cluster, beside SET of redis-benchmark
    RedisCommit,
    /// Path queries through one server over Redis (paper, Figure 10a), beside GET
    Stat,
    /// Path queries through 1, 2 and 3 servers
    Servers,
}

impl Workload {
    /// All workloads in order. File creation precedes the workloads that delete many files: ext4
    /// avoids the inode of a deleted file for five minutes.
    pub const ALL: &[Self] = &[
        Self::Pack,
        Self::PutMemory,
        Self::PutSmall,
        Self::PutMixed,
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
        Self::Agent(AgentParts::ALL),
        Self::Peers(PeersParts::ALL),
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
            Self::Agent(parts) => agent::run(parts, settings),
            Self::Peers(parts) => peers::run(parts, settings),
            Self::RedisCommit => commit::run(settings),
            Self::Stat => stat::run(settings),
            Self::Servers => stat::servers(settings),
        }
    }
}

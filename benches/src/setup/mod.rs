//! Base of the workloads: settings, fresh folders, source trees and the programs.
//!
//! Must hold: both sides of a ratio use the same machine and the same sources. Processes and
//! folders of a workload end with the bench.

mod host;
mod network;
mod options;
mod program;
mod redis;
mod slow;
mod tree;

pub(crate) use host::take_from_the_host;
pub(crate) use network::{Network, within};
pub use options::{Options, Settings};
pub(crate) use program::{
    Memcached, Process, Server, dlcmd, dlcmd_at, finish, memcached_at, shell, start_own,
};
pub(crate) use redis::{Redis, RedisCluster, processor_seconds};
pub(crate) use slow::SlowServer;
pub(crate) use tree::{Tree, TreeShape, bytes, read_files, shuffle};

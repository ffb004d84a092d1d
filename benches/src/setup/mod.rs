//! Base of the workloads: settings, fresh folders, source trees and the programs.
//!
//! Must hold: both sides of a ratio use the same machine and the same sources. Processes and
//! folders of a workload end with the bench.

mod host;
mod network;
mod options;
mod program;
mod redis;
mod signals;
mod slow;
mod tree;

pub(crate) use host::{in_threads, take_from_the_host};
pub(crate) use network::{Network, within};
pub use options::{Options, Settings};
pub(crate) use program::{
    OwnProcess, Process, Server, answer, commands, dlcmd, dlcmd_at, finish, free_address,
    memcached, memcached_at, program, shell,
};
pub(crate) use redis::{Redis, RedisCluster, processor_seconds};
pub(crate) use slow::{SlowServer, connect, runtime};
pub(crate) use tree::{Tree, TreeShape, bytes, read_files, shuffle};

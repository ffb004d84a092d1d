//! What the workloads stand on: settings, fresh folders, source trees and the programs.

mod options;
mod program;
mod redis;
mod tree;

pub use options::{Options, Settings};
pub(crate) use program::{Memcached, Process, Server, dlcmd, finish, shell, start_own};
pub(crate) use redis::{Redis, RedisCluster, processor_seconds};
pub(crate) use tree::{Tree, TreeShape, bytes, read_files, shuffle};

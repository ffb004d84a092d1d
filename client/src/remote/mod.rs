//! The half of the library that talks gRPC to the servers: for writers, tools, the agent and the
//! mount.
//!
//! Must hold: what a server says is checked before it is handed out; nothing waits for ever; the
//! async runtime below never shows.

mod ahead;
mod client;
mod connections;
mod dataset;
mod endpoint;
mod epoch;
mod failure;
mod flow;
mod housekeeping;
mod list;
mod lookup;
mod once;
mod options;
mod process;
mod read;
mod segments;
mod session;
mod snapshot;
mod split;
mod stats;
#[cfg(test)]
mod testing;
mod wire;
mod writer;

pub use client::Client;
pub use dataset::{Dataset, Deleted};
pub use epoch::{Epoch, EpochFile, ShuffleOptions};
pub use list::Listing;
pub use options::{ClientCertificate, ConnectOptions, OnRetry, Retry};
pub use read::{FileSink, ReadItem};
pub use writer::{FailedWrite, Flushed};

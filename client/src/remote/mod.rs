//! The gRPC client of the servers: for writers, tools, the agent and the mount.
//!
//! Must hold: answers of a server are checked before use. No call waits for ever. The async runtime
//! stays hidden.

mod chunks;
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
mod moving;
mod options;
mod process;
mod read;
mod report_filter;
mod segments;
mod session;
mod snapshot;
mod split;
mod stats;
pub(crate) mod tasks;
#[cfg(test)]
mod testing;
mod wire;
mod writer;

pub use chunks::ChunkSource;
pub use client::Client;
pub(crate) use dataset::RemoteDataset;
pub(crate) use epoch::{EpochReader, read_separately};
pub(crate) use list::Pages;
pub use options::{ClientCertificate, ConnectOptions, OnNote, OnRetry, Retry};
pub use read::{FileSink, ReadItem};
pub(crate) use snapshot::load;
pub(crate) use writer::Writer;
pub use writer::{FailedWrite, Flushed};

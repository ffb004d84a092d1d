//! The client library of DIESEL: datasets of many small files, written in packed chunks and read in
//! batches (paper, 4 and 5). Names for tools: [`admin`], [`mod@format`], [`log`], [`order`], [`report`].
//!
//! Must hold: every call blocks its thread, so async code must not make calls. Any thread may make
//! calls. A call ends within its timeout, without the time of the caller's reader or writer. A repeated
//! call has the effect of one. A forked child has connections, ids and unsent writes of its own.

pub mod admin;
#[doc(hidden)]
pub mod agent;
mod dataset;
mod environment;
mod epoch;
mod error;
pub mod format;
pub mod log;
mod mount;
pub mod order;
mod path;
mod process;
mod remote;
pub mod report;
mod snapshot;
mod task;
mod worker;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

pub use dataset::{AsFile, BatchFile, Batches, Dataset, Deleted, Listing};
pub use dl_format::{
    Attributes, ChunkShape, DatasetName, DirPath, FilePath, FileRecord, InvalidName, InvalidPath,
};
pub use dl_proto::{Counts, Dataset as DatasetInfo, ListEntry, SmallChunks, StatItem};
pub use environment::Access;
pub use epoch::{Epoch, EpochFile, ShuffleOptions};
pub use error::{Error, Kind};
pub use mount::{Mount, MountOptions};
pub use order::{DEFAULT_GROUP, OrderSettings, Partition, ResumeToken, Selection, Tail, Worker};
pub use path::AsPath;
pub use remote::{
    Client, ClientCertificate, ConnectOptions, FailedWrite, FileSink, Flushed, OnNote, OnRetry,
    ReadItem, Retry,
};
pub use snapshot::{Child, FilePlace, Snapshot, SnapshotCache};
pub use task::TaskOptions;
pub use worker::{Presence, View};

//! The client library of DIESEL: datasets of many small files, written in packed chunks and read
//! in batches (paper, 4 and 5).
//!
//! Must hold: every call blocks, may be made from any thread, and ends within its timeout, not
//! counting what a source takes that it reads. A call made again after a failure has the effect of one. After a fork the child has connections, ids
//! and unsent writes of its own.
//!
//! Calls block their thread: never make them inside of an async runtime.

mod error;
mod order;
mod process;
mod remote;
mod report;
mod snapshot;

/// The example that readers see first is one that compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

pub use dl_format::{
    Attributes, ChunkId, ChunkShape, Crc32c, DatasetId, DatasetName, Deletions, DirPath, EntrySet,
    EntryVersion, FilePath, FileRecord, InvalidName, InvalidPath, PackError, Stamp, Version,
};
pub use dl_proto::{
    Counts, Dataset as DatasetInfo, DeletedDataset, Finding, Grant, InvalidGrant, InvalidUserName,
    InvalidUsers, Key, KeyHash, ListEntry, Listed, Pattern, PurgeProgress, PurgeRequest,
    RecoverProgress, RecoverRequest, Role, StatItem, USERS_FILE_BYTES_MAX, UnreadName, User,
    UserName, Users, VerifyProgress, VerifyRequest,
};
pub use error::{Error, Kind};
pub use order::{
    Cursor, DEFAULT_GROUP, InvalidToken, ORDER_VERSION, Order, OrderError, OrderSettings,
    Partition, RANKS_MAX, ResumeToken, Selection, Stage, Tail, Worker,
};
pub use remote::{
    Client, ClientCertificate, ConnectOptions, Dataset, Deleted, Epoch, EpochFile, FailedWrite,
    FileSink, Flushed, Listing, OnRetry, ReadItem, Retry, ShuffleOptions,
};
pub use report::{Advice, GroupBytes, Randomness, ReportOptions, ShuffleReport};
pub use snapshot::{Snapshot, SnapshotCache};

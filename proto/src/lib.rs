//! The gRPC contract between libdiesel and dlserver: the generated wire types, the domain types
//! beside them, and the checked conversion between both.
//!
//! Must hold: received data is checked here, once, before any other code uses it. Only the two gRPC
//! adapters use wire types.

#![forbid(unsafe_code)]

mod chunks;
mod codec;
mod convert;
mod dataset;
mod error;
mod grant;
mod housekeeping;
mod key;
mod kind;
mod limits;
mod put_frames;
mod reply_frames;
mod snapshot;
mod tasks;
mod users;

pub use chunks::{ChunkPiece, ChunkRange, GetChunksRequest};
pub use codec::{BoundedDecoder, ProtobufCodec, SizedEncoder, check_fields};
pub use convert::{
    DeleteRequest, ListEntry, ListRequest, PutHead, ReadItem, ReadPiece, ReadRequest, ReadSource,
    RecoverRequest, StatItem, StatRequest,
};
pub use dataset::{Counts, Dataset, Listed, SmallChunks, UnreadName};
pub use error::WireError;
pub use grant::{Grant, InvalidGrant, Pattern, Role};
pub use housekeeping::{PurgeProgress, PurgeRequest, VerifyRequest};
pub use key::{KEY_HEADER, Key, KeyHash, USER_HEADER};
pub use kind::Kind;
pub use limits::{
    CHUNK_RANGES_MAX, CLIENT_WINDOW_BYTES, FRAME_BYTES, MESSAGE_BYTES_MAX, READ_ITEMS_MAX,
    REPLY_BYTES, REQUEST_BYTES_MAX, REQUEST_PATH_BYTES, SERVER_FRAME_BYTES,
    SERVER_STREAM_WINDOW_BYTES, SERVER_WINDOW_BYTES, STAT_PATHS_MAX, STREAM_WINDOW_BYTES,
};
/// Types without a value to check are the wire types themselves.
pub use pb::{
    DatasetStatus, DeleteDatasetReply as DeletedDataset, DepartedMember, FailedRequest, Finding,
    JobStatus, Line, MemberStatus, MethodCounters, RateStatus, RecoverProgress, SeriesStatus,
    ServerCounters, ServerRecord, ServerStatus, StatusReply, StatusRequest, TaskCounters,
    VerifyProgress,
};
pub use put_frames::PutFrames;
pub use reply_frames::{PiecedReply, ReplyFrames};
pub use snapshot::{GetSnapshotRequest, SnapshotPiece};
pub use tasks::{
    EndLeases, JoinTask, MemberRecord, TASK_MEMBERS_MAX, TaskLease, TaskMember, TaskMembership,
    task_id,
};
pub use users::{InvalidUserName, InvalidUsers, USERS_FILE_BYTES_MAX, User, UserName, Users};

/// Wire types, client and server generated from `diesel.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::clone_on_ref_ptr,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::missing_errors_doc,
    clippy::wildcard_imports,
    reason = "generated; a test compares it with diesel.proto"
)]
#[rustfmt::skip]
#[path = "generated/diesel.v1.rs"]
pub mod pb;

/// The compiled `diesel.proto`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/diesel.v1.bin");

//! Names for administrators and their tools: users and their rights, and the requests and answers of
//! [`Client::recover`](crate::Client::recover), [`Client::purge`](crate::Client::purge),
//! [`Client::verify`](crate::Client::verify), [`Client::leases`](crate::Client::leases),
//! [`Client::status`](crate::Client::status), and of the calls for lists and deletes of datasets.

pub use dl_proto::{
    DatasetStatus, DeletedDataset, FailedRequest, Finding, Grant, InvalidGrant, InvalidUserName,
    InvalidUsers, JobStatus, Key, KeyHash, Line, Listed, MemberStatus, MethodCounters, Pattern,
    PurgeProgress, PurgeRequest, RateStatus, RecoverProgress, RecoverRequest, Role, SeriesStatus,
    ServerCounters, ServerStatus, StatusReply, StatusRequest, TaskCounters, TaskLease,
    USERS_FILE_BYTES_MAX, UnreadName, User, UserName, Users, VerifyProgress, VerifyRequest,
};

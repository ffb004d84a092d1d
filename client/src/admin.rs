//! Names for administrators and their tools: users and their rights, and the requests and answers of
//! [`Client::recover`](crate::Client::recover), [`Client::purge`](crate::Client::purge),
//! [`Client::verify`](crate::Client::verify), [`Client::leases`](crate::Client::leases), and of the
//! calls for lists and deletes of datasets.

pub use dl_proto::{
    DeletedDataset, Finding, Grant, InvalidGrant, InvalidUserName, InvalidUsers, Key, KeyHash,
    Listed, Pattern, PurgeProgress, PurgeRequest, RecoverProgress, RecoverRequest, Role, TaskLease,
    USERS_FILE_BYTES_MAX, UnreadName, User, UserName, Users, VerifyProgress, VerifyRequest,
};

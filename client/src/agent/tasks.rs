//! The heartbeat of a member of a training job, and the job's version of a dataset.
//!
//! Must hold: a single call registers the member, renews its heartbeat, and leases the job's
//! version.

use dl_format::Version;
use dl_proto::{JoinTask, TaskMembership};

use crate::dataset::Dataset;
use crate::error::Error;
use crate::remote;
use crate::snapshot::SnapshotCache;

/// Registers a member of a training job on a dataset at any server, or renews its heartbeat. The
/// answer names the job's version, its members, and the time until the next call. A member with a
/// known version requests the version in every call: so the job keeps its version after a loss of
/// all metadata.
///
/// # Errors
/// [`Kind::NotFound`](crate::Kind::NotFound) for a deleted dataset, and for an old version without
/// a snapshot. [`Kind::Full`](crate::Kind::Full) if the job has
/// [`TASK_MEMBERS_MAX`](super::TASK_MEMBERS_MAX) members. Otherwise errors of the connection.
pub async fn join_task(dataset: &Dataset, request: JoinTask) -> Result<TaskMembership, Error> {
    let remote = dataset.remote();
    remote::tasks::join_task(remote.session()?, remote.info(), request).await
}

/// A handle that answers from the snapshot of a training job's version, which may be old.
///
/// # Errors
/// [`Kind::NotFound`](crate::Kind::NotFound) if the servers have no snapshot of the version any
/// more. Otherwise as for [`Dataset::with_snapshot`].
pub fn at_version(
    dataset: &Dataset,
    version: Version,
    cache: Option<&SnapshotCache>,
) -> Result<Dataset, Error> {
    Ok(dataset.answering(dataset.remote().snapshot_of(version, true, cache)?))
}

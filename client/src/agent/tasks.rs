//! The heartbeat of a member of a training job, and the version that the job reads.
//!
//! Must hold: one call registers the member, says that it lives, and leases the version that the job reads.

use dl_format::Version;
use dl_proto::{JoinTask, TaskMembership};

use crate::dataset::Dataset;
use crate::error::Error;
use crate::remote;
use crate::snapshot::SnapshotCache;

/// Registers a member of a training job on a dataset, or says that it is still there, to any server. The
/// answer names the job's version, its members, and the time until the next call. A member that knows the
/// version asks for it in every call: so the job keeps its version when all metadata is lost.
///
/// # Errors
/// [`Kind::NotFound`](crate::Kind::NotFound) for a version without a snapshot that is not the newest, or a
/// dataset that was deleted; [`Kind::Full`](crate::Kind::Full) when the job has
/// [`TASK_MEMBERS_MAX`](super::TASK_MEMBERS_MAX) members; and those of the way to the servers.
pub async fn join_task(dataset: &Dataset, request: JoinTask) -> Result<TaskMembership, Error> {
    let remote = dataset.remote();
    remote::tasks::join_task(remote.session()?, remote.info(), request).await
}

/// A handle that answers from the snapshot of a version that a training job reads, which may be an old one.
///
/// # Errors
/// [`Kind::NotFound`](crate::Kind::NotFound) when the servers have no snapshot of the version any more, and
/// those of [`Dataset::with_snapshot`].
pub fn at_version(
    dataset: &Dataset,
    version: Version,
    cache: Option<&SnapshotCache>,
) -> Result<Dataset, Error> {
    Ok(dataset.answering(dataset.remote().snapshot_at(version, cache)?))
}

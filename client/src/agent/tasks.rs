//! The heartbeat of a member of a training job, and the job's version of a dataset.
//!
//! Must hold: a single call registers the member, renews its heartbeat, and leases the job's
//! version.

use std::os::fd::OwnedFd;

use dl_format::{DatasetId, DatasetName, Version};
use dl_proto::{JoinTask, TaskMembership};

use crate::dataset::Dataset;
use crate::error::Error;
use crate::remote::{self, Client};
use crate::snapshot::{SnapshotCache, UserFile};

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

/// A handle that answers from a snapshot handed over by another process, without a request. Every
/// byte is checked, unless the cache has the same snapshot.
///
/// # Errors
/// [`Kind::Corrupt`](crate::Kind::Corrupt) for a damaged snapshot and other kinds of files,
/// [`Kind::Local`](crate::Kind::Local) for an unreadable file.
pub fn by_descriptor(
    client: &Client,
    name: &DatasetName,
    file: OwnedFd,
    cache: Option<&SnapshotCache>,
) -> Result<Dataset, Error> {
    let file = UserFile::of_file(file.into(), "the snapshot of a process".as_ref())?;
    Ok(client.answering(name, client.load(&file, cache)?))
}

/// A handle that answers from a snapshot in the cache that the servers gave, without a request; none
/// if the cache lacks the snapshot.
pub fn of_cache(
    client: &Client,
    name: &DatasetName,
    ids: (DatasetId, Version),
    cache: &SnapshotCache,
) -> Option<Dataset> {
    Some(client.answering(name, client.kept(ids, cache)?))
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

/// A handle that the servers answer, without snapshot and agent.
///
/// # Errors
/// [`Kind::NotFound`](crate::Kind::NotFound) for an unknown name.
pub fn at_servers(client: &Client, name: &DatasetName) -> Result<Dataset, Error> {
    Ok(Dataset::new(client.find(name)?))
}

/// The same handle with all bytes from the servers, so that the agent may close the version.
pub fn without_agent(dataset: &Dataset) -> Dataset {
    dataset.without_worker()
}

//! Leases of training jobs on versions of datasets, in the chunk store beside the snapshots.
//!
//! Must hold: the key of a lease has the job, the version and the end, so that a damaged lease claims as much
//! as a whole lease. A lease is never changed: a later lease takes its place.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dl_format::{DatasetId, Lease, SnapshotObject, Stamp, TaskId, Version};
use dl_store::StoreExt;

use super::stored;
use crate::datasets::names;
use crate::error::{Error, if_found, is_created};
use crate::shared::context::ServerContext;

/// Lifetime of a lease after the last renewal; renewed in its second half.
pub(crate) const LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// The most jobs named in a message.
const NAMED_MAX: usize = 20;

/// A lease, by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leased {
    pub(crate) version: Version,
    pub(crate) until: Stamp,
    pub(crate) task: TaskId,
}

impl Leased {
    fn of(version: Version, object: SnapshotObject) -> Option<Self> {
        match object {
            SnapshotObject::Lease { until, task } => Some(Self { version, until, task }),
            SnapshotObject::Manifest | SnapshotObject::Part(_) => None,
        }
    }

    fn object(self) -> SnapshotObject {
        SnapshotObject::Lease { until: self.until, task: self.task }
    }
}

/// The latest end of the leases among the objects of a version; none when all have ended.
pub(crate) fn end(objects: &[SnapshotObject], now: Stamp) -> Option<Stamp> {
    let ends = objects.iter().filter_map(|object| Leased::of(Version::default(), *object));
    ends.map(|leased| leased.until).filter(|until| *until > now).max()
}

/// The leases on a dataset before their end.
pub(crate) async fn living(
    context: &ServerContext,
    dataset: DatasetId,
) -> Result<Vec<Leased>, Error> {
    let now = Stamp::at(context.clock.now());
    let stored = stored::list(context, dataset).await?.into_iter();
    let leased = stored.flat_map(|(version, objects)| {
        objects.into_iter().filter_map(move |object| Leased::of(version, object))
    });
    Ok(leased.filter(|leased| leased.until > now).collect())
}

/// The time since the last renewal of each lease on a living dataset.
pub(crate) async fn ages(context: &ServerContext) -> Result<Vec<Duration>, Error> {
    let names = names::all(context).await?;
    let now = context.clock.now();
    let mut ages = Vec::new();
    for (_, named) in names.live() {
        let leases = living(context, named.record.dataset).await?;
        let left = leases.iter().map(|leased| leased.until.time().duration_since(now));
        ages.extend(left.map(|left| LEASE.saturating_sub(left.unwrap_or_default())));
    }
    Ok(ages)
}

/// Stores the lease of a job.
pub(crate) async fn create(
    context: &ServerContext,
    lease: &Lease,
    task: TaskId,
) -> Result<(), Error> {
    let leased = Leased { version: lease.version, until: lease.until, task };
    let key = stored::key_of(lease.dataset, lease.version, leased.object());
    let created = context.store.create(&key, lease.encode().into()).await;
    is_created(created, "store a lease", &key).map(drop)
}

/// Removes a lease, except on read-only servers: the lease ends by itself.
pub(crate) async fn remove(
    context: &ServerContext,
    dataset: DatasetId,
    leased: Leased,
) -> Result<(), Error> {
    if context.settings.is_read_only() {
        return Ok(());
    }
    stored::remove(context, dataset, leased.version, vec![leased.object()]).await
}

/// Removes ended leases from the store and from `listed`.
pub(crate) async fn remove_ended(
    context: &ServerContext,
    dataset: DatasetId,
    listed: &mut BTreeMap<Version, Vec<SnapshotObject>>,
) -> Result<(), Error> {
    let now = Stamp::at(context.clock.now());
    for (version, objects) in &mut *listed {
        let is_over = |object: &mut SnapshotObject| {
            Leased::of(*version, *object).is_some_and(|leased| leased.until <= now)
        };
        for object in objects.extract_if(.., is_over).collect::<Vec<_>>() {
            stored::remove(context, dataset, *version, vec![object]).await?;
            tracing::info!(%dataset, %version, "removed a lease of a training job that has ended");
        }
    }
    listed.retain(|_, objects| !objects.is_empty());
    Ok(())
}

/// The jobs with leases on a dataset, in words.
pub(crate) async fn holders(
    context: &ServerContext,
    dataset: DatasetId,
) -> Result<Vec<String>, Error> {
    let tasks = last_of_each(living(context, dataset).await?);
    let mut holders = BTreeSet::new();
    for leased in tasks.values().take(NAMED_MAX) {
        holders.extend(holder(context, dataset, *leased).await?);
    }
    let mut holders = Vec::from_iter(holders);
    if tasks.len() > NAMED_MAX {
        holders.push(format!("{} other tasks", tasks.len() - NAMED_MAX));
    }
    Ok(holders)
}

/// The last lease of each job.
pub(crate) fn last_of_each(mut leased: Vec<Leased>) -> BTreeMap<TaskId, Leased> {
    leased.sort_unstable_by_key(|leased| leased.until);
    leased.into_iter().map(|leased| (leased.task, leased)).collect()
}

/// A lease as stored, or the reason for its damage; none when the lease was removed meanwhile.
pub(crate) async fn read(
    context: &ServerContext,
    dataset: DatasetId,
    leased: Leased,
) -> Result<Option<Result<Lease, String>>, Error> {
    let key = stored::key_of(dataset, leased.version, leased.object());
    let bytes = if_found(context.store.read_all(&key).await, "read a lease", &key)?;
    Ok(bytes.map(|bytes| match Lease::decode(&bytes) {
        Ok(lease) if lease.dataset == dataset && lease.version == leased.version => Ok(lease),
        Ok(_) => Err("it is a copy of another one".to_owned()),
        Err(error) => Err(error.to_string()),
    }))
}

/// The job of a lease; none when the lease was removed meanwhile.
async fn holder(
    context: &ServerContext,
    dataset: DatasetId,
    leased: Leased,
) -> Result<Option<String>, Error> {
    let why = match read(context, dataset, leased).await? {
        None => return Ok(None),
        Some(Ok(lease)) => {
            return Ok(Some(match lease.user.as_str() {
                "" => format!("task {}", lease.task),
                user => format!("task {} of user {user}", lease.task),
            }));
        }
        Some(Err(why)) => why,
    };
    let key = stored::key_of(dataset, leased.version, leased.object());
    let hours =
        leased.until.time().duration_since(context.clock.now()).unwrap_or_default().as_secs();
    let hours = hours.div_ceil(3_600);
    tracing::warn!(%key, why, hours, "the lease of a training job is damaged; it counts until it ends");
    Ok(Some(format!("a task that can't be told, as its lease {key} is damaged, for {hours} h")))
}

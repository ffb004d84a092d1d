//! Stored snapshots of older versions: how many are kept, and for how long.
//!
//! Must hold: the newest snapshot stays; an older snapshot stays while a job leases its version or a reader may
//! go on. Readers of a removed snapshot begin anew with the newest. Read-only servers remove none.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::time::Duration;

use dl_format::{DatasetId, SnapshotObject, Stamp, Version};
use dl_meta::DatasetState;

use super::{leases, stored};
use crate::datasets::names;
use crate::error::{Doing, Error};
use crate::metrics::SnapshotMetrics;
use crate::shared::context::ServerContext;

/// Versions of a dataset whose snapshots are kept for long, the newest among them.
const KEPT_LONG: usize = 3;

/// Time for which older snapshots stay for readers, also after an interruption.
const KEPT: Duration = Duration::from_secs(60 * 60);

/// The time for all further snapshots: datasets with many changes would fill the store.
const KEPT_OTHERS: Duration = Duration::from_secs(2 * 60);

/// Interval of the sweeps of all datasets.
const PERIOD: Duration = Duration::from_secs(10 * 60);

/// Time for which a snapshot is kept after a server saw a newer version.
pub(crate) const KEPT_AT_MOST: Duration = KEPT.saturating_add(PERIOD);

/// A stored version besides the newest.
struct Old {
    version: Version,
    objects: Vec<SnapshotObject>,
    /// The first sight of a newer version, on the monotonic clock.
    since: Duration,
    /// The time at which all was stored; none if incomplete.
    built: Option<Stamp>,
}

/// An older version with a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Older {
    pub(crate) version: Version,
    /// The longest time left, whichever server removes the snapshot.
    pub(crate) kept: Duration,
}

/// Removes expired snapshots of older versions, but not in a dry run; gives the snapshots that are left.
pub(crate) async fn sweep(
    context: &ServerContext,
    dataset: DatasetId,
    newest: Version,
    is_dry_run: bool,
) -> Result<Vec<Older>, Error> {
    let is_read_only = context.settings.is_read_only();
    let mut listed = stored::list(context, dataset).await?;
    if !is_read_only && !is_dry_run {
        leases::remove_ended(context, dataset, &mut listed).await?;
    }
    let mut left = Vec::new();
    for (old, mut left_for) in timed(context, dataset, newest, listed).await? {
        if left_for.is_zero() && is_dry_run {
            continue;
        }
        if left_for.is_zero() && !is_read_only {
            // A training job may have leased the version since the listing.
            let objects = stored::list(context, dataset).await?.remove(&old.version);
            let objects = objects.unwrap_or_default();
            left_for = leased_for(context, &objects);
            if left_for.is_zero() {
                stored::remove(context, dataset, old.version, objects).await?;
                tracing::info!(%dataset, version = %old.version, "removed a snapshot of an older version");
                continue;
            }
        }
        left.push(Older { version: old.version, kept: left_for.saturating_add(PERIOD) });
    }
    Ok(left)
}

fn leased_for(context: &ServerContext, objects: &[SnapshotObject]) -> Duration {
    let now = context.clock.now();
    let end = leases::end(objects, Stamp::at(now));
    end.and_then(|end| end.time().duration_since(now).ok()).unwrap_or_default()
}

/// The stored versions besides the newest, each with its time left.
async fn timed(
    context: &ServerContext,
    dataset: DatasetId,
    newest: Version,
    listed: BTreeMap<Version, Vec<SnapshotObject>>,
) -> Result<Vec<(Old, Duration)>, Error> {
    let now = context.clock.now();
    let (mut few, mut timed) = (1, Vec::new());
    for old in old(context, dataset, newest, listed).await? {
        // An incomplete snapshot is being stored, or its server was killed.
        few += usize::from(old.built.is_some());
        let kept = if old.built.is_some() && few > KEPT_LONG { KEPT_OTHERS } else { KEPT };
        let seen = kept.saturating_sub(context.clock.monotonic().saturating_sub(old.since));
        let built = old.built.unwrap_or_default().time().checked_add(kept);
        let built = built.map_or(Duration::MAX, |end| end.duration_since(now).unwrap_or_default());
        let leased = leased_for(context, &old.objects);
        timed.push((old, seen.max(built).max(leased)));
    }
    Ok(timed)
}

/// The stored versions besides the newest, the youngest first.
async fn old(
    context: &ServerContext,
    dataset: DatasetId,
    newest: Version,
    mut stored: BTreeMap<Version, Vec<SnapshotObject>>,
) -> Result<Vec<Old>, Error> {
    stored.remove(&newest);
    let now = context.clock.monotonic();
    let replaced = context.replaced.note(dataset, stored.keys().copied(), now);
    let mut all = Vec::new();
    for (version, objects) in stored {
        let built = stored::built(context, dataset, version).await?;
        let since = replaced.get(&version).copied().unwrap_or(now);
        all.push(Old { version, objects, since, built });
    }
    all.sort_by_key(|old| Reverse((old.since, old.built)));
    Ok(all)
}

/// Sweeps the snapshots of all datasets at intervals, also of idle datasets, and counts the leases.
pub(crate) async fn watch(context: &ServerContext, metrics: &SnapshotMetrics) -> Infallible {
    let mut swept = HashMap::new();
    loop {
        match leases::ages(context).await {
            Ok(ages) => metrics.count_leases(&ages),
            Err(error) => tracing::debug!(error = error.chain(), "leases can't be counted"),
        }
        context.clock.sleep(PERIOD).await;
        if context.settings.is_read_only() {
            continue;
        }
        if let Err(error) = sweep_all(context, &mut swept).await {
            let why = error.chain();
            tracing::warn!(why, "snapshots of older versions are left for later");
        }
    }
}

/// Sweeps all datasets except unchanged datasets without older snapshots; gives the last error at the end.
async fn sweep_all(
    context: &ServerContext,
    swept: &mut HashMap<DatasetId, Version>,
) -> Result<(), Error> {
    let names = names::recent(context).await?;
    let live: HashSet<DatasetId> = names.live().map(|(_, named)| named.record.dataset).collect();
    swept.retain(|dataset, _| live.contains(dataset));
    context.replaced.retain(&live);
    let mut failed = None;
    for dataset in live {
        match sweep_one(context, dataset, swept.get(&dataset).copied()).await {
            Ok(Some(version)) => {
                swept.insert(dataset, version);
            }
            Ok(None) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Sweeps a dataset; gives its version, if no snapshot of another version is left or will be stored.
async fn sweep_one(
    context: &ServerContext,
    dataset: DatasetId,
    swept: Option<Version>,
) -> Result<Option<Version>, Error> {
    let outline = context.meta.outline(dataset).await.doing("describe dataset", dataset)?;
    // During a rebuild the newest version is unknown.
    let outline = outline.filter(|outline| outline.record.state == DatasetState::Live);
    let Some(version) = outline.map(|outline| outline.version) else { return Ok(None) };
    if swept == Some(version) && !context.replaced.is_any(dataset) {
        return Ok(swept);
    }
    // Builds of older versions, begun before the last change, have ended by then.
    let until = version.last_stamp().unwrap_or_default().time().checked_add(KEPT);
    let is_settled = until.is_some_and(|until| until <= context.clock.now());
    let left = sweep(context, dataset, version, false).await?;
    Ok((left.is_empty() && is_settled).then_some(version))
}

#[cfg(test)]
mod tests;

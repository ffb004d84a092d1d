//! Stored snapshots of older versions: how many are kept, and for how long.
//!
//! Must hold: the snapshot of the newest version stays, and an older one while a training job leases the version
//! or a reader may go on with it. A reader whose snapshot went begins anew with the newest. Read-only servers
//! remove none.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::time::Duration;

use dl_format::{DatasetId, SnapshotObject, Stamp, Version};
use dl_meta::DatasetState;

use super::{leases, stored};
use crate::datasets::names;
use crate::error::{Doing, Error};
use crate::shared::parts::Parts;

/// Versions of a dataset whose snapshots are kept for long, the newest among them.
const FEW: usize = 3;

/// For how long they are kept when there are newer ones, for who reads them or was cut off.
const KEPT: Duration = Duration::from_secs(60 * 60);

/// The same of others: datasets that change all the time would fill the store.
const KEPT_OTHERS: Duration = Duration::from_secs(2 * 60);

/// How often is looked for what nobody asks for any more.
const PERIOD: Duration = Duration::from_secs(10 * 60);

/// Time for which a snapshot is kept after a server saw a newer version.
pub(crate) const KEPT_AT_MOST: Duration = KEPT.saturating_add(PERIOD);

/// A stored version that is not the newest one.
struct Old {
    version: Version,
    objects: Vec<SnapshotObject>,
    /// Since when there is known to be a newer one, on the monotonic clock.
    since: Duration,
    /// When it was stored to its end.
    built: Option<Stamp>,
}

/// An older version of which there is a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Older {
    pub(crate) version: Version,
    /// For how long yet, whichever server removes it.
    pub(crate) kept: Duration,
}

/// Removes the snapshots of older versions whose time is over, but in a dry run. Gives the snapshots of older
/// versions that are left.
pub(crate) async fn sweep(
    parts: &Parts,
    dataset: DatasetId,
    newest: Version,
    is_dry_run: bool,
) -> Result<Vec<Older>, Error> {
    let is_read_only = parts.settings.is_read_only();
    let mut listed = stored::list(parts, dataset).await?;
    if !is_read_only && !is_dry_run {
        leases::remove_ended(parts, dataset, &mut listed).await?;
    }
    let mut left = Vec::new();
    for (old, mut left_for) in timed(parts, dataset, newest, listed).await? {
        if left_for.is_zero() && is_dry_run {
            continue;
        }
        if left_for.is_zero() && !is_read_only {
            // A training job may have leased it since it was listed.
            let objects = stored::list(parts, dataset).await?.remove(&old.version);
            let objects = objects.unwrap_or_default();
            left_for = leased_for(parts, &objects);
            if left_for.is_zero() {
                stored::remove(parts, dataset, old.version, objects).await?;
                tracing::info!(%dataset, version = %old.version, "removed a snapshot of an older version");
                continue;
            }
        }
        left.push(Older { version: old.version, kept: left_for.saturating_add(PERIOD) });
    }
    Ok(left)
}

/// How long training jobs lease a version yet.
fn leased_for(parts: &Parts, objects: &[SnapshotObject]) -> Duration {
    let now = parts.clock.now();
    let end = leases::end(objects, Stamp::at(now));
    end.and_then(|end| end.time().duration_since(now).ok()).unwrap_or_default()
}

/// The stored versions besides the newest one, each with the time for which it is kept yet.
async fn timed(
    parts: &Parts,
    dataset: DatasetId,
    newest: Version,
    listed: BTreeMap<Version, Vec<SnapshotObject>>,
) -> Result<Vec<(Old, Duration)>, Error> {
    let now = parts.clock.now();
    let (mut few, mut timed) = (1, Vec::new());
    for old in old(parts, dataset, newest, listed).await? {
        // What was begun only is being stored, or its server was killed.
        few += usize::from(old.built.is_some());
        let kept = if old.built.is_some() && few > FEW { KEPT_OTHERS } else { KEPT };
        let seen = kept.saturating_sub(parts.clock.monotonic().saturating_sub(old.since));
        let built = old.built.unwrap_or_default().time().checked_add(kept);
        let built = built.map_or(Duration::MAX, |end| end.duration_since(now).unwrap_or_default());
        let leased = leased_for(parts, &old.objects);
        timed.push((old, seen.max(built).max(leased)));
    }
    Ok(timed)
}

/// The stored versions besides the newest one, the youngest first.
async fn old(
    parts: &Parts,
    dataset: DatasetId,
    newest: Version,
    mut stored: BTreeMap<Version, Vec<SnapshotObject>>,
) -> Result<Vec<Old>, Error> {
    stored.remove(&newest);
    let now = parts.clock.monotonic();
    let replaced = parts.replaced.note(dataset, stored.keys().copied(), now);
    let mut all = Vec::new();
    for (version, objects) in stored {
        let built = stored::built(parts, dataset, version).await?;
        let since = replaced.get(&version).copied().unwrap_or(now);
        all.push(Old { version, objects, since, built });
    }
    all.sort_by_key(|old| Reverse((old.since, old.built)));
    Ok(all)
}

/// Looks after the snapshots of all datasets, also of those that nobody changes or asks for.
pub(crate) async fn watch(parts: &Parts) -> Infallible {
    let mut swept = HashMap::new();
    loop {
        parts.clock.sleep(PERIOD).await;
        if parts.settings.is_read_only() {
            continue;
        }
        if let Err(error) = sweep_all(parts, &mut swept).await {
            let why = error.chain();
            tracing::warn!(why, "snapshots of older versions are left for later");
        }
    }
}

/// Sweeps all datasets, but those that were at the version that they are at now when nothing was
/// left of others. Gives the last error: what is wrong with one keeps no other from it.
async fn sweep_all(parts: &Parts, swept: &mut HashMap<DatasetId, Version>) -> Result<(), Error> {
    let names = names::recent(parts).await?;
    let live: HashSet<DatasetId> = names.live().map(|(_, named)| named.record.dataset).collect();
    swept.retain(|dataset, _| live.contains(dataset));
    parts.replaced.retain(&live);
    let mut failed = None;
    for dataset in live {
        match sweep_one(parts, dataset, swept.get(&dataset).copied()).await {
            Ok(Some(version)) => {
                swept.insert(dataset, version);
            }
            Ok(None) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Gives the version of which it is sure that no other one will be stored.
async fn sweep_one(
    parts: &Parts,
    dataset: DatasetId,
    swept: Option<Version>,
) -> Result<Option<Version>, Error> {
    let outline = parts.meta.outline(dataset).await.doing("describe dataset", dataset)?;
    // While one is being rebuilt nobody knows which version is its newest.
    let outline = outline.filter(|outline| outline.record.state == DatasetState::Live);
    let Some(version) = outline.map(|outline| outline.version) else { return Ok(None) };
    if swept == Some(version) && !parts.replaced.is_any(dataset) {
        return Ok(swept);
    }
    // Builds of older versions, begun before the last change, have ended by then.
    let until = version.last_stamp().unwrap_or_default().time().checked_add(KEPT);
    let is_settled = until.is_some_and(|until| until <= parts.clock.now());
    let left = sweep(parts, dataset, version, false).await?;
    Ok((left.is_empty() && is_settled).then_some(version))
}

#[cfg(test)]
mod tests;

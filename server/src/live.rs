//! What a server does about the settings that change while it runs: bounds of memory, and datasets
//! that the fast store keeps.
//!
//! Must hold: what has not changed is not looked at again and again.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dl_format::{DatasetId, Version};
use dl_proto::Pattern;
use dl_store::{Kept, TierStore};
use futures::{StreamExt, stream};

use crate::error::Error;
use crate::names;
use crate::parts::{Budget, Limits, Parts, prefix};
use crate::settings::Settings;

/// How often is looked for new datasets and new chunks to keep in the fast store.
const PERIOD: Duration = Duration::from_secs(30);

/// A dataset that has not changed is looked through again after this long, as copies may have been
/// damaged or removed by hand; sooner and then later when it did not fit, or could not be listed.
const AGAIN: Duration = Duration::from_secs(15 * 60);

/// Datasets that are looked at, and brought over, at once.
const DATASETS_AT_ONCE: usize = 4;

/// What the fast store has of a dataset that is kept.
#[derive(Debug, Clone, Copy)]
struct Seen {
    version: Version,
    kept: Kept,
    /// When it is to be looked through again, and after how long then.
    again_at: Duration,
    wait: Duration,
}

/// Sets the bounds of memory as they change.
pub(crate) async fn bound(
    mut settings: Settings,
    writes: Budget,
    reads: Budget,
    first: Limits,
) -> Infallible {
    loop {
        let live = settings.next();
        writes.resize(live.write_bytes.unwrap_or(first.write_bytes));
        reads.resize(live.read_bytes.unwrap_or(first.read_bytes));
        settings.changed().await;
    }
}

/// Has the fast store keep what it is to keep.
pub(crate) async fn keep(
    mut settings: Settings,
    parts: Parts,
    fast: Option<Arc<TierStore>>,
) -> Infallible {
    let Some(fast) = fast else { return std::future::pending().await };
    let mut told = Kept::default();
    let mut seen = HashMap::new();
    loop {
        let live = settings.next();
        let looked = tokio::select! {
            looked = look_after(&parts, &fast, &live.keep, &mut seen) => looked,
            () = settings.changed() => continue,
        };
        match looked {
            Ok(kept) if kept != told => {
                let Kept { bytes, left_out } = kept;
                if left_out > 0 {
                    tracing::warn!(
                        bytes,
                        left_out,
                        "the fast store lacks some of what it is to keep, for want of room or of an \
                         answer; that is tried again"
                    );
                } else {
                    tracing::info!(bytes, "kept in the fast store");
                }
                told = kept;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(why = error.chain(), "the datasets to keep are not known");
            }
        }
        tokio::select! {
            () = parts.clock.sleep(PERIOD) => {}
            () = settings.changed() => {}
        }
    }
}

/// The datasets whose names are in `keep`.
async fn wanted(parts: &Parts, keep: &[Pattern]) -> Result<Vec<DatasetId>, Error> {
    if keep.is_empty() {
        return Ok(Vec::new());
    }
    let names = names::recent(parts).await?;
    let is_wanted = |name| keep.iter().any(|pattern| pattern.matches(name));
    Ok(names
        .live()
        .filter(|(name, _)| is_wanted(name))
        .map(|(_, named)| named.record.dataset)
        .collect())
}

/// Has the fast store keep these datasets, and brings over what it lacks of those that have changed
/// or were not whole; gives what it has of all of them.
async fn look_after(
    parts: &Parts,
    fast: &TierStore,
    keep: &[Pattern],
    seen: &mut HashMap<DatasetId, Seen>,
) -> Result<Kept, Error> {
    let datasets = wanted(parts, keep).await?;
    let below = |id: &DatasetId| prefix(dl_format::dataset_prefix(*id));
    fast.keep(datasets.iter().map(below).collect());
    seen.retain(|id, _| datasets.contains(id));
    let looked = stream::iter(datasets).map(|id| {
        let before = seen.get(&id).copied();
        async move { (id, bring(parts, fast, id, before).await) }
    });
    let looked: Vec<_> = looked.buffer_unordered(DATASETS_AT_ONCE).collect().await;
    seen.extend(looked.into_iter().filter_map(|(id, now)| Some((id, now?))));
    let mut all = Kept::default();
    for Seen { kept, .. } in seen.values() {
        all.bytes += kept.bytes;
        all.left_out += kept.left_out;
    }
    Ok(all)
}

/// Brings a dataset over when there is a reason to; none when nothing is known of it now.
async fn bring(
    parts: &Parts,
    fast: &TierStore,
    id: DatasetId,
    before: Option<Seen>,
) -> Option<Seen> {
    // Whoever asks for it is told what is wrong with it.
    let version = parts.meta.outline(id).await.ok()??.version;
    let before = before.filter(|seen| seen.version == version);
    if let Some(seen) = before
        && parts.clock.monotonic() < seen.again_at
    {
        return Some(seen);
    }
    let brought = fast.bring(&prefix(dl_format::dataset_prefix(id))).await;
    let is_whole = brought.as_ref().is_ok_and(|kept| kept.left_out == 0);
    let wait = match before {
        _ if is_whole => AGAIN,
        Some(seen) => AGAIN.min(seen.wait * 2),
        None => PERIOD,
    };
    let kept = brought.unwrap_or_else(|error| {
        tracing::warn!(dataset = %id, %error, "what the fast store is to keep can't be listed");
        before.map(|seen| seen.kept).unwrap_or_default()
    });
    Some(Seen { version, kept, again_at: parts.clock.monotonic() + wait, wait })
}

#[cfg(test)]
mod tests;

//! Applies live settings: bounds of memory, and the datasets kept in the fast store.
//!
//! Must hold: a complete dataset is listed again only every [`RELIST_INTERVAL`], or after a change.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dl_format::{DatasetId, Version};
use dl_proto::Pattern;
use dl_store::{Kept, TierStore};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::Semaphore;

use crate::datasets::names;
use crate::error::Error;
use crate::settings::Settings;
use crate::shared::context::{Budget, Limits, ServerContext, prefix};

/// Pause between searches for new datasets and chunks to keep.
const PERIOD: Duration = Duration::from_secs(30);

/// Pause before an unchanged dataset is listed again, as copies may be damaged or removed by hand. Incomplete
/// datasets begin with [`PERIOD`], doubled each time.
const RELIST_INTERVAL: Duration = Duration::from_secs(15 * 60);

const DATASETS_AT_ONCE: usize = 4;

/// The copies of a kept dataset at the last look.
#[derive(Debug, Clone, Copy)]
struct Seen {
    version: Version,
    kept: Kept,
    /// Time of the next look, and the pause after it.
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

/// Keeps the configured datasets in the fast store.
pub(crate) async fn keep(
    mut settings: Settings,
    context: ServerContext,
    fast: Option<Arc<TierStore>>,
) -> Infallible {
    let Some(fast) = fast else { return std::future::pending().await };
    let mut keeper = Keeper::new(&context, &fast);
    loop {
        let live = settings.next();
        let looked = tokio::select! {
            looked = keeper.look(&live.keep) => looked,
            () = settings.changed() => {
                keeper.let_go();
                continue;
            }
        };
        if let Err(error) = looked {
            tracing::warn!(why = error.chain(), "the datasets to keep are not known");
        }
        let mut over = std::pin::pin!(context.clock.sleep(PERIOD));
        loop {
            tokio::select! {
                () = keeper.arrive() => {
                    if keeper.under_way.is_empty() {
                        keeper.tell();
                    }
                }
                () = &mut over => break,
                () = settings.changed() => {
                    keeper.let_go();
                    break;
                }
            }
        }
        keeper.tell();
    }
}

async fn wanted(context: &ServerContext, keep: &[Pattern]) -> Result<Vec<DatasetId>, Error> {
    if keep.is_empty() {
        return Ok(Vec::new());
    }
    let names = names::recent(context).await?;
    let is_wanted = |name| keep.iter().any(|pattern| pattern.matches(name));
    Ok(names
        .live()
        .filter(|(name, _)| is_wanted(name))
        .map(|(_, named)| named.record.dataset)
        .collect())
}

/// Copies kept datasets that have changed or are incomplete. A slow dataset delays no other.
struct Keeper<'a> {
    context: &'a ServerContext,
    fast: &'a TierStore,
    seen: HashMap<DatasetId, Seen>,
    /// Datasets in `looked`.
    under_way: HashSet<DatasetId>,
    looked: FuturesUnordered<BoxFuture<'a, (DatasetId, Option<Seen>)>>,
    turns: Arc<Semaphore>,
    /// The counts last logged.
    told: Kept,
}

impl<'a> Keeper<'a> {
    fn new(context: &'a ServerContext, fast: &'a TierStore) -> Self {
        Self {
            context,
            fast,
            seen: HashMap::new(),
            under_way: HashSet::new(),
            looked: FuturesUnordered::new(),
            turns: Arc::new(Semaphore::new(DATASETS_AT_ONCE)),
            told: Kept::default(),
        }
    }

    async fn look(&mut self, keep: &[Pattern]) -> Result<(), Error> {
        let (context, fast) = (self.context, self.fast);
        let datasets = wanted(context, keep).await?;
        let below = |id: &DatasetId| prefix(dl_format::dataset_prefix(*id));
        fast.keep(datasets.iter().map(below).collect());
        self.seen.retain(|id, _| datasets.contains(id));
        for id in datasets {
            if !self.under_way.insert(id) {
                continue;
            }
            let (before, turns) = (self.seen.get(&id).copied(), Arc::clone(&self.turns));
            let look = async move { (id, bring(context, fast, id, before, &turns).await) };
            self.looked.push(look.boxed());
        }
        Ok(())
    }

    async fn arrive(&mut self) {
        match self.looked.next().await {
            Some((id, now)) => {
                self.under_way.remove(&id);
                self.seen.extend(now.map(|now| (id, now)));
            }
            None => std::future::pending().await,
        }
    }

    /// Abandons all copies under way, as the configured datasets may have changed.
    fn let_go(&mut self) {
        self.looked.clear();
        self.under_way.clear();
    }

    /// Logs the counts if they changed.
    fn tell(&mut self) {
        let kept @ Kept { bytes, left_out } = self.kept();
        if kept == std::mem::replace(&mut self.told, kept) {
            return;
        }
        if left_out > 0 {
            tracing::warn!(
                bytes,
                left_out,
                used = self.fast.counts().used,
                "the fast store lacks some of what it is to keep, for want of room or of an answer; \
                 that is tried again"
            );
        } else {
            tracing::info!(bytes, "kept in the fast store");
        }
    }

    fn kept(&self) -> Kept {
        let add = |all: Kept, Seen { kept, .. }: &Seen| Kept {
            bytes: all.bytes + kept.bytes,
            left_out: all.left_out + kept.left_out,
        };
        self.seen.values().fold(Kept::default(), add)
    }
}

/// Copies a dataset if it changed or its pause is over; none when it is unknown.
async fn bring(
    context: &ServerContext,
    fast: &TierStore,
    id: DatasetId,
    before: Option<Seen>,
    turns: &Semaphore,
) -> Option<Seen> {
    // Requests for the dataset report the error.
    let version = context.meta.outline(id).await.ok()??.version;
    let before = before.filter(|seen| seen.version == version);
    if let Some(seen) = before
        && context.clock.monotonic() < seen.again_at
    {
        return Some(seen);
    }
    let turn = turns.acquire().await.expect("the semaphore is never closed");
    let brought = fast.copy_all(&prefix(dl_format::dataset_prefix(id))).await;
    drop(turn);
    let is_whole = brought.as_ref().is_ok_and(|kept| kept.left_out == 0);
    let wait = match before {
        _ if is_whole => RELIST_INTERVAL,
        Some(seen) => RELIST_INTERVAL.min(seen.wait * 2),
        None => PERIOD,
    };
    let kept = brought.unwrap_or_else(|error| {
        tracing::warn!(dataset = %id, %error, "what the fast store is to keep can't be listed");
        before.map(|seen| seen.kept).unwrap_or_default()
    });
    Some(Seen { version, kept, again_at: context.clock.monotonic() + wait, wait })
}

#[cfg(test)]
mod tests;

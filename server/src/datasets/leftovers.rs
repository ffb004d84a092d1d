//! The removal of deleted datasets: objects without a name, and old generations of names. The removal runs while
//! the server serves, as it may take hours.
//!
//! Must hold: an object is removed only after its deletion is durable, and never while the servers are
//! read-only. A failure delays its own dataset alone.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dl_format::{DatasetId, DatasetName, dataset_prefix, parse_snapshot_key};
use dl_proto::DeletedDataset;
use dl_runtime::{Backoff, Deadline, blocking};
use futures::{Stream, StreamExt, stream};
use tokio::sync::{Notify, Semaphore};

use crate::datasets::identity;
use crate::datasets::names::{self, Deleted, Past};
use crate::error::{Doing, Error};
use crate::shared::context::{ServerContext, prefix};

/// Deleted datasets in work in parallel.
const DATASETS_AT_ONCE: usize = 8;

/// Objects removed in parallel by a server; in a folder each takes a thread from reads and puts.
const REMOVALS_AT_ONCE: usize = blocking::AT_ONCE / 2;

/// Consecutive failures after which the rest of a dataset is left for later: the store is at fault.
const FAILURES_MAX: usize = 2 * REMOVALS_AT_ONCE;

/// Time that a deletion waits for the removal of the objects.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

/// Interval of the search for unfinished deletions of other servers, and for names to tidy up.
const PERIOD: Duration = Duration::from_secs(60 * 60);

/// Pauses after a failed removal.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(10), factor: 2, max: Duration::from_secs(10 * 60) };

const ACTION: &str = "remove the objects of dataset";

/// The shared state of all removals of a server. Clones share it, too.
#[derive(Debug, Clone)]
pub(crate) struct Leftovers {
    room: Arc<Semaphore>,
    /// Wakes the job.
    more: Arc<Notify>,
}

impl Default for Leftovers {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(REMOVALS_AT_ONCE)), more: Arc::default() }
    }
}

impl Leftovers {
    /// Removes the objects of a dataset that was deleted just now, for as long as its caller waits. The job
    /// finds the rest by the name, whose last generation is a deletion.
    pub(crate) async fn remove(
        &self,
        context: &ServerContext,
        name: &DatasetName,
        id: DatasetId,
    ) -> DeletedDataset {
        let mut removed = 0;
        let deadline = Deadline::after(&*context.clock, ANSWERED_WITHIN);
        let swept = self.sweep(context, id, &mut removed);
        let swept = deadline.bound(&*context.clock, swept).await;
        let more_left = !matches!(swept, Ok(Ok(())));
        if let Ok(Err(error)) = swept {
            let why = error.chain();
            tracing::warn!(%name, why, "objects of a deleted dataset are left for later");
        }
        if more_left {
            self.more.notify_one();
        }
        DeletedDataset { removed, more_left }
    }

    /// Removes the objects of datasets with deleted names. Gives their number, or the first error.
    pub(crate) async fn sweep_deleted(
        &self,
        context: &ServerContext,
        past: Past,
    ) -> Result<u64, Error> {
        let mut deleted = names::deleted(context, past).await?.found;
        if !deleted.is_empty() {
            // Another name may be a copy of an earlier generation: its dataset may have new files.
            let names = names::all(context).await?;
            let live: HashSet<DatasetId> =
                names.live().map(|(_, named)| named.record.dataset).collect();
            deleted.retain(|Deleted { name, named, .. }| {
                let is_live = live.contains(&named.record.dataset);
                if is_live {
                    tracing::error!(%name, "a deleted dataset stays, as another name stands for it");
                }
                !is_live
            });
        }
        let swept = stream::iter(deleted).map(|deleted| async move {
            let Deleted { name, named, .. } = &deleted;
            context.settings.refuse_read_only(ACTION, name)?;
            finish(context, &deleted).await?;
            let mut removed = 0;
            let swept = self.sweep(context, named.record.dataset, &mut removed).await;
            if removed > 0 {
                tracing::info!(%name, removed, "removed objects of a deleted dataset");
            }
            swept?;
            deleted.tidy(context).await?;
            Ok(removed)
        });
        all_of(swept).await
    }

    /// Removes the objects of a dataset without a name, and counts them.
    async fn sweep(
        &self,
        context: &ServerContext,
        id: DatasetId,
        removed: &mut u64,
    ) -> Result<(), Error> {
        let objects = prefix(dataset_prefix(id));
        let removals = context.store.list(&objects).map(|object| async move {
            let _place = self.room.acquire().await.expect("the semaphore is never closed");
            context.settings.refuse_read_only(ACTION, id)?;
            let object = object.storing(ACTION, id)?;
            context.store.delete(&object.key).await.storing(ACTION, id)?;
            Ok(u64::from(parse_snapshot_key(object.key.as_str()).is_none()))
        });
        let mut removals = std::pin::pin!(removals.buffer_unordered(REMOVALS_AT_ONCE));
        let (mut failures, mut first) = (0, Ok(()));
        while let Some(one) = removals.next().await {
            match one {
                Ok(count) => {
                    *removed += count;
                    failures = 0;
                }
                Err(error) => {
                    failures += 1;
                    first = first.and(Err(error));
                    if failures == FAILURES_MAX {
                        break;
                    }
                }
            }
        }
        first?;
        if let Err(error) = context.store.prune(&objects).await {
            let why = Error::store("remove the folders of dataset", id, error).chain();
            tracing::warn!(why, "empty folders of a deleted dataset are left");
        }
        Ok(())
    }
}

/// Removes the objects of deleted datasets: of deletions before the start, of deletions whose callers wait no
/// longer, and of deletions that other servers have not finished.
pub(crate) async fn watch(context: &ServerContext, leftovers: &Leftovers) -> Infallible {
    let (mut settings, mut failures) = (context.settings.clone(), 0);
    loop {
        let pause = if settings.next().read_only {
            PERIOD
        } else if let Err(error) = round(context, leftovers).await {
            let why = error.chain();
            tracing::warn!(why, "objects of deleted datasets are left for later");
            let pause = BACKOFF.wait(failures, &*context.random);
            failures = failures.saturating_add(1);
            pause
        } else {
            failures = 0;
            PERIOD
        };
        tokio::select! {
            () = context.clock.sleep(pause) => {}
            () = leftovers.more.notified() => {}
            () = settings.changed() => {}
        }
    }
}

async fn round(context: &ServerContext, leftovers: &Leftovers) -> Result<(), Error> {
    identity::refuse_damaged(context, "remove what is left of", "deleted datasets").await?;
    leftovers.sweep_deleted(context, Past::Untidied).await.map(drop)
}

async fn all_of(
    work: impl Stream<Item = impl Future<Output = Result<u64, Error>>>,
) -> Result<u64, Error> {
    let mut work = std::pin::pin!(work.buffer_unordered(DATASETS_AT_ONCE));
    let mut all = Ok(0);
    while let Some(one) = work.next().await {
        all = all.and_then(|sum| Ok(sum + one?));
    }
    all
}

/// Makes interrupted deletions durable; gives the first error, after the work on all of them.
pub(crate) async fn finish_all(context: &ServerContext) -> Result<(), Error> {
    let deleted = names::deleted(context, Past::Untidied).await?.found;
    let finished = stream::iter(deleted)
        .map(|deleted| async move { finish(context, &deleted).await.map(|()| 0) });
    all_of(finished).await.map(drop)
}

/// Makes a deletion durable, and ends the dataset in the metadata.
async fn finish(context: &ServerContext, deleted: &Deleted) -> Result<(), Error> {
    let Deleted { name, named, .. } = deleted;
    names::make_durable(context, name, named.generation).await?;
    forget(context, name, named.record.dataset).await
}

/// Takes a deleted dataset out of the metadata.
pub(crate) async fn forget(
    context: &ServerContext,
    name: &DatasetName,
    id: DatasetId,
) -> Result<(), Error> {
    context.meta.drop_dataset(name, id).await.doing("forget dataset", id)
}

#[cfg(test)]
mod tests;

//! Settings that all servers share and that change while they run (paper, Figure 2): the table
//! `[live]` of the configuration.
//!
//! Must hold: each server follows them by itself; one that lost sight of them goes on with the last.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dl_format::DatasetId;
use dl_proto::Pattern;
use dl_store::{Kept, TierStore};
use tokio::sync::watch;

use crate::names;
use crate::parts::{Budget, Limits, Parts, prefix};
use crate::source::Followed;

/// How often is looked for new datasets and new chunks to keep in the fast store.
const PERIOD: Duration = Duration::from_secs(30);

/// What may change while a server runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Live {
    /// Whether requests that would change datasets are refused.
    pub read_only: bool,
    /// Datasets whose chunks stay in the fast store.
    pub keep: Vec<Pattern>,
    /// Bytes of chunks that are being received, instead of those of the start.
    pub write_bytes: Option<u32>,
    /// Bytes of files that are being read, instead of those of the start.
    pub read_bytes: Option<u32>,
}

/// The settings of a server; without any they never change.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    changes: watch::Receiver<Arc<Live>>,
}

impl Settings {
    pub(crate) fn of(followed: Option<&Followed<Live>>) -> Self {
        let changes = match followed {
            Some(followed) => followed.changes(),
            None => watch::channel(Arc::default()).1,
        };
        Self { changes }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.changes.borrow().read_only
    }

    /// Sets the bounds of memory as they change.
    pub(crate) async fn bound(
        mut self,
        writes: Budget,
        reads: Budget,
        first: Limits,
    ) -> Infallible {
        loop {
            let live = Arc::clone(&self.changes.borrow_and_update());
            writes.resize(live.write_bytes.unwrap_or(first.write_bytes));
            reads.resize(live.read_bytes.unwrap_or(first.read_bytes));
            self.changed().await;
        }
    }

    /// Has the fast store keep what it is to keep.
    pub(crate) async fn keep(mut self, parts: Parts, fast: Option<Arc<TierStore>>) -> Infallible {
        let Some(fast) = fast else { return std::future::pending().await };
        let mut told = Kept::default();
        loop {
            let live = Arc::clone(&self.changes.borrow_and_update());
            let datasets = match wanted(&parts, &live.keep).await {
                Ok(datasets) => datasets,
                Err(error) => {
                    tracing::warn!(why = error.chain(), "the datasets to keep are not known");
                    parts.clock.sleep(PERIOD).await;
                    continue;
                }
            };
            let prefixes = datasets.into_iter().map(|id| prefix(dl_format::dataset_prefix(id)));
            let kept = tokio::select! {
                kept = fast.keep(prefixes.collect()) => kept,
                () = self.changed() => continue,
            };
            if kept != told {
                let Kept { bytes, left_out } = kept;
                if left_out > 0 {
                    tracing::warn!(bytes, left_out, "the fast store is too small for all to keep");
                } else {
                    tracing::info!(bytes, "kept in the fast store");
                }
                told = kept;
            }
            tokio::select! {
                () = parts.clock.sleep(PERIOD) => {}
                () = self.changed() => {}
            }
        }
    }

    /// Waits for a change; for ever, when there is nothing that could change.
    async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The datasets whose names are in `keep`.
async fn wanted(parts: &Parts, keep: &[Pattern]) -> Result<Vec<DatasetId>, crate::error::Error> {
    if keep.is_empty() {
        return Ok(Vec::new());
    }
    let names = names::all(parts).await?;
    let is_wanted = |name| keep.iter().any(|pattern| pattern.matches(name));
    Ok(names
        .live()
        .filter(|(name, _)| is_wanted(name))
        .map(|(_, named)| named.record.dataset)
        .collect())
}

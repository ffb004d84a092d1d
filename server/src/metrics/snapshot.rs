//! What a server did with snapshots, counted.
//!
//! Must hold: bytes count once they are stored, times also when it failed; that the dataset is gone is
//! no failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dl_proto::Kind;
use dl_runtime::Clock;

use super::histogram::{Operation, Timer};
use crate::error::Error;

/// Snapshots that were built and stored.
#[derive(Debug, Default)]
pub(crate) struct SnapshotMetrics {
    build: Arc<Operation>,
    store: Arc<Operation>,
    pub(crate) stored_bytes: AtomicU64,
}

impl SnapshotMetrics {
    /// Both operations, by name.
    pub(crate) fn operations(&self) -> [(&'static str, &Operation); 2] {
        [("build", &self.build), ("store", &self.store)]
    }

    /// Measures a build.
    pub(crate) async fn build<T>(
        &self,
        clock: &Arc<dyn Clock>,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        timed(&self.build, clock, work).await
    }

    /// Measures how one of so many bytes is stored.
    pub(crate) async fn store<T>(
        &self,
        clock: &Arc<dyn Clock>,
        bytes: u64,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let stored = timed(&self.store, clock, work).await?;
        self.stored_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(stored)
    }
}

async fn timed<T>(
    operation: &Arc<Operation>,
    clock: &Arc<dyn Clock>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let timer = Timer::start(operation, clock);
    let done = work.await;
    // That the dataset is gone is no failure.
    if done.as_ref().is_err_and(|error| error.kind != Kind::NotFound) {
        timer.failed();
    }
    done
}

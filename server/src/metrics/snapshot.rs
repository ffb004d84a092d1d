//! Counts of a server's built and stored snapshots.
//!
//! Must hold: bytes count once they are stored, times also after failures. A deleted dataset is no failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dl_proto::Kind;
use dl_runtime::Clock;

use super::histogram::{Operation, timed};
use crate::error::Error;

/// Built and stored snapshots.
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
        timed(&self.build, clock, work, is_failure).await
    }

    /// Measures a store of a snapshot with so many bytes.
    pub(crate) async fn store<T>(
        &self,
        clock: &Arc<dyn Clock>,
        bytes: u64,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let stored = timed(&self.store, clock, work, is_failure).await?;
        self.stored_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(stored)
    }
}

/// A deleted dataset is no failure.
fn is_failure(error: &Error) -> bool {
    error.kind != Kind::NotFound
}

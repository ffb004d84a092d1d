//! Counts of a server's built and stored snapshots, and of leases.
//!
//! Must hold: bytes count once they are stored, times also after failures. A deleted dataset is no failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dl_proto::Kind;
use dl_runtime::Clock;

use super::histogram::{Operation, timed};
use super::text::{self, Text};
use crate::error::Error;

/// Built and stored snapshots, and the leases of training jobs beside them.
#[derive(Debug, Default)]
pub(crate) struct SnapshotMetrics {
    leases: AtomicU64,
    oldest_lease_seconds: AtomicU64,
    build: Arc<Operation>,
    store: Arc<Operation>,
    pub(crate) stored_bytes: AtomicU64,
}

impl SnapshotMetrics {
    /// Both operations, by name.
    pub(crate) fn operations(&self) -> [(&'static str, &Operation); 2] {
        [("build", &self.build), ("store", &self.store)]
    }

    /// Records all leases at a moment, by the time since the last renewal of each.
    pub(crate) fn count_leases(&self, ages: &[Duration]) {
        let oldest = ages.iter().max().map_or(0, Duration::as_secs);
        self.leases.store(ages.len() as u64, Ordering::Relaxed);
        self.oldest_lease_seconds.store(oldest, Ordering::Relaxed);
    }

    pub(crate) fn write_leases(&self, text: &mut Text) {
        let help = "Leases of training jobs at the last look.";
        text.metric("diesel_leases", text::Kind::Gauge, help);
        text.sample(&[], self.leases.load(Ordering::Relaxed));
        let help = "Time since the renewal of the lease that was renewed first.";
        text.metric("diesel_lease_oldest_seconds", text::Kind::Gauge, help);
        text.sample(&[], self.oldest_lease_seconds.load(Ordering::Relaxed));
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

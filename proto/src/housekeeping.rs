//! Domain types of purge and verify, with checked conversion to and from the wire.
//!
//! Must hold: an empty name means every dataset for a purge, and is refused by a verify. Durations
//! are sent as microseconds; longer durations are cut to the maximum.

use std::time::Duration;

use dl_format::DatasetName;

use crate::error::WireError;
use crate::pb;

/// The datasets to purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeRequest {
    /// The dataset; `None`: every dataset, and the left-overs of deleted datasets.
    pub dataset: Option<DatasetName>,
    /// Minimum time since a removed object was last needed.
    pub grace: Duration,
    /// Only forecast; change nothing.
    pub dry_run: bool,
    /// Without a grace time: whether to ignore leases of training jobs.
    pub force: bool,
}

impl From<PurgeRequest> for pb::PurgeRequest {
    fn from(request: PurgeRequest) -> Self {
        Self {
            dataset: request.dataset.map_or(String::new(), |name| name.as_str().to_owned()),
            grace: microseconds(request.grace),
            dry_run: request.dry_run,
            force: request.force,
        }
    }
}

impl TryFrom<pb::PurgeRequest> for PurgeRequest {
    type Error = WireError;

    fn try_from(wire: pb::PurgeRequest) -> Result<Self, WireError> {
        let dataset = match wire.dataset.as_str() {
            "" => None,
            name => Some(dataset_name(name)?),
        };
        let grace = Duration::from_micros(wire.grace);
        Ok(Self { dataset, grace, dry_run: wire.dry_run, force: wire.force })
    }
}

/// The progress of a purge, for one dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PurgeProgress {
    /// The dataset.
    pub dataset: String,
    /// Its objects.
    pub objects: u64,
    /// Checked objects.
    pub checked: u64,
    /// Chunks whose files were moved.
    pub rewritten: u64,
    /// Small chunks among these, without holes.
    pub merged: u64,
    /// Chunks written with moved files.
    pub written: u64,
    /// Removed objects.
    pub removed: u64,
    /// Bytes of `removed`.
    pub removed_bytes: u64,
    /// Unneeded objects, left for a later purge.
    pub waiting: u64,
    /// Bytes of `waiting`.
    pub waiting_bytes: u64,
    /// Longest remaining wait of these objects.
    pub waiting_for: Duration,
    /// Bytes to be reclaimed by this purge and later ones; only for a dry run.
    pub reclaimable_bytes: u64,
    /// Training jobs with a lease on a version of the dataset, in words. With a grace time these
    /// versions stay.
    pub leased_by: Vec<String>,
    /// Objects that could not be read or removed, with the reasons.
    pub problems: Vec<String>,
    /// Whether this dataset is finished.
    pub done: bool,
}

impl From<PurgeProgress> for pb::PurgeProgress {
    fn from(progress: PurgeProgress) -> Self {
        Self {
            dataset: progress.dataset,
            objects: progress.objects,
            checked: progress.checked,
            rewritten: progress.rewritten,
            written: progress.written,
            removed: progress.removed,
            removed_bytes: progress.removed_bytes,
            waiting: progress.waiting,
            waiting_bytes: progress.waiting_bytes,
            waiting_for: microseconds(progress.waiting_for),
            reclaimable_bytes: progress.reclaimable_bytes,
            leased_by: progress.leased_by,
            problems: progress.problems,
            done: progress.done,
            merged: progress.merged,
        }
    }
}

impl From<pb::PurgeProgress> for PurgeProgress {
    fn from(wire: pb::PurgeProgress) -> Self {
        Self {
            dataset: wire.dataset,
            objects: wire.objects,
            checked: wire.checked,
            rewritten: wire.rewritten,
            written: wire.written,
            removed: wire.removed,
            removed_bytes: wire.removed_bytes,
            waiting: wire.waiting,
            waiting_bytes: wire.waiting_bytes,
            waiting_for: Duration::from_micros(wire.waiting_for),
            reclaimable_bytes: wire.reclaimable_bytes,
            leased_by: wire.leased_by,
            problems: wire.problems,
            done: wire.done,
            merged: wire.merged,
        }
    }
}

/// The dataset to verify.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyRequest {
    /// The dataset.
    pub dataset: DatasetName,
    /// Whether to read every byte.
    pub checksums: bool,
}

impl From<VerifyRequest> for pb::VerifyRequest {
    fn from(request: VerifyRequest) -> Self {
        Self { dataset: request.dataset.as_str().to_owned(), checksums: request.checksums }
    }
}

impl TryFrom<pb::VerifyRequest> for VerifyRequest {
    type Error = WireError;

    fn try_from(wire: pb::VerifyRequest) -> Result<Self, WireError> {
        Ok(Self { dataset: dataset_name(&wire.dataset)?, checksums: wire.checksums })
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn dataset_name(text: &str) -> Result<DatasetName, WireError> {
    DatasetName::new(text).map_err(|why| WireError::invalid("dataset", why))
}

//! Domain types of purge and verify, and the checked way to and from the wire.
//!
//! Must hold: no name means every dataset to a purge, and is refused by a verify. A duration goes
//! as microseconds; one that is too long for them becomes the longest there is.

use std::time::Duration;

use dl_format::DatasetName;

use crate::error::WireError;
use crate::pb;

/// What to purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeRequest {
    /// One dataset; `None`: every dataset, and what deleted ones have left.
    pub dataset: Option<DatasetName>,
    /// How long nothing must have needed an object that goes.
    pub grace: Duration,
    /// Only forecast; change nothing.
    pub dry_run: bool,
    /// Without a grace time: whether versions that training jobs lease are given up.
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

/// How far a purge is, for one dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PurgeProgress {
    /// The dataset.
    pub dataset: String,
    /// Its objects.
    pub objects: u64,
    /// Of these, how many were looked at.
    pub checked: u64,
    /// Chunks whose files were moved into others.
    pub rewritten: u64,
    /// Those others.
    pub written: u64,
    /// Objects that were removed.
    pub removed: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Objects that nothing needs, and that a later purge removes.
    pub waiting: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// In how long all of them may go, at most.
    pub waiting_for: Duration,
    /// Bytes that this purge and later ones would give back; of a dry run alone.
    pub reclaimable_bytes: u64,
    /// Training jobs that lease a version of the dataset, in words. With a grace time their versions stay.
    pub leased_by: Vec<String>,
    /// What could not be read or removed, each with its object.
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
        }
    }
}

/// What to verify.
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

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong, and with what.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

/// How far a verification is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// The dataset.
    pub dataset: String,
    /// Its objects.
    pub objects: u64,
    /// Of these, how many were looked at.
    pub checked: u64,
    /// Files that were compared.
    pub files: u64,
    /// Bytes that were read to check them.
    pub bytes: u64,
    /// What was found since the last message.
    pub findings: Vec<Finding>,
    /// Whether it is finished.
    pub done: bool,
}

impl From<VerifyProgress> for pb::VerifyProgress {
    fn from(progress: VerifyProgress) -> Self {
        let findings = progress.findings.into_iter();
        let to_wire = |Finding { problem, remedy }| pb::Finding { problem, remedy };
        Self {
            dataset: progress.dataset,
            objects: progress.objects,
            checked: progress.checked,
            files: progress.files,
            bytes: progress.bytes,
            findings: findings.map(to_wire).collect(),
            done: progress.done,
        }
    }
}

impl From<pb::VerifyProgress> for VerifyProgress {
    fn from(wire: pb::VerifyProgress) -> Self {
        let findings = wire.findings.into_iter();
        let from_wire = |pb::Finding { problem, remedy }| Finding { problem, remedy };
        Self {
            dataset: wire.dataset,
            objects: wire.objects,
            checked: wire.checked,
            files: wire.files,
            bytes: wire.bytes,
            findings: findings.map(from_wire).collect(),
            done: wire.done,
        }
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn dataset_name(text: &str) -> Result<DatasetName, WireError> {
    DatasetName::new(text).map_err(|why| WireError::invalid("dataset", why))
}

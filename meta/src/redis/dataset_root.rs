//! The root of a dataset: the key with its record, its epoch and its counters.
//!
//! Must hold: a dataset exists while its root does. All reads and writes of other keys are checked by the
//! root, as the epoch may have changed.

use dl_format::{DatasetId, Version};
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes, decimal, fields};
use super::failure::Failure;
use super::keys::{self, Epoch, Keys};
use super::records::decode_dataset;
use crate::{DatasetRecord, Kind};

/// Redis counts in doubles: larger numbers are not exact.
pub(super) const STAMP_MAX: u64 = (1 << 53) - 1;

#[derive(Debug, Clone)]
pub(super) struct DatasetRoot {
    pub(super) record: DatasetRecord,
    /// The stored bytes of the record: only the same bytes are replaced.
    pub(super) stored: Vec<u8>,
    pub(super) keys: Keys,
    pub(super) objects: u64,
    /// The number of tombstones ever appended: their bitmaps may still be in the index.
    pub(super) tombstones: u64,
    /// The number of changes of the log or its rows other than new objects.
    pub(super) changes: u64,
    /// The number of objects ever taken off the log.
    pub(super) retired: u64,
    /// Whether the dataset has large folders.
    pub(super) is_large: bool,
    /// The last count.
    pub(super) counted: Option<Counted>,
}

/// The sums over a log of so many objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) objects: u64,
    pub(super) version: Version,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

const FIELDS: [&str; 11] = [
    "record",
    "epoch",
    "objects",
    "tombstones",
    "large",
    "counted",
    "version",
    "files",
    "bytes",
    "changes",
    "retired",
];

/// The question for [`read_root`].
pub(super) fn ask_root(id: DatasetId) -> Ask {
    Ask::to(&keys::root(id), "HMGET").arg(&FIELDS)
}

/// The question for [`Shared::is_still`].
pub(super) fn ask_epoch(keys: Keys) -> Ask {
    Ask::to(&keys.root(), "HGET").arg("epoch")
}

pub(super) fn read_root(id: DatasetId, answer: Value) -> Result<Option<DatasetRoot>, Failure> {
    let [
        stored,
        epoch,
        objects,
        tombstones,
        large,
        counted,
        version,
        files,
        size,
        changes,
        retired,
    ] = fields::<11>(answer)?;
    let Some(stored) = stored else { return Ok(None) };
    let epoch = epoch.as_deref().and_then(Epoch::parse);
    let epoch = epoch.ok_or_else(|| Failure::corrupt("the epoch of a dataset can't be read"))?;
    let record = decode_dataset(id, &stored)?;
    let counted = match counted {
        Some(counted) => Some(Counted {
            objects: decimal(Some(&counted))?,
            version: Version::from_bytes(&version.unwrap_or_default())
                .map_err(|_| Failure::corrupt("the version of a dataset can't be read"))?,
            files: decimal(files.as_ref())?,
            bytes: decimal(size.as_ref())?,
        }),
        None => None,
    };
    Ok(Some(DatasetRoot {
        record,
        stored,
        keys: Keys { dataset: id, epoch },
        objects: decimal(objects.as_ref())?,
        tombstones: decimal(tombstones.as_ref())?,
        changes: decimal(changes.as_ref())?,
        retired: decimal(retired.as_ref())?,
        is_large: large.is_some(),
        counted,
    }))
}

impl DatasetRoot {
    /// Fails when a log, read between the roots `self` and `then`, has fewer objects than were appended.
    /// Passes where an object left the log meanwhile.
    pub(super) fn check_log(&self, then: &Self, objects: u64) -> Result<(), Failure> {
        let is_same = self.keys == then.keys && self.changes == then.changes;
        let appended = self.objects..=then.objects;
        if !is_same || appended.is_empty() || appended.contains(&objects) {
            return Ok(());
        }
        let why = format!(
            "the log has {objects} objects, and {} were appended; run `dlcmd recover --all`",
            then.objects
        );
        Err(Failure::because(Kind::Lost, why))
    }
}

/// Whether a log was too short before: a moving slot may make the log look short once.
#[derive(Debug, Default)]
pub(super) struct Doubts(bool);

impl Doubts {
    /// Lets a call begin again once.
    pub(super) fn meet(&mut self, short: Failure) -> Result<(), Failure> {
        if std::mem::replace(&mut self.0, true) { Err(short) } else { Ok(()) }
    }
}

impl Shared {
    pub(super) async fn root(&self, id: DatasetId) -> Result<Option<DatasetRoot>, Failure> {
        let root = read_root(id, self.router.ask_one(ask_root(id)).await?)?;
        match &root {
            Some(root) => self.learn(root.keys),
            None => self.forget(id),
        }
        Ok(root)
    }

    /// Whether a dataset still has the epoch of `keys`. If not, readers begin again, as keys may be gone.
    pub(super) fn is_still(&self, keys: Keys, answer: Value) -> Result<bool, Failure> {
        let is_still = bytes(answer)?.as_deref().and_then(Epoch::parse) == Some(keys.epoch);
        if !is_still {
            self.forget(keys.dataset);
        }
        Ok(is_still)
    }

    /// Whether a dataset without a root does not exist. Fails when its shard may have lost the root. False
    /// when the dataset exists again, or places changed since `changes`: the call begins again.
    pub(super) async fn is_gone(&self, id: DatasetId, changes: u64) -> Result<bool, Failure> {
        self.forget(id);
        let mut asks = vec![ask_root(id)];
        asks.extend(self.ask_marks(std::iter::once(keys::root(id).shard)));
        let mut marks = self.router.ask(asks).await?;
        let root = read_root(id, marks.remove(0))?;
        let is_whole = self.are_whole(marks).await?;
        Ok(root.is_none() && is_whole && self.is_as(changes))
    }

    /// The last known keys of a dataset; none without a root.
    pub(super) async fn keys_of(&self, id: DatasetId) -> Result<Option<Keys>, Failure> {
        match self.known(id) {
            None => Ok(self.root(id).await?.map(|root| root.keys)),
            known => Ok(known),
        }
    }
}

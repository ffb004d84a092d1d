//! The home of a dataset: the one key that says whether it is there, and what of it.
//!
//! Must hold: whatever else is read or written of a dataset is checked by its home, for the epoch
//! may be another one by then.

use dl_format::{DatasetId, Version};
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes, decimal, fields};
use super::failure::Failure;
use super::keys::{self, Epoch, Keys};
use super::records::decode_dataset;
use crate::{DatasetRecord, Kind};

/// Redis counts in doubles: what lies above is not a whole number any more.
pub(super) const STAMP_MAX: u64 = (1 << 53) - 1;

/// What the home of a dataset says.
#[derive(Debug, Clone)]
pub(super) struct Home {
    pub(super) record: DatasetRecord,
    /// The bytes of it, to put another one only in its place.
    pub(super) stored: Vec<u8>,
    pub(super) keys: Keys,
    pub(super) objects: u64,
    /// How many were ever appended: what they named may still be marked in the index.
    pub(super) tombstones: u64,
    /// How often anything but a new object changed the log or its rows.
    pub(super) changes: u64,
    /// How many objects were ever taken off the log.
    pub(super) retired: u64,
    /// Some folder is large.
    pub(super) is_large: bool,
    /// What was counted last.
    pub(super) counted: Option<Counted>,
}

/// What a log of so many objects adds up to.
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

/// What to ask for [`read_home`].
pub(super) fn ask_home(id: DatasetId) -> Ask {
    Ask::to(&keys::home(id), "HMGET").arg(&FIELDS)
}

/// What to ask for [`Shared::is_still`].
pub(super) fn ask_epoch(keys: Keys) -> Ask {
    Ask::to(&keys.home(), "HGET").arg("epoch")
}

pub(super) fn read_home(id: DatasetId, answer: Value) -> Result<Option<Home>, Failure> {
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
    Ok(Some(Home {
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

impl Home {
    /// Fails when a log that was read of so many objects, between this home and the one that it was
    /// `then`, is not all that was appended. What was taken off it meanwhile can't be told from that.
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

/// Whether a log was short before: a slot that moves may make it look so once.
#[derive(Debug, Default)]
pub(super) struct Doubts(bool);

impl Doubts {
    /// Lets a call begin anew once.
    pub(super) fn meet(&mut self, short: Failure) -> Result<(), Failure> {
        if std::mem::replace(&mut self.0, true) { Err(short) } else { Ok(()) }
    }
}

impl Shared {
    pub(super) async fn home(&self, id: DatasetId) -> Result<Option<Home>, Failure> {
        let home = read_home(id, self.router.ask_one(ask_home(id)).await?)?;
        match &home {
            Some(home) => self.learn(home.keys),
            None => self.forget(id),
        }
        Ok(home)
    }

    /// Whether a dataset is still the one of these keys. Of one that was dropped some may be gone
    /// already: who has read of it begins anew.
    pub(super) fn is_still(&self, keys: Keys, answer: Value) -> Result<bool, Failure> {
        let is_still = bytes(answer)?.as_deref().and_then(Epoch::parse) == Some(keys.epoch);
        if !is_still {
            self.forget(keys.dataset);
        }
        Ok(is_still)
    }

    /// Whether a dataset whose home was not found is not there. Fails when its shard may have lost
    /// it. False when it was made again since, or by `changes` asked for in another place: the call
    /// begins anew.
    pub(super) async fn is_gone(&self, id: DatasetId, changes: u64) -> Result<bool, Failure> {
        self.forget(id);
        let mut asks = vec![ask_home(id)];
        asks.extend(self.ask_stamps(std::iter::once(keys::home(id).shard)));
        let mut stamps = self.router.ask(asks).await?;
        let home = read_home(id, stamps.remove(0))?;
        let is_whole = self.are_whole(stamps).await?;
        Ok(home.is_none() && is_whole && self.is_as(changes))
    }

    /// The keys of a dataset, as this process knew them last; none when it has no home.
    pub(super) async fn keys_of(&self, id: DatasetId) -> Result<Option<Keys>, Failure> {
        match self.known(id) {
            None => Ok(self.home(id).await?.map(|home| home.keys)),
            known => Ok(known),
        }
    }
}

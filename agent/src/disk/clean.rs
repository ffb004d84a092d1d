//! Cleaning a folder with copies.
//!
//! Must hold: copies of a dataset that an agent has open stay. Nothing is made in a folder without
//! copies.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dl_format::DatasetId;

use super::folder::{Folder, user_path};
use crate::place::Eviction;

/// The copies of a dataset in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskDataset {
    /// The dataset.
    pub dataset: DatasetId,
    /// Its name at the last use; empty if unknown.
    pub name: String,
    /// Bytes of its copies.
    pub bytes: u64,
    /// When the last use began or ended.
    pub used: SystemTime,
    /// What became of the copies.
    pub fate: DiskFate,
}

/// What became of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFate {
    /// They are removed, or would be.
    Removed,
    /// An agent has the dataset open.
    InUse,
    /// They are not meant.
    Kept,
}

/// Removes the copies of this user in a folder, of the datasets that are meant. Without `removes`, only
/// tells what would be removed. Blocks.
///
/// # Errors
/// Errors of the file system.
pub fn clean_disk(
    folder: &Path,
    removes: bool,
    is_meant: impl Fn(&DiskDataset) -> bool,
) -> io::Result<Vec<DiskDataset>> {
    if !user_path(folder).try_exists()? {
        return Ok(Vec::new());
    }
    let open = Folder::open(folder, 0)?;
    let mut all = Vec::new();
    for used in open.in_order(Eviction::Lru)? {
        let since = Duration::from_secs(u64::try_from(used.last.0).unwrap_or(0));
        let mut one = DiskDataset {
            dataset: used.dataset,
            name: used.uses.name,
            bytes: used.bytes,
            used: UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH),
            fate: DiskFate::Kept,
        };
        if is_meant(&one) {
            let is_free = match removes {
                true => open.remove_dataset(used.dataset)?.is_some(),
                false => open.is_free(used.dataset)?,
            };
            one.fate = if is_free { DiskFate::Removed } else { DiskFate::InUse };
        }
        all.push(one);
    }
    if removes {
        open.remove_user(folder)?;
    }
    Ok(all)
}

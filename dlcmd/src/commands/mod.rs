//! The commands, one file each: arguments, validation without I/O, and execution.
//!
//! Must hold: a command writes results to the given output and all other text to the notes. A
//! command returns an exit code or a failure, and never ends the process.

pub(crate) mod agent;
pub(crate) mod cat;
pub(crate) mod completions;
pub(crate) mod csi;
pub(crate) mod datasets;
pub(crate) mod delete_dataset;
pub(crate) mod du;
pub(crate) mod get;
pub(crate) mod lease;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mount;
pub(crate) mod purge;
pub(crate) mod put;
pub(crate) mod recover;
pub(crate) mod rm;
pub(crate) mod shuffle;
pub(crate) mod snapshot;
pub(crate) mod stat;
pub(crate) mod top;
pub(crate) mod user;
pub(crate) mod verify;
pub(crate) mod why;

use dl_format::{FilePath, FileRecord};
use libdiesel::{Dataset, StatItem};

use crate::address::Address;
use crate::exit::Failure;

/// The file at an address; none for a folder.
fn file_at<'a>(
    action: &str,
    dataset: &Dataset,
    address: &'a Address,
) -> Result<Option<(&'a FilePath, FileRecord)>, Failure> {
    let Some(path) = &address.path else { return Ok(None) };
    match dataset.stat(path)? {
        StatItem::Folder => Ok(None),
        StatItem::File(record) if !address.is_folder => Ok(Some((path, record))),
        StatItem::File(_) => Err(not_a_folder(action, address)),
        StatItem::Missing => Err(not_there(action, address)),
    }
}

/// The failure for an address without a file or folder.
fn not_there(action: &str, address: &Address) -> Failure {
    let dataset = &address.dataset;
    Failure::not_found(format!(
        "{action} {address}: it is not there; dlcmd ls dl://{dataset} shows what is"
    ))
}

/// The failure for a file whose address ends in a slash.
fn not_a_folder(action: &str, address: &Address) -> Failure {
    Failure::not_found(format!("{action} {address}/: it is a file; leave out the slash at the end"))
}

/// The first address; refuses addresses in several datasets.
fn of_one_dataset<'a>(
    action: &str,
    addresses: &'a [Address],
    advice: &str,
) -> Result<&'a Address, Failure> {
    let nothing = || Failure::usage(format!("{action}: name a dataset or a folder"));
    let (first, others) = addresses.split_first().ok_or_else(nothing)?;
    match others.iter().find(|other| other.dataset != first.dataset) {
        None => Ok(first),
        Some(other) => Err(Failure::usage(format!(
            "{action} {first} with {other}: they are in two datasets{advice} them one by one"
        ))),
    }
}

/// Refuses an address with a path.
fn whole_dataset(action: &str, address: &Address) -> Result<(), Failure> {
    match &address.path {
        None => Ok(()),
        Some(_) => Err(Failure::usage(format!(
            "{action} takes a whole dataset: did you mean dl://{}?",
            address.dataset
        ))),
    }
}

//! The commands, one file each: its arguments, its plan (checked, no I/O), its run.
//!
//! Must hold: a run writes results to the output it is given and everything else to the notes; it
//! ends with an exit code or a failure, and ends nothing itself.

pub(crate) mod agent;
pub(crate) mod cat;
pub(crate) mod completions;
pub(crate) mod datasets;
pub(crate) mod delete_dataset;
pub(crate) mod du;
pub(crate) mod get;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod purge;
pub(crate) mod put;
pub(crate) mod recover;
pub(crate) mod rm;
pub(crate) mod shuffle;
pub(crate) mod snapshot;
pub(crate) mod stat;
pub(crate) mod user;
pub(crate) mod verify;
pub(crate) mod why;

use crate::address::Address;
use crate::exit::Failure;

/// What to say of an address at which nothing is.
fn not_there(action: &str, address: &Address) -> Failure {
    let dataset = &address.dataset;
    Failure::not_found(format!(
        "{action} {address}: it is not there; dlcmd ls dl://{dataset} shows what is"
    ))
}

/// What to say of a file whose address ends in a slash.
fn not_a_folder(action: &str, address: &Address) -> Failure {
    Failure::not_found(format!("{action} {address}/: it is a file; leave out the slash at the end"))
}

/// The dataset of an address that must name nothing else.
fn whole_dataset(action: &str, address: &Address) -> Result<(), Failure> {
    match &address.path {
        None => Ok(()),
        Some(_) => Err(Failure::usage(format!(
            "{action} takes a whole dataset: did you mean dl://{}?",
            address.dataset
        ))),
    }
}

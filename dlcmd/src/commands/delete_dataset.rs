//! `dlcmd delete-dataset`: ends a dataset and removes its objects.
//!
//! Must hold: an address with a path is refused, so a typing error deletes nothing.

use clap::Args;
use libdiesel::admin::{DeletedDataset, TaskLease};
use serde::Serialize;

use super::whole_dataset;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::counted;

/// Delete a dataset with all its files
///
/// This can't be undone. The name can be used again at once. The command removes objects for about
/// 20 seconds; the servers remove the rest later.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dlcmd delete-dataset dl://imagenet")]
pub(crate) struct Arguments {
    /// The dataset
    #[arg(value_name = "dl://DS")]
    dataset: Address,
}

/// A job in words.
fn job(lease: &TaskLease) -> String {
    match (&lease.task, lease.user.as_str()) {
        (None, _) => format!("task {}", lease.id),
        (Some(task), "") => format!("task {task}"),
        (Some(task), user) => format!("task {task} of user {user}"),
    }
}

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    dataset: &'a str,
    objects: u64,
    more_left: bool,
    read_by: Vec<String>,
}

/// Deletes the dataset.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let address = arguments.dataset;
    whole_dataset("delete-dataset", &address)?;
    let client = context.client()?;
    // Datasets with lost metadata have no list of leases, and can be deleted all the same.
    let leases = client.leases(&address.dataset).unwrap_or_default().into_iter();
    let leases = leases.filter(|lease| lease.in_use);
    let read_by: Vec<_> = leases.map(|lease| job(&lease)).collect();
    let DeletedDataset { removed: objects, more_left } = client.delete_dataset(&address.dataset)?;
    if !read_by.is_empty() {
        context.notes.note(format_args!(
            "training jobs were reading {address}, and fail at files that their agents lack: {}",
            read_by.join(", ")
        ));
    }
    if out.is_json() {
        out.json(
            "delete-dataset",
            &Summary { dataset: address.dataset.as_str(), objects, more_left, read_by },
        )?;
    } else {
        let objects = counted(objects, "object");
        let rest = if more_left { ", the rest is being removed" } else { "" };
        out.line(format_args!("{address} deleted, {objects} removed{rest}"))?;
    }
    Ok(Exit::Done)
}

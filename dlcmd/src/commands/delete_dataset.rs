//! `dlcmd delete-dataset`: ends a dataset and removes its objects.
//!
//! Must hold: an address with a path is refused, so a typing error deletes nothing.

use clap::Args;
use libdiesel::admin::DeletedDataset;
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

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    dataset: &'a str,
    objects: u64,
    more_left: bool,
}

/// Deletes the dataset.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let address = arguments.dataset;
    whole_dataset("delete-dataset", &address)?;
    let DeletedDataset { removed: objects, more_left } =
        context.client()?.delete_dataset(&address.dataset)?;
    if out.is_json() {
        out.json(
            "delete-dataset",
            &Summary { dataset: address.dataset.as_str(), objects, more_left },
        )?;
    } else {
        let objects = counted(objects, "object");
        let rest = if more_left { ", the rest is being removed" } else { "" };
        out.line(format_args!("{address} deleted, {objects} removed{rest}"))?;
    }
    Ok(Exit::Done)
}

//! `dlcmd du`: the number of bytes and files in a dataset or folder.
//!
//! Must hold: the sums are over the files that `ls -R` lists.

use clap::Args;
use indicatif::BinaryBytes;
use libdiesel::ListEntry;
use serde::Serialize;

use super::file_at;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::json;
use crate::output::Output;

/// Count the bytes and files of a dataset or folder
///
/// Prints bytes, files, the address, and the bytes in binary units, separated by tabs.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dlcmd du dl://imagenet/train")]
pub(crate) struct Arguments {
    /// The dataset, folder or file
    #[arg(value_name = "dl://DS[/DIR]")]
    folder: Address,
}

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Usage<'a> {
    dataset: &'a str,
    #[serde(flatten)]
    path: json::Name<'a>,
    bytes: u64,
    files: u64,
}

/// Counts the files.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let address = arguments.folder;
    let dataset = context.for_metadata(&address)?;
    let (mut bytes, mut files) = (0u64, 0u64);
    if let Some((_, record)) = file_at("du", &dataset, &address)? {
        (bytes, files) = (record.length, 1);
    } else {
        for entry in dataset.list(address.folder(), true, false)? {
            if let ListEntry::File(_, Some(record)) = entry? {
                bytes = bytes.saturating_add(record.length);
                files += 1;
            }
            if context.shutdown.is_requested() {
                return Ok(Exit::Interrupted);
            }
        }
    }
    if out.is_json() {
        let folder = address.folder();
        let path = json::Name::new(folder.as_bytes());
        out.json("usage", &Usage { dataset: address.dataset.as_str(), path, bytes, files })?;
    } else {
        out.line(format_args!("{bytes}\t{files}\t{address}\t{}", BinaryBytes(bytes)))?;
    }
    Ok(Exit::Done)
}

//! `dlcmd rm`: deletes files.
//!
//! Must hold: only observed versions are deleted, so a concurrently written file stays. With -r
//! nothing is left below the folder, including files hidden by another file.

use clap::Args;
use dl_format::Stamp;
use libdiesel::format::Deletions;
use libdiesel::{Dataset, ListEntry, StatItem};
use serde::Serialize;

use super::{file_at, not_there};
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::counted;

/// Maximum of versions collected for one delete: their bitmap is small, but takes memory.
const COLLECTED: u64 = 1 << 20;

/// Delete files
///
/// Only files present at the start of the command are deleted: files written meanwhile stay.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd rm dl://photos/blurred.jpg
  dlcmd rm -r dl://photos/2019")]
pub(crate) struct Arguments {
    /// The file, or with -r the folder or dataset
    #[arg(value_name = "dl://DS/PATH")]
    address: Address,

    /// Delete a folder with everything below it
    #[arg(short, long)]
    recursive: bool,
}

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Summary {
    files: u64,
}

/// Deletes the files.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let Arguments { address, recursive } = arguments;
    if !recursive && address.is_folder {
        return Err(Failure::usage(format!(
            "rm {address}: it names a folder; -r deletes all files below it, delete-dataset a dataset"
        )));
    }
    let dataset = context.dataset(&address)?;
    let files = if recursive {
        delete_tree(&dataset, &address, context)?
    } else if let Some((_, record)) = file_at("rm", &dataset, &address)? {
        let mut deletions = Deletions::default();
        deletions.insert(&record.version);
        dataset.delete_versions(deletions)?
    } else {
        return Err(Failure::failed(format!(
            "rm {address}: it is a folder; -r deletes all files below it"
        )));
    };
    if out.is_json() {
        out.json("rm", &Summary { files })?;
    } else {
        out.line(format_args!("{} deleted", counted(files, "file")))?;
    }
    Ok(if context.shutdown.is_requested() { Exit::Interrupted } else { Exit::Done })
}

fn delete_tree(dataset: &Dataset, address: &Address, context: &Context) -> Result<u64, Failure> {
    let Some(last) = dataset.refresh()?.version.last_stamp() else {
        return if address.path.is_some() { Err(not_there("rm", address)) } else { Ok(0) };
    };
    let mut files = 0;
    // A file is hidden while its path is a folder, and appears after that folder's files are
    // deleted. So the loop repeats until nothing older than the command is left.
    loop {
        let deleted = delete_visible(dataset, address, last, context)?;
        files += deleted;
        if context.shutdown.is_requested() {
            return Ok(files);
        }
        if deleted == 0 {
            break;
        }
    }
    match &address.path {
        Some(_) if files == 0 => Err(not_there("rm", address)),
        _ => Ok(files),
    }
}

/// Deletes visible files not newer than `last`.
fn delete_visible(
    dataset: &Dataset,
    address: &Address,
    last: Stamp,
    context: &Context,
) -> Result<u64, Failure> {
    let found = address.path.as_ref().map_or(Ok(StatItem::Folder), |path| dataset.stat(path))?;
    let mut deletions = Deletions::default();
    let (mut files, mut collected) = (0, 0);
    match found {
        StatItem::Missing => {}
        StatItem::File(record) => {
            if record.version.stamp <= last
                && !address.is_folder
                && deletions.insert(&record.version)
            {
                files += 1;
            }
        }
        StatItem::Folder => {
            for entry in dataset.list(address.folder(), true, false)? {
                let ListEntry::File(_, Some(record)) = entry? else { continue };
                if record.version.stamp > last {
                    continue;
                }
                if deletions.insert(&record.version) {
                    collected += 1;
                    files += 1;
                }
                if context.shutdown.is_requested() {
                    break;
                }
                if collected == COLLECTED {
                    collected = 0;
                    dataset.delete_versions(std::mem::take(&mut deletions))?;
                }
            }
        }
    }
    if !deletions.is_empty() {
        dataset.delete_versions(deletions)?;
    }
    Ok(files)
}

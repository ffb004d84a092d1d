//! `dlcmd snapshot`: all metadata of a dataset in one file.
//!
//! Must hold: a file is replaced only by a complete file; a file is checked before its contents are
//! shown.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use libdiesel::{Kind, Snapshot};

use super::whole_dataset;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::json;
use crate::output::Output;
use crate::text::{counted, shown, sized};
use crate::time::stamp_text;

/// Save all metadata of a dataset in a file, or show such a file
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd snapshot save dl://imagenet imagenet.snapshot
  dlcmd snapshot info imagenet.snapshot
  dlcmd ls -lR dl://imagenet --snapshot imagenet.snapshot")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Save(Save),
    Info(Info),
}

/// Write a snapshot of the current contents of a dataset into a file
///
/// While an agent of --task runs on this machine, the snapshot has the version of the task.
/// The file is an argument for --snapshot. The file is replaced once the new file is complete.
/// Until then the data is in FILE.partial, which the next save continues after an interruption.
/// Only regular files are replaced: links are not followed.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dlcmd snapshot save dl://imagenet imagenet.snapshot")]
struct Save {
    /// The dataset
    #[arg(value_name = "dl://DS")]
    dataset: Address,

    /// The destination file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Check a snapshot, and show its dataset and version
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dlcmd snapshot info imagenet.snapshot")]
struct Info {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Saves or shows a snapshot.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    match arguments.action {
        Action::Save(Save { dataset, file }) => {
            whole_dataset("snapshot save", &dataset)?;
            let saved = context.for_metadata(&dataset)?.save_meta(&file)?;
            if out.is_json() {
                out.json("snapshot", &json::Snapshot::from(&saved))?;
            } else {
                let files = counted(saved.files().into(), "file");
                let (bytes, version) = (sized(saved.length()), saved.version());
                out.line(format_args!("{files} of version {version} saved in {bytes}"))?;
            }
        }
        Action::Info(Info { file }) => show(&check(&file)?, out)?,
    }
    Ok(Exit::Done)
}

fn check(file: &Path) -> Result<Snapshot, Failure> {
    Snapshot::check(file).map_err(|error| match error.kind() {
        // The usual advice is for a file of a dataset, not for a snapshot.
        Kind::Corrupt => {
            let why = format!("{:#}", anyhow::Error::new(error));
            Failure::failed(format!("{why}; save it again, {} is of no use", shown(file)))
        }
        _ => error.into(),
    })
}

/// Shows the properties of a snapshot.
fn show(snapshot: &Snapshot, out: &mut Output<'_>) -> Result<(), Failure> {
    if out.is_json() {
        return out.json("snapshot", &json::Snapshot::from(snapshot));
    }
    let version = snapshot.version();
    let changed = version.last_stamp().map_or_else(|| "never".to_owned(), stamp_text);
    let lines = [
        ("type", "snapshot".to_owned()),
        ("dataset", snapshot.dataset().to_string()),
        ("version", version.to_string()),
        ("changed", changed),
        ("files", snapshot.files().to_string()),
        ("bytes", sized(snapshot.file_bytes())),
        ("chunks", snapshot.chunks().to_string()),
        ("chunk size", sized(snapshot.shape().size().into())),
        ("length", sized(snapshot.length())),
    ];
    for (name, value) in lines {
        out.line(format_args!("{:<11} {value}", format!("{name}:")))?;
    }
    Ok(())
}

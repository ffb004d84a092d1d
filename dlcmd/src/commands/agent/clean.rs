//! Removing the copies of chunks in a folder of `--tiers`.
//!
//! Must hold: the copies of a dataset that an agent has open stay, and are named.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::Args;
use dl_agent::{DiskDataset, DiskFate, clean_disk};
use dl_runtime::{Clock, SystemClock, units};
use serde::Serialize;

use crate::address::Address;
use crate::commands::whole_dataset;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::{escaped, shown, sized};

#[derive(Debug, Args)]
pub(super) struct Clean {
    /// A folder of --tiers
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// Only this dataset, by its name at the last use
    #[arg(value_name = "dl://DS")]
    dataset: Option<Address>,

    /// Only datasets that no agent has had open for a time, as in 12h or 7d
    #[arg(long, value_name = "TIME")]
    older: Option<String>,

    /// Change nothing, and print what would be removed
    #[arg(long)]
    dry_run: bool,
}

/// The line of `--json` for a dataset.
#[derive(Debug, Serialize)]
struct Line<'a> {
    dataset: &'a str,
    id: String,
    bytes: u64,
    fate: &'static str,
}

/// Removes copies, and reports each dataset.
pub(super) fn run(
    arguments: Clean,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let Clean { folder, dataset, older, dry_run } = arguments;
    dataset.as_ref().map_or(Ok(()), |address| whole_dataset("agent clean", address))?;
    if !folder.is_dir() {
        let why = format!("agent clean: there is no folder {}", shown(&folder));
        return Err(Failure::usage(why));
    }
    let older = older.map(|text| {
        units::duration(&text).ok_or_else(|| {
            let text = escaped(text.as_bytes());
            Failure::usage(format!("--older {text}: type a time such as 12h or 7d"))
        })
    });
    let (older, now) = (older.transpose()?, SystemClock::new().now());
    let name = dataset.map(|address| address.dataset.to_string());
    let is_meant = |one: &DiskDataset| {
        let is_named = name.as_ref().is_none_or(|name| *name == one.name);
        is_named && older.is_none_or(|older| age(one, now) >= older)
    };
    let failed = |why| Failure::local("clean a folder", why);
    let cleaned = clean_disk(&folder, !dry_run, is_meant).map_err(failed)?;
    let mut exit = Exit::Done;
    for one in &cleaned {
        print(one, dry_run, now, out)?;
        if one.fate == DiskFate::InUse {
            exit = Exit::Partly;
            context.notes.note(format_args!(
                "an agent has dl://{} open: its copies stay. dlcmd agent stop ends an agent",
                escaped(one.name.as_bytes())
            ));
        }
    }
    if cleaned.is_empty() && !out.is_json() {
        out.line(format_args!("{} holds no copies of this user", shown(&folder)))?;
    }
    Ok(exit)
}

fn age(one: &DiskDataset, now: SystemTime) -> Duration {
    now.duration_since(one.used).unwrap_or_default()
}

fn print(
    one: &DiskDataset,
    dry_run: bool,
    now: SystemTime,
    out: &mut Output<'_>,
) -> Result<(), Failure> {
    let (fate, what) = match one.fate {
        DiskFate::Removed if dry_run => ("removable", "would be removed"),
        DiskFate::Removed => ("removed", "removed"),
        DiskFate::InUse => ("in use", "in use by an agent"),
        DiskFate::Kept => ("kept", "kept"),
    };
    if out.is_json() {
        let (dataset, id) = (&*one.name, one.dataset.to_string());
        return out.json("copies", &Line { dataset, id, bytes: one.bytes, fate });
    }
    out.line(format_args!(
        "dl://{} ({}): {}, last used {} h ago: {what}",
        escaped(one.name.as_bytes()),
        one.dataset,
        sized(one.bytes),
        age(one, now).as_secs() / 3_600
    ))
}

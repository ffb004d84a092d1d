//! `dlcmd datasets`: the names of the datasets, one per line.
//!
//! Must hold: an empty list is no error. A dataset without counts or with an unreadable name does
//! not affect the others.

use clap::Args;
use libdiesel::Counts;
use libdiesel::admin::UnreadName;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::json;
use crate::output::Output;

/// List the datasets
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dlcmd datasets")]
pub(crate) struct Arguments {}

/// Lists the datasets.
pub(crate) fn run(_: Arguments, context: &Context, out: &mut Output<'_>) -> Result<Exit, Failure> {
    let client = context.client()?;
    let mut exit = Exit::Done;
    if !out.is_json() {
        let listed = client.dataset_names()?;
        for name in &listed.found {
            out.line(format_args!("{name}"))?;
        }
        return Ok(tell_unread(&listed.unread, context).unwrap_or(exit));
    }
    let listed = client.datasets()?;
    for info in &listed.found {
        if let Counts::Unknown(problem) = &info.counts {
            context.notes.error(format_args!("count dl://{}: {problem}", info.name));
            exit = Exit::Partly;
        }
        out.json("dataset", &json::Dataset::from(info))?;
    }
    Ok(tell_unread(&listed.unread, context).unwrap_or(exit))
}

/// Reports unreadable names; returns the exit code if there are any.
pub(super) fn tell_unread(unread: &[UnreadName], context: &Context) -> Option<Exit> {
    for UnreadName { name, problem } in unread {
        context.notes.error(format_args!("list dl://{name}: {problem}"));
    }
    (!unread.is_empty()).then_some(Exit::Partly)
}

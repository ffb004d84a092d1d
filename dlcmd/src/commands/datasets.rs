//! `dlcmd datasets`: the names of the datasets, one a line.
//!
//! Must hold: none is no output, and no error; one that can't be counted costs the others nothing.

use clap::Args;
use libdiesel::Counts;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::json;
use crate::output::Output;

/// List the datasets
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dlcmd datasets")]
pub(crate) struct Arguments {}

/// Lists them.
pub(crate) fn run(_: Arguments, context: &Context, out: &mut Output<'_>) -> Result<Exit, Failure> {
    let client = context.client()?;
    let mut exit = Exit::Done;
    if !out.is_json() {
        for name in client.dataset_names()? {
            out.line(format_args!("{name}"))?;
        }
        return Ok(exit);
    }
    for info in client.datasets()? {
        if let Counts::Unknown(problem) = &info.counts {
            context.notes.error(format_args!("count dl://{}: {problem}", info.name));
            exit = Exit::Partly;
        }
        out.json("dataset", &json::Dataset::from(&info))?;
    }
    Ok(exit)
}

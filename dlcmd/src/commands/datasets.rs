//! `dlcmd datasets`: the names of the datasets, one a line.
//!
//! Must hold: none is no output, and no error.

use clap::Args;

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
    let mut datasets = context.client()?.datasets()?;
    datasets.sort_by(|one, other| one.name.cmp(&other.name));
    for info in &datasets {
        if out.is_json() {
            out.json("dataset", &json::Dataset::from(info))?;
        } else {
            out.line(format_args!("{}", info.name))?;
        }
    }
    Ok(Exit::Done)
}

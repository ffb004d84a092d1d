//! `dlcmd recover`: rebuilds metadata from the chunk store, on a live server (paper, 4.1).
//!
//! Must hold: every problem is reported; a recovery with problems is only partly done.

use std::collections::BTreeSet;
use std::time::SystemTime;

use clap::{ArgGroup, Args};
use dl_format::DatasetName;
use libdiesel::admin::{RecoverProgress, RecoverRequest};
use serde::Serialize;

use super::whole_dataset;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::{counted, escaped};
use crate::time;

/// Rebuild the metadata of datasets from their chunks
///
/// Works while the dataset is read and written. A dataset missing from the metadata can be named
/// too; --all finds every dataset in the chunk store.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").args(["dataset", "all"]).required(true), after_help = "Examples:
  dlcmd recover --all
  dlcmd recover dl://imagenet --since 2h
  dlcmd recover dl://imagenet --since 2026-11-20T08:00:00Z")]
pub(crate) struct Arguments {
    /// The dataset
    #[arg(value_name = "dl://DS")]
    dataset: Option<Address>,

    /// Every dataset found in the chunk store
    #[arg(long)]
    all: bool,

    /// Check only objects written since: a time (RFC 3339), or an age such as 30m, 2h, 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
}

impl Arguments {
    fn plan(self, now: SystemTime) -> Result<RecoverRequest, Failure> {
        if let Some(address) = &self.dataset {
            whole_dataset("recover", address)?;
        }
        let since = self.since.map(|since| {
            time::parse(&since, now).map_err(|why| {
                Failure::usage(format!("--since {}: {why}", escaped(since.as_bytes())))
            })
        });
        let dataset: Option<DatasetName> = self.dataset.map(|address| address.dataset);
        Ok(RecoverRequest { dataset, since: since.transpose()? })
    }
}

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Recovered<'a> {
    dataset: &'a str,
    listed: u64,
    checked: u64,
    adopted: u64,
    files: u64,
    problems: &'a [String],
}

/// Rebuilds the metadata.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let request = arguments.plan(context.clock.now())?;
    let is_whole = request.since.is_none();
    let bar = context.notes.bar();
    let mut remaining = BTreeSet::new();
    let recovered = context.client()?.recover(request, &mut |step| {
        let RecoverProgress { dataset, listed, checked, problems, .. } = step;
        remaining.extend(problems.iter().map(|problem| (dataset.clone(), problem.clone())));
        bar.set_message(format!("{dataset}: {checked} of {listed} objects checked"));
    });
    bar.finish_and_clear();
    let recovered = recovered.inspect_err(|_| {
        // The problems may explain the failure.
        for (dataset, problem) in &remaining {
            context.notes.error(format_args!("recover {dataset}: {problem}"));
        }
    });
    let mut exit = Exit::Done;
    for done in recovered? {
        report(&done, is_whole, out)?;
        for problem in &done.problems {
            exit = Exit::Partly;
            context.notes.error(format_args!("recover {}: {problem}", done.dataset));
        }
    }
    Ok(exit)
}

fn report(done: &RecoverProgress, is_whole: bool, out: &mut Output<'_>) -> Result<(), Failure> {
    let RecoverProgress { dataset, listed, checked, adopted, files, problems, .. } = done;
    let (listed, checked, adopted, files) = (*listed, *checked, *adopted, *files);
    if out.is_json() {
        return out
            .json("recovered", &Recovered { dataset, listed, checked, adopted, files, problems });
    }
    if listed == 0 && !problems.is_empty() {
        // The problems are printed instead.
        return Ok(());
    }
    let (objects, files) = (counted(listed, "object"), counted(files, "file"));
    if is_whole && problems.is_empty() && adopted == 0 && listed > 0 {
        return out.line(format_args!("{dataset}: {objects}, all of them in the metadata"));
    }
    out.line(format_args!("{dataset}: {objects}, {adopted} of them recovered with {files}"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn plan(dataset: Option<&str>, since: Option<&str>) -> Result<RecoverRequest, Failure> {
        let dataset = dataset.map(|typed| Address::parse(OsStr::new(typed)).expect("legal"));
        let since = since.map(str::to_owned);
        Arguments { all: dataset.is_none(), dataset, since }.plan(SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn all_datasets_or_one_since_a_time_or_ever() {
        assert!(plan(None, None).is_ok_and(|plan| plan.dataset.is_none() && plan.since.is_none()));
        let one = plan(Some("dl://a/"), Some("1970-01-01T00:00:01Z")).expect("legal");
        assert_eq!(one.dataset.as_ref().map(DatasetName::as_str), Some("a"));
        assert_eq!(one.since.map(dl_format::Stamp::get), Some(1_000_000));
    }

    #[test]
    fn a_folder_or_a_strange_time_is_wrong_usage() {
        for refused in [plan(Some("dl://a/b"), None), plan(None, Some("yesterday"))] {
            assert!(matches!(refused, Err(Failure::Because { exit: Exit::Usage, .. })));
        }
    }
}

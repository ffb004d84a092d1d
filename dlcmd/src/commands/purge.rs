//! `dlcmd purge`: gives back the space of what was overwritten and deleted (paper, DL_purge).
//!
//! Must hold: every problem is named; a purge with problems is only partly done.

use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgGroup, Args};
use libdiesel::admin::{PurgeProgress, PurgeRequest};
use serde::Serialize;

use super::whole_dataset;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::{counted, escaped, sized};
use crate::time;

/// Give back the space of overwritten and deleted files
///
/// Moves what is left of chunks with many such files into full chunks, and removes what nothing
/// needs any more, while the dataset is read and written. What was written in the last 70 minutes is
/// left alone. What was needed until a moment ago waits for --grace, and as long as a server keeps a
/// snapshot that names it, an hour or so; with --grace 0s for neither. Run purge again after that.
/// Versions that training jobs lease stay as long as these jobs run: a note names the jobs, and --grace 0s
/// is refused without --force. --dry-run shows how much that would give back.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").args(["dataset", "all"]).required(true), after_help = "Examples:
  dlcmd purge --dry-run dl://imagenet
  dlcmd purge dl://imagenet
  dlcmd purge --all --grace 1h")]
pub(crate) struct Arguments {
    /// The dataset
    #[arg(
        value_name = "dl://DS",
        value_parser = OsStringValueParser::new().try_map(Address::from_argument)
    )]
    dataset: Option<Address>,

    /// Every dataset, and what deleted ones have left
    #[arg(long)]
    all: bool,

    /// How long an object must not have been needed before it is removed, as in 30m or 2h; readers
    /// that looked a file up before have that long to read it
    #[arg(long, value_name = "TIME", default_value = "15m")]
    grace: String,

    /// With --grace 0s, also remove chunks of versions that training jobs lease: their reads may fail
    #[arg(long)]
    force: bool,

    /// Change nothing, and say how many bytes this purge and later ones would give back; left-overs
    /// of deleted datasets are not counted
    #[arg(long)]
    dry_run: bool,
}

impl Arguments {
    fn plan(self) -> Result<PurgeRequest, Failure> {
        if let Some(address) = &self.dataset {
            whole_dataset("purge", address)?;
        }
        let grace = time::duration(&self.grace).ok_or_else(|| {
            let grace = escaped(self.grace.as_bytes());
            Failure::usage(format!("--grace {grace}: type a time such as 0s, 30m, 2h or 7d"))
        })?;
        let dataset = self.dataset.map(|address| address.dataset);
        Ok(PurgeRequest { dataset, grace, dry_run: self.dry_run, force: self.force })
    }
}

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Purged<'a> {
    dataset: &'a str,
    objects: u64,
    rewritten: u64,
    written: u64,
    removed: u64,
    removed_bytes: u64,
    waiting: u64,
    waiting_bytes: u64,
    waiting_seconds: u64,
    /// How many bytes would be given back, of a dry run alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    reclaimable_bytes: Option<u64>,
    leased_by: &'a [String],
    problems: &'a [String],
}

/// Purges it.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let request = arguments.plan()?;
    let (is_dry_run, has_grace) = (request.dry_run, !request.grace.is_zero());
    let bar = context.notes.bar();
    let purged = context.client()?.purge(request, &mut |step| {
        let PurgeProgress { dataset, checked, objects, rewritten, removed, .. } = step;
        bar.set_message(format!(
            "{dataset}: {checked} of {objects} objects looked at, {rewritten} rewritten, \
             {removed} removed"
        ));
    });
    bar.finish_and_clear();
    let mut exit = Exit::Done;
    for done in purged? {
        report(&done, is_dry_run, out)?;
        if done.waiting > 0 {
            context.notes.note(format_args!(
                "purge {}: {} of {} must wait, {} min at most; run purge again then",
                done.dataset,
                counted(done.waiting, "object"),
                sized(done.waiting_bytes),
                seconds(done.waiting_for).div_ceil(60).max(1)
            ));
        }
        if !done.leased_by.is_empty() {
            let stay = if has_grace { "stay" } else { "do not stay" };
            context.notes.note(format_args!(
                "purge {}: versions that training jobs lease {stay}: {}",
                done.dataset,
                done.leased_by.join(", ")
            ));
        }
        for problem in &done.problems {
            exit = Exit::Partly;
            context.notes.error(format_args!("purge {}: {problem}", done.dataset));
        }
    }
    Ok(exit)
}

/// Never too few.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn report(done: &PurgeProgress, is_dry_run: bool, out: &mut Output<'_>) -> Result<(), Failure> {
    let PurgeProgress { dataset, objects, rewritten, written, removed, removed_bytes, .. } = done;
    if out.is_json() {
        let line = Purged {
            dataset,
            objects: *objects,
            rewritten: *rewritten,
            written: *written,
            removed: *removed,
            removed_bytes: *removed_bytes,
            waiting: done.waiting,
            waiting_bytes: done.waiting_bytes,
            waiting_seconds: seconds(done.waiting_for),
            reclaimable_bytes: is_dry_run.then_some(done.reclaimable_bytes),
            leased_by: &done.leased_by,
            problems: &done.problems,
        };
        return out.json("purged", &line);
    }
    let (rewritten, removed) = (counted(*rewritten, "chunk"), counted(*removed, "object"));
    let size = sized(*removed_bytes);
    if is_dry_run {
        return out.line(format_args!(
            "{dataset}: {} to give back; now {removed} of {size} to remove and {rewritten} to rewrite",
            sized(done.reclaimable_bytes)
        ));
    }
    out.line(format_args!(
        "{dataset}: {rewritten} rewritten into {written}, {removed} removed, {size}"
    ))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn plan(dataset: Option<&str>, grace: &str) -> Result<PurgeRequest, Failure> {
        let dataset = dataset.map(|typed| Address::parse(OsStr::new(typed)).expect("legal"));
        let (all, grace) = (dataset.is_none(), grace.to_owned());
        Arguments { all, dataset, grace, force: false, dry_run: false }.plan()
    }

    #[test]
    fn all_datasets_or_one_after_some_time_or_none() {
        let one = plan(Some("dl://a/"), "2h").expect("legal");
        assert_eq!(one.dataset.as_ref().map(ToString::to_string).as_deref(), Some("a"));
        assert_eq!(one.grace, Duration::from_secs(7_200));
        let all = plan(None, "0s").expect("legal");
        assert_eq!((all.dataset, all.grace), (None, Duration::ZERO));
    }

    #[test]
    fn a_folder_or_a_strange_time_is_wrong_usage() {
        for refused in [plan(Some("dl://a/b"), "1h"), plan(None, "soon"), plan(None, "15")] {
            assert!(matches!(refused, Err(Failure::Because { exit: Exit::Usage, .. })));
        }
    }
}

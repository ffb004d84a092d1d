//! `dlcmd purge`: reclaims the space of overwritten and deleted files (paper, DL_purge).
//!
//! Must hold: every problem is reported; a purge with problems is only partly done.

use std::time::Duration;

use clap::{ArgGroup, Args};
use dl_runtime::units;
use libdiesel::admin::{PurgeProgress, PurgeRequest};
use serde::Serialize;

use super::whole_dataset;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::{counted, escaped, sized};

/// Reclaim the space of overwritten and deleted files
///
/// Moves the live files of chunks with many deleted files, and of small chunks, into full chunks,
/// and removes unneeded objects, while the dataset is read and written. Objects younger than 70
/// minutes are left alone.
/// Recently replaced objects stay for --grace, and about an hour for the snapshots that servers
/// keep; --grace 0s waits for neither. Run purge again after that time. Versions leased by training
/// jobs stay as long as these jobs run. A note names the jobs, and --grace 0s is refused without
/// --force. --dry-run shows the bytes to reclaim.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").args(["dataset", "all"]).required(true), after_help = "Examples:
  dlcmd purge --dry-run dl://imagenet
  dlcmd purge dl://imagenet
  dlcmd purge --all --grace 1h")]
pub(crate) struct Arguments {
    /// The dataset
    #[arg(value_name = "dl://DS")]
    dataset: Option<Address>,

    /// Every dataset, and the left-overs of deleted datasets
    #[arg(long)]
    all: bool,

    /// Minimum time since an object was last needed, as in 30m or 2h; readers with an older lookup
    /// have this time to read the file
    #[arg(long, value_name = "TIME", default_value = "15m")]
    grace: String,

    /// With --grace 0s, also remove chunks of versions leased by training jobs: their reads may
    /// fail
    #[arg(long)]
    force: bool,

    /// Change nothing, and print how many bytes this purge and later ones would reclaim; left-overs
    /// of deleted datasets are not counted
    #[arg(long)]
    dry_run: bool,
}

impl Arguments {
    fn plan(self) -> Result<PurgeRequest, Failure> {
        if let Some(address) = &self.dataset {
            whole_dataset("purge", address)?;
        }
        // 30ms is probably meant as 30m.
        let whole = units::duration(&self.grace).filter(|grace| grace.subsec_nanos() == 0);
        let grace = whole.ok_or_else(|| {
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
    merged: u64,
    written: u64,
    removed: u64,
    removed_bytes: u64,
    waiting: u64,
    waiting_bytes: u64,
    waiting_seconds: u64,
    /// The bytes to reclaim; only for a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    reclaimable_bytes: Option<u64>,
    leased_by: &'a [String],
    problems: &'a [String],
}

/// Purges one dataset or all.
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

/// Rounded up.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn report(done: &PurgeProgress, is_dry_run: bool, out: &mut Output<'_>) -> Result<(), Failure> {
    let PurgeProgress { dataset, objects, rewritten, merged, written, .. } = done;
    let PurgeProgress { removed, removed_bytes, .. } = done;
    if out.is_json() {
        let line = Purged {
            dataset,
            objects: *objects,
            rewritten: *rewritten,
            merged: *merged,
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
    let small = if *merged > 0 { format!(" ({merged} small)") } else { String::new() };
    let size = sized(*removed_bytes);
    if is_dry_run {
        return out.line(format_args!(
            "{dataset}: {} to give back; now {removed} of {size} to remove and {rewritten}{small} to rewrite",
            sized(done.reclaimable_bytes)
        ));
    }
    out.line(format_args!(
        "{dataset}: {rewritten}{small} rewritten into {written}, {removed} removed, {size}"
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

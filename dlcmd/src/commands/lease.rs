//! `dlcmd lease`: the versions of datasets that training jobs read, and their end.
//!
//! Must hold: the lease of a job with living agents is never ended.

use clap::{Args, Subcommand};
use dl_format::{DatasetName, TaskId};
use libdiesel::admin::TaskLease;
use serde::Serialize;

use super::whole_dataset;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::escaped;
use crate::time::stamp_text;

/// List the versions that training jobs lease, or end a lease
///
/// A job leases the version of a dataset that it reads: a purge keeps the version, and a job of the
/// same name reads it again. A lease ends with the last agent of the job. After agents that were
/// killed, a lease holds for up to 24 hours. Admins of a dataset see and end all of its leases,
/// other users their own.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd lease list
  dlcmd lease end dl://imagenet resnet-7")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the leases on datasets, by default on all
    List {
        /// The datasets
        #[arg(value_name = "dl://DS")]
        datasets: Vec<Address>,
    },
    /// End the lease of a job whose agents have all ended
    End {
        /// The dataset
        #[arg(value_name = "dl://DS")]
        dataset: Address,
        /// The job: its name, or its id from the list
        #[arg(value_name = "TASK")]
        job: String,
    },
}

/// A line of `list`, or of `end`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    dataset: &'a str,
    task: Option<&'a str>,
    user: &'a str,
    id: String,
    version: String,
    until: String,
    in_use: bool,
}

impl<'a> Line<'a> {
    fn of(dataset: &'a DatasetName, lease: &'a TaskLease) -> Self {
        Self {
            dataset: dataset.as_str(),
            task: lease.task.as_ref().map(|task| task.as_str()),
            user: &lease.user,
            id: lease.id.to_string(),
            version: lease.version.to_string(),
            until: stamp_text(lease.until),
            in_use: lease.in_use,
        }
    }
}

/// Lists leases, or ends the lease of a job.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    match arguments.action {
        Action::List { datasets } => list(&datasets, context, out),
        Action::End { dataset, job } => end(&dataset, &job, context, out),
    }
}

fn list(datasets: &[Address], context: &Context, out: &mut Output<'_>) -> Result<Exit, Failure> {
    datasets.iter().try_for_each(|dataset| whole_dataset("lease list", dataset))?;
    let client = context.client()?;
    let mut names: Vec<_> = datasets.iter().map(|address| address.dataset.clone()).collect();
    let mut exit = Exit::Done;
    if datasets.is_empty() {
        let listed = client.dataset_names()?;
        exit = super::datasets::tell_unread(&listed.unread, context).unwrap_or(exit);
        names = listed.found;
    }
    for name in &names {
        for lease in client.leases(name)? {
            let line = Line::of(name, &lease);
            if out.is_json() {
                out.json("lease", &line)?;
            } else {
                out.line(format_args!("{}", described(&line)))?;
            }
        }
    }
    Ok(exit)
}

fn described(line: &Line<'_>) -> String {
    let Line { dataset, task, user, id, version, until, in_use } = line;
    let job = match (task, *user) {
        (None, _) => format!("a task with a damaged lease, id {id},"),
        (Some(task), "") => format!("task {task}"),
        (Some(task), user) => format!("task {task} of user {user}, id {id},"),
    };
    let state = if *in_use { "its agents run" } else { "no agent of it runs" };
    format!("dl://{dataset}: {job} leases version {version} until {until}; {state}")
}

fn end(
    dataset: &Address,
    job: &str,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    whole_dataset("lease end", dataset)?;
    let client = context.client()?;
    let id = job.parse::<TaskId>().ok();
    let mut leases = client.leases(&dataset.dataset)?;
    leases.retain(|lease| {
        Some(lease.id) == id || lease.task.as_ref().is_some_and(|task| task.as_str() == job)
    });
    let lease = match leases.as_slice() {
        [lease] => lease,
        [] => {
            return Err(Failure::not_found(format!(
                "lease end {dataset}: task {} leases no version; dlcmd lease list shows the leases",
                escaped(job.as_bytes())
            )));
        }
        many => {
            let ids: Vec<_> =
                many.iter().map(|lease| format!("{} of user {}", lease.id, lease.user)).collect();
            return Err(Failure::usage(format!(
                "lease end {dataset}: several users have a task {}: give an id, {}",
                escaped(job.as_bytes()),
                ids.join(" or ")
            )));
        }
    };
    client.end_leases(&dataset.dataset, lease.id)?;
    if out.is_json() {
        out.json("lease-ended", &Line::of(&dataset.dataset, lease))?;
    } else {
        out.line(format_args!("{dataset}: the lease of task {} ended", escaped(job.as_bytes())))?;
    }
    Ok(Exit::Done)
}

//! `dlcmd mounts`: the mounts of datasets on this machine.
//!
//! Must hold: a mount of any state is listed, and delays the list for a bounded time only.

use std::path::PathBuf;

use clap::Args;
use dl_fuse::{MountStatus, Mounted, absolute, mounts, status_of};
use serde::Serialize;

use super::place::{State, state_of};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::{counted, shown, sized};

/// List the mounts of datasets on this machine
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd mounts
  dlcmd --json mounts /data/imagenet")]
pub(crate) struct Arguments {
    /// Only the mount at this folder
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line {
    dir: String,
    dataset: String,
    state: &'static str,
    #[serde(flatten)]
    status: Option<MountStatus>,
}

/// Lists the mounts.
pub(crate) fn run(
    arguments: &Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let failed = |why| Failure::local("list the mounts", why);
    let mut all = mounts().map_err(failed)?;
    if let Some(dir) = &arguments.dir {
        let dir = absolute(dir).map_err(failed)?;
        all.retain(|mounted| mounted.dir == dir);
        if all.is_empty() {
            let dir = shown(&dir);
            return Err(Failure::not_found(format!("no dataset is mounted at {dir}")));
        }
    }
    for mounted in all {
        let status = status_of(&mounted).unwrap_or_else(|why| {
            context.notes.note(format_args!("the mount at {}: {why}", shown(&mounted.dir)));
            None
        });
        show(&mounted, status, out)?;
    }
    Ok(Exit::Done)
}

fn show(
    mounted: &Mounted,
    status: Option<MountStatus>,
    out: &mut Output<'_>,
) -> Result<(), Failure> {
    let state = match state_of(mounted) {
        State::Held => "held",
        State::Alone => "without a holder",
        State::Dead => "dead",
        State::Silent => "silent",
    };
    let dir = shown(&mounted.dir).to_string();
    if out.is_json() {
        let dataset = mounted.source.clone();
        return out.json("mount", &Line { dir, dataset, state, status });
    }
    out.line(format_args!("{} at {dir}: {state}", mounted.source))?;
    let Some(status) = status else { return Ok(()) };
    let is_stale = status.counted.as_ref().is_some_and(|numbers| numbers.is_stale);
    let stale = if is_stale { "; there is a newer version: dlcmd mount --refresh" } else { "" };
    out.line(format_args!("  version {}{stale}, task {}", status.version, status.task))?;
    let server = status.server.map_or("none".to_owned(), |server| server.to_string());
    let starts = counted(status.starts, "start");
    out.line(format_args!("  holder {}, server {server}, {starts}", status.holder))?;
    if let Some(problem) = &status.problem {
        out.line(format_args!("  no server: {problem}"))?;
    }
    if let Some(numbers) = &status.counted {
        out.line(format_args!(
            "  {} of {} from memory, {} of {} that had to wait, {} failed",
            counted(numbers.hits, "read"),
            sized(numbers.hit_bytes),
            counted(numbers.misses, "read"),
            sized(numbers.miss_bytes),
            numbers.failed
        ))?;
    }
    Ok(())
}

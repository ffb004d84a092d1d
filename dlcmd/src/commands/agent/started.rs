//! The settings in force after `agent start`.
//!
//! Must hold: a setting on the command line that a running agent ignores is named.

use dl_agent::Status;
use libdiesel::TaskOptions;
use serde::Serialize;

use super::{Settings, show};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::sized;

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    pid: u32,
    policy: &'a str,
    eviction: &'a str,
    memory_bytes: u64,
    idle_seconds: u64,
    ignored: &'a [String],
}

/// Reports the settings of the agent, with a note if an earlier agent has others than asked.
pub(super) fn report(
    settings: &Settings,
    context: &Context,
    task: &TaskOptions,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let status = show::status(context, task)?;
    let ignored = ignored(settings, &status)?;
    if !ignored.is_empty() {
        context.notes.note(format_args!(
            "the agent of task {} was running before, and keeps its settings: memory {}, policy {}, \
             eviction {}, idle {} s; without effect: {}. To change them: dlcmd agent stop --task {}, then start again",
            task.name,
            sized(status.memory_bytes),
            status.policy,
            status.eviction,
            status.idle_seconds,
            ignored.join(" "),
            task.name
        ));
    }
    if out.is_json() {
        let Status { pid, policy, eviction, memory_bytes, idle_seconds, .. } = &status;
        let (pid, memory_bytes, idle_seconds) = (*pid, *memory_bytes, *idle_seconds);
        let ignored = &ignored[..];
        out.json("started", &Line { pid, policy, eviction, memory_bytes, idle_seconds, ignored })?;
    }
    Ok(Exit::Done)
}

/// The settings on the command line that differ from the settings in force.
fn ignored(settings: &Settings, status: &Status) -> Result<Vec<String>, Failure> {
    let plan = settings.plan()?;
    let memory = settings.memory.as_ref().filter(|_| plan.memory.0 != status.memory_bytes);
    let policy = settings.policy.filter(|_| plan.policy.name() != status.policy);
    let evict = settings.evict.filter(|evict| evict.name() != status.eviction);
    let idle = settings.idle.as_ref();
    let idle = idle.filter(|_| plan.idle.is_some_and(|idle| idle.as_secs() != status.idle_seconds));
    let given = [
        memory.map(|memory| format!("--memory {memory}")),
        policy.map(|_| format!("--policy {}", plan.policy.name())),
        evict.map(|evict| format!("--evict {evict}")),
        idle.map(|idle| format!("--idle {idle}")),
    ];
    Ok(given.into_iter().flatten().collect())
}

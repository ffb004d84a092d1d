//! What an agent does, for people and programs.
//!
//! Must hold: `--json` has every field.

use dl_agent::{Status, WorkerStatus};
use libdiesel::{TaskOptions, agent};

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::{counted, sized};

/// Prints it.
pub(super) fn run(
    context: &Context,
    task: &TaskOptions,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let text = agent::status(&context.options, task)?;
    let status: Status = serde_json::from_str(&text)
        .map_err(|why| Failure::local("understand the agent: is it of another version?", why))?;
    if out.is_json() {
        out.json("agent", &status)?;
        return Ok(Exit::Done);
    }
    for dataset in &status.datasets {
        out.line(format_args!("dl://{} at version {}", dataset.name, dataset.version))?;
    }
    out.line(format_args!("policy {}, process {}", status.policy, status.pid))?;
    out.line(format_args!(
        "memory {} of {}: {} of {}, {} kept",
        sized(status.memory_used),
        sized(status.memory_bytes),
        status.chunks_present,
        counted(status.chunks, "chunk"),
        status.chunks_kept
    ))?;
    out.line(format_args!(
        "files {} from memory ({}), {} waited for, {} from the servers instead",
        status.hits,
        sized(status.hit_bytes),
        status.misses,
        status.fallbacks
    ))?;
    out.line(format_args!(
        "servers gave {} ({}), {} failed",
        counted(status.chunks_from_servers, "chunk"),
        sized(status.bytes_from_servers),
        status.failed_fetches
    ))?;
    status.workers.iter().try_for_each(|worker| out.line(format_args!("{}", line(worker))))?;
    Ok(Exit::Done)
}

fn line(worker: &WorkerStatus) -> String {
    let WorkerStatus { pid, pins, epoch, position, awaits } = worker;
    let at = match (epoch, position) {
        (Some(epoch), Some(position)) => format!(", file {position} of epoch {epoch}"),
        _ => String::new(),
    };
    let awaits = awaits.map(|chunk| format!(", waits for chunk {chunk}")).unwrap_or_default();
    format!("worker {pid}: {pins} pinned{at}{awaits}")
}

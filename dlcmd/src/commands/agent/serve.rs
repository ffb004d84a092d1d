//! Running the agent process.
//!
//! Must hold: an agent started by a worker has its own session, so no terminal or shell ends the
//! agent or waits for it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use dl_agent::{About, Budget, Config, Ended, is_cgroup_visible};
use libdiesel::agent::AgentFiles;
use libdiesel::{TaskOptions, agent};

use super::{AgentPlan, IDLE, IDLE_OF_WORKERS, Settings, log};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::text::{shown, sized};

/// Threads that copy data from the servers and answer workers.
const THREADS: usize = 2;

/// Runs the agent in this process until its end.
pub(super) fn in_foreground(
    plan: AgentPlan,
    context: &Context,
    task: &TaskOptions,
) -> Result<Exit, Failure> {
    let Some(claim) = agent::claim(&context.options, task)? else {
        return Err(Failure::failed(format!(
            "agent run: task {} has an agent on this machine; dlcmd agent stop ends it",
            task.name
        )));
    };
    if serve(plan, context, task, claim, IDLE)? == Ended::Idle {
        context.notes.note("no process of the task was there for a while: the agent ends");
    }
    Ok(Exit::Done)
}

/// Starts the agent process without waiting for its end.
pub(super) fn spawn(settings: &Settings, task: &TaskOptions) -> Result<Exit, Failure> {
    let failed = |why| Failure::local("start the agent", why);
    settings.plan()?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["agent", "serve", "--task", &task.name]);
    command.args(settings.arguments(settings.idle.as_deref()));
    // Otherwise a pipe of the training program would stay open as long as the agent lives.
    agent::close_on_exec();
    command.stderr(Stdio::null()).spawn().map_err(failed)?;
    Ok(Exit::Done)
}

/// Runs the agent started by a worker.
pub(super) fn from_worker(
    plan: AgentPlan,
    context: &Context,
    task: &TaskOptions,
) -> Result<Exit, Failure> {
    let failed = |why| Failure::local("be the agent of a worker", why);
    // The call fails for a process that leads a session already.
    let _ = rustix::process::setsid();
    let listener = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let lock = io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
    serve(plan, context, task, agent::Claim { listener, lock }, IDLE_OF_WORKERS)?;
    Ok(Exit::Done)
}

fn serve(
    plan: AgentPlan,
    context: &Context,
    task: &TaskOptions,
    agent::Claim { listener, lock }: agent::Claim,
    idle: Duration,
) -> Result<Ended, Failure> {
    let wrong = |why| Failure::usage(format!("--task {}: {why}", task.name));
    let (task, shutdown) = (task.name.parse().map_err(wrong)?, context.shutdown.clone());
    let AgentPlan { memory, is_memory_usual, tiers, disk_eviction, policy, eviction, .. } = plan;
    let AgentPlan { peers, idle: given, .. } = plan;
    let idle = given.unwrap_or(idle);
    let log = begin_log(&lock, context);
    let is_guess = is_memory_usual && !is_cgroup_visible();
    let guess = is_guess.then(|| hidden_limit(memory));
    let notes: Vec<_> = guess.into_iter().chain(tiers.missing()).collect();
    notes.iter().for_each(|note| {
        tracing::warn!("{note}");
        context.notes.note(note);
    });
    let about = About { log, notes };
    let disks = tiers.disks;
    let config = Config {
        task,
        listener,
        lock,
        memory,
        disks,
        disk_eviction,
        policy,
        eviction,
        peers,
        idle,
        shutdown,
        about,
    };
    let failed = |why| Failure::local("serve the processes of the task", why);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("agent")
        .enable_all()
        .build()
        .map_err(failed)?;
    let ended = runtime.block_on(dl_agent::run(config)).map_err(failed);
    // Datasets being opened are abandoned: the next agent needs the listener's address.
    runtime.shutdown_background();
    ended
}

/// The note on a budget without a known limit.
fn hidden_limit(memory: Budget) -> String {
    format!(
        "/sys/fs/cgroup is not visible, so a limit on the memory of the agent is not known: its \
         memory for chunks is {}; set DIESEL_AGENT_MEMORY or agent start --memory",
        sized(memory.0)
    )
}

/// Begins the log beside the lock of the agent, and removes files of ended agents there; none where
/// the log can't be written.
fn begin_log(lock: &OwnedFd, context: &Context) -> Option<PathBuf> {
    let files = AgentFiles::of_lock(lock).ok()?;
    files.clean();
    let begun = log::begin(files.log());
    begun
        .inspect_err(|why| {
            let log = shown(&files.log()).to_string();
            context
                .notes
                .note(format_args!("the agent has no log, as {log} can't be written: {why}"));
        })
        .ok()
        .map(|()| files.log())
}

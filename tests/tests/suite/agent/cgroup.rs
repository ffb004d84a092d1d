//! An agent in a cgroup with little memory.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_tests::cgroup::Cgroup;
use dl_tests::{skip, tell};
use rustix::process::{Signal, kill_process};

use super::worker::Worker;
use super::{Scene, wait_for_end};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 64 * MIB;
/// About 85 chunks of 1 MiB.
const FILES: u32 = 9_000;

/// A worker in a cgroup. An agent started by the worker also belongs to the cgroup.
fn worker(cgroup: &Cgroup, scene: &Scene, seed: usize) -> Result<Worker> {
    let inner = scene.worker_command(seed)?;
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
    command.arg(cgroup.processes()).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("DIESEL_AGENT_MEMORY", BUDGET.to_string());
    let mut worker = Worker::start(&mut command, scene.path(&format!("errors-{seed}")))?;
    worker.ask("open")?;
    Ok(worker)
}

#[test]
fn heavy_an_agent_fits_beside_the_memory_of_a_killed_agent() -> Result<()> {
    let Some(cgroup) = Cgroup::new(BUDGET * 3 / 2) else {
        return skip("this machine permits no cgroup with a memory limit");
    };
    let scene = Scene::stamped(FILES)?;
    let all = format!("{FILES} read");
    let mut idle = worker(&cgroup, &scene, 1)?;
    ensure!(idle.ask("epoch 0")? == all, "files are missing");
    let (first, before) = (scene.agent()?, scene.status()?);
    let used = |status: &serde_json::Value| status["memory_used"].as_u64().unwrap_or_default();
    ensure!(used(&before) > BUDGET * 9 / 10, "the first agent did not fill its budget: {before}");
    kill_process(first, Signal::KILL)?;
    wait_for_end(first, Duration::from_secs(5))?;
    let mut next = worker(&cgroup, &scene, 2)?;
    ensure!(next.ask("epoch 0")? == all && next.ask("epoch 1")? == all, "files are missing");
    let beside = scene.status()?;
    ensure!(idle.ask("epoch 0")? == all, "files are missing");
    let after = scene.status()?;
    tell(format_args!(
        "budget {} MiB, cgroup {} MiB: first agent {} MiB, second agent beside it {} MiB, \
         {} MiB after the first agent's worker has attached again",
        BUDGET / MIB,
        BUDGET * 3 / 2 / MIB,
        used(&before) / MIB,
        used(&beside) / MIB,
        used(&after) / MIB
    ));
    ensure!(cgroup.kills()? == 0, "processes were killed");
    ensure!(after["pid"] == beside["pid"], "the second agent ended: {after}");
    next.end()?;
    idle.end()?;
    Ok(())
}

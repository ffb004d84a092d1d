//! An agent in a cgroup with little memory.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::{skip, tell};
use rustix::process::{Signal, kill_process};

use super::worker::Worker;
use super::{Scene, wait_for_end};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 64 * MIB;
/// About 85 chunks of 1 MiB.
const FILES: u32 = 9_000;

/// The files of cgroup versions 2 and 1: root, memory limit, count of killed processes.
const VERSIONS: [(&str, &str, &str); 2] = [
    ("/sys/fs/cgroup", "memory.max", "memory.events"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"),
];

/// A cgroup for a test.
struct Cgroup {
    folder: PathBuf,
    events: &'static str,
}

impl Cgroup {
    /// A cgroup with a memory limit; none if the machine refuses.
    fn new(bound: u64) -> Option<Self> {
        VERSIONS.iter().find_map(|(root, file, events)| {
            let folder = Path::new(root).join(format!("diesel-test-{}", std::process::id()));
            fs::create_dir(&folder).ok()?;
            let cgroup = Self { folder, events };
            cgroup.set(file, bound).ok()?;
            // Some kernels count no swap.
            let _ = cgroup.set("memory.swap.max", 0);
            let _ = cgroup.set("memory.memsw.limit_in_bytes", bound);
            Some(cgroup)
        })
    }

    fn set(&self, file: &str, number: u64) -> Result<()> {
        let mut file = OpenOptions::new().write(true).open(self.folder.join(file))?;
        Ok(file.write_all(number.to_string().as_bytes())?)
    }

    /// Processes killed for lack of memory.
    fn kills(&self) -> Result<u64> {
        let events = fs::read_to_string(self.folder.join(self.events))?;
        let line = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(line.context("the file has a line oom_kill")?.trim().parse()?)
    }

    /// A worker in the cgroup. An agent started by the worker also belongs to the cgroup.
    fn worker(&self, scene: &Scene, seed: usize) -> Result<Worker> {
        let inner = scene.worker_command(seed)?;
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(self.folder.join("cgroup.procs")).arg(inner.get_program());
        command.args(inner.get_args());
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("DIESEL_AGENT_MEMORY", BUDGET.to_string());
        let mut worker = Worker::start(&mut command, scene.path(&format!("errors-{seed}")))?;
        worker.ask("open")?;
        Ok(worker)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            // The kernel still removes the killed processes.
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn heavy_an_agent_fits_beside_the_memory_of_a_killed_agent() -> Result<()> {
    let Some(cgroup) = Cgroup::new(BUDGET * 3 / 2) else {
        return skip("this machine permits no cgroup with a memory limit");
    };
    let scene = Scene::stamped(FILES)?;
    let all = format!("{FILES} read");
    let mut idle = cgroup.worker(&scene, 1)?;
    ensure!(idle.ask("epoch 0")? == all, "files are missing");
    let (first, before) = (scene.agent()?, scene.status()?);
    let used = |status: &serde_json::Value| status["memory_used"].as_u64().unwrap_or_default();
    ensure!(used(&before) > BUDGET * 9 / 10, "the first agent did not fill its budget: {before}");
    kill_process(first, Signal::KILL)?;
    wait_for_end(first, Duration::from_secs(5))?;
    let mut next = cgroup.worker(&scene, 2)?;
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

//! The node's cache: processes of a task share a copy in memory, despite failures of the agent and
//! of the servers.

mod board;
mod cgroup;
mod changes;
mod direct;
mod disks;
mod environment;
mod leaving;
mod memory;
mod nodes;
mod offline;
mod peers;
mod shared;
mod status;
mod torture;
mod versions;
mod worker;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Server, program, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The number of files in a dataset, and their longest length.
const FILES: usize = 4_000;
const LONGEST: usize = 20_000;

/// A dataset on a server, and the runtime folder of its agents.
struct Scene {
    folder: tempfile::TempDir,
    server: Option<Server>,
    address: String,
}

impl Scene {
    fn new(seed: u64) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        folder::fill(&folder.path().join("src"), FILES, LONGEST, &Dice::new(seed))?;
        let server = Server::start(&folder.path().join("data"))?;
        let address = server.address().to_owned();
        let source = folder.path().join("src");
        run(server.dlcmd()?.arg("put").arg(source).arg("dl://ds"))?.code(0)?;
        Ok(Self { folder, server: Some(server), address })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn server(&self) -> Result<&Server> {
        self.server.as_ref().context("a server runs")
    }

    /// `dlcmd` with the usual task.
    fn dlcmd(&self) -> Result<Command> {
        self.dlcmd_of("job")
    }

    /// `dlcmd` with another task.
    fn dlcmd_of(&self, task: &str) -> Result<Command> {
        self.dlcmd_at("", task)
    }

    /// `dlcmd` with a task on a node: each node has its own agent.
    fn dlcmd_at(&self, node: &str, task: &str) -> Result<Command> {
        let mut command = dl_tests::program::dlcmd()?;
        command.args(["--server", &self.address, "--task", task]);
        command.env("DIESEL_RUNTIME_DIR", self.path(&format!("run{node}")));
        command.env("XDG_CACHE_HOME", self.path("cache"));
        Ok(command)
    }

    /// Reads an epoch in groups of three chunks; returns the count of files.
    fn read(&self, arguments: &[&str]) -> Result<u64> {
        read_epoch(self.dlcmd()?, "3", arguments)
    }

    /// Gets the dataset through the agent and compares the files.
    fn get_and_compare(&self) -> Result<()> {
        self.get_with(self.dlcmd()?, "dl://ds")
    }

    /// Gets a dataset and compares the files with the source.
    fn get_with(&self, mut dlcmd: Command, dataset: &str) -> Result<()> {
        let got = self.path("got");
        run(dlcmd.args(["get", dataset]).arg(&got))?.code(0)?;
        folder::compare(&self.path("src"), &got)?;
        Ok(std::fs::remove_dir_all(got)?)
    }

    fn status(&self) -> Result<Value> {
        status_of(self.dlcmd()?)
    }

    /// The process id of the agent.
    fn agent(&self) -> Result<Pid> {
        agent_of(&self.status()?)
    }

    fn start_agent(&self, arguments: &[&str]) -> Result<()> {
        run(self.dlcmd()?.args(["agent", "start", "dl://ds"]).args(arguments))?.code(0)?;
        Ok(())
    }

    fn kill_server(&mut self) -> Result<()> {
        self.server.take().context("a server runs")?.kill()?;
        Ok(())
    }

    /// Waits up to 10 seconds until `shows` accepts the status.
    fn wait_until(&self, shows: impl Fn(&Value) -> bool) -> Result<()> {
        for _ in 0..1_000 {
            if shows(&self.status()?) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        anyhow::bail!("the agent's status is still {}", self.status()?)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Ok(agent) = self.agent() {
            let _ = kill_process(agent, Signal::KILL);
        }
    }
}

/// Reads an epoch in groups of `group` chunks; returns the count of files.
fn read_epoch(mut dlcmd: Command, group: &str, arguments: &[&str]) -> Result<u64> {
    dlcmd.args(["--json", "shuffle", "dl://ds", "--read", "--group-size", group]);
    let read = run(dlcmd.args(arguments))?.code(0)?;
    let read: Value = serde_json::from_str(read.text().trim())?;
    read["files"].as_u64().context("a number of files")
}

fn status_of(mut dlcmd: Command) -> Result<Value> {
    let status = run(dlcmd.args(["--json", "agent", "status"]))?.code(0)?;
    Ok(serde_json::from_str(status.text().trim())?)
}

fn agent_of(status: &Value) -> Result<Pid> {
    let pid = status["pid"].as_i64().context("a process id")?;
    Pid::from_raw(i32::try_from(pid)?).context("a process has an id")
}

/// Sleeps for less than `most` milliseconds.
fn pause(dice: &Dice, most: usize) {
    std::thread::sleep(Duration::from_millis(dice.below(most) as u64));
}

/// Whether a process exists and is no zombie.
fn is_alive(process: Pid) -> bool {
    let process = format!("/proc/{}", process.as_raw_nonzero());
    let status = std::fs::read_to_string(format!("{process}/status")).unwrap_or_default();
    // The main thread may exit before other threads, which still hold the process's sockets.
    let threads = std::fs::read_dir(format!("{process}/task")).map_or(0, Iterator::count);
    !status.is_empty() && (threads > 1 || !status.contains("State:\tZ"))
}

fn wait_for_end(process: Pid, patience: Duration) -> Result<()> {
    let mut left = patience;
    while is_alive(process) {
        ensure!(!left.is_zero(), "the process has not ended after {patience:?}");
        let step = Duration::from_millis(50);
        std::thread::sleep(step);
        left = left.saturating_sub(step);
    }
    Ok(())
}

/// A source file, by its path in the dataset.
fn bytes_of(scene: &Scene, path: &dyn std::fmt::Display) -> Result<Vec<u8>> {
    Ok(std::fs::read(Path::new(&scene.path("src")).join(path.to_string()))?)
}

fn agent_program() -> Result<PathBuf> {
    program("dlcmd")
}

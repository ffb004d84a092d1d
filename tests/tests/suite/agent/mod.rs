//! The node's cache: processes of one task read out of one copy in memory, whatever happens to the
//! agent that fills it, and to the servers.

mod cgroup;
mod changes;
mod environment;
mod failures;
mod memory;
mod nodes;
mod peers;
mod shared;
mod status;
mod torture;
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

/// Files of a scene, of up to so many bytes.
const FILES: usize = 4_000;
const LONGEST: usize = 20_000;

/// A dataset at a server, and a folder in which its agents are found.
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

    /// `dlcmd` of the task.
    fn dlcmd(&self) -> Result<Command> {
        self.dlcmd_of("job")
    }

    /// `dlcmd` of another task.
    fn dlcmd_of(&self, task: &str) -> Result<Command> {
        self.dlcmd_at("", task)
    }

    /// `dlcmd` of a task on a node: each node has an agent of its own.
    fn dlcmd_at(&self, node: &str, task: &str) -> Result<Command> {
        let mut command = dl_tests::program::dlcmd()?;
        command.args(["--server", &self.address, "--task", task]);
        command.env("DIESEL_RUNTIME_DIR", self.path(&format!("run{node}")));
        command.env("XDG_CACHE_HOME", self.path("cache"));
        Ok(command)
    }

    /// Reads an epoch in groups of three chunks; gives how many files were read.
    fn read(&self, arguments: &[&str]) -> Result<u64> {
        let mut command = self.dlcmd()?;
        command.args(["--json", "shuffle", "dl://ds", "--read", "--group-size", "3"]);
        let read = run(command.args(arguments))?.code(0)?;
        let read: Value = serde_json::from_str(read.text().trim())?;
        read["files"].as_u64().context("a number of files")
    }

    /// Gets everything through the agent, and compares.
    fn get_and_compare(&self) -> Result<()> {
        let got = self.path("got");
        run(self.dlcmd()?.args(["get", "dl://ds"]).arg(&got))?.code(0)?;
        folder::compare(&self.path("src"), &got)?;
        Ok(std::fs::remove_dir_all(got)?)
    }

    fn status(&self) -> Result<Value> {
        let told = run(self.dlcmd()?.args(["--json", "agent", "status"]))?.code(0)?;
        Ok(serde_json::from_str(told.text().trim())?)
    }

    /// The process of the agent.
    fn agent(&self) -> Result<Pid> {
        let pid = self.status()?["pid"].as_i64().context("a process id")?;
        Pid::from_raw(i32::try_from(pid)?).context("a process has an id")
    }

    fn start_agent(&self, arguments: &[&str]) -> Result<()> {
        run(self.dlcmd()?.args(["agent", "start", "dl://ds"]).args(arguments))?.code(0)?;
        Ok(())
    }

    fn kill_server(&mut self) -> Result<()> {
        self.server.take().context("a server runs")?.kill()?;
        Ok(())
    }

    /// Waits until the status shows something.
    fn becomes(&self, shows: impl Fn(&Value) -> bool) -> Result<()> {
        for _ in 0..1_000 {
            if shows(&self.status()?) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        anyhow::bail!("it stays {}", self.status()?)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Ok(agent) = self.agent() {
            let _ = kill_process(agent, Signal::KILL);
        }
    }
}

/// Whether a process is there.
fn lives(process: Pid) -> bool {
    let process = format!("/proc/{}", process.as_raw_nonzero());
    let status = std::fs::read_to_string(format!("{process}/status")).unwrap_or_default();
    // The first thread of a process ends before the others, which still hold its sockets.
    let threads = std::fs::read_dir(format!("{process}/task")).map_or(0, Iterator::count);
    !status.is_empty() && (threads > 1 || !status.contains("State:\tZ"))
}

fn ends(process: Pid, patience: Duration) -> Result<()> {
    let mut left = patience;
    while lives(process) {
        ensure!(!left.is_zero(), "it goes on");
        let step = Duration::from_millis(50);
        std::thread::sleep(step);
        left = left.saturating_sub(step);
    }
    Ok(())
}

/// A file of the scene, by the path that it has in the dataset.
fn bytes_of(scene: &Scene, path: &dyn std::fmt::Display) -> Result<Vec<u8>> {
    Ok(std::fs::read(Path::new(&scene.path("src")).join(path.to_string()))?)
}

fn agent_program() -> Result<PathBuf> {
    program("dlcmd")
}

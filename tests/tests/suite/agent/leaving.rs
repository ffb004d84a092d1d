//! The end of agents and the leases of their jobs; jobs beside servers that can't register members.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::Cluster;
use dl_runtime::{Clock, SystemClock};
use dl_tests::program::{Process, Server, dlcmd, run};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::{Scene, wait_for_end};

/// About ten chunks.
const FILES: u32 = 1_000;

const TIMEOUT: Duration = Duration::from_secs(20);

impl Scene {
    /// The lines of `lease list`.
    fn leases(&self) -> Result<Vec<Value>> {
        let listed = run(self.dlcmd()?.args(["--json", "lease", "list", "dl://ds"]))?.code(0)?;
        listed.text().lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// Adds a file to the dataset.
    fn add_file(&self, name: &str) -> Result<()> {
        let file = self.path(name);
        fs::write(&file, name)?;
        run(self.dlcmd()?.arg("put").arg(&file).arg("dl://ds/"))?.code(0)?;
        Ok(())
    }

    /// Waits until an agent answers.
    fn await_agent(&self) -> Result<()> {
        for _ in 0..1_000 {
            if run(self.dlcmd()?.args(["agent", "status"]))?.code == 0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        anyhow::bail!("no agent answers")
    }

    fn kill_agent(&self, signal: Signal) -> Result<()> {
        let agent = self.agent()?;
        kill_process(agent, signal)?;
        wait_for_end(agent, TIMEOUT)
    }

    /// Waits until the servers count no member of the job.
    fn await_death(&self) -> Result<()> {
        for _ in 0..200 {
            let leases = self.leases()?;
            ensure!(leases.len() == 1, "not one lease: {leases:?}");
            if leases.iter().all(|lease| lease["in_use"] == false) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(150));
        }
        anyhow::bail!("the servers count the killed agent for 30 s")
    }

    fn notes(&self) -> Result<String> {
        Ok(self.status()?["datasets"][0]["notes"].to_string())
    }
}

/// The entries of the runtime folder with an ending.
fn with_ending(folder: &Path, ending: &str) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(folder)? {
        count += usize::from(entry?.path().extension().is_some_and(|found| found == ending));
    }
    Ok(count)
}

#[test]
fn an_agent_ended_by_a_signal_leaves_only_its_log() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    for (name, signal) in [("a", Signal::TERM), ("b", Signal::HUP), ("c", Signal::INT)] {
        scene.start_agent(&["--policy", "oneshot"])?;
        let log = scene.status()?["log"].as_str().context("a log")?.to_owned();
        scene.add_file(name)?;
        let version = scene.leases()?.first().context("a lease")?["version"].clone();
        scene.kill_agent(signal)?;
        ensure!(scene.leases()?.is_empty(), "{signal:?} left {:?}", scene.leases()?);
        run(scene.dlcmd()?.args(["purge", "dl://ds", "--grace", "0s"]))?.code(0)?;
        let folder = scene.path("run");
        for ending in ["sock", "lock"] {
            ensure!(with_ending(&folder, ending)? == 0, "{signal:?} left a .{ending}");
        }
        let log = fs::read_to_string(log)?;
        ensure!(log.contains("the agent begins") && log.contains("the agent ends"), "{log}");
        // A job of the same name reads the newest version.
        scene.start_agent(&[])?;
        let status = scene.status()?;
        ensure!(status["datasets"][0]["version"] != version, "{status}");
        ensure!(status["datasets"][0]["leased_until"].is_u64(), "{status}");
        scene.kill_agent(Signal::TERM)?;
    }
    Ok(())
}

#[test]
fn each_signal_has_its_exit_code() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    for (signal, code) in [(Signal::HUP, 129), (Signal::INT, 130), (Signal::TERM, 143)] {
        let mut agent = Process::start(scene.dlcmd()?.args(["agent", "run"]))?;
        scene.await_agent()?;
        agent.signal(signal)?;
        let ended = agent.wait(TIMEOUT)?;
        ensure!(ended == code, "{signal:?} ended with {ended}");
    }
    // As `nohup` starts programs.
    let mut nohup = Command::new("nohup");
    nohup.arg(dlcmd()?.get_program()).args(["--task", "job", "agent", "run"]);
    nohup.env("DIESEL_RUNTIME_DIR", scene.path("run")).stdin(Stdio::null());
    nohup.stdout(Stdio::null()).stderr(Stdio::null());
    let mut agent = Process::start(&mut nohup)?;
    scene.await_agent()?;
    agent.signal(Signal::HUP)?;
    std::thread::sleep(Duration::from_millis(300));
    ensure!(agent.ended()?.is_none(), "a hang-up ended an agent below nohup");
    agent.signal(Signal::TERM)?;
    ensure!(agent.wait(TIMEOUT)? == 143, "SIGTERM ended it otherwise");
    Ok(())
}

#[test]
fn the_lease_of_killed_agents_is_told_and_can_be_ended() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    scene.start_agent(&[])?;
    scene.kill_agent(Signal::KILL)?;
    scene.add_file("new")?;
    let end = || run(scene.dlcmd()?.args(["lease", "end", "dl://ds", "job"]));
    let refused = end()?;
    ensure!(refused.code == 1 && refused.stderr.contains("living agents"), "{refused:?}");
    scene.await_death()?;
    let started = run(scene.dlcmd()?.args(["agent", "start", "dl://ds"]))?.code(0)?;
    ensure!(started.stderr.contains("older than the newest"), "no note: {started:?}");
    ensure!(scene.notes()?.contains("ended without leave"), "{}", scene.notes()?);
    let read = run(scene.dlcmd()?.args(["cat", "dl://ds/new"]))?;
    ensure!(read.code == 3 && read.stderr.contains("older than the newest"), "{read:?}");
    scene.kill_agent(Signal::KILL)?;
    scene.await_death()?;
    end()?.code(0)?;
    ensure!(end()?.code == 3, "a lease ended twice");
    let read = run(scene.dlcmd()?.args(["cat", "dl://ds/new"]))?.code(0)?;
    ensure!(!read.stderr.contains("older"), "{read:?}");
    let deleted = run(scene.dlcmd()?.args(["delete-dataset", "dl://ds"]))?.code(0)?;
    ensure!(deleted.stderr.contains("task job"), "the job is not named: {deleted:?}");
    Ok(())
}

#[test]
fn reads_begin_while_the_servers_register_no_member() -> Result<()> {
    let mut scene = Scene::stamped(FILES)?;
    let (runtime, source) = (Runtime::new()?, scene.path("src"));
    let cluster = runtime.block_on(Cluster::start(3, 0));
    let server =
        Server::start_with(&scene.path("shared"), "127.0.0.1:0", &["--meta", &cluster.url()])?;
    scene.address = server.address().to_owned();
    server.put(&source, "dl://ds")?;
    let refuse = |replicas: &str| {
        for redis in cluster.servers() {
            let set = ["CONFIG", "SET", "min-replicas-to-write", replicas];
            runtime.block_on(redis.ask(&set));
        }
    };
    refuse("1");
    let clock = SystemClock::new();
    let began = clock.monotonic();
    let got = scene.path("got");
    scene.start_agent(&[])?;
    run(scene.dlcmd()?.args(["get", "dl://ds"]).arg(&got))?.code(0)?;
    let took = clock.monotonic().saturating_sub(began);
    ensure!(took < Duration::from_secs(8), "the reads took {took:?}");
    dl_tests::folder::compare(&source, &got)?;
    let status = scene.status()?;
    ensure!(status["hits"].as_u64() > Some(0), "the cache was not used: {status}");
    ensure!(scene.notes()?.contains("can't register"), "{status}");
    refuse("0");
    scene.wait_until(|status| status["datasets"][0]["leased_until"].is_u64())?;
    ensure!(scene.notes()? == "[]", "{}", scene.notes()?);
    Ok(())
}

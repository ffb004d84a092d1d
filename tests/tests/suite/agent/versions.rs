//! Versions that a job reads from a snapshot: through the cache, beside the version of the job, and
//! again after the loss of the agent.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::program::run;
use serde_json::Value;

use super::peers::Nodes;
use super::{FILES as MANY, Scene, read_epoch, wait_for_end};

const FILES: u32 = 1_000;
const ALL: u64 = FILES as u64;

impl Scene {
    /// Saves a snapshot, then adds a file: the snapshot is old.
    fn outdated(&self) -> Result<String> {
        let file = self.path("old.snapshot").display().to_string();
        run(self.server()?.dlcmd()?.args(["snapshot", "save", "dl://ds", &file]))?.code(0)?;
        self.change("more")?;
        Ok(file)
    }

    /// Adds a file to the dataset.
    fn change(&self, name: &str) -> Result<()> {
        fs::write(self.path(name), name)?;
        let mut put = self.server()?.dlcmd()?;
        run(put.arg("put").arg(self.path(name)).arg(format!("dl://ds/{name}")))?.code(0)?;
        Ok(())
    }
}

/// The number of versions that an agent serves, after a check that no file came from the servers.
fn versions(status: &Value) -> Result<usize> {
    ensure!(status["fallbacks"] == 0, "files came from the servers: {status}");
    Ok(status["datasets"].as_array().context("a list")?.len())
}

#[test]
fn a_job_reads_a_snapshot_file_through_its_agent() -> Result<()> {
    let mut scene = Scene::stamped(FILES)?;
    let file = scene.outdated()?;
    ensure!(scene.read(&["--snapshot", &file])? == ALL, "another version");
    let first = scene.status()?;
    ensure!(first["hits"] == FILES && versions(&first)? == 1, "{first}");
    // The first worker fixes the version of the job.
    ensure!(scene.read(&[])? == ALL, "the job has two versions");
    scene.kill_server()?;
    ensure!(scene.read(&["--snapshot", &file, "--epoch", "1"])? == ALL, "without a server");
    ensure!(scene.read(&["--epoch", "2"])? == ALL, "without a server");
    let last = scene.status()?;
    ensure!(versions(&last)? == 1 && last["chunks_from_servers"] == first["chunks"], "{last}");
    Ok(())
}

#[test]
fn an_agent_serves_two_versions_of_a_dataset_beside_each_other() -> Result<()> {
    let mut scene = Scene::stamped(FILES)?;
    let file = scene.outdated()?;
    let newest = ALL + 1;
    ensure!(scene.read(&[])? == newest, "the newest version");
    ensure!(scene.read(&["--snapshot", &file])? == ALL, "the version of the file");
    scene.kill_server()?;
    ensure!(scene.read(&["--epoch", "1"])? == newest, "without a server");
    ensure!(scene.read(&["--epoch", "1", "--snapshot", &file])? == ALL, "without a server");
    let status = scene.status()?;
    ensure!(versions(&status)? == 2, "{status}");
    Ok(())
}

#[test]
fn a_new_agent_serves_the_version_of_its_worker() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    scene.start_agent(&["--memory", "3MiB", "--policy", "none"])?;
    let mut worker = scene.worker(1)?;
    worker.ask("open")?;
    let version = |status: &Value| status["datasets"][0]["version"].clone();
    let (agent, before) = (scene.agent()?, version(&scene.status()?));
    // The lease of the job ends with the agent.
    run(scene.dlcmd()?.args(["agent", "stop"]))?.code(0)?;
    wait_for_end(agent, Duration::from_secs(10))?;
    scene.change("more")?;
    for _ in 0..20 {
        ensure!(worker.ask("all")? == format!("{FILES} read"), "files are missing");
        if let Ok(status) = scene.status()
            && status["hits"].as_u64() > Some(0)
        {
            ensure!(version(&status) == before, "another version: {status}");
            return worker.end().map(|_| ());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    anyhow::bail!("the worker has no agent")
}

#[test]
fn nodes_with_the_same_old_version_exchange_its_chunks() -> Result<()> {
    let nodes = Nodes { scene: Scene::new(41)?, names: vec!["1".to_owned(), "2".to_owned()] };
    let file = nodes.scene.outdated()?;
    // The servers lose the old version, so no lease protects it.
    for entry in fs::read_dir(nodes.scene.path("data/chunks"))? {
        let stored = entry?.path().join("snapshots");
        if stored.exists() {
            fs::remove_dir_all(stored)?;
        }
    }
    for node in 0..2 {
        nodes.start(node, &["--memory", "256MiB"])?;
        let read = read_epoch(nodes.dlcmd(node)?, "2", &["--snapshot", &file])?;
        ensure!(read == MANY as u64, "node {node}: {read} files");
    }
    let status = nodes.status(1)?;
    ensure!(versions(&status)? == 2, "{status}");
    ensure!(
        status["chunks_from_peers"].as_u64() > Some(0),
        "no chunk came from the peer: {status}"
    );
    Ok(())
}

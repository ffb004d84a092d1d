//! Agents of a job on several nodes: each chunk is fetched from the servers once, and a failed node
//! costs time and no file.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::program::{Process, memory, run};
use dl_tests::tell;
use libdiesel::{ChunkShape, Client, ConnectOptions, DatasetName};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::shared::open_at;
use super::{FILES, LONGEST, Scene, agent_of, bytes_of, read_epoch, status_of, wait_for_end};

/// A dataset with an agent on each node.
pub(super) struct Nodes {
    pub(super) scene: Scene,
    pub(super) names: Vec<String>,
}

impl Nodes {
    pub(super) fn new(seed: u64, count: usize, arguments: &[&str]) -> Result<Self> {
        let mut nodes = Self { scene: Scene::new(seed)?, names: Vec::new() };
        for _ in 0..count {
            nodes.add(arguments)?;
        }
        nodes.await_links()?;
        Ok(nodes)
    }

    /// Adds a node with an agent.
    pub(super) fn add(&mut self, arguments: &[&str]) -> Result<()> {
        self.names.push((self.names.len() + 1).to_string());
        self.start(self.names.len() - 1, arguments)
    }

    pub(super) fn start(&self, node: usize, arguments: &[&str]) -> Result<()> {
        let mut command = self.dlcmd(node)?;
        run(command.args(["agent", "start", "dl://ds"]).args(arguments))?.code(0)?;
        Ok(())
    }

    pub(super) fn dlcmd(&self, node: usize) -> Result<Command> {
        self.scene.dlcmd_at(self.names.get(node).context("a node")?, "job")
    }

    pub(super) fn status(&self, node: usize) -> Result<Value> {
        status_of(self.dlcmd(node)?)
    }

    pub(super) fn agent(&self, node: usize) -> Result<Pid> {
        agent_of(&self.status(node)?)
    }

    /// Reads an epoch of all files; returns the count of files.
    fn read(&self, node: usize, epoch: u64) -> Result<u64> {
        read_epoch(self.dlcmd(node)?, "2", &["--epoch", &epoch.to_string()])
    }

    pub(super) fn get_and_compare(&self, node: usize) -> Result<()> {
        self.scene.get_with(self.dlcmd(node)?, "dl://ds")
    }

    /// Waits up to 30 seconds until `shows` accepts the status of a node.
    pub(super) fn wait_until(&self, node: usize, shows: impl Fn(&Value) -> bool) -> Result<()> {
        for _ in 0..1_500 {
            if shows(&self.status(node)?) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        anyhow::bail!("the agent's status is still {}", self.status(node)?)
    }

    fn await_agent(&self, node: usize) -> Result<()> {
        for _ in 0..1_000 {
            if run(self.dlcmd(node)?.args(["agent", "status"]))?.code == 0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        anyhow::bail!("no agent answers")
    }

    /// Waits until each agent has a connection to every other agent.
    pub(super) fn await_links(&self) -> Result<()> {
        let others = self.names.len() - 1;
        (0..self.names.len())
            .try_for_each(|node| self.wait_until(node, |status| up(status) == others))
    }

    /// The sum of a status field over all nodes.
    fn sum(&self, field: &str) -> Result<u64> {
        let value = |node| self.status(node)?[field].as_u64().context("a number");
        (0..self.names.len()).map(value).sum()
    }

    /// Waits until each chunk has exactly one owner.
    fn share(&self, chunks: u64) -> Result<()> {
        let owned =
            |node| self.status(node)?["datasets"][0]["chunks_owned"].as_u64().context("a number");
        let mut all = 0;
        for _ in 0..100 {
            all = (0..self.names.len()).map(owned).sum::<Result<u64>>()?;
            if all == chunks {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        anyhow::bail!("{all} of {chunks} chunks have an owner")
    }

    /// Chunks whose transfer from another agent was too slow.
    fn slow(&self) -> Result<u64> {
        let count = |node| {
            let status = self.status(node)?;
            let peers = status["peers"].as_array().context("a list")?;
            Ok(peers.iter().filter_map(|peer| peer["slow"].as_u64()).sum::<u64>())
        };
        (0..self.names.len()).map(count).sum()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in 0..self.names.len() {
            if let Ok(agent) = self.agent(node) {
                let _ = kill_process(agent, Signal::KILL);
            }
        }
    }
}

/// The number of open connections to other agents.
fn up(status: &Value) -> usize {
    let peers = status["peers"].as_array().into_iter().flatten();
    peers.filter(|peer| peer["state"] == "up").count()
}

#[test]
fn each_chunk_is_fetched_once_for_all_nodes() -> Result<()> {
    once_for_all_nodes(31, &[])
}

#[test]
fn each_chunk_is_fetched_once_for_all_nodes_with_tls() -> Result<()> {
    once_for_all_nodes(35, &["--peer-tls", "on"])
}

fn once_for_all_nodes(seed: u64, arguments: &[&str]) -> Result<()> {
    let arguments = [&["--memory", "256MiB"], arguments].concat();
    let mut nodes = Nodes::new(seed, 3, &arguments)?;
    for node in 0..3 {
        ensure!(nodes.read(node, 0)? == FILES as u64, "files are missing");
    }
    let first = nodes.status(0)?;
    let chunks = first["chunks"].as_u64().context("a number")?;
    // On a busy machine a slow transfer is replaced by a fetch from the servers.
    let slow = nodes.slow()?;
    let (fetched, given) = (nodes.sum("chunks_from_servers")?, nodes.sum("chunks_from_peers")?);
    ensure!((chunks..=chunks + slow).contains(&fetched), "one fetch a chunk: {fetched}, {first}");
    ensure!(given + fetched == 3 * chunks, "owners gave {given} of {chunks} chunks");
    nodes.share(chunks)?;
    nodes.scene.kill_server()?;
    for node in 0..3 {
        ensure!(nodes.read(node, 1)? == FILES as u64, "files are missing");
    }
    nodes.get_and_compare(2)?;
    ensure!(nodes.sum("fallbacks")? == 0, "files came from the servers");
    Ok(())
}

#[test]
fn a_late_node_gets_its_chunks_from_its_peers() -> Result<()> {
    const ONESHOT: [&str; 4] = ["--memory", "256MiB", "--policy", "oneshot"];
    let mut nodes = Nodes::new(32, 1, &ONESHOT)?;
    nodes.wait_until(0, |status| status["partial"] == false)?;
    nodes.add(&ONESHOT)?;
    nodes.wait_until(1, |status| {
        let owned = status["datasets"][0]["chunks_owned"].as_u64().unwrap_or(0);
        owned > 0 && status["chunks_present"].as_u64() >= Some(owned)
    })?;
    (0..2).try_for_each(|node| nodes.get_and_compare(node))?;
    let (chunks, fetched) = (nodes.status(0)?["chunks"].clone(), nodes.sum("chunks_from_servers")?);
    let (chunks, slow) = (chunks.as_u64().context("a number")?, nodes.slow()?);
    ensure!((chunks..=chunks + slow).contains(&fetched), "{fetched} of {chunks} chunks");
    Ok(())
}

/// Reads of whole datasets by nodes that start together cost the servers at most this factor.
const ONCE_MAX: f64 = 1.02;

#[test]
fn nodes_that_start_together_fetch_each_chunk_once() -> Result<()> {
    for (seed, policy) in [(41, "oneshot"), (42, "on-demand")] {
        start_together(seed, 4, policy)?;
    }
    Ok(())
}

/// Bytes of a chunk: many chunks in a small dataset.
const SMALL_CHUNK: u32 = 1 << 20;

/// Starts agents at the same time; they fetch the whole dataset, or each node reads an epoch at
/// once.
fn start_together(seed: u64, count: usize, policy: &str) -> Result<()> {
    let mut nodes = Nodes { scene: Scene::new(seed)?, names: Vec::new() };
    run(nodes.scene.dlcmd()?.args(["delete-dataset", "dl://ds"]))?.code(0)?;
    let options =
        ConnectOptions { servers: vec![nodes.scene.address.clone()], ..ConnectOptions::default() };
    let shape = ChunkShape::new(SMALL_CHUNK, ChunkShape::default().alignment())?;
    Client::connect(options)?.create_dataset(&DatasetName::new("ds")?, shape)?;
    let source = nodes.scene.path("src");
    run(nodes.scene.dlcmd()?.arg("put").arg(source).arg("dl://ds"))?.code(0)?;
    nodes.names = (1..=count).map(|name| name.to_string()).collect();
    let mut agents = Vec::new();
    for node in 0..count {
        let run = ["agent", "run", "--memory", "256MiB", "--policy", policy];
        agents.push(Process::start(nodes.dlcmd(node)?.args(run))?);
    }
    for node in 0..count {
        nodes.await_agent(node)?;
    }
    let mut starting = Vec::new();
    for node in 0..count {
        let arguments: &[&str] = match policy {
            "oneshot" => &["agent", "start", "dl://ds"],
            _ => &["shuffle", "dl://ds", "--read", "--group-size", "8"],
        };
        let mut command = nodes.dlcmd(node)?;
        command.args(arguments).stdout(Stdio::null());
        starting.push(Process::start(&mut command)?);
    }
    for mut started in starting {
        ensure!(started.wait(Duration::from_secs(120))? == 0, "a node failed");
    }
    if policy == "oneshot" {
        for node in 0..count {
            nodes.wait_until(node, |status| {
                let owned = status["datasets"][0]["chunks_owned"].as_u64();
                status["chunks_present"].as_u64() >= owned && status["fetches"] == 0
            })?;
        }
    }
    let chunks = nodes.status(0)?["chunks"].as_u64().context("a number")?;
    let (fetched, slow) = (nodes.sum("chunks_from_servers")?, nodes.slow()?);
    // On a busy machine a slow transfer is replaced by a fetch from the servers.
    let most = (chunks as f64 * ONCE_MAX).ceil() as u64 + slow;
    tell(format!("{count} nodes, {policy}: {fetched} fetches of {chunks} chunks, {slow} slow"));
    ensure!((chunks..=most).contains(&fetched), "{policy}: {fetched} of {chunks}, {slow} slow");
    Ok(())
}

#[test]
fn files_come_alone_while_there_is_no_room_for_chunks() -> Result<()> {
    let mut nodes = Nodes::new(37, 1, &["--memory", "256MiB", "--policy", "oneshot"])?;
    nodes.wait_until(0, |status| status["partial"] == false)?;
    nodes.add(&["--memory", "12MiB"])?;
    nodes.await_links()?;
    let dataset = open_at(&nodes.scene, "2", None)?;
    let snapshot = dataset.snapshot().context("a snapshot")?;
    let dice = Dice::new(37);
    let mut buffer = vec![0; 64 * LONGEST];
    let mut round = 0;
    while nodes.status(1)?["files_from_peers"].as_u64().context("a number")? < 1_000 {
        round += 1;
        ensure!(round < 1_000, "peers send no single files: {}", nodes.status(1)?);
        let files = || dice.below(snapshot.files() as usize) as u32;
        let numbers: Vec<u32> = (0..64).map(|_| files()).collect();
        let places = dataset.get_many_into(&numbers, &mut buffer)?;
        let views = dataset.view_many(&numbers)?;
        for ((number, place), view) in numbers.iter().zip(places).zip(views) {
            let expected = bytes_of(&nodes.scene, &snapshot.path(*number)?)?;
            ensure!(buffer.get(place) == Some(&expected[..]), "other bytes of file {number}");
            ensure!(*view == expected[..], "a view of other bytes of file {number}");
            let alone = dataset.get_into(*number, &mut buffer[..LONGEST].to_vec())?;
            ensure!(alone == expected.len(), "another length of file {number}");
        }
    }
    ensure!(nodes.sum("fallbacks")? == 0, "files came from the servers");
    ensure!(nodes.status(0)?["files_to_peers"].as_u64() >= Some(1_000), "{}", nodes.status(0)?);
    Ok(())
}

#[test]
fn a_killed_or_stopped_node_costs_time_and_no_file() -> Result<()> {
    let nodes = Nodes::new(33, 3, &["--memory", "256MiB"])?;
    ensure!(nodes.read(1, 0)? == FILES as u64, "files are missing");
    let (killed, stopped) = (nodes.agent(0)?, nodes.agent(1)?);
    kill_process(killed, Signal::KILL)?;
    wait_for_end(killed, Duration::from_secs(10))?;
    kill_process(stopped, Signal::STOP)?;
    let read = nodes.get_and_compare(2);
    kill_process(stopped, Signal::CONT)?;
    read?;
    nodes.wait_until(2, |status| {
        status["peers"].as_array().is_some_and(|peers| peers.len() == 1) && up(status) == 1
    })?;
    nodes.start(0, &["--memory", "256MiB"])?;
    nodes.await_links()?;
    (0..3).try_for_each(|node| nodes.get_and_compare(node))
}

#[test]
fn agents_with_and_without_tls_do_not_exchange_chunks() -> Result<()> {
    let mut nodes = Nodes::new(36, 1, &["--memory", "256MiB", "--peer-tls", "on"])?;
    nodes.add(&["--memory", "256MiB", "--peer-tls", "off"])?;
    for (node, says) in [(0, "uses no TLS"), (1, "uses TLS")] {
        nodes.wait_until(node, |status| {
            let reason = status["peers"][0]["reason"].as_str();
            reason.is_some_and(|reason| reason.contains(says))
        })?;
        nodes.get_and_compare(node)?;
    }
    ensure!(nodes.sum("chunks_from_peers")? == 0, "a chunk came without encryption");
    Ok(())
}

#[test]
fn strangers_get_nothing_and_keep_nobody_out() -> Result<()> {
    const AT_ONCE: usize = 500;
    const WAVES: usize = 20;
    let mut nodes = Nodes::new(34, 2, &["--memory", "256MiB"])?;
    let address = nodes.status(0)?["peer_address"].as_str().context("an address")?.to_owned();
    let patience = Some(Duration::from_secs(20));
    let mut guess = TcpStream::connect(&address)?;
    guess.set_read_timeout(patience)?;
    let mut challenge = [0; 32];
    guess.read_exact(&mut challenge)?;
    guess.write_all(&[7; 64])?;
    ensure!(guess.read(&mut challenge)? == 0, "a wrong proof was answered");
    let agent = nodes.agent(0)?;
    let before = memory(agent.as_raw_nonzero(), &["VmRSS"])?;
    for wave in 0..WAVES {
        let idle = (0..AT_ONCE).map(|_| TcpStream::connect(&address));
        let mut idle = idle.collect::<std::io::Result<Vec<_>>>()?;
        if wave == WAVES / 2 {
            nodes.add(&["--memory", "256MiB"])?;
        }
        // In the last wave the server closes every connection; before, the test closes most of
        // them.
        let last = if wave + 1 == WAVES { AT_ONCE } else { 1 };
        for stranger in idle.iter_mut().take(last) {
            stranger.set_read_timeout(patience)?;
            let mut heard = Vec::new();
            // The connection may be reset.
            let _ = stranger.read_to_end(&mut heard);
            ensure!(heard.len() <= 32, "a stranger received {} bytes", heard.len());
        }
    }
    let grown = memory(agent.as_raw_nonzero(), &["VmRSS"])?.saturating_sub(before);
    ensure!(grown < 16 << 20, "strangers took {grown} bytes of memory");
    nodes.await_links()?;
    (0..3).try_for_each(|node| nodes.get_and_compare(node))
}

#[test]
fn agents_of_different_jobs_or_datasets_exchange_nothing() -> Result<()> {
    let nodes = Nodes::new(38, 2, &["--memory", "256MiB"])?;
    let other = |node: &str, task: &str, dataset: &str| {
        let mut command = nodes.scene.dlcmd_at(node, task)?;
        run(command.args(["agent", "start", dataset, "--memory", "256MiB"]))?.code(0)?;
        nodes.scene.get_with(nodes.scene.dlcmd_at(node, task)?, dataset)?;
        let status = status_of(nodes.scene.dlcmd_at(node, task)?);
        run(nodes.scene.dlcmd_at(node, task)?.args(["agent", "stop"]))?.code(0)?;
        status
    };
    (0..2).try_for_each(|node| nodes.get_and_compare(node))?;
    let alone = other("3", "another", "dl://ds")?;
    let source = nodes.scene.path("src");
    run(nodes.dlcmd(0)?.arg("put").arg(source).arg("dl://two"))?.code(0)?;
    let two = other("4", "job", "dl://two")?;
    for status in [alone, two] {
        ensure!(status["peers"] == serde_json::json!([]), "the agent has foreign peers: {status}");
        ensure!(status["chunks_from_servers"] == status["chunks"], "{status}");
        ensure!(status["chunks_from_peers"] == 0 && status["chunks_to_peers"] == 0, "{status}");
    }
    nodes.await_links()
}

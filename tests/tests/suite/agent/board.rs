//! The status of a job on all servers: `dlcmd top` beside the reports of the agents themselves.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::Cluster;
use dl_tests::dice::Dice;
use dl_tests::http::get;
use dl_tests::program::{Server, run};
use dl_tests::{folder, soon};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::{Scene, agent_of, read_epoch, status_of};

const NODES: usize = 4;
const FILES: usize = 2_000;
const EPOCHS: u64 = 3;

/// Three servers over a cluster of Redis, and a job that calls only the first of them.
struct Board {
    scene: Scene,
    servers: Vec<Server>,
    _redis: Cluster,
    _runtime: Runtime,
}

impl Board {
    fn start() -> Result<Self> {
        let runtime = Runtime::new()?;
        let redis = runtime.block_on(Cluster::start(3, 0));
        let folder = tempfile::tempdir()?;
        let store = format!("file://{}", folder.path().join("chunks").display());
        let url = redis.url();
        let flags = ["--meta", &url, "--store", &store, "--http", "127.0.0.1:0"];
        let start = |number: usize| {
            let data = folder.path().join(format!("data{number}"));
            Server::start_with(&data, "127.0.0.1:0", &flags)
        };
        let servers: Vec<_> = (0..3).map(start).collect::<Result<_>>()?;
        let first = servers.first().context("three servers")?;
        folder::fill(&folder.path().join("src"), FILES, 4_000, &Dice::new(5))?;
        first.put(folder.path().join("src"), "dl://ds")?;
        let address = first.address().to_owned();
        let scene = Scene { folder, server: None, address };
        Ok(Self { scene, servers, _redis: redis, _runtime: runtime })
    }

    /// What a server alone knows.
    fn status(&self, server: usize) -> Result<Value> {
        let server = self.servers.get(server).context("a server")?;
        let told = run(server.dlcmd()?.args(["--json", "top", "--count", "1"]))?.code(0)?;
        Ok(serde_json::from_str(told.text().trim())?)
    }

    /// Waits until all servers tell the sum of the agents' hits.
    fn await_hits(&self, hits: u64, members: u64) -> Result<()> {
        for server in 0..self.servers.len() {
            let mut status = Value::Null;
            let told = soon("a server knows the job", || {
                status = self.status(server)?;
                let job = &status["jobs"][0];
                Ok(job["counters"]["hits"] == hits && job["members"] == members)
            });
            ensure!(told.is_ok(), "server {server} knows {status}, not {hits} hits");
        }
        Ok(())
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        for node in 0..NODES {
            let dlcmd = self.scene.dlcmd_at(&node.to_string(), "job");
            if let Ok(agent) = dlcmd.and_then(status_of).and_then(|status| agent_of(&status)) {
                let _ = kill_process(agent, Signal::KILL);
            }
        }
    }
}

/// Keeps S-86.
#[test]
fn each_server_alone_reports_a_job_as_its_agents_do() -> Result<()> {
    let mut board = Board::start()?;
    let mut hits = 0;
    for node in 0..NODES {
        let name = node.to_string();
        let dlcmd = || board.scene.dlcmd_at(&name, "job");
        run(dlcmd()?.args(["agent", "start", "dl://ds", "--memory", "64MiB"]))?.code(0)?;
        for epoch in 0..EPOCHS {
            let (epoch, world) = (epoch.to_string(), NODES.to_string());
            let arguments = ["--seed", "1", "--epoch", &epoch, "--world", &world, "--rank", &name];
            read_epoch(dlcmd()?, "3", &arguments)?;
        }
        hits += status_of(dlcmd()?)?["hits"].as_u64().context("a number of hits")?;
    }
    ensure!(hits == FILES as u64 * EPOCHS, "{hits}");
    let ended = dl_runtime::since_boot();
    board.await_hits(hits, NODES as u64)?;
    let late = dl_runtime::since_boot().saturating_sub(ended);
    ensure!(late < Duration::from_secs(10), "the numbers came {late:?} late");
    // The page of a server asks the same.
    let (code, text) = get(board.servers.get(2).context("a server")?.http(), "/api/v1/status")?;
    let page: Value = serde_json::from_str(&text)?;
    ensure!(code == 200 && page["jobs"][0]["counters"]["hits"] == hits, "{text}");
    let (told, id) = (board.status(1)?, page["jobs"][0]["id"].as_str().context("an id")?);
    let job =
        get(board.servers.get(1).context("a server")?.http(), &format!("/api/v1/tasks/{id}"))?;
    let job: Value = serde_json::from_str(&job.1)?;
    ensure!(job["members"].as_array().map(Vec::len) == Some(NODES), "{job}");
    ensure!(told["datasets"][0]["name"] == "ds", "{told}");
    // The totals stay when the agents leave.
    for node in 0..NODES {
        run(board.scene.dlcmd_at(&node.to_string(), "job")?.args(["agent", "stop"]))?.code(0)?;
    }
    board.await_hits(hits, 0)?;
    // The others see that a server was killed.
    board.servers.pop().context("a server")?.kill()?;
    let killed = dl_runtime::since_boot();
    soon("the others see the killed server", || {
        let silent = |server: &Value| server["is_living"] == false;
        let status = board.status(0)?;
        Ok(status["servers"]
            .as_array()
            .context("servers")?
            .iter()
            .filter(|one| silent(one))
            .count()
            == 1)
    })?;
    let late = dl_runtime::since_boot().saturating_sub(killed);
    ensure!(late < Duration::from_secs(20), "the death was seen {late:?} late");
    let named =
        run(board.servers.first().context("a server")?.dlcmd()?.args(["top", "--count", "1"]))?;
    let text = named.code(0)?.text();
    ensure!(text.contains("SERVER") && text.contains("silent for more than 12 s"), "{text}");
    Ok(())
}

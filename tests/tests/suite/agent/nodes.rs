//! Machines of a job under random network cuts, slow links, stops and kills: no wrong bytes, and an
//! answer for every read.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::net::{HUB, Network};
use dl_tests::program::{Server, run, server_command};
use dl_tests::{rounds, skip, tell};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::worker::Worker;
use super::{Scene, agent_of, pause, status_of};

/// About 30 chunks of 1 MiB. A node's memory holds less than half of them, or all of them.
const FILES: u32 = 3_000;
const FOR_A_PART: &str = "14MiB";
const FOR_ALL: &str = "64MiB";
const NODES: usize = 3;

/// A dataset with machines that read it.
struct Machines {
    network: Network,
    scene: Scene,
    /// Memory of each agent.
    memory: &'static str,
    started: usize,
}

impl Machines {
    /// Prints the reason and returns none if this machine can't create networks.
    fn start(memory: &'static str) -> Result<Option<Self>> {
        if let Some(why) = Network::unavailable_reason()? {
            skip(why)?;
            return Ok(None);
        }
        let network = Network::start(NODES)?;
        let mut scene = Scene::stamped(FILES)?;
        scene.server.take().context("a server")?.stop()?;
        let mut command = server_command()?;
        command
            .args(["--without-keys", "--listen", &format!("{HUB}:7420"), "--data"])
            .arg(scene.path("data"));
        let server = Server::run(network.inside_hub(&command), 1)?;
        scene.address = server.address().to_owned();
        scene.server = Some(server);
        Ok(Some(Self { network, scene, memory, started: 0 }))
    }

    /// A worker on a node. The worker starts the node's agent if none runs.
    fn worker(&mut self, node: usize) -> Result<Worker> {
        self.started += 1;
        let mut command = self.scene.worker_command(self.started)?;
        command.env("DIESEL_AGENT_MEMORY", self.memory);
        command.env("DIESEL_RUNTIME_DIR", self.scene.path(&format!("run{node}")));
        let mut command = self.network.inside(node, &command)?;
        let errors = self.scene.path(&format!("errors-{}", self.started));
        let mut worker = Worker::start(&mut command, errors)?;
        worker.ask("open")?;
        Ok(worker)
    }

    fn dlcmd(&self, node: usize) -> Result<Command> {
        self.network.inside(node, &self.scene.dlcmd_at(&node.to_string(), "job")?)
    }

    fn status(&self, node: usize) -> Result<Value> {
        status_of(self.dlcmd(node)?)
    }

    fn agent(&self, node: usize) -> Option<Pid> {
        agent_of(&self.status(node).ok()?).ok()
    }

    /// Waits until each node has a link to every other node.
    fn await_links(&self) -> Result<()> {
        (0..NODES).try_for_each(|node| self.await_links_of(node, NODES - 1))
    }

    /// Waits until a node has exactly `count` links.
    fn await_links_of(&self, node: usize, count: usize) -> Result<()> {
        let mut status = Value::Null;
        let is_linked = (0..1_500).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            status = self.status(node).unwrap_or_default();
            let peers = status["peers"].as_array().into_iter().flatten();
            peers.filter(|peer| peer["state"] == "up").count() == count
        });
        ensure!(is_linked, "node {node}: {status}");
        Ok(())
    }

    /// Chunks fetched from the servers by all nodes.
    fn fetched(&self) -> Result<u64> {
        let fetched = |node| self.status(node)?["chunks_from_servers"].as_u64().context("a count");
        (0..NODES).map(fetched).sum()
    }

    /// Lets a node or the server fail for a while; `kind` chooses the failure.
    fn fail(&mut self, kind: usize, workers: &mut [Worker], dice: &Dice) -> Result<()> {
        let node = dice.below(NODES);
        let worker = workers.get_mut(node).context("a worker for each node")?;
        match kind {
            0 => {
                worker.process.kill()?;
                *worker = self.worker(node)?;
                worker.tell("mix")
            }
            1 => stop(dice, 2_000, |signal| worker.process.signal(signal)),
            2 => self.agent(node).map_or(Ok(()), |agent| Ok(kill_process(agent, Signal::KILL)?)),
            3 => self.agent(node).map_or(Ok(()), |agent| {
                stop(dice, 5_000, |signal| Ok(kill_process(agent, signal)?))
            }),
            4 => {
                self.network.cut(node)?;
                pause(dice, 4_000);
                self.network.heal(node)
            }
            5 => {
                self.network.slow_down(node)?;
                pause(dice, 4_000);
                self.network.speed_up(node)
            }
            _ => {
                let server = self.scene.server.as_mut().context("a server")?;
                stop(dice, 2_000, |signal| server.process().signal(signal))
            }
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for agent in (0..NODES).filter_map(|node| self.agent(node)) {
            let _ = kill_process(agent, Signal::KILL);
        }
    }
}

#[test]
fn node_pairs_have_two_connections_and_each_chunk_moves_once() -> Result<()> {
    let Some(mut machines) = Machines::start(FOR_A_PART)? else { return Ok(()) };
    let mut workers = (0..NODES).map(|node| machines.worker(node)).collect::<Result<Vec<_>>>()?;
    machines.await_links()?;
    read_all(&mut workers)?;
    let mut connections = 0;
    for node in 0..NODES {
        let ports = machines.status(node)?["peer_address"].as_str().map(str::to_owned);
        let port = ports.as_deref().and_then(|port| port.rsplit_once(':')).context("a port")?.1;
        let filter = format!("( sport = :{port} )");
        let mut ss = Command::new("ss");
        ss.args(["-Htn", "state", "established", &filter]);
        let told = run(&mut machines.network.inside(node, &ss)?)?.code(0)?;
        connections += told.text().lines().count();
    }
    ensure!(connections == NODES * (NODES - 1), "{connections} connections");
    workers.into_iter().try_for_each(|worker| worker.end().map(|_| ()))
}

/// All files read by each of some workers.
fn read_all<'a>(workers: impl IntoIterator<Item = &'a mut Worker>) -> Result<()> {
    for worker in workers {
        ensure!(worker.ask("all")? == format!("{FILES} read"), "files are missing");
    }
    Ok(())
}

#[test]
fn a_node_lost_without_a_reset_costs_the_others_time() -> Result<()> {
    const TIME_MAX: Duration = Duration::from_secs(30);
    let Some(mut machines) = Machines::start(FOR_A_PART)? else { return Ok(()) };
    let mut workers = (0..NODES).map(|node| machines.worker(node)).collect::<Result<Vec<_>>>()?;
    machines.await_links()?;
    read_all(&mut workers)?;
    machines.network.cut(NODES - 1)?;
    let began = clock().monotonic();
    read_all(workers.iter_mut().take(NODES - 1))?;
    let took = clock().monotonic().saturating_sub(began);
    ensure!(took < TIME_MAX, "{took:?} without the lost node");
    (0..NODES - 1).try_for_each(|node| machines.await_links_of(node, NODES - 2))?;
    machines.network.heal(NODES - 1)?;
    machines.await_links()?;
    read_all(&mut workers)?;
    tell(format_args!("two nodes read {FILES} files each beside a lost node in {took:?}"));
    workers.into_iter().try_for_each(|worker| worker.end().map(|_| ()))
}

#[test]
fn nodes_with_different_member_lists_read_no_chunk_again() -> Result<()> {
    /// Longer than servers wait for a member's call.
    const APART: Duration = Duration::from_secs(30);
    let Some(mut machines) = Machines::start(FOR_ALL)? else { return Ok(()) };
    let mut workers = (0..2).map(|node| machines.worker(node)).collect::<Result<Vec<_>>>()?;
    (0..2).try_for_each(|node| machines.await_links_of(node, 1))?;
    read_all(&mut workers)?;
    // The first node does not hear of the third.
    machines.network.hide_hub(0)?;
    workers.push(machines.worker(2)?);
    machines.await_links_of(1, 2)?;
    machines.await_links_of(0, 1)?;
    let until = clock().monotonic() + APART;
    while clock().monotonic() < until {
        read_all(&mut workers)?;
        std::thread::sleep(Duration::from_millis(500));
    }
    machines.network.show_hub(0)?;
    machines.await_links()?;
    read_all(&mut workers)?;
    let (chunks, fetched) = (machines.status(0)?["chunks"].as_u64(), machines.fetched()?);
    ensure!(chunks == Some(fetched), "{fetched} fetches of {chunks:?} chunks");
    workers.into_iter().try_for_each(|worker| worker.end().map(|_| ()))
}

#[test]
fn heavy_random_node_failures_give_no_wrong_byte() -> Result<()> {
    let Some(mut machines) = Machines::start(FOR_A_PART)? else { return Ok(()) };
    let (clock, dice) = (clock(), Dice::new(72));
    let mut workers = Vec::new();
    for node in 0..NODES {
        let mut worker = machines.worker(node)?;
        worker.tell("mix")?;
        workers.push(worker);
    }
    let until = clock.monotonic() + Duration::from_secs(rounds(40, 900));
    let mut steps = 0;
    while clock.monotonic() < until {
        pause(&dice, 500);
        steps += 1;
        machines.fail(steps % 7, &mut workers, &dice)?;
        workers.iter_mut().try_for_each(Worker::must_live)?;
    }
    let mut told = Vec::new();
    for worker in workers {
        told.extend(worker.end()?);
    }
    tell(format_args!("{steps} failures of seven kinds; the last {NODES} workers: {told:?}"));
    let mut last = (0..NODES).map(|node| machines.worker(node)).collect::<Result<Vec<_>>>()?;
    machines.await_links()?;
    read_all(&mut last)?;
    last.into_iter().try_for_each(|worker| worker.end().map(|_| ()))
}

fn stop(dice: &Dice, most: usize, mut signal: impl FnMut(Signal) -> Result<()>) -> Result<()> {
    signal(Signal::STOP)?;
    pause(dice, most);
    signal(Signal::CONT)
}

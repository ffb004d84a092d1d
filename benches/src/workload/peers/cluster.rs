//! Agents of a job on several nodes.
//!
//! Must hold: a measurement starts only after each agent has a connection to each other agent.
//! Every wait ends.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dl_format::ChunkShape;
use serde::Deserialize;

use crate::setup::Network;
use crate::workload::agent::node::{Node, Start, Status, put_chunks};
use crate::workload::agent::reader::ReaderProcess;

/// Files of the dataset, their length, and files of a chunk.
pub(super) const FILES: u32 = 100_000;
pub(super) const LENGTH: usize = 4 << 10;
pub(super) const PER_CHUNK: u32 = 100;

/// Limit of a chunk and size of a slot, in bytes.
pub(super) const SLOT: u32 = 1 << 20;

/// Interval and number of the status queries of a wait.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const LOOKS: u32 = 2_400;

/// Agents of a job.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) nodes: Vec<Node>,
}

/// Location of a job's dataset, and number of its nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) task: &'static str,
    pub(super) server: &'a str,
    pub(super) dataset: &'static str,
    pub(super) folder: &'a Path,
    pub(super) nodes: usize,
    /// Network of the nodes; `None` stands for this machine's network.
    pub(super) network: Option<&'a Network>,
}

#[derive(Debug, Deserialize)]
struct Peer {
    state: String,
}

#[derive(Debug, Deserialize)]
struct Peers {
    peers: Vec<Peer>,
}

pub(super) fn put_files(server: &str, dataset: &str, files: u32) -> Result<()> {
    let shape = ChunkShape::new(SLOT, ChunkShape::default().alignment())?;
    put_chunks(server, dataset, files, LENGTH, PER_CHUNK, shape)
}

/// Memory of each of `nodes` nodes, which together hold a part of a dataset.
pub(super) fn memory(files: u32, part: f64, nodes: usize) -> u64 {
    let chunks = f64::from(files.div_ceil(PER_CHUNK));
    (chunks * part / nodes as f64) as u64 * u64::from(SLOT)
}

impl<'a> Job<'a> {
    /// A job in the machine's network.
    pub(super) fn new(
        task: &'static str,
        server: &'a str,
        dataset: &'static str,
        folder: &'a Path,
        nodes: usize,
    ) -> Self {
        Self { task, server, dataset, folder, nodes, network: None }
    }

    /// Starts the agent of a node.
    pub(super) fn start_node(&self, node: usize, start: &Start) -> Result<Node> {
        let folder = self.folder.join(format!("node{node}"));
        let namespace = self.network.map(|network| network.namespace(node));
        let start = Start { namespace, ..start.clone() };
        Node::start_as(self.task, self.server, self.dataset, &folder, &start)
    }

    /// Starts the agents of all nodes.
    pub(super) fn start_nodes(&self, start: &Start) -> Result<Cluster> {
        let nodes = (0..self.nodes).map(|node| self.start_node(node, start));
        Ok(Cluster { nodes: nodes.collect::<Result<_>>()? })
    }

    /// Starts the agents of all nodes and waits for their connections.
    pub(super) fn start(&self, start: &Start) -> Result<Cluster> {
        let cluster = self.start_nodes(start)?;
        if !start.is_alone {
            cluster.wait_for_peers()?;
        }
        Ok(cluster)
    }
}

impl Cluster {
    /// Starts an agent with the whole dataset, and another with `memory` bytes for chunks.
    pub(super) fn of_giver_and_taker(job: &Job<'_>, giving: &Start, memory: u64) -> Result<Self> {
        let giver = job.start_node(0, giving)?;
        giver.wait()?;
        let taking = Start { memory, policy: "on-demand", ..giving.clone() };
        let pair = Self { nodes: vec![giver, job.start_node(1, &taking)?] };
        pair.wait_for_peers()?;
        Ok(pair)
    }

    /// A reader of each node.
    pub(super) fn readers(&self) -> Result<Vec<ReaderProcess>> {
        self.nodes.iter().map(|node| ReaderProcess::start(&node.reader(LENGTH, 0))).collect()
    }

    /// Waits until each agent has a connection to each other agent.
    pub(super) fn wait_for_peers(&self) -> Result<()> {
        until("the agents don't find each other", || self.has_all_peers())
    }

    /// True once each agent has a connection to each other agent, and no agent lists a further one.
    pub(super) fn has_all_peers(&self) -> Result<bool> {
        for node in &self.nodes {
            let text = node.status_text()?;
            let status: Peers = serde_json::from_str(&text).context("read the status")?;
            let up = status.peers.iter().filter(|peer| peer.state == "up").count();
            if up + 1 != self.nodes.len() || status.peers.len() != up {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn statuses(&self) -> Result<Vec<Status>> {
        self.nodes.iter().map(Node::status).collect()
    }

    /// True once no agent fetches chunks.
    pub(super) fn is_idle(&self) -> Result<bool> {
        let is_idle = |status: &Status| {
            status.fetches == 0 && (status.prefetch_waiting == 0 || status.prefetch_stuck)
        };
        Ok(self.statuses()?.iter().all(is_idle))
    }

    /// Store reads of all agents and readers so far.
    pub(super) fn store_reads(&self) -> Result<u64> {
        Ok(self.statuses()?.iter().map(Status::store_reads).sum())
    }

    /// Chunks received from the servers so far.
    pub(super) fn server_chunks(&self) -> Result<u64> {
        Ok(self.statuses()?.iter().map(|status| status.chunks_from_servers).sum())
    }

    /// Chunks received from other agents so far.
    pub(super) fn peer_reads(&self) -> Result<u64> {
        Ok(self.statuses()?.iter().map(|status| status.chunks_from_peers).sum())
    }
}

/// Waits for `is_so`; fails with `otherwise` after two minutes.
pub(super) fn until(otherwise: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..LOOKS {
        if is_so()? {
            return Ok(());
        }
        sleep(POLL_INTERVAL);
    }
    bail!("{otherwise}");
}

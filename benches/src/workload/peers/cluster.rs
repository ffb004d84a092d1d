//! The agents of one job on several nodes.
//!
//! Must hold: nothing is measured before each agent has a connection to each other one; every wait ends.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dl_format::ChunkShape;
use serde::Deserialize;

use crate::setup::Network;
use crate::workload::agent::node::{Node, Start, Status, put_chunks};

/// Files of the dataset, their length, and files of a chunk.
pub(super) const FILES: u32 = 100_000;
pub(super) const LENGTH: usize = 4 << 10;
pub(super) const PER_CHUNK: u32 = 100;

/// Bytes of a chunk at most, and so of a slot.
pub(super) const SLOT: u32 = 1 << 20;

/// Between two looks at the agents, and how often they are looked at.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: u32 = 2_400;

/// Agents of one job.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) nodes: Vec<Node>,
}

/// Where the dataset of a job is, and how many nodes read it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) task: &'static str,
    pub(super) server: &'a str,
    pub(super) dataset: &'static str,
    pub(super) folder: &'a Path,
    pub(super) nodes: usize,
    /// Nodes without one share this machine's network.
    pub(super) network: Option<&'a Network>,
}

/// Another agent, as an agent shows it.
#[derive(Debug, Deserialize)]
struct Peer {
    state: String,
}

#[derive(Debug, Deserialize)]
struct Peers {
    peers: Vec<Peer>,
}

/// Puts the files of a dataset that the nodes read.
pub(super) fn put_files(server: &str, dataset: &str, files: u32) -> Result<()> {
    let shape = ChunkShape::new(SLOT, ChunkShape::default().alignment())?;
    put_chunks(server, dataset, files, LENGTH, PER_CHUNK, shape)
}

/// Memory of each of so many nodes that together hold this part of a dataset.
pub(super) fn memory(files: u32, part: f64, nodes: usize) -> u64 {
    let chunks = f64::from(files.div_ceil(PER_CHUNK));
    (chunks * part / nodes as f64) as u64 * u64::from(SLOT)
}

impl Job<'_> {
    /// Starts the agent of one node.
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

    /// The same, and waits for their connections.
    pub(super) fn start(&self, start: &Start) -> Result<Cluster> {
        let cluster = self.start_nodes(start)?;
        if !start.is_alone {
            cluster.wait_for_peers()?;
        }
        Ok(cluster)
    }
}

impl Cluster {
    /// Waits until each agent has a connection to each other one.
    pub(super) fn wait_for_peers(&self) -> Result<()> {
        until("the agents don't find each other", || self.has_all_peers())
    }

    /// Whether each agent has a connection to each other one, and knows no other agent.
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

    /// Whether no agent fetches anything now.
    pub(super) fn is_idle(&self) -> Result<bool> {
        let is_idle = |status: &Status| {
            status.fetches == 0 && (status.prefetch_waiting == 0 || status.prefetch_stuck)
        };
        Ok(self.statuses()?.iter().all(is_idle))
    }

    /// Reads of the store by all agents and readers so far.
    pub(super) fn store_reads(&self) -> Result<u64> {
        Ok(self.statuses()?.iter().map(Status::store_reads).sum())
    }

    /// Chunks that came from the servers so far.
    pub(super) fn server_chunks(&self) -> Result<u64> {
        Ok(self.statuses()?.iter().map(|status| status.chunks_from_servers).sum())
    }

    /// Chunks that came from other agents so far.
    pub(super) fn peer_reads(&self) -> Result<u64> {
        Ok(self.statuses()?.iter().map(|status| status.chunks_from_peers).sum())
    }
}

/// Waits until `is_so`, and fails with `otherwise` after two minutes.
pub(super) fn until(otherwise: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..LOOKS {
        if is_so()? {
            return Ok(());
        }
        sleep(LOOK);
    }
    bail!("{otherwise}");
}

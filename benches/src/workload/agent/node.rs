//! A dataset at a server, and the agent of one task on this node.
//!
//! Must hold: the agent ends with the bench; every wait for the agent ends.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dl_format::{Attributes, ChunkShape, FilePath};
use libdiesel::{Client, ConnectOptions, TaskOptions, agent};
use serde::Deserialize;

use super::reader::AgentReader;
use crate::setup::{bytes, dlcmd_at, finish};

/// How long an agent may take to fetch a dataset, in steps of [`LOOK`].
const LOOKS: u32 = 60_000;
const LOOK: Duration = Duration::from_millis(5);

/// Files of a folder.
const PER_FOLDER: u32 = 1_000;

/// A part of what an agent says of itself.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Status {
    pub(super) memory_used: u64,
    pub(super) chunks: u64,
    pub(super) chunks_present: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) fallbacks: u64,
    pub(super) chunks_from_servers: u64,
    pub(super) bytes_from_servers: u64,
    pub(super) failed_fetches: u64,
}

impl Status {
    /// Reads of the servers' store so far: chunks, and files that were read past the cache.
    pub(super) fn store_reads(&self) -> u64 {
        self.chunks_from_servers + self.failed_fetches + self.fallbacks
    }
}

/// An agent, which is stopped when this is dropped.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) server: String,
    pub(super) dataset: &'static str,
    pub(super) folder: PathBuf,
    pub(super) task: &'static str,
}

/// Puts `files` files of `length` bytes into a new dataset.
pub(super) fn put(server: &str, dataset: &str, files: u32, length: usize) -> Result<()> {
    let options = ConnectOptions { servers: vec![server.to_owned()], ..Default::default() };
    let writer =
        Client::connect(options)?.create_dataset(&dataset.parse()?, ChunkShape::default())?;
    let data = bytes(length);
    for file in 0..files {
        let folder = 1_440_764 + file / PER_FOLDER * 7;
        let path = format!("n{folder:08}/n{folder:08}_{}.JPEG", 10_026 + file % PER_FOLDER);
        writer.put(FilePath::new(path)?, Attributes::default(), &data)?;
    }
    Ok(writer.close()?)
}

impl Node {
    /// Starts an agent with the folder for sockets and caches in `folder`.
    pub(super) fn start(
        task: &'static str,
        server: &str,
        dataset: &'static str,
        folder: &Path,
        memory: u64,
        policy: &str,
    ) -> Result<Self> {
        let (server, folder) = (server.to_owned(), folder.to_owned());
        let node = Self { server, dataset, folder, task };
        let mut command = dlcmd_at(&node.server)?;
        command.args(["--task", task, "agent", "start", &format!("dl://{dataset}")]);
        // Where this program is killed, the agent ends soon by itself.
        command.args(["--memory", &memory.to_string(), "--policy", policy, "--idle", "1m"]);
        command.env("DIESEL_RUNTIME_DIR", node.folder.join("run"));
        command.env("XDG_CACHE_HOME", node.folder.join("cache"));
        std::fs::create_dir_all(&node.folder)?;
        finish(&mut command)?;
        Ok(node)
    }

    /// A process that reads files of `length` bytes through the agent.
    pub(super) fn reader(&self, length: usize, seed: u64) -> AgentReader {
        let (server, dataset) = (self.server.clone(), self.dataset.to_owned());
        let (folder, task) = (self.folder.clone(), Some(self.task.to_owned()));
        AgentReader { server, dataset, folder, length, seed, task, memcached: None }
    }

    fn options(&self) -> Result<(ConnectOptions, TaskOptions)> {
        let options =
            ConnectOptions { servers: vec![self.server.clone()], ..ConnectOptions::default() };
        let task = TaskOptions::named(self.task).context("a legal name")?;
        Ok((options, TaskOptions { folder: self.folder.join("run"), ..task }))
    }

    pub(super) fn status(&self) -> Result<Status> {
        let (options, task) = self.options()?;
        let text = agent::status(&options, &task)?;
        serde_json::from_str(&text).context("read the status of the agent")
    }

    /// Waits until all chunks are in memory.
    pub(super) fn wait(&self) -> Result<()> {
        for _ in 0..LOOKS {
            let status = self.status()?;
            if status.chunks_present == status.chunks {
                return Ok(());
            }
            sleep(LOOK);
        }
        bail!("the agent does not fetch the dataset: {:?}", self.status()?);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Ok((options, task)) = self.options() {
            // An agent that does not answer ends by itself once no reader is left.
            let _ = agent::stop(&options, &task);
        }
    }
}

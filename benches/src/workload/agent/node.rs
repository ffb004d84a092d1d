//! A dataset at a server, and the agent of one job on this node.
//!
//! Must hold: the agent ends with the bench; every wait for the agent ends.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dl_format::{Attributes, ChunkShape, FilePath};
use libdiesel::{Client, ConnectOptions, Dataset, SnapshotCache, TaskOptions, agent};
use serde::Deserialize;

use crate::setup::{bytes, connect, dlcmd_at, finish, within};

/// Limit of the wait for a whole dataset, in steps of [`POLL_INTERVAL`].
const LOOKS: u32 = 60_000;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Files of a folder.
const PER_FOLDER: u32 = 1_000;

/// Used fields of an agent's status.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Status {
    pub(crate) memory_used: u64,
    pub(crate) chunks: u64,
    pub(crate) chunks_present: u64,
    pub(crate) chunks_kept: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) fallbacks: u64,
    pub(crate) chunks_from_servers: u64,
    pub(crate) bytes_from_servers: u64,
    pub(crate) chunks_from_peers: u64,
    pub(crate) bytes_from_peers: u64,
    pub(crate) files_from_peers: u64,
    pub(crate) bytes_from_disk: u64,
    pub(crate) chunks_to_disk: u64,
    pub(crate) chunks_on_disk: u64,
    pub(crate) failed_fetches: u64,
    pub(crate) fetches: u64,
    pub(crate) prefetch_waiting: u64,
    pub(crate) prefetch_stuck: bool,
    pub(crate) pid: u32,
}

/// Memory of the agent's arena.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Pages {
    pub(crate) mapped_bytes: u64,
    pub(crate) huge_bytes: u64,
    /// The machine's `shmem_enabled`.
    pub(crate) setting: String,
}

impl Status {
    /// Reads of the servers' store so far: chunks, and files that the cache could not provide.
    pub(crate) fn store_reads(&self) -> u64 {
        self.chunks_from_servers + self.failed_fetches + self.fallbacks
    }
}

/// Options for the start of an agent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Start {
    /// Memory for chunks in bytes.
    pub(crate) memory: u64,
    /// Time of chunk fetches.
    pub(crate) policy: &'static str,
    /// Folders on local disks with their sizes, as in `--tiers`.
    pub(crate) tiers: Option<String>,
    /// Policy of eviction; empty: the usual.
    pub(crate) evict: &'static str,
    /// True for an agent without peers.
    pub(crate) is_alone: bool,
    /// True for TLS between agents.
    pub(crate) has_tls: bool,
    /// Network namespace of the agent and its readers.
    pub(crate) namespace: Option<String>,
}

/// An agent; drop stops it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) server: String,
    pub(crate) dataset: &'static str,
    pub(crate) folder: PathBuf,
    pub(crate) task: &'static str,
    pub(crate) namespace: Option<String>,
}

/// Puts `files` files of `length` bytes into a new dataset.
pub(crate) fn put(server: &str, dataset: &str, files: u32, length: usize) -> Result<()> {
    put_chunks(server, dataset, files, length, files, ChunkShape::default())
}

/// Puts files in chunks of at most `per_chunk` files.
pub(crate) fn put_chunks(
    server: &str,
    dataset: &str,
    files: u32,
    length: usize,
    per_chunk: u32,
    shape: ChunkShape,
) -> Result<()> {
    let writer = connect(server)?.create_dataset(&dataset.parse()?, shape)?;
    let data = bytes(length);
    for file in 0..files {
        let folder = 1_440_764 + file / PER_FOLDER * 7;
        let path = format!("n{folder:08}/n{folder:08}_{}.JPEG", 10_026 + file % PER_FOLDER);
        writer.put(FilePath::new(path)?, Attributes::default(), &data)?;
        if (file + 1).is_multiple_of(per_chunk) {
            let flushed = writer.flush()?;
            ensure!(flushed.failed.is_empty(), "files were not put: {flushed:?}");
        }
    }
    Ok(writer.close()?)
}

/// Opens a dataset through the agent of a job, or straight from the server. The agent is `program`,
/// or dlcmd.
pub(crate) fn open(
    server: &str,
    dataset: &str,
    folder: &Path,
    task: Option<&str>,
    program: Option<PathBuf>,
) -> Result<Dataset> {
    let dataset = dataset.parse()?;
    if let Some(task) = task {
        let (options, mut task) = options(server, task, folder)?;
        task.program = program.or(task.program);
        let options = ConnectOptions { task: Some(task), ..options };
        return Ok(Client::connect(options)?.dataset(&dataset)?);
    }
    let cache = SnapshotCache::new(folder.join("snapshots"), 4 << 30);
    Ok(connect(server)?.dataset(&dataset)?.with_snapshot(&cache)?)
}

fn options(server: &str, task: &str, folder: &Path) -> Result<(ConnectOptions, TaskOptions)> {
    let options = ConnectOptions { servers: vec![server.to_owned()], ..Default::default() };
    let task = TaskOptions::named(task).context("a legal name")?;
    Ok((options, TaskOptions { folder: Some(folder.join("run")), ..task }))
}

impl Node {
    /// Starts an agent; `folder` holds its sockets and caches.
    pub(crate) fn start(
        task: &'static str,
        server: &str,
        dataset: &'static str,
        folder: &Path,
        memory: u64,
        policy: &'static str,
    ) -> Result<Self> {
        let start = Start { memory, policy, ..Start::default() };
        Self::start_as(task, server, dataset, folder, &start)
    }

    /// Starts an agent with the options of `start`.
    pub(crate) fn start_as(
        task: &'static str,
        server: &str,
        dataset: &'static str,
        folder: &Path,
        start: &Start,
    ) -> Result<Self> {
        let (server, folder) = (server.to_owned(), folder.to_owned());
        let namespace = start.namespace.clone();
        let node = Self { server, dataset, folder, task, namespace };
        let mut command = node.dlcmd()?;
        command.args(["start", &format!("dl://{dataset}")]);
        command.args(["--memory", &start.memory.to_string(), "--policy", start.policy]);
        if let Some(tiers) = &start.tiers {
            command.args(["--tiers", tiers]);
        }
        if !start.evict.is_empty() {
            command.args(["--evict", start.evict]);
        }
        // After a kill of the bench, the agent ends soon by itself.
        command.args(["--idle", "5m"]);
        if start.is_alone {
            command.args(["--peer-address", "none"]);
        }
        if start.has_tls {
            command.args(["--peer-tls", "on"]);
        }
        std::fs::create_dir_all(&node.folder)?;
        finish(&mut command)?;
        Ok(node)
    }

    /// Makes the agent fetch the whole dataset, as far as its memory suffices.
    pub(crate) fn prefetch(&self) -> Result<()> {
        let dataset = format!("dl://{}", self.dataset);
        finish(self.dlcmd()?.args(["prefetch", "--wait", &dataset]))
    }

    fn options(&self) -> Result<(ConnectOptions, TaskOptions)> {
        options(&self.server, self.task, &self.folder)
    }

    /// A dlcmd command about the agent.
    fn dlcmd(&self) -> Result<Command> {
        let mut command = within(self.namespace.as_deref(), &dlcmd_at(&self.server)?);
        command.args(["--task", self.task, "agent"]);
        command.env("DIESEL_RUNTIME_DIR", self.folder.join("run"));
        command.env("XDG_CACHE_HOME", self.folder.join("cache"));
        Ok(command)
    }

    pub(crate) fn status(&self) -> Result<Status> {
        serde_json::from_str(&self.status_text()?).context("read the status of the agent")
    }

    pub(crate) fn pages(&self) -> Result<Pages> {
        #[derive(Deserialize)]
        struct OfPages {
            pages: Pages,
        }
        let status = serde_json::from_str::<OfPages>(&self.status_text()?);
        Ok(status.context("read the status of the agent")?.pages)
    }

    /// Waits until the arena is in huge pages, or no more of it gets there.
    pub(crate) fn wait_for_huge_pages(&self) -> Result<()> {
        const STILL_MAX: u32 = 50;
        let (mut before, mut still) = (0, 0);
        while still < STILL_MAX {
            let Pages { mapped_bytes, huge_bytes, .. } = self.pages()?;
            if huge_bytes == mapped_bytes {
                return Ok(());
            }
            still = if huge_bytes == before { still + 1 } else { 0 };
            before = huge_bytes;
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Status as JSON.
    pub(crate) fn status_text(&self) -> Result<String> {
        let (options, task) = self.options()?;
        Ok(agent::status(&options, &task)?)
    }

    /// Waits until all chunks are in memory.
    pub(crate) fn wait(&self) -> Result<()> {
        for _ in 0..LOOKS {
            let status = self.status()?;
            if status.chunks_present == status.chunks {
                return Ok(());
            }
            sleep(POLL_INTERVAL);
        }
        bail!("the agent does not fetch the dataset: {:?}", self.status()?);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Ok((options, task)) = self.options() {
            // An unresponsive agent ends by itself after its last reader.
            let _ = agent::stop(&options, &task);
        }
    }
}

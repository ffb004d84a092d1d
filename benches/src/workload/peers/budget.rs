//! Store reads of four nodes whose memory or disks together fit a whole dataset, or a half.
//!
//! Must hold: all nodes read their shares of an epoch at the same time. With room for a half, the
//! first epochs do not count. A file read past the caches counts as a store read.

use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_store::Throttle;

use super::cluster::{Cluster, FILES, Job, memory, put_files};
use super::first::IN_FLIGHT;
use crate::measure::{Bar, Bench, Side};
use crate::setup::{Server, Settings, SlowServer};
use crate::workload::agent::node::Start;
use crate::workload::agent::reader::{self, ReaderProcess};

const DATASET: &str = "peers-budget";
const NODES: usize = 4;
const GROUP: u32 = 10;

/// Store of the nodes with disks.
const SLOW: Throttle = Throttle {
    latency: Duration::from_millis(5),
    bytes_per_second: NonZeroU64::new(100_000_000),
    requests_per_second: None,
};

/// Memory of all nodes beside disks, as a part of the dataset.
const IN_MEMORY: f64 = 0.2;

/// Epochs before the steady ones.
const FILLING: u64 = 3;
/// Steady epochs of each run.
const EPOCHS: u64 = 4;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("peers-budget");
    let server = Server::start(&folder.join("data"))?;
    let files = settings.scaled(FILES);
    put_files(&server.address, DATASET, files)?;
    let job = Job::new("budget", &server.address, DATASET, &folder, NODES);
    let mut benches = vec![whole(settings, &job, files, 1.3, None)?, half(settings, &job, files)?];
    // An epoch waits for no disk, so a store must be slower than disks for copies of all chunks.
    let server = SlowServer::start(Ipv4Addr::LOCALHOST, IN_FLIGHT)?;
    put_files(&server.address, DATASET, files)?;
    server.set_throttle(SLOW);
    let job = Job::new("disks", &server.address, DATASET, &folder, NODES);
    benches.push(whole(settings, &job, files, IN_MEMORY, Some(1.3))?);
    Ok(benches)
}

/// The agents of all nodes, with room for parts of the dataset in memory and on disk together.
fn start(job: &Job<'_>, files: u32, in_memory: f64, on_disk: Option<f64>) -> Result<Cluster> {
    let mut nodes = Vec::new();
    for node in 0..NODES {
        let tiers = on_disk.map(|part| {
            let folder = job.folder.join(format!("disk{node}"));
            // Copies of an earlier run.
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder)?;
            anyhow::Ok(format!("{}:{}", folder.display(), memory(files, part, NODES)))
        });
        let (memory, tiers) = (memory(files, in_memory, NODES), tiers.transpose()?);
        let start = Start { memory, tiers, policy: "on-demand", ..Start::default() };
        nodes.push(job.start_node(node, &start)?);
    }
    let cluster = Cluster { nodes };
    cluster.wait_for_peers()?;
    Ok(cluster)
}

/// Reads an epoch, one share for each node; returns the store reads.
fn epoch(cluster: &Cluster, readers: &mut [ReaderProcess], epoch: u64, files: u32) -> Result<u64> {
    let before = cluster.store_reads()?;
    let read = reader::epoch(readers, epoch, GROUP)?;
    ensure!(read == u64::from(files), "the readers read {read} files");
    Ok(cluster.store_reads()? - before)
}

/// Four nodes with room for more than the dataset: only the first epoch reads the store.
fn whole(
    settings: &Settings,
    job: &Job<'_>,
    files: u32,
    in_memory: f64,
    on_disk: Option<f64>,
) -> Result<Bench> {
    let mut ours = Side::new("");
    let mut theirs = Side::new("store reads of the first epoch");
    let (mut from_peers, mut chunks) = (0, 0);
    for _ in 0..settings.runs() {
        let cluster = start(job, files, in_memory, on_disk)?;
        let mut readers = cluster.readers()?;
        theirs.samples.push(epoch(&cluster, &mut readers, 0, files)? as f64);
        let before = cluster.peer_reads()?;
        let later = (1..=EPOCHS).map(|number| epoch(&cluster, &mut readers, number, files));
        let later = later.collect::<Result<Vec<_>>>()?;
        ours.samples.push(later.iter().sum::<u64>() as f64);
        ours.what =
            format!("store reads from the second epoch on, of the last run by epoch {later:?}");
        from_peers = (cluster.peer_reads()? - before) / EPOCHS;
        chunks = cluster.nodes[0].status()?.chunks;
    }
    let disks = on_disk
        .map(|part| format!(" and disks for {part} times, a store with 100 MB/s,"))
        .unwrap_or_default();
    let settings = format!(
        "{files} files of 4 KiB in {chunks} chunks, {NODES} nodes with memory for {in_memory} times{disks} as much \
         together, {} epochs, groups of {GROUP} chunks; {from_peers} chunks of an epoch from other \
         agents",
        EPOCHS + 1
    );
    let name = match on_disk {
        None => "peers, all held together",
        Some(_) => "peers, all held together on disks",
    };
    Ok(Bench::new(name, settings, "reads", [ours, theirs], Bar::AtMost(0.0)))
}

/// Four nodes with memory for a half, with peers and without.
fn half(settings: &Settings, job: &Job<'_>, files: u32) -> Result<Bench> {
    let mut ours = Side::new("store reads of an epoch with peers, as a part of the dataset");
    let mut theirs = Side::new("each node alone");
    let mut chunks = 0;
    for _ in 0..settings.runs() {
        for (is_alone, side) in [(false, &mut ours), (true, &mut theirs)] {
            let memory = memory(files, 0.5, NODES);
            let start = Start { memory, policy: "on-demand", is_alone, ..Start::default() };
            let cluster = job.start(&start)?;
            chunks = cluster.nodes[0].status()?.chunks;
            let mut readers = cluster.readers()?;
            let mut steady = 0;
            for number in 0..FILLING + EPOCHS {
                let reads = epoch(&cluster, &mut readers, number, files)?;
                steady += if number < FILLING { 0 } else { reads };
            }
            side.samples.push(steady as f64 / (EPOCHS * chunks) as f64);
        }
    }
    let settings = format!(
        "{files} files of 4 KiB in {chunks} chunks, {NODES} nodes with memory for a half together, \
         {EPOCHS} epochs behind {FILLING} others, groups of {GROUP} chunks, each node reads another \
         random quarter in each epoch"
    );
    let name = "peers, half held together";
    Ok(Bench::new(name, settings, "of the dataset", [ours, theirs], Bar::AtMost(0.60)))
}

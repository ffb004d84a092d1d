//! Store reads of four nodes whose memory together fits a whole dataset, or a half.
//!
//! Must hold: all nodes read their shares of an epoch at the same time. With memory for a half, the
//! first epochs do not count. A file read past the caches counts as a store read.

use anyhow::{Result, ensure};

use super::cluster::{Cluster, FILES, Job, memory, put_files};
use crate::measure::{Bar, Bench, Side};
use crate::setup::{Server, Settings};
use crate::workload::agent::node::Start;
use crate::workload::agent::reader::{self, ReaderProcess};

const DATASET: &str = "peers-budget";
const NODES: usize = 4;
const GROUP: u32 = 10;

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
    Ok(vec![whole(settings, &job, files)?, half(settings, &job, files)?])
}

/// Reads an epoch, one share for each node; returns the store reads.
fn epoch(cluster: &Cluster, readers: &mut [ReaderProcess], epoch: u64, files: u32) -> Result<u64> {
    let before = cluster.store_reads()?;
    let read = reader::epoch(readers, epoch, GROUP)?;
    ensure!(read == u64::from(files), "the readers read {read} files");
    Ok(cluster.store_reads()? - before)
}

/// Four nodes with memory for more than the dataset: only the first epoch reads the store.
fn whole(settings: &Settings, job: &Job<'_>, files: u32) -> Result<Bench> {
    let mut ours = Side::new("");
    let mut theirs = Side::new("store reads of the first epoch");
    let (mut from_peers, mut chunks) = (0, 0);
    for _ in 0..settings.runs() {
        let start =
            Start { memory: memory(files, 1.3, NODES), policy: "on-demand", ..Start::default() };
        let cluster = job.start(&start)?;
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
    let settings = format!(
        "{files} files of 4 KiB in {chunks} chunks, {NODES} nodes with memory for 1.3 times as much \
         together, {} epochs, groups of {GROUP} chunks; {from_peers} chunks of an epoch from other \
         agents",
        EPOCHS + 1
    );
    let name = "peers, all held together";
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

//! Chunks between two agents, beside a plain TCP stream.
//!
//! Must hold: nearly all chunks belong to the agent that holds them; each run has a new agent and a new
//! receiver, so that both write into memory that was never touched.

use anyhow::{Result, ensure};

use super::cluster::{Cluster, Job};
use super::stream::Ends;
use crate::measure::{Bar, Bench, Side, Stopwatch};
use crate::setup::{Server, Settings, processor_seconds, take_from_the_host};
use crate::workload::agent::node::{Start, put};

const DATASET: &str = "peers-transfer";
const BYTES: u32 = 2 << 30;
const LENGTH: usize = 64 << 10;
const CHUNK: u32 = 4 << 20;

/// Memory of the agent that gives, which owns chunks by its share of all memory. It takes only as much as the
/// dataset has.
const MEMORY: u64 = 256 << 30;

/// Runs of each side at least.
const RUNS_MIN: usize = 5;

/// The part of all bytes that has to come from the other agent.
const SHARE_MIN: f64 = 0.95;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("peers-transfer");
    let server = Server::start(&folder.join("data"))?;
    let bytes = settings.scaled(BYTES);
    put(&server.address, DATASET, bytes / LENGTH as u32, LENGTH)?;
    let task = "transfer";
    let job = Job {
        task,
        server: &server.address,
        dataset: DATASET,
        folder: &folder,
        nodes: 2,
        network: None,
    };
    let giving = Start { memory: MEMORY, policy: "oneshot", ..Start::default() };
    let taking = Start { memory: u64::from(bytes) * 5 / 4, policy: "on-demand", ..giving.clone() };
    let giver = job.start_node(0, &giving)?;
    giver.wait()?;
    let mut nodes = vec![giver];
    let mut ends = Ends::start(bytes / CHUNK, CHUNK)?;
    let stopwatch = Stopwatch::new();
    let mut rates =
        [Side::new("chunks from one agent to another, each file checked"), Side::new(STREAM)];
    let mut processor = rates.clone();
    let mut used = [(); 2].map(|()| Side::new("the same into memory that was used before"));
    for round in 0..=settings.runs().max(RUNS_MIN) {
        take_from_the_host(bytes as usize);
        nodes.push(job.start_node(1, &taking)?);
        let pair = Cluster { nodes: std::mem::take(&mut nodes) };
        pair.wait_for_peers()?;
        let before = pair.statuses()?;
        let processes: Vec<u32> = before.iter().map(|status| status.pid).collect();
        let processor_before = processor_seconds(&processes)?;
        let taker = &pair.nodes[1];
        let ((), seconds) = stopwatch.time(|| taker.prefetch())?;
        let processor_seconds = processor_seconds(&processes)? - processor_before;
        let after = taker.status()?;
        let came = (after.bytes_from_peers - before[1].bytes_from_peers) as f64;
        let others = (after.bytes_from_servers - before[1].bytes_from_servers) as f64;
        ensure!(came > SHARE_MIN * (came + others), "too much came from the servers: {after:?}");
        nodes = pair.nodes;
        nodes.truncate(1);
        take_from_the_host(bytes as usize);
        let sent = f64::from(bytes / CHUNK) * f64::from(CHUNK);
        let (stream_seconds, stream_processor) = ends.run(true)?;
        let (used_seconds, used_processor) = ends.run(false)?;
        if round > 0 {
            rates[0].samples.push(came / seconds / 1e6);
            rates[1].samples.push(sent / stream_seconds / 1e6);
            processor[0].samples.push(processor_seconds / (came + others) * 1e9);
            processor[1].samples.push(stream_processor / sent * 1e9);
            used[0].samples.push(sent / used_seconds / 1e6);
            used[1].samples.push(used_processor / sent * 1e9);
        }
    }
    let settings = format!(
        "{} MiB in chunks of 4 MiB with files of 64 KiB, new memory at the receiving end, loopback",
        bytes >> 20
    );
    let [used_rate, used_processor] = used;
    let (rates_of_used, processor_of_used) =
        ([rates[0].clone(), used_rate], [processor[0].clone(), used_processor]);
    let bench = |name: &str, unit, [ours, theirs]: [Side; 2], bar| Bench {
        name: format!("peers {name}"),
        settings: settings.clone(),
        unit,
        ours,
        theirs,
        bar,
    };
    Ok(vec![
        bench("chunks", "MB/s", rates, Bar::AtLeastTimes(0.65)),
        bench("processor time", "s/GB", processor, Bar::AtMostTimes(1.7)),
        // Only the stream is spared the making of pages.
        bench("chunks beside used memory", "MB/s", rates_of_used, Bar::None),
        bench("processor time beside used memory", "s/GB", processor_of_used, Bar::None),
    ])
}

const STREAM: &str = "a plain TCP stream, writes of 4 MiB into as many slots";

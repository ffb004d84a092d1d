//! Chunks between two agents, beside a plain TCP stream.
//!
//! Must hold: nearly all chunks belong to the agent that holds them. Each run has a new agent and a
//! new receiver, so both write into untouched memory.

use anyhow::{Result, ensure};

use super::cluster::{Cluster, Job};
use super::stream::StreamPair;
use crate::measure::{Bar, Bench, Side, Stopwatch};
use crate::setup::{Server, Settings, processor_seconds, take_from_the_host};
use crate::workload::agent::node::{Start, Status, put};

const DATASET: &str = "peers-transfer";
const BYTES: u32 = 2 << 30;
pub(super) const LENGTH: usize = 64 << 10;
pub(super) const CHUNK: u32 = 4 << 20;

/// Memory of the sending agent, which owns chunks by its share of all memory. The agent uses only
/// as much memory as the dataset needs.
pub(super) const MEMORY: u64 = 256 << 30;

/// Least number of runs of each side.
const RUNS_MIN: usize = 5;

/// Least part of all bytes that comes from the other agent.
const SHARE_MIN: f64 = 0.95;

/// Samples of the agents, of the stream, and of the stream into used memory.
struct Samples {
    rates: [Side; 3],
    processor: [Side; 3],
}

/// Measures transfers; `more` adds measurements with the same dataset of `bytes` bytes.
pub(super) fn run(
    settings: &Settings,
    more: impl FnOnce(&Settings, &Job<'_>, u32) -> Result<Vec<Bench>>,
) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("peers-transfer");
    let server = Server::start(&folder.join("data"))?;
    let bytes = settings.scaled(BYTES);
    put(&server.address, DATASET, bytes / LENGTH as u32, LENGTH)?;
    let job = Job {
        task: "transfer",
        server: &server.address,
        dataset: DATASET,
        folder: &folder,
        nodes: 2,
        network: None,
    };
    let described = format!(
        "{} MiB in chunks of 4 MiB with files of 64 KiB, new memory at the receiving end, loopback",
        bytes >> 20
    );
    let bench = |name: &str, unit, [ours, theirs]: [&Side; 2], bar| Bench {
        name: format!("peers {name}"),
        settings: described.clone(),
        unit,
        ours: ours.clone(),
        theirs: theirs.clone(),
        bar,
    };
    let mut stream_pair = StreamPair::start(bytes / CHUNK, CHUNK, 1)?;
    let plain = measure(settings, &job, bytes, &mut stream_pair, false)?;
    let tls = measure(settings, &job, bytes, &mut stream_pair, true)?;
    drop(stream_pair);
    let Samples { rates: [ours, stream, used], processor } = &plain;
    let [our_processor, stream_processor, used_processor] = processor;
    let mut benches = vec![
        bench("chunks", "MB/s", [ours, stream], Bar::AtLeastTimes(0.65)),
        bench("processor time", "s/GB", [our_processor, stream_processor], Bar::AtMostTimes(1.7)),
        // Only the stream needs no new pages.
        bench("chunks beside used memory", "MB/s", [ours, used], Bar::None),
        bench(
            "processor time beside used memory",
            "s/GB",
            [our_processor, used_processor],
            Bar::None,
        ),
    ];
    let Samples { rates: [ours, stream, _], processor: [our_processor, stream_processor, _] } =
        &tls;
    benches.extend([
        bench("chunks, TLS", "MB/s", [ours, stream], Bar::AtLeastTimes(0.45)),
        bench("processor time, TLS", "s/GB", [our_processor, stream_processor], Bar::None),
    ]);
    benches.extend(more(settings, &job, bytes)?);
    Ok(benches)
}

/// Fetches the dataset into new agents, and streams as many bytes, in turns.
fn measure(
    settings: &Settings,
    job: &Job<'_>,
    bytes: u32,
    stream_pair: &mut StreamPair,
    has_tls: bool,
) -> Result<Samples> {
    let giving = Start { memory: MEMORY, policy: "oneshot", has_tls, ..Start::default() };
    let taking = Start { memory: u64::from(bytes) * 5 / 4, policy: "on-demand", ..giving.clone() };
    let giver = job.start_node(0, &giving)?;
    giver.wait()?;
    let mut nodes = vec![giver];
    let stopwatch = Stopwatch::new();
    let ours = if has_tls {
        "chunks from one agent to another over TLS, each file checked"
    } else {
        "chunks from one agent to another, each file checked"
    };
    let sides = [ours, STREAM, "the same into memory that was used before"].map(Side::new);
    let mut samples = Samples { rates: sides.clone(), processor: sides };
    for round in 0..=runs(settings) {
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
        let received = received(&before[1], &taker.status()?)?;
        nodes = pair.nodes;
        nodes.truncate(1);
        take_from_the_host(bytes as usize);
        let sent = f64::from(bytes / CHUNK) * f64::from(CHUNK);
        let (stream_seconds, stream_processor) = stream_pair.run(true)?;
        let (used_seconds, used_processor) = stream_pair.run(false)?;
        let runs = [
            (received.from_peer, seconds, processor_seconds * received.from_peer / received.all),
            (sent, stream_seconds, stream_processor),
            (sent, used_seconds, used_processor),
        ];
        if round > 0 {
            samples.add(runs);
        }
    }
    Ok(samples)
}

const STREAM: &str = "a plain TCP stream, writes of 4 MiB into as many slots";

impl Samples {
    /// Adds bytes, seconds, and seconds of processor time of one run.
    fn add(&mut self, runs: [(f64, f64, f64); 3]) {
        let Self { rates, processor } = self;
        for (index, (bytes, seconds, processor_seconds)) in runs.into_iter().enumerate() {
            rates[index].samples.push(bytes / seconds / 1e6);
            processor[index].samples.push(processor_seconds / bytes * 1e9);
        }
    }
}

/// Number of runs of each side.
pub(super) fn runs(settings: &Settings) -> usize {
    settings.runs().max(RUNS_MIN)
}

/// Bytes received by an agent.
pub(super) struct Received {
    pub(super) from_peer: f64,
    pub(super) all: f64,
}

/// Bytes received between two states of an agent; fails for too many bytes from the servers.
pub(super) fn received(before: &Status, after: &Status) -> Result<Received> {
    let from_peer = (after.bytes_from_peers - before.bytes_from_peers) as f64;
    let others = (after.bytes_from_servers - before.bytes_from_servers) as f64;
    let all = from_peer + others;
    ensure!(from_peer > SHARE_MIN * all, "the servers sent too many bytes: {after:?}");
    Ok(Received { from_peer, all })
}

//! Chunks between two agents, beside a plain TCP stream.
//!
//! Must hold: nearly all chunks belong to the agent that holds them. Each run has a new agent and a
//! new receiver, so both write into untouched memory.

use anyhow::{Result, ensure};

use super::cluster::{Cluster, Job};
use super::stream::StreamPair;
use crate::measure::{Bar, Bench, Side, in_turns, time};
use crate::setup::{Server, Settings, processor_seconds, take_from_the_host};
use crate::workload::agent::node::{Start, Status, put};
use crate::workload::agent::runs;

const DATASET: &str = "peers-transfer";
const BYTES: u32 = 2 << 30;
pub(super) const LENGTH: usize = 64 << 10;
pub(super) const CHUNK: u32 = 4 << 20;

/// Memory of the sending agent, which owns chunks by its share of all memory. The agent uses only
/// as much memory as the dataset needs.
pub(super) const MEMORY: u64 = 256 << 30;

/// Least part of all bytes that comes from the other agent.
const SHARE_MIN: f64 = 0.95;

/// Measures transfers; `more` adds measurements with the same dataset of `bytes` bytes.
pub(super) fn run(
    settings: &Settings,
    more: impl FnOnce(&Settings, &Job<'_>, u32) -> Result<Vec<Bench>>,
) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("peers-transfer");
    let server = Server::start(&folder.join("data"))?;
    let bytes = settings.scaled(BYTES);
    put(&server.address, DATASET, bytes / LENGTH as u32, LENGTH)?;
    let job = Job::new("transfer", &server.address, DATASET, &folder, 2);
    let described = format!(
        "{} MiB in chunks of 4 MiB with files of 64 KiB, new memory at the receiving end, loopback",
        bytes >> 20
    );
    let bench = |name: &str, unit, sides: [&Side; 2], bar| {
        Bench::new(format!("peers {name}"), &described, unit, sides.map(Side::clone), bar)
    };
    let mut stream_pair = StreamPair::start(bytes / CHUNK, CHUNK, 1)?;
    let plain = measure(settings, &job, bytes, &mut stream_pair, false)?;
    let tls = measure(settings, &job, bytes, &mut stream_pair, true)?;
    drop(stream_pair);
    let [ours, stream, used, our_time, stream_time, used_time] = &plain;
    let [tls_ours, tls_stream, _, tls_time, tls_stream_time, _] = &tls;
    let mut benches = vec![
        bench("chunks", "MB/s", [ours, stream], Bar::AtLeastTimes(0.65)),
        bench("processor time", "s/GB", [our_time, stream_time], Bar::AtMostTimes(1.7)),
        // Only the stream needs no new pages.
        bench("chunks beside used memory", "MB/s", [ours, used], Bar::None),
        bench("processor time beside used memory", "s/GB", [our_time, used_time], Bar::None),
        bench("chunks, TLS", "MB/s", [tls_ours, tls_stream], Bar::AtLeastTimes(0.45)),
        bench("processor time, TLS", "s/GB", [tls_time, tls_stream_time], Bar::None),
    ];
    benches.extend(more(settings, &job, bytes)?);
    Ok(benches)
}

/// Fetches the dataset into new agents, and streams as many bytes, in turns. Returns MB a second of
/// the agents, of the stream, and of the stream into used memory; then processor seconds for a GB.
fn measure(
    settings: &Settings,
    job: &Job<'_>,
    bytes: u32,
    stream_pair: &mut StreamPair,
    has_tls: bool,
) -> Result<[Side; 6]> {
    let giving = Start { memory: MEMORY, policy: "oneshot", has_tls, ..Start::default() };
    let taking = Start { memory: u64::from(bytes) * 5 / 4, policy: "on-demand", ..giving.clone() };
    let giver = job.start_node(0, &giving)?;
    giver.wait()?;
    let mut nodes = vec![giver];
    let ours = if has_tls {
        "chunks from one agent to another over TLS, each file checked"
    } else {
        "chunks from one agent to another, each file checked"
    };
    let used = "the same into memory that was used before";
    in_turns(runs(settings), [ours, STREAM, used, ours, STREAM, used], |_| {
        take_from_the_host(bytes as usize);
        nodes.push(job.start_node(1, &taking)?);
        let pair = Cluster { nodes: std::mem::take(&mut nodes) };
        pair.wait_for_peers()?;
        let before = pair.statuses()?;
        let processes: Vec<u32> = before.iter().map(|status| status.pid).collect();
        let processor_before = processor_seconds(&processes)?;
        let taker = &pair.nodes[1];
        let ((), seconds) = time(|| taker.prefetch())?;
        let processor_seconds = processor_seconds(&processes)? - processor_before;
        let received = received(&before[1], &taker.status()?)?;
        nodes = pair.nodes;
        nodes.truncate(1);
        take_from_the_host(bytes as usize);
        let sent = f64::from(bytes / CHUNK) * f64::from(CHUNK);
        let (stream_seconds, stream_processor) = stream_pair.run(true)?;
        let (used_seconds, used_processor) = stream_pair.run(false)?;
        Ok([
            received.from_peer / seconds / 1e6,
            sent / stream_seconds / 1e6,
            sent / used_seconds / 1e6,
            processor_seconds / received.all * 1e9,
            stream_processor / sent * 1e9,
            used_processor / sent * 1e9,
        ])
    })
}

const STREAM: &str = "a plain TCP stream, writes of 4 MiB into as many slots";

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

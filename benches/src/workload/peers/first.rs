//! First epoch of nodes with empty caches, beside readers without caches.
//!
//! Must hold: all sides read the same epoch over the same links from a store of the same speed.
//! Each run uses new agents.

use std::num::NonZeroU64;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_store::Throttle;

use super::cluster::{FILES, Job, LENGTH, PER_CHUNK, memory, put_files};
use crate::measure::{Bar, Bench, Side, time};
use crate::setup::{Network, Settings, SlowServer};
use crate::workload::agent::node::Start;
use crate::workload::agent::reader::{self, AgentReader, Command, ReaderProcess, together};

const DATASET: &str = "peers-first";
pub(super) const NODES: usize = 4;
const GROUP: u32 = 10;

/// Megabits a second of each link.
pub(super) const LINK: u32 = 1_000;

/// Store behind the server.
const SLOW: Throttle = Throttle {
    latency: Duration::from_millis(5),
    bytes_per_second: NonZeroU64::new(60_000_000),
    requests_per_second: None,
};
pub(super) const IN_FLIGHT: usize = 16;

/// Configuration of the readers and agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Straight,
    Alone,
    Peers,
    OneShot,
}

const MODES: [(Mode, &str); 4] = [
    (Mode::Straight, "straight from the server, without agents"),
    (Mode::Alone, "each node with an agent that speaks to no other one"),
    (Mode::Peers, "agents that give chunks to each other, policy on-demand"),
    (Mode::OneShot, "the same, policy oneshot, without the files that agents had before"),
];

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let Some(network) = Network::start(NODES, LINK)? else { return Ok(Vec::new()) };
    let folder = settings.on_disk("peers-first");
    let server = SlowServer::start(network.address(), IN_FLIGHT)?;
    let files = settings.scaled(FILES);
    put_files(&server.address, DATASET, files)?;
    let job = Job {
        network: Some(&network),
        ..Job::new("first", &server.address, DATASET, &folder, NODES)
    };
    server.set_throttle(SLOW);
    let mut sides = MODES.map(|(_, name)| Side::new(name));
    for round in 0..settings.runs() {
        for ((mode, _), side) in MODES.iter().zip(&mut sides) {
            side.samples.push(epoch(&job, *mode, files, round as u64)?);
        }
    }
    let settings = format!(
        "{files} files of 4 KiB in {} chunks, {NODES} nodes with links of {LINK} Mbit/s and a quarter of \
         the epoch each, groups of {GROUP} chunks, a store with 5 ms and 60 MB/s",
        files.div_ceil(PER_CHUNK)
    );
    let [straight, alone, peers, oneshot] = sides;
    let bench = |name: &str, ours, bar| {
        let name = format!("peers first epoch{name}");
        Bench::new(name, &settings, "files/s", [ours, straight.clone()], bar)
    };
    Ok(vec![
        bench("", peers, Bar::AtLeastTimes(0.95)),
        bench(", oneshot", oneshot, Bar::AtLeastTimes(0.95)),
        bench(", agents alone", alone, Bar::None),
    ])
}

/// Runs one first epoch; returns files a second of all nodes together.
fn epoch(job: &Job<'_>, mode: Mode, files: u32, number: u64) -> Result<f64> {
    let policy = if mode == Mode::OneShot { "oneshot" } else { "on-demand" };
    let is_alone = mode == Mode::Alone;
    let memory = memory(files, 1.3, job.nodes);
    let start = Start { memory, policy, is_alone, ..Start::default() };
    let cluster = if mode == Mode::OneShot { job.start_nodes(&start) } else { job.start(&start) }?;
    let readers = cluster.nodes.iter().map(|node| {
        let reader = node.reader(LENGTH, 0);
        match mode {
            Mode::Straight => ReaderProcess::start(&AgentReader { task: None, ..reader }),
            _ => ReaderProcess::start(&reader),
        }
    });
    let mut readers = readers.collect::<Result<Vec<_>>>()?;
    together(&mut readers, Command::Ready)?;
    // With oneshot, agents begin before their readers.
    let had = cluster.server_chunks()? * u64::from(PER_CHUNK);
    let (read, seconds) = time(|| reader::epoch(&mut readers, number, GROUP))?;
    ensure!(read == u64::from(files), "the readers read {read} files");
    Ok((read - had) as f64 / seconds)
}

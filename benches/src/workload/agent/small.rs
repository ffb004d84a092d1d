//! Epochs through a cache smaller than the dataset, over a slow store.
//!
//! Must hold: the epochs of one cache follow without a pause, because the agent would fetch ahead
//! in it. The first epoch fills the cache and does not count.

use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use dl_store::Throttle;

use super::BYTES;
use super::node::{Node, put};
use super::reader::{BATCH, Command, ReaderProcess};
use crate::measure::{Bar, Bench, Side, in_turns};
use crate::setup::{Settings, SlowServer};

const LENGTH: usize = 4 << 10;
const DATASET: &str = "small-budget";
const GROUP: u32 = 10;
const IN_FLIGHT: usize = 16;

/// Pause of the reader after each batch in microseconds; the reader then takes less than 200 MB/s.
const REST: u64 = 1_250;

/// Cached part of the dataset, and store speed relative to the reader's.
struct Row {
    name: &'static str,
    cached: f64,
    store: f64,
    bar: f64,
}

const ROWS: [Row; 3] = [
    Row { name: "a quarter cached, store 0.85", cached: 0.25, store: 0.85, bar: 0.94 },
    Row { name: "half cached, store 1.1 x the rest", cached: 0.5, store: 1.1 * 0.5, bar: 0.93 },
    Row {
        name: "three quarters cached, store 1.1 x the rest",
        cached: 0.75,
        store: 1.1 * 0.25,
        bar: 0.84,
    },
];

/// A dataset at a slow server, and the folder of its agents.
struct Setup<'a> {
    settings: &'a Settings,
    server: SlowServer,
    folder: PathBuf,
    files: u32,
}

/// Rates with the whole dataset in memory, number of chunks, and length of a slot.
struct Whole {
    rates: Side,
    chunks: u64,
    slot: u64,
}

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("agent-small");
    let server = SlowServer::start(Ipv4Addr::LOCALHOST, IN_FLIGHT)?;
    let files = settings.scaled(BYTES) / LENGTH as u32;
    put(&server.address, DATASET, files, LENGTH)?;
    let setup = Setup { settings, server, folder, files };
    let whole = setup.whole()?;
    let mut benches = Vec::new();
    for row in ROWS {
        benches.extend(setup.part(&whole, &row)?);
    }
    Ok(benches)
}

impl Setup<'_> {
    fn node(&self, task: &'static str, memory: u64, policy: &'static str) -> Result<Node> {
        Node::start(task, &self.server.address, DATASET, &self.folder, memory, policy)
    }

    /// Measures epochs through a cache of the whole dataset.
    fn whole(&self) -> Result<Whole> {
        let memory = u64::from(self.files) * LENGTH as u64 * 5 / 4 + (256 << 20);
        let node = self.node("whole", memory, "oneshot")?;
        node.wait()?;
        let mut reader = ReaderProcess::start(&node.reader(LENGTH, 0))?;
        let [rates] = in_turns(self.settings.runs(), ["all chunks in memory"], |number| {
            Ok([epoch(&mut reader, number)?])
        })?;
        let status = node.status()?;
        ensure!(status.misses == 0, "the dataset was not cached: {status:?}");
        let slot = status.memory_used / status.chunks_present;
        Ok(Whole { rates, chunks: status.chunks, slot })
    }

    /// Measures epochs through a cache of a part of the dataset.
    fn part(&self, whole: &Whole, row: &Row) -> Result<[Bench; 2]> {
        let Whole { rates: cached, chunks, slot } = whole;
        let slots = (*chunks as f64 * row.cached) as u64;
        self.server.set_throttle(Throttle::default());
        let node = self.node("part", slots * slot, "on-demand")?;
        let mut reader = ReaderProcess::start(&node.reader(LENGTH, 0))?;
        reader.run(Command::Ready)?;
        let store = cached.median() * LENGTH as f64 * row.store;
        let bytes_per_second = NonZeroU64::new(store as u64);
        self.server.set_throttle(Throttle { bytes_per_second, ..Throttle::default() });
        let names = [
            "the cache of a part, from the second epoch on",
            "chunks and files read from the store in an epoch",
            "chunks that are not cached, two groups and 1 %",
        ];
        let missing = (chunks - slots) as f64 + f64::from(2 * GROUP);
        let mut before = 0;
        let [ours, reads, bound] = in_turns(self.settings.runs(), names, |number| {
            let rate = epoch(&mut reader, number)?;
            let after = node.status()?.store_reads();
            let reads = (after - std::mem::replace(&mut before, after)) as f64;
            Ok([rate, reads, missing + *chunks as f64 / 100.0])
        })?;
        let settings = format!(
            "{} files of 4 KiB in {chunks} chunks, groups of {GROUP} chunks, {slots} slots; one \
             reader that rests for {REST} us after each {BATCH} files, so that it takes {:.0} MB/s \
             from memory; a store of {:.0} MB/s; the sides one after the other",
            self.files,
            cached.median() * LENGTH as f64 / 1e6,
            store / 1e6,
        );
        let bench = |name: &str, unit, sides, bar| {
            Bench::new(format!("agent {}{name}", row.name), &settings, unit, sides, bar)
        };
        let bar = if row.cached == 0.25 { Bar::AtMostTimes(1.0) } else { Bar::None };
        Ok([
            bench("", "files/s", [ours, cached.clone()], Bar::AtLeastTimes(row.bar)),
            bench(", store reads", "reads", [reads, bound], bar),
        ])
    }
}

/// Reads an epoch; returns files a second.
fn epoch(reader: &mut ReaderProcess, epoch: u64) -> Result<f64> {
    let command = Command::Epoch { epoch, rank: 0, world: 1, group: GROUP, rest: REST };
    Ok(reader.run(command)?.rate())
}

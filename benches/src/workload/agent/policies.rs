//! Reads of the store under each policy of eviction, along an order and in none.
//!
//! Must hold: each policy reads the same files in the same order, through a new agent. The first reads
//! fill the cache and don't count.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use dl_format::ChunkShape;
use dl_runtime::{Random, SeededRandom};
use libdiesel::{Dataset, ShuffleOptions};

use super::node::{Node, Start, open, put_chunks};
use crate::measure::{Bar, Bench, Side, add};
use crate::setup::{Server, Settings};

const DATASET: &str = "policies";

/// A file has a chunk of its own, so that a read of a file is a read of its chunk.
const CHUNK: u32 = 1 << 20;
const LENGTH: usize = 300 << 10;
const CHUNKS: u32 = 1_000;
const CHUNKS_MIN: u32 = 100;

/// Chunks of a group, and reads of each file on average.
const GROUP: u32 = 10;
const READS: u64 = 5;
const SEED: u64 = 7;

const POLICIES: [&str; 4] = ["keep", "lru", "lfu", "fifo"];

/// The files that a reader reads.
#[derive(Debug, Clone, Copy)]
enum Pattern {
    /// Whole epochs.
    Epochs(u64),
    /// Files in no order, by a Zipf distribution with an exponent.
    Zipf(f64),
}

/// A pattern with the part of the dataset that memory holds, and the bar of `lfu` beside `keep`.
struct Row {
    name: &'static str,
    pattern: Pattern,
    cached: f64,
    lfu: Bar,
}

const ROWS: [Row; 7] = [
    Row { name: "epochs, 25 %", pattern: Pattern::Epochs(2), cached: 0.25, lfu: Bar::None },
    Row { name: "epochs, 50 %", pattern: Pattern::Epochs(2), cached: 0.5, lfu: Bar::None },
    Row { name: "epochs, 75 %", pattern: Pattern::Epochs(2), cached: 0.75, lfu: Bar::None },
    Row { name: "Zipf 0.6, 10 %", pattern: Pattern::Zipf(0.6), cached: 0.1, lfu: Bar::None },
    Row { name: "Zipf 0.6, 50 %", pattern: Pattern::Zipf(0.6), cached: 0.5, lfu: Bar::None },
    Row {
        name: "Zipf 0.9, 10 %",
        pattern: Pattern::Zipf(0.9),
        cached: 0.1,
        lfu: Bar::AtMostTimes(0.75),
    },
    Row { name: "Zipf 0.9, 50 %", pattern: Pattern::Zipf(0.9), cached: 0.5, lfu: Bar::None },
];

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("agent-policies");
    let server = Server::start(&folder.join("server"))?;
    let chunks = settings.scaled(CHUNKS).max(CHUNKS_MIN);
    put_chunks(&server.address, DATASET, chunks, LENGTH, 1, ChunkShape::new(CHUNK, 64)?)?;
    let mut benches = Vec::new();
    for row in ROWS {
        let mut sides = POLICIES.map(Side::new);
        let mut reads = [0.0; 4];
        for (policy, reads) in POLICIES.into_iter().zip(&mut reads) {
            *reads = store_reads(&server.address, &folder, policy, &row, chunks)?;
        }
        add(&mut sides, reads);
        benches.extend(beside_keep(&row, chunks, sides));
    }
    Ok(benches)
}

/// The reads of the store by one policy, as a part of the files read.
fn store_reads(
    server: &str,
    folder: &Path,
    policy: &'static str,
    row: &Row,
    chunks: u32,
) -> Result<f64> {
    let memory = (f64::from(chunks) * row.cached) as u64 * u64::from(CHUNK);
    let start = Start { memory, policy: "on-demand", evict: policy, ..Start::default() };
    let node = Node::start_as("policies", server, DATASET, folder, &start)?;
    let dataset = open(server, DATASET, folder, Some("policies"), None)?;
    let random = SeededRandom::new(SEED);
    let read = |part: u64| match row.pattern {
        Pattern::Epochs(count) => read_epochs(&dataset, part * count..(part + 1) * count),
        Pattern::Zipf(exponent) => read_zipf(&dataset, exponent, &random),
    };
    read(0)?;
    let before = node.status()?.store_reads();
    let files = read(1)?;
    Ok((node.status()?.store_reads() - before) as f64 / files as f64)
}

fn read_epochs(dataset: &Dataset, epochs: Range<u64>) -> Result<u64> {
    let mut files = 0;
    for number in epochs {
        let epoch = dataset.shuffle(ShuffleOptions::new(SEED, number, GROUP))?;
        while let Some(file) = epoch.next()? {
            ensure!(file.bytes?.len() == LENGTH, "{} has another length", file.path);
            files += 1;
        }
    }
    Ok(files)
}

fn read_zipf(dataset: &Dataset, exponent: f64, random: &SeededRandom) -> Result<u64> {
    let snapshot = dataset.snapshot().context("there is a snapshot")?;
    let paths: Vec<_> =
        (0..snapshot.files()).map(|number| snapshot.path(number)).collect::<Result<_, _>>()?;
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=paths.len())
        .map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        })
        .collect();
    let reads = paths.len() as u64 * READS;
    for _ in 0..reads {
        let at = (random.u64() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        let rank = sums.partition_point(|sum| *sum <= at);
        let path = paths.get(rank.min(paths.len() - 1)).context("a file of the dataset")?;
        ensure!(dataset.get(path)?.len() == LENGTH, "{path} has another length");
    }
    Ok(reads)
}

/// A row of each policy, with `keep` as the other side.
fn beside_keep(row: &Row, chunks: u32, [keep, lru, lfu, fifo]: [Side; 4]) -> [Bench; 3] {
    let settings = format!(
        "{chunks} files, each in a chunk of its own; reads of the store as a part of the files read, \
         after as many reads before"
    );
    [(lru, Bar::None), (lfu, row.lfu), (fifo, Bar::None)].map(|(side, bar)| {
        let name = format!("agent policies, {}: {}", row.name, side.what);
        Bench::new(name, &settings, "store reads", [side, keep.clone()], bar)
    })
}

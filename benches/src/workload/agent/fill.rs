//! A cache in use before it is full: a first epoch, a whole fill, and first reads of absent chunks.
//!
//! Must hold: every run uses a new agent, and so untouched memory. The other side reads the same
//! files in the same order from the same server.

use std::num::NonZeroU64;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_store::Throttle;
use libdiesel::agent::{Arena, Shape};

use super::node::{Node, put};
use super::reader::{AgentReader, Command, ReaderProcess};
use super::{BYTES, runs};
use crate::measure::{Bar, Bench, Side, Stopwatch};
use crate::setup::{Server, Settings, SlowServer, take_from_the_host};

const LENGTH: usize = 4 << 10;
const DATASET: &str = "fill";

/// Processes of one epoch.
const PROCESSES: u32 = 4;
const GROUP: u32 = 10;

/// Store of the first reads.
const SLOW: Throttle = Throttle {
    latency: Duration::from_millis(20),
    bytes_per_second: NonZeroU64::new(50_000_000),
    requests_per_second: None,
};
const IN_FLIGHT: usize = 16;
const FIRST_READS: usize = 6;
const FIRST_BYTES: u32 = 512 << 20;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("agent-fill");
    let server = Server::start(&folder.join("data"))?;
    let files = settings.scaled(BYTES) / LENGTH as u32;
    put(&server.address, DATASET, files, LENGTH)?;
    let mut benches = epochs(settings, &server.address, &folder, files)?;
    benches.push(oneshot(settings, &server.address, &folder, files)?);
    drop(server);
    benches.push(first_reads(settings)?);
    Ok(benches)
}

/// Memory for all chunks of `files` files, with a reserve.
fn room(files: u32) -> u64 {
    u64::from(files) * LENGTH as u64 * 5 / 4 + (256 << 20)
}

/// First epoch of four processes, beside the same order straight from the server.
fn epochs(settings: &Settings, server: &str, folder: &Path, files: u32) -> Result<Vec<Bench>> {
    let mut shared = Side::new("through a new agent, policy on-demand");
    let mut straight = Side::new("straight from the server");
    let mut reads = Side::new("chunks and files that the server was asked for");
    let mut chunks = Side::new("chunks");
    let stopwatch = Stopwatch::new();
    for round in 0..=runs(settings) {
        take_from_the_host(files as usize * LENGTH);
        let node = Node::start("epoch", server, DATASET, folder, room(files), "on-demand")?;
        let of_node = node.reader(LENGTH, 0);
        let past_node = AgentReader { task: None, ..of_node.clone() };
        let mut rates = Vec::new();
        for reader in [of_node, past_node] {
            let readers = (0..PROCESSES).map(|_| ReaderProcess::start(&reader));
            let mut readers = readers.collect::<Result<Vec<_>>>()?;
            // The answer comes from a ready process.
            for reader in &mut readers {
                reader.run(Command::Ready)?;
            }
            let (read, seconds) = stopwatch.time(|| epoch(&mut readers, round as u64))?;
            ensure!(read == u64::from(files), "the readers read {read} files");
            rates.push(read as f64 / seconds);
        }
        if round == 0 {
            continue;
        }
        for (side, rate) in [&mut shared, &mut straight].into_iter().zip(rates) {
            side.samples.push(rate);
        }
        let status = node.status()?;
        reads.samples.push(status.store_reads() as f64);
        chunks.samples.push(status.chunks as f64);
    }
    let settings = format!(
        "{files} files of 4 KiB, {PROCESSES} processes with a quarter each of one order, groups of \
         {GROUP} chunks, the server on the same cores"
    );
    let bench = |name: &str, unit, ours, theirs, bar| Bench {
        name: format!("agent {name}"),
        settings: settings.clone(),
        unit,
        ours,
        theirs,
        bar,
    };
    Ok(vec![
        bench("first epoch", "files/s", shared, straight, Bar::AtLeastTimes(0.95)),
        bench("first epoch, store reads", "reads", reads, chunks, Bar::AtMostTimes(1.02)),
    ])
}

/// Runs an epoch, one share for each process; returns the number of files.
fn epoch(readers: &mut [ReaderProcess], epoch: u64) -> Result<u64> {
    for (rank, reader) in (0..).zip(readers.iter_mut()) {
        reader.send(Command::Epoch { epoch, rank, world: PROCESSES, group: GROUP, rest: 0 })?;
    }
    readers.iter_mut().try_fold(0, |files, reader| Ok(files + reader.answer()?.files))
}

/// Fill of a whole dataset, beside a copy of as many bytes into fresh memory.
fn oneshot(settings: &Settings, server: &str, folder: &Path, files: u32) -> Result<Bench> {
    let mut ours = Side::new("dlcmd agent start --policy oneshot, until all is there");
    let mut theirs = Side::new("memcpy into a new memfd, one thread");
    let stopwatch = Stopwatch::new();
    let mut source = Vec::new();
    for round in 0..=runs(settings) {
        take_from_the_host(files as usize * LENGTH);
        let (node, filling) = stopwatch.time(|| {
            let node = Node::start("oneshot", server, DATASET, folder, room(files), "oneshot")?;
            node.wait()?;
            Ok(node)
        })?;
        let status = node.status()?;
        drop(node);
        let chunk = status.bytes_from_servers.div_ceil(status.chunks) as u32;
        if source.is_empty() {
            source = vec![1; status.chunks as usize * chunk as usize];
        }
        take_from_the_host(files as usize * LENGTH);
        let ((), copying) = stopwatch.time(|| copy(&source, chunk))?;
        if round > 0 {
            ours.samples.push(status.bytes_from_servers as f64 / filling / 1e6);
            theirs.samples.push(source.len() as f64 / copying / 1e6);
        }
    }
    let settings = format!(
        "{files} files of 4 KiB, the start of the agent included, the server on the same cores"
    );
    let (name, bar) = ("agent oneshot fill".to_owned(), Bar::AtLeastTimes(0.80));
    Ok(Bench { name, settings, unit: "MB/s", ours, theirs, bar })
}

/// Copies chunks into new memory.
fn copy(source: &[u8], chunk: u32) -> Result<()> {
    let slots = (source.len() / chunk as usize) as u32;
    let (arena, _) = Arena::create(Shape { slot_bytes: chunk, slots })?;
    for (slot, bytes) in (0..).zip(source.chunks(chunk as usize)) {
        ensure!(arena.write(slot, 0, bytes), "a chunk fits into its slot");
    }
    Ok(())
}

/// First reads of absent chunks from a slow store.
fn first_reads(settings: &Settings) -> Result<Bench> {
    let folder = settings.on_disk("agent-first");
    let server = SlowServer::start(IN_FLIGHT)?;
    let files = settings.scaled(FIRST_BYTES) / LENGTH as u32;
    put(&server.address, DATASET, files, LENGTH)?;
    let node = Node::start("first", &server.address, DATASET, &folder, room(files), "on-demand")?;
    let reader = node.reader(LENGTH, 0);
    let mut through = ReaderProcess::start(&reader)?;
    let mut past = ReaderProcess::start(&AgentReader { task: None, ..reader })?;
    through.run(Command::Ready)?;
    past.run(Command::Ready)?;
    server.set_throttle(SLOW);
    let chunks = node.status()?.chunks as usize;
    let mut ours = Side::new("get_into through the agent");
    let mut theirs = Side::new("the same straight from the server");
    let rounds = runs(settings);
    for (round, number) in
        (0..=rounds).flat_map(|round| (0..FIRST_READS).map(move |of| (round, of)))
    {
        let at = round * FIRST_READS + number;
        if at >= chunks {
            break;
        }
        let command = Command::First { chunk: at * (chunks / ((rounds + 1) * FIRST_READS)).max(1) };
        let answers = [through.run(command)?, quiet(&node).and_then(|()| past.run(command))?];
        if round > 0 {
            for (side, answer) in [&mut ours, &mut theirs].into_iter().zip(answers) {
                side.samples.push(answer.seconds * 1e3);
            }
        }
    }
    let settings = format!(
        "one file of 4 KiB from the middle of each of {} absent chunks, a store with 20 ms and \
         50 MB/s",
        ours.samples.len()
    );
    let (name, bar) = ("agent first read".to_owned(), Bar::AtMostTimes(1.5));
    Ok(Bench { name, settings, unit: "ms", ours, theirs, bar })
}

/// Waits until the agent has no running fetch.
fn quiet(node: &Node) -> Result<()> {
    let mut before = node.status()?;
    loop {
        sleep(Duration::from_millis(400));
        let now = node.status()?;
        if now.chunks_present == before.chunks_present {
            return Ok(());
        }
        before = now;
    }
}

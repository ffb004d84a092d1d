//! A cache in use before it is full: a first epoch, a whole fill, and first reads of absent chunks.
//!
//! Must hold: every run uses a new agent, and so untouched memory. The other side reads the same
//! files in the same order from the same server.

use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_node::{Arena, Shape};
use dl_store::Throttle;

use super::node::{Node, put};
use super::reader::{AgentReader, Command, ReaderProcess, epoch, together};
use super::{BYTES, runs};
use crate::measure::{Bar, Bench, Side, add, in_turns, time};
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
    let names = [
        "through a new agent, policy on-demand",
        "straight from the server",
        "chunks and files that the server was asked for",
        "chunks",
    ];
    let sides = in_turns(runs(settings), names, |round| {
        take_from_the_host(files as usize * LENGTH);
        let node = Node::start("epoch", server, DATASET, folder, room(files), "on-demand")?;
        let of_node = node.reader(LENGTH, 0);
        let past_node = AgentReader { task: None, ..of_node.clone() };
        let [shared, straight] = [of_node, past_node].map(|reader| {
            let readers = (0..PROCESSES).map(|_| ReaderProcess::start(&reader));
            let mut readers = readers.collect::<Result<Vec<_>>>()?;
            // The answer comes from a ready process.
            together(&mut readers, Command::Ready)?;
            let (read, seconds) = time(|| epoch(&mut readers, round, GROUP))?;
            ensure!(read == u64::from(files), "the readers read {read} files");
            Ok(read as f64 / seconds)
        });
        let status = node.status()?;
        Ok([shared?, straight?, status.store_reads() as f64, status.chunks as f64])
    })?;
    let [shared, straight, reads, chunks] = sides;
    let settings = format!(
        "{files} files of 4 KiB, {PROCESSES} processes with a quarter each of one order, groups of \
         {GROUP} chunks, the server on the same cores"
    );
    let bench = |name: &str, unit, sides, bar| {
        Bench::new(format!("agent {name}"), &settings, unit, sides, bar)
    };
    Ok(vec![
        bench("first epoch", "files/s", [shared, straight], Bar::AtLeastTimes(0.95)),
        bench("first epoch, store reads", "reads", [reads, chunks], Bar::AtMostTimes(1.02)),
    ])
}

/// Fill of a whole dataset, beside a copy of as many bytes into fresh memory.
fn oneshot(settings: &Settings, server: &str, folder: &Path, files: u32) -> Result<Bench> {
    let names = [
        "dlcmd agent start --policy oneshot, until all is there",
        "memcpy into a new memfd, one thread",
    ];
    let mut source = Vec::new();
    let sides = in_turns(runs(settings), names, |_| {
        take_from_the_host(files as usize * LENGTH);
        let (node, filling) = time(|| {
            let node = Node::start("oneshot", server, DATASET, folder, room(files), "oneshot")?;
            node.wait()?;
            Ok(node)
        })?;
        let status = node.status()?;
        drop(node);
        let chunk = status.bytes_from_servers.div_ceil(status.chunks) as u32;
        source.resize(status.chunks as usize * chunk as usize, 1);
        take_from_the_host(files as usize * LENGTH);
        let ((), copying) = time(|| copy(&source, chunk))?;
        let rates = [status.bytes_from_servers as f64 / filling, source.len() as f64 / copying];
        Ok(rates.map(|rate| rate / 1e6))
    })?;
    let settings = format!(
        "{files} files of 4 KiB, the start of the agent included, the server on the same cores"
    );
    Ok(Bench::new("agent oneshot fill", settings, "MB/s", sides, Bar::AtLeastTimes(0.80)))
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
    let server = SlowServer::start(Ipv4Addr::LOCALHOST, IN_FLIGHT)?;
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
    let mut sides =
        ["get_into through the agent", "the same straight from the server"].map(Side::new);
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
            add(&mut sides, answers.map(|answer| answer.seconds * 1e3));
        }
    }
    let settings = format!(
        "one file of 4 KiB from the middle of each of {} absent chunks, a store with 20 ms and \
         50 MB/s",
        sides[0].samples.len()
    );
    Ok(Bench::new("agent first read", settings, "ms", sides, Bar::AtMostTimes(1.5)))
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

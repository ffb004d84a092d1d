//! Epochs through memory and a local disk, over a slow store (MONARCH, Figures 3 and 5).
//!
//! Must hold: the epochs of one cache follow without a pause. The disk's own rate is measured on the
//! agent's files, past the page cache.

use std::fs::{File, OpenOptions, read_dir};
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_store::Throttle;

use super::BYTES;
use super::node::{Node, Start, put};
use super::reader::{Answer, Command, ReaderProcess};
use crate::measure::{Bar, Bench, Side, in_turns, time};
use crate::setup::{Settings, SlowServer, in_threads, processor_seconds};

pub(super) const LENGTH: usize = 64 << 10;
const DATASET: &str = "disk";
pub(super) const GROUP: u32 = 4;
const IN_FLIGHT: usize = 16;

/// Pause of the reader after each batch in microseconds; the reader then takes about 200 MB/s.
const REST: u64 = 20_000;

/// Parts of the dataset in memory and on disk, and the store's speed relative to the reader's.
pub(super) const IN_MEMORY: f64 = 0.10;
const ON_DISK: f64 = 0.56;
const STORE: f64 = 0.55;

/// Threads that read the agent's files, each with a piece at a time.
const THREADS: usize = 4;
const PIECE: usize = 1 << 20;
const BLOCK: usize = 4_096;

/// Step of a reader that takes few files of each chunk.
const STEP: u32 = 64;

/// A dataset at a slow server, and the folder of its agents.
pub(super) struct Setup<'a> {
    pub(super) settings: &'a Settings,
    server: SlowServer,
    folder: PathBuf,
    files: u32,
    pub(super) chunks: u64,
    slot: u64,
}

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("agent-disk");
    let server = SlowServer::start(Ipv4Addr::LOCALHOST, IN_FLIGHT)?;
    let files = settings.scaled(BYTES) / LENGTH as u32;
    put(&server.address, DATASET, files, LENGTH)?;
    let mut setup = Setup { settings, server, folder, files, chunks: 0, slot: 0 };
    let whole = setup.whole()?;
    setup.set_store_rate(Some(whole.median() * STORE));
    let mut benches = setup.part(&whole)?;
    benches.extend(setup.first_epochs()?);
    setup.set_store_rate(None);
    benches.extend(setup.second_job()?);
    benches.extend(setup.useless()?);
    benches.extend(setup.alone()?);
    Ok(benches)
}

impl Setup<'_> {
    /// Sets the rate of the store in files a second.
    fn set_store_rate(&self, rate: Option<f64>) {
        let bytes_per_second = rate.and_then(|rate| NonZeroU64::new((rate * LENGTH as f64) as u64));
        self.server.set_throttle(Throttle { bytes_per_second, ..Throttle::default() });
    }

    pub(super) fn bytes(&self, part: f64) -> u64 {
        (self.chunks as f64 * part) as u64 * self.slot
    }

    /// A folder for copies.
    pub(super) fn tier(&self, name: &str) -> Result<PathBuf> {
        let tier = self.folder.join(name);
        std::fs::create_dir_all(&tier)?;
        Ok(tier)
    }

    pub(super) fn node(
        &self,
        task: &'static str,
        memory: u64,
        tier: Option<(&Path, f64)>,
    ) -> Result<Node> {
        let tiers = tier.map(|(path, part)| format!("{}:{}", path.display(), self.bytes(part)));
        let start = Start { memory, policy: "on-demand", tiers, ..Start::default() };
        Node::start_as(task, &self.server.address, DATASET, &self.folder, &start)
    }

    pub(super) fn settings(&self, more: &str) -> String {
        let Self { files, chunks, .. } = self;
        format!("{files} files of 64 KiB in {chunks} chunks, groups of {GROUP} chunks; {more}")
    }

    /// Epochs through a cache of the whole dataset.
    fn whole(&mut self) -> Result<Side> {
        let memory = u64::from(self.files) * LENGTH as u64 * 5 / 4 + (256 << 20);
        let node = self.node("whole", memory, None)?;
        node.prefetch()?;
        let mut reader = ReaderProcess::start(&node.reader(LENGTH, 0))?;
        let [rates] = in_turns(self.settings.runs(), ["all chunks in memory"], |number| {
            Ok([epoch(&mut reader, number, REST)?.rate()])
        })?;
        let status = node.status()?;
        ensure!(status.misses == 0, "the dataset was not cached: {status:?}");
        (self.chunks, self.slot) = (status.chunks, status.memory_used / status.chunks_present);
        Ok(rates)
    }

    /// Epochs through memory and disk that hold a part of the dataset.
    fn part(&self, whole: &Side) -> Result<Vec<Bench>> {
        let tier = self.tier("tier-part")?;
        let node = self.node("part", self.bytes(IN_MEMORY), Some((&tier, ON_DISK)))?;
        let mut reader = ReaderProcess::start(&node.reader(LENGTH, 0))?;
        epoch(&mut reader, 0, REST)?;
        let names = ["memory and disk, from the second epoch on", "store reads", "chunks written"];
        let mut before = node.status()?;
        let [rates, reads, written] = in_turns(self.settings.runs(), names, |number| {
            let rate = epoch(&mut reader, number + 1, REST)?.rate();
            let last = std::mem::replace(&mut before, node.status()?);
            let reads = (before.store_reads() - last.store_reads()) as f64 / self.chunks as f64;
            Ok([rate, reads, (before.chunks_to_disk - last.chunks_to_disk) as f64])
        })?;
        let settings = self.settings(&format!(
            "{IN_MEMORY} of them fit into memory and {ON_DISK} on disk; one reader that takes {:.0} \
             MB/s from memory; a store of {STORE} x that; the sides one after the other",
            whole.median() * LENGTH as f64 / 1e6
        ));
        let bench = |name: &str, unit, sides, bar| {
            Bench::new(format!("agent disk: {name}"), &settings, unit, sides, bar)
        };
        Ok(vec![
            bench("epochs", "files/s", [rates, whole.clone()], Bar::AtLeastTimes(0.95)),
            bench("store reads", "of the dataset", [reads, one("the dataset")], Bar::AtMost(0.36)),
            bench(
                "writes after the first epoch",
                "chunks",
                [written, one("a chunk")],
                Bar::AtMost(0.0),
            ),
        ])
    }

    /// First epochs with and without a disk, and the growth of dirty memory.
    fn first_epochs(&self) -> Result<Vec<Bench>> {
        let names = [
            "first epoch with a disk",
            "first epoch without a disk",
            "growth of the machine's dirty memory",
            "the limit",
        ];
        let sides = in_turns(self.settings.runs(), names, |number| {
            let tier = self.tier(&format!("tier-first-{number}"))?;
            let rate = |tier| {
                let node = self.node("first", self.bytes(IN_MEMORY), tier)?;
                let mut reader = ReaderProcess::start(&node.reader(LENGTH, 0))?;
                reader.run(Command::Ready)?;
                anyhow::Ok(epoch(&mut reader, 0, REST)?.rate())
            };
            let without = rate(None)?;
            let (with, dirty) = dirty_growth(|| rate(Some((&tier, ON_DISK))))?;
            Ok([with, without, dirty as f64 / 1e6, 64.0])
        })?;
        let [with, without, dirty, limit] = sides;
        let settings = self.settings("the same memory, disk, reader and store; new agents");
        let bench = |name: &str, unit, sides, bar| {
            Bench::new(format!("agent disk: {name}"), &settings, unit, sides, bar)
        };
        Ok(vec![
            bench("first epoch", "files/s", [with, without], Bar::AtLeastTimes(0.95)),
            bench("dirty memory", "MB", [dirty, limit], Bar::AtMost(64.0)),
        ])
    }

    /// A second job on a folder that has all chunks.
    fn second_job(&self) -> Result<Vec<Bench>> {
        let tier = self.tier("tier-warm")?;
        let node = self.node("warm", self.bytes(IN_MEMORY), Some((&tier, 1.3)))?;
        node.prefetch()?;
        wait_for_copies(&node, self.chunks)?;
        drop(node);
        let names = [
            "first epoch of a second job",
            "pread past the page cache, of the same files",
            "store reads",
            "chunks from disk to slots",
            "processor time of the agent",
        ];
        let sides = in_turns(self.settings.runs(), names, |number| {
            let node = self.node("second", self.bytes(IN_MEMORY), Some((&tier, 1.3)))?;
            let mut reader = ReaderProcess::start(&node.reader(LENGTH, 0))?;
            reader.run(Command::Ready)?;
            let answer = epoch(&mut reader, number, 0)?;
            let after_first = node.status()?;
            let sparse = Command::Sparse { epoch: number + 1, group: GROUP, step: STEP };
            let began = processor_seconds(&[after_first.pid])?;
            let (_, seconds) = time(|| reader.run(sparse))?;
            let used = processor_seconds(&[after_first.pid])? - began;
            let status = node.status()?;
            let moved = (status.bytes_from_disk - after_first.bytes_from_disk) as f64 / 1e6;
            drop((reader, node));
            let own = own_rate(&tier)?;
            let first = answer.rate() * LENGTH as f64 / 1e6;
            let reads = status.store_reads() as f64;
            Ok([first, own, reads, moved / seconds, used / (moved / 1e3)])
        })?;
        let [first, own, reads, slots, used] = sides;
        let settings = self.settings(&format!(
            "all chunks on disk, {IN_MEMORY} fit into memory; {THREADS} threads read the same files \
             beside; a new agent for each run"
        ));
        let bench = |name: &str, unit, sides, bar| {
            Bench::new(format!("agent disk: {name}"), &settings, unit, sides, bar)
        };
        Ok(vec![
            bench("second job", "MB/s", [first, own.clone()], Bar::AtLeastTimes(0.95)),
            bench("second job, store reads", "reads", [reads, one("a read")], Bar::AtMost(0.0)),
            bench("to slots", "MB/s", [slots, own], Bar::AtLeastTimes(0.9)),
            bench("processor time", "s/GB", [used, one("a second")], Bar::AtMost(0.35)),
        ])
    }
}

/// A figure to stand beside.
fn one(what: &str) -> Side {
    Side { what: what.to_owned(), samples: vec![1.0] }
}

/// Reads an epoch.
pub(super) fn epoch(reader: &mut ReaderProcess, epoch: u64, rest: u64) -> Result<Answer> {
    reader.run(Command::Epoch { epoch, rank: 0, world: 1, group: GROUP, rest })
}

/// Waits until all chunks are on disk.
pub(super) fn wait_for_copies(node: &Node, chunks: u64) -> Result<()> {
    for _ in 0..1_200 {
        if node.status()?.chunks_on_disk == chunks {
            return Ok(());
        }
        sleep(Duration::from_millis(50));
    }
    anyhow::bail!("the agent does not write all chunks to the disk: {:?}", node.status()?)
}

/// The result of some work, and the growth of dirty memory during it.
fn dirty_growth<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let (before, has_ended) = (dirty()?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = before;
            while !has_ended.load(Ordering::Relaxed) {
                most = most.max(dirty().unwrap_or(before));
                sleep(Duration::from_millis(20));
            }
            most
        });
        let worked = work();
        has_ended.store(true, Ordering::Relaxed);
        let most = watching.join().ok().context("the watch ends")?;
        Ok((worked?, most - before))
    })
}

/// Bytes that the machine has yet to write to disks.
fn dirty() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Dirty:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.context("a line with dirty memory")?.parse::<u64>()? << 10)
}

/// The copies in a folder.
pub(super) fn copies(tier: &Path) -> Result<Vec<PathBuf>> {
    let mut copies = Vec::new();
    for user in read_dir(tier)?.flatten().filter(|entry| entry.path().is_dir()) {
        for dataset in read_dir(user.path())?.flatten().filter(|entry| entry.path().is_dir()) {
            let files = read_dir(dataset.path())?.flatten().map(|entry| entry.path());
            copies.extend(files.filter(|path| path.extension().is_some()));
        }
    }
    Ok(copies)
}

/// The rate of a disk in MB/s: the copies of an agent, read past the page cache.
fn own_rate(tier: &Path) -> Result<f64> {
    let copies = copies(tier)?;
    let (next, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (copies, next, bytes) = (&copies, &next, &bytes);
    let ((), seconds) = time(|| {
        in_threads(0..THREADS, |_| {
            let mut buffer = vec![0; PIECE + BLOCK];
            let start = buffer.as_ptr().align_offset(BLOCK);
            let piece = buffer.get_mut(start..start + PIECE).context("an aligned piece")?;
            while let Some(path) = copies.get(next.fetch_add(1, Ordering::Relaxed)) {
                bytes.fetch_add(read(path, piece)?, Ordering::Relaxed);
            }
            Ok(())
        })
    })?;
    Ok(bytes.load(Ordering::Relaxed) as f64 / 1e6 / seconds)
}

/// Reads a file past the page cache; gives its length.
fn read(path: &Path, piece: &mut [u8]) -> Result<usize> {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file: File = OpenOptions::new().read(true).custom_flags(direct).open(path)?;
    let mut at = 0;
    loop {
        let read = file.read_at(piece, at as u64)?;
        at += read;
        if read < PIECE {
            return Ok(at);
        }
    }
}

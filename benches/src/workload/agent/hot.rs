//! Reads of files whose chunks are all in the node's cache.
//!
//! Must hold: no read of a row misses the cache.

use anyhow::{Result, ensure};

use super::memcached::Listener;
use super::node::{Node, Pages, put};
use super::reader::{AgentReader, Answer, BATCH, Command, Kind, ReaderProcess, together};
use super::{BYTES, runs};
use crate::measure::{Bar, Bench, Side, add};
use crate::setup::{Server, Settings, memcached_at};

/// Duration of a side's turn, and turns of a run.
const MILLISECONDS: u64 = 125;
const TURNS: usize = 4;

struct Row {
    name: &'static str,
    ours: Kind,
    theirs: Kind,
    bar: f64,
}

const fn row(name: &'static str, ours: Kind, theirs: Kind, bar: f64) -> Row {
    Row { name, ours, theirs, bar }
}

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let small = [
        row("get by number", Kind::Get, Kind::Plain, 0.50),
        row("get by number, beside records", Kind::Get, Kind::Record, 0.85),
        row("get_many by number", Kind::GetMany, Kind::PlainMany, 0.85),
        row("get by path", Kind::Path, Kind::Plain, 0.35),
        row("get_many by path", Kind::PathMany, Kind::PlainMany, 0.50),
        row("view_many", Kind::Views, Kind::Plain, 2.5),
    ];
    let memcached = [
        row("get by path, beside memcached", Kind::Path, Kind::Memcached, 15.0),
        row("get_many by path, beside memcached", Kind::PathMany, Kind::MemcachedMany, 3.0),
    ];
    let large = [row("get by number", Kind::Get, Kind::Plain, 0.90)];

    let setup = Setup::new(settings, "small", 4 << 10)?;
    let mut benches = setup.measure(&small, None)?;
    benches.push(setup.two_workers()?);
    benches.push(setup.pages()?);
    {
        let socket = settings.on_disk("memcached");
        let _server = memcached_at(&socket)?;
        benches.extend(setup.measure(&memcached, Some(&Listener::Unix(socket)))?);
    }
    setup.check()?;
    drop(setup);
    let setup = Setup::new(settings, "large", 128 << 10)?;
    benches.extend(setup.measure(&large, None)?);
    setup.check()?;
    Ok(benches)
}

struct Setup {
    node: Node,
    _server: Server,
    length: usize,
    runs: usize,
    settings: String,
}

impl Setup {
    fn new(settings: &Settings, dataset: &'static str, length: usize) -> Result<Self> {
        let folder = settings.on_disk(&format!("agent-{dataset}"));
        let server = Server::start(&folder.join("data"))?;
        let files = settings.scaled(BYTES) / length as u32;
        put(&server.address, dataset, files, length)?;
        let memory = u64::from(files) * length as u64 * 5 / 4 + (256 << 20);
        let node = Node::start("hot", &server.address, dataset, &folder, memory, "oneshot")?;
        node.wait()?;
        node.wait_for_huge_pages()?;
        let text = format!(
            "{files} files of {} KiB in random order out of a filled cache, all of them read before, batches of {BATCH}; \
             sides change every {MILLISECONDS} ms; copies by the loop of the library out of an equal memfd, \
             made and mapped as the agent makes its arena",
            length >> 10
        );
        Ok(Self { node, _server: server, length, runs: runs(settings), settings: text })
    }

    fn reader(&self, seed: u64, memcached: Option<&Listener>) -> Result<ReaderProcess> {
        let memcached = memcached.cloned();
        ReaderProcess::start(&AgentReader { memcached, ..self.node.reader(self.length, seed) })
    }

    fn bench(&self, name: &str, unit: &'static str, sides: [Side; 2], bar: f64) -> Bench {
        let name = format!("agent {} KiB, {name}", self.length >> 10);
        Bench::new(name, &self.settings, unit, sides, Bar::AtLeastTimes(bar))
    }

    /// Measures both sides of each row in the same process, in turns.
    fn measure(&self, rows: &[Row], memcached: Option<&Listener>) -> Result<Vec<Bench>> {
        let mut reader = self.reader(1, memcached)?;
        let mut benches = Vec::new();
        for row in rows {
            let kinds = [row.ours, row.theirs];
            let mut sides = kinds.map(|kind| Side::new(kind.name()));
            for kind in kinds {
                reader.run(Command::Prepare(kind))?;
                reader.run(Command::Read(kind, MILLISECONDS))?;
            }
            for _ in 0..self.runs {
                let mut sums = [Answer::default(); 2];
                for turn in 0..TURNS {
                    for side in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
                        sums[side] += reader.run(Command::Read(kinds[side], MILLISECONDS))?;
                    }
                }
                add(&mut sides, sums.map(Answer::rate));
            }
            benches.push(self.bench(row.name, "files/s", sides, row.bar));
        }
        Ok(benches)
    }

    /// Speedup of two processes, beside the speedup of memcpy.
    fn two_workers(&self) -> Result<Bench> {
        let kinds = [Kind::Get, Kind::Plain];
        let mut readers = [self.reader(1, None)?, self.reader(2, None)?];
        for reader in &mut readers {
            for kind in kinds {
                reader.run(Command::Prepare(kind))?;
            }
        }
        let mut sides =
            kinds.map(|kind| Side::new(format!("{}, two processes by one", kind.name())));
        for _ in 0..self.runs {
            let mut sums = [[Answer::default(); 2]; 2];
            for turn in 0..TURNS {
                for side in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
                    let command = Command::Read(kinds[side], MILLISECONDS);
                    let [alone, both] = &mut sums[side];
                    *alone += readers[turn / 2 % 2].run(command)?;
                    together(&mut readers, command)?.into_iter().for_each(|answer| *both += answer);
                }
            }
            // Each process reads for the whole duration.
            add(&mut sides, sums.map(|[alone, both]| 2.0 * both.rate() / alone.rate()));
        }
        Ok(self.bench("two workers", "x", sides, 0.95))
    }

    /// Bytes of the arena in huge pages, beside all of its bytes in memory. No bar where the machine
    /// denies huge pages.
    fn pages(&self) -> Result<Bench> {
        let Pages { mapped_bytes, huge_bytes, setting } = self.node.pages()?;
        let bar = if setting == "deny" { Bar::None } else { Bar::AtLeastTimes(1.0) };
        let mut sides = ["arena in huge pages", "arena in memory"].map(Side::new);
        add(&mut sides, [huge_bytes, mapped_bytes].map(|bytes| bytes as f64));
        let settings = format!("shmem_enabled is {setting}");
        Ok(Bench::new("agent, huge pages", &settings, "bytes", sides, bar))
    }

    /// Fails for reads without an answer from the cache.
    fn check(&self) -> Result<()> {
        let status = self.node.status()?;
        let is_whole = status.misses == 0 && status.fallbacks == 0 && status.hits > 0;
        ensure!(is_whole, "reads were not answered by the cache alone: {status:?}");
        Ok(())
    }
}

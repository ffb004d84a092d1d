//! Processes that read files and time their reads.
//!
//! Must hold: a process times only reads; lists, memory and connections exist before. Both sides
//! read the files in the same random order.

use std::hint::black_box;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dl_format::FilePath;
use dl_runtime::{Clock, SystemClock};
use libdiesel::{Dataset, ShuffleOptions};
use serde::{Deserialize, Serialize};

use super::memcached::{Connection, Listener};
use super::node::{Node, open};
use super::plain::Plain;
use crate::setup::{OwnProcess, answer, commands, shuffle};
use crate::workload::Role;

/// Files of a batch.
pub(crate) const BATCH: usize = 64;

const SEED: u64 = 7;

/// A process with reads of a dataset.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct AgentReader {
    /// Address of the server.
    pub(crate) server: String,
    pub(crate) dataset: String,
    /// Folder of the agent's sockets and of the snapshots.
    pub(crate) folder: PathBuf,
    /// Length of each file in bytes.
    pub(crate) length: usize,
    /// Seed of the order.
    pub(crate) seed: u64,
    /// Job of the agent; `None` to read from the server.
    pub(crate) task: Option<String>,
    /// Program of the agent; `None` for dlcmd.
    pub(crate) agent_program: Option<PathBuf>,
    pub(crate) memcached: Option<Listener>,
    /// Network namespace of the process.
    pub(crate) namespace: Option<String>,
}

/// Kind of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// `get_into` by number.
    Get,
    /// `get_many_into` by number.
    GetMany,
    /// `get_into` by path.
    Path,
    /// `get_many_into` by path.
    PathMany,
    /// `view_many` by number, with a read of the first byte of each file.
    Views,
    /// A plain copy into the buffer of a file.
    Plain,
    /// A plain copy into the buffer of a batch.
    PlainMany,
    /// A plain copy whose address comes from a random record.
    Record,
    /// A memcached request with a single key.
    Memcached,
    /// A memcached request with the keys of a batch.
    MemcachedMany,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "get_into by number",
            Self::GetMany => "get_many_into by number",
            Self::Path => "get_into by path",
            Self::PathMany => "get_many_into by path",
            Self::Views => "view_many by number, first bytes",
            Self::Plain => "plain copy",
            Self::PlainMany => "plain copy to the buffer of a batch",
            Self::Record => "plain copy, address from a random record of 16 bytes",
            Self::Memcached => "memcached over a unix socket, one key",
            Self::MemcachedMany => "memcached over a unix socket, a batch of keys",
        }
    }
}

impl Node {
    /// Description of a process that reads files of `length` bytes through the agent.
    pub(crate) fn reader(&self, length: usize, seed: u64) -> AgentReader {
        let (server, dataset) = (self.server.clone(), self.dataset.to_owned());
        let (folder, task) = (self.folder.clone(), Some(self.task.to_owned()));
        let namespace = self.namespace.clone();
        let (agent_program, memcached) = (None, None);
        AgentReader {
            server,
            dataset,
            folder,
            length,
            seed,
            task,
            agent_program,
            memcached,
            namespace,
        }
    }
}

/// Command for a process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Answer as soon as the process is ready.
    Ready,
    /// Prepare reads of this kind.
    Prepare(Kind),
    /// Read for a number of milliseconds.
    Read(Kind, u64),
    /// Read a file from the middle of a chunk.
    First { chunk: usize },
    /// Read the share of a rank in an epoch, with a pause of `rest` microseconds after each batch.
    Epoch { epoch: u64, rank: u32, world: u32, group: u32, rest: u64 },
    /// Read every `step`-th file of an epoch, and thereby all of its chunks.
    Sparse { epoch: u64, group: u32, step: u32 },
}

/// Result of a command.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) files: u64,
    pub(crate) seconds: f64,
}

impl Answer {
    pub(crate) fn rate(self) -> f64 {
        self.files as f64 / self.seconds
    }
}

impl std::ops::AddAssign for Answer {
    fn add_assign(&mut self, other: Self) {
        self.files += other.files;
        self.seconds += other.seconds;
    }
}

/// A process with commands from the bench.
#[derive(Debug)]
pub(crate) struct ReaderProcess(OwnProcess);

impl ReaderProcess {
    pub(crate) fn start(reader: &AgentReader) -> Result<Self> {
        let namespace = reader.namespace.as_deref();
        Ok(Self(OwnProcess::start(namespace, &Role::Read(reader.clone()))?))
    }

    pub(crate) fn run(&mut self, command: Command) -> Result<Answer> {
        self.0.send(command)?;
        self.0.answer()
    }
}

/// Sends the same command to all readers at the same time.
pub(crate) fn together(readers: &mut [ReaderProcess], command: Command) -> Result<Vec<Answer>> {
    readers.iter_mut().try_for_each(|reader| reader.0.send(command))?;
    readers.iter_mut().map(|reader| reader.0.answer()).collect()
}

/// Reads an epoch, with a share for each process; returns the number of files.
pub(crate) fn epoch(readers: &mut [ReaderProcess], epoch: u64, group: u32) -> Result<u64> {
    let world = readers.len() as u32;
    for (rank, reader) in (0..).zip(readers.iter_mut()) {
        reader.0.send(Command::Epoch { epoch, rank, world, group, rest: 0 })?;
    }
    let answers = readers.iter_mut().map(|reader| reader.0.answer::<Answer>());
    answers.map(|answer| Ok(answer?.files)).sum()
}

/// Body of a process: executes the commands of its input until the input ends.
pub(crate) fn read_cached(reader: &AgentReader) -> Result<()> {
    let mut state = State::new(reader)?;
    for command in commands() {
        answer(match command? {
            Command::Ready => Answer::default(),
            Command::Prepare(kind) => {
                state.prepare(kind, reader)?;
                Answer::default()
            }
            Command::Read(kind, milliseconds) => {
                state.read(kind, Duration::from_millis(milliseconds))?
            }
            Command::First { chunk } => state.first(chunk)?,
            Command::Epoch { epoch, rank, world, group, rest } => {
                let options = ShuffleOptions::new(SEED, epoch, group).of_rank(rank, world);
                state.epoch(options, Duration::from_micros(rest))?
            }
            Command::Sparse { epoch, group, step } => {
                let options = ShuffleOptions::new(SEED, epoch, group).of_worker(0, step, 1);
                state.epoch(options, Duration::ZERO)?
            }
        })?;
    }
    Ok(())
}

struct State {
    dataset: Dataset,
    length: usize,
    order: Vec<u32>,
    /// Paths in the same order.
    paths: Vec<FilePath>,
    is_warm: bool,
    plain: Option<Plain>,
    memcached: Option<Connection>,
    /// Buffers for a file and for a batch.
    buffers: [Vec<u8>; 2],
    passes: Passes,
}

/// Repeated passes over the order.
struct Passes {
    clock: SystemClock,
    files: usize,
    next: usize,
}

impl Passes {
    /// Calls `work` with the next `step` files of the order for `time`.
    fn pass(
        &mut self,
        time: Duration,
        step: usize,
        mut work: impl FnMut(Range<usize>) -> Result<()>,
    ) -> Result<Answer> {
        let step = step.min(self.files);
        let (start, mut files) = (self.clock.monotonic(), 0);
        loop {
            if self.next + step > self.files {
                self.next = 0;
            }
            work(self.next..self.next + step)?;
            self.next += step;
            files += step as u64;
            let took = self.clock.monotonic().saturating_sub(start);
            if took >= time {
                return Ok(Answer { files, seconds: took.as_secs_f64() });
            }
        }
    }
}

impl State {
    fn new(reader: &AgentReader) -> Result<Self> {
        let (task, program) = (reader.task.as_deref(), reader.agent_program.clone());
        let dataset = open(&reader.server, &reader.dataset, &reader.folder, task, program)?;
        let files = dataset.snapshot().context("there is a snapshot")?.files();
        let mut order: Vec<u32> = (0..files).collect();
        shuffle(&mut order, reader.seed);
        let buffers = [vec![0; reader.length], vec![0; reader.length * BATCH]];
        let passes = Passes { clock: SystemClock::new(), files: order.len(), next: 0 };
        let (paths, is_warm, plain, memcached) = (Vec::new(), false, None, None);
        let length = reader.length;
        Ok(Self { dataset, length, order, paths, is_warm, plain, memcached, buffers, passes })
    }

    /// Reads all files once, which maps all pages of the cache.
    fn warm(&mut self) -> Result<()> {
        if !self.is_warm {
            for numbers in self.order.chunks(BATCH) {
                self.dataset.get_many_into(numbers, &mut self.buffers[1])?;
            }
            self.is_warm = true;
        }
        Ok(())
    }

    fn prepare(&mut self, kind: Kind, reader: &AgentReader) -> Result<()> {
        match kind {
            Kind::Get | Kind::GetMany | Kind::Views => self.warm()?,
            Kind::Path | Kind::PathMany => {
                self.warm()?;
                self.list_paths()?;
            }
            Kind::Memcached | Kind::MemcachedMany => self.fill_memcached(reader)?,
            Kind::Plain | Kind::PlainMany | Kind::Record => {
                if self.plain.is_none() {
                    self.plain = Some(Plain::new(&self.order, self.length)?);
                }
            }
        }
        Ok(())
    }

    fn list_paths(&mut self) -> Result<()> {
        if self.paths.is_empty() {
            let snapshot = self.dataset.snapshot().context("there is a snapshot")?;
            let paths = self.order.iter().map(|number| snapshot.path(*number));
            self.paths = paths.collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    fn fill_memcached(&mut self, reader: &AgentReader) -> Result<()> {
        if self.memcached.is_none() {
            self.list_paths()?;
            let at = reader.memcached.as_ref().context("there is a memcached")?;
            let mut connection = Connection::open(at, self.length)?;
            connection.fill(&self.paths)?;
            self.memcached = Some(connection);
        }
        Ok(())
    }

    fn first(&mut self, chunk: usize) -> Result<Answer> {
        let snapshot = self.dataset.snapshot().context("there is a snapshot")?;
        let firsts = snapshot.first_files()?;
        let [first, next] = firsts[chunk..chunk + 2] else { bail!("there is no chunk {chunk}") };
        let file = u32::midpoint(first, next);
        let start = self.passes.clock.monotonic();
        let length = self.dataset.get_into(file, &mut self.buffers[0])?;
        let took = self.passes.clock.monotonic().saturating_sub(start);
        ensure!(length == self.length, "another length");
        Ok(Answer { files: 1, seconds: took.as_secs_f64() })
    }

    fn epoch(&self, options: ShuffleOptions, rest: Duration) -> Result<Answer> {
        let start = self.passes.clock.monotonic();
        let epoch = self.dataset.shuffle(options)?;
        let mut files = 0;
        while let Some(file) = epoch.next()? {
            ensure!(file.bytes?.len() == self.length, "{} has another length", file.path);
            files += 1;
            if files % BATCH as u64 == 0 && !rest.is_zero() {
                std::thread::sleep(rest);
            }
        }
        let took = self.passes.clock.monotonic().saturating_sub(start);
        Ok(Answer { files, seconds: took.as_secs_f64() })
    }

    fn read(&mut self, kind: Kind, time: Duration) -> Result<Answer> {
        match kind {
            Kind::Get | Kind::Path => self.read_files(kind, time),
            Kind::GetMany | Kind::PathMany | Kind::Views => self.read_batches(kind, time),
            Kind::Plain | Kind::PlainMany | Kind::Record => self.copy_plain(kind, time),
            Kind::Memcached | Kind::MemcachedMany => self.get_memcached(kind, time),
        }
    }

    fn read_files(&mut self, kind: Kind, time: Duration) -> Result<Answer> {
        let step = files_between_clock_readings(self.length);
        let Self { dataset, length, order, paths, buffers: [one, _], passes, .. } = self;
        passes.pass(time, step, |range| {
            for at in range {
                let read = match kind {
                    Kind::Path => dataset.get_into(&paths[at], one)?,
                    _ => dataset.get_into(order[at], one)?,
                };
                ensure!(read == *length, "another length");
                black_box(&mut *one);
            }
            Ok(())
        })
    }

    fn read_batches(&mut self, kind: Kind, time: Duration) -> Result<Answer> {
        let Self { dataset, order, paths, buffers: [_, many], passes, .. } = self;
        passes.pass(time, BATCH, |range| {
            let places = match kind {
                Kind::Views => {
                    let views = dataset.view_many(&order[range])?;
                    black_box(views.iter().map(|view| u64::from(view[0])).sum::<u64>());
                    return Ok(());
                }
                Kind::PathMany => dataset.get_many_into(&paths[range], many)?,
                _ => dataset.get_many_into(&order[range], many)?,
            };
            ensure!(places.last().is_some_and(|last| last.end == many.len()), "other lengths");
            black_box(&mut *many);
            Ok(())
        })
    }

    fn copy_plain(&mut self, kind: Kind, time: Duration) -> Result<Answer> {
        let step = match kind {
            Kind::PlainMany => BATCH,
            _ => files_between_clock_readings(self.length),
        };
        let Self { order, plain, buffers: [one, many], passes, .. } = self;
        let copying = plain.as_ref().context("it was prepared")?.copying()?;
        passes.pass(time, step, |range| {
            match kind {
                Kind::PlainMany => copying.by_number(&order[range], many),
                Kind::Record => copying.by_record(&order[range], one),
                _ => copying.by_number(&order[range], one),
            }
            Ok(())
        })
    }

    fn get_memcached(&mut self, kind: Kind, time: Duration) -> Result<Answer> {
        let Self { paths, memcached, passes, .. } = self;
        let connection = memcached.as_mut().context("it was prepared")?;
        passes.pass(time, BATCH, |range| match kind {
            Kind::Memcached => range.into_iter().try_for_each(|at| connection.get(&paths[at..=at])),
            _ => connection.get(&paths[range]),
        })
    }
}

fn files_between_clock_readings(length: usize) -> usize {
    (1 << 20) / length
}

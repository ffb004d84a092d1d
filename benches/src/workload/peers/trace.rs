//! Processes of nodes with repeated reads and reports of their number.
//!
//! Must hold: the times of all processes come from one clock. A process ends with its input or with
//! the bench.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ChildStdout;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_format::FilePath;
use dl_runtime::{locked, since_boot};
use libdiesel::{Dataset, ShuffleOptions};
use serde::{Deserialize, Serialize};

use super::cluster::{Job, LENGTH};
use super::keys::Instances;
use crate::setup::{OwnProcess, Process, answer, commands, shuffle};
use crate::workload::Role;
use crate::workload::agent::node::open;

const TICK: Duration = Duration::from_millis(100);

const BATCH: u64 = 64;

const SEED: u64 = 11;
const GROUP: u32 = 10;

/// A process of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::workload) struct PeersReader {
    pub(super) server: String,
    pub(super) dataset: String,
    /// Folder of the agent's sockets and of the snapshots.
    pub(super) folder: PathBuf,
    /// Number of the node, and of all nodes.
    pub(super) rank: u32,
    pub(super) world: u32,
    pub(super) work: Work,
    /// Threads, each with an equal part.
    pub(super) threads: u32,
    /// Pause after each batch in microseconds.
    pub(super) rest: u64,
    /// Job of the agent; `None` to read from the server.
    pub(super) task: Option<String>,
    /// Addresses of the memcached instances.
    pub(super) memcached: Vec<SocketAddr>,
    /// Number of the only instance to fill; `None` for all.
    pub(super) only: Option<usize>,
    /// Network namespace of the process.
    pub(super) namespace: Option<String>,
}

/// Work of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Work {
    /// Read the process's share of epoch after epoch.
    Epochs,
    /// Read files of the whole dataset at random.
    Random,
    /// Read its share from the server, file by file, and store each file in memcached.
    Fill,
    /// Store values for its share in memcached, without a read.
    Store,
    /// Read its share from memcached in a random order repeatedly; missing files come from the
    /// server.
    Keys,
}

impl PeersReader {
    /// A process with one thread and without agent and memcached.
    pub(super) fn of(job: &Job<'_>, rank: u32, world: u32, work: Work) -> Self {
        Self {
            server: job.server.to_owned(),
            dataset: job.dataset.to_owned(),
            folder: job.folder.join(format!("node{rank}")),
            rank,
            world,
            work,
            threads: 1,
            rest: 0,
            task: None,
            memcached: Vec::new(),
            only: None,
            namespace: job.network.map(|network| network.namespace(rank as usize)),
        }
    }
}

/// Body of a process of a node.
pub(in crate::workload) fn trace(reader: &PeersReader) -> Result<()> {
    let task = reader.task.as_deref();
    let dataset = open(&reader.server, &reader.dataset, &reader.folder, task, None)?;
    answer(())?;
    commands::<()>().next().context("there is a command")??;
    let files = Arc::new(AtomicU64::new(0));
    let threads = (0..reader.threads).map(|thread| {
        let (reader, dataset, files) = (reader.clone(), dataset.clone(), Arc::clone(&files));
        spawn(move || Part { reader, dataset, thread, files: &files }.work())
    });
    let threads: Vec<_> = threads.collect();
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        report(&files)?;
        sleep(TICK);
    }
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a thread that reads has failed"))??;
    }
    report(&files)
}

fn report(files: &AtomicU64) -> Result<()> {
    answer((since_boot().as_secs_f64(), files.load(Ordering::Relaxed)))
}

/// Part of a thread.
struct Part<'a> {
    reader: PeersReader,
    dataset: Dataset,
    thread: u32,
    files: &'a AtomicU64,
}

impl Part<'_> {
    fn work(&self) -> Result<()> {
        match self.reader.work {
            Work::Epochs => (0..).try_for_each(|epoch| self.epoch(epoch)),
            Work::Random => {
                let seed = u64::from(self.reader.rank * self.reader.threads + self.thread);
                self.read(&self.order(seed, true)?)
            }
            Work::Fill => self.fill(true),
            Work::Store => self.fill(false),
            Work::Keys => self.read(&self.order(SEED, false)?),
        }
    }

    fn count(&self) {
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        if self.reader.rest > 0 && files.is_multiple_of(BATCH) {
            sleep(Duration::from_micros(self.reader.rest));
        }
    }

    fn epoch(&self, epoch: u64) -> Result<()> {
        let options = ShuffleOptions::new(SEED, epoch, GROUP);
        let epoch = self.dataset.shuffle(options.of_rank(self.reader.rank, self.reader.world))?;
        while let Some(file) = epoch.next()? {
            ensure!(file.bytes?.len() == LENGTH, "{} has another length", file.path);
            self.count();
        }
        Ok(())
    }

    /// Files of the thread in a random order.
    fn order(&self, seed: u64, is_whole: bool) -> Result<Vec<u32>> {
        let files = self.dataset.snapshot().context("there is a snapshot")?.files();
        let mut order: Vec<u32> = (0..files).collect();
        shuffle(&mut order, seed);
        if is_whole {
            return Ok(order);
        }
        let parts = (self.reader.world * self.reader.threads) as usize;
        let own = (self.reader.rank * self.reader.threads + self.thread) as usize;
        Ok(order.into_iter().skip(own).step_by(parts).collect())
    }

    /// Reads files by number, or by key from memcached if there is any.
    fn read(&self, order: &[u32]) -> Result<()> {
        let (keys, mut buffer) = (self.paths(order)?, vec![0; LENGTH]);
        let mut instances = self.instances()?;
        loop {
            for (number, key) in order.iter().zip(&keys) {
                let is_there = instances.as_mut().is_some_and(|all| all.get(*number, key));
                if !is_there {
                    let may_miss = instances.is_none() || self.reader.work == Work::Keys;
                    ensure!(may_miss, "memcached lost a key");
                    self.dataset.get_into(*number, &mut buffer)?;
                    black_box(&mut buffer);
                }
                self.count();
            }
        }
    }

    fn instances(&self) -> Result<Option<Instances>> {
        let memcached = &self.reader.memcached;
        (!memcached.is_empty()).then(|| Instances::open(memcached, LENGTH)).transpose()
    }

    fn paths(&self, order: &[u32]) -> Result<Vec<FilePath>> {
        let snapshot = self.dataset.snapshot().context("there is a snapshot")?;
        order.iter().map(|number| Ok(snapshot.path(*number)?)).collect()
    }

    fn fill(&self, is_read: bool) -> Result<()> {
        let mut order = self.order(SEED, false)?;
        let all = self.reader.memcached.len();
        order.retain(|number| {
            self.reader.only.is_none_or(|only| Instances::of(*number, all) == only)
        });
        let mut instances = self.instances()?.context("there is a memcached")?;
        let mut buffer = vec![0; LENGTH];
        for (number, key) in order.iter().zip(self.paths(&order)?) {
            if is_read {
                self.dataset.get_into(*number, &mut buffer)?;
            }
            instances.set(*number, &key, &buffer);
            self.count();
        }
        Ok(())
    }
}

/// Seconds since boot, and the number of files read by then.
pub(super) type Report = (f64, u64);

/// A process of a node.
#[derive(Debug)]
pub(super) struct TracedReader {
    process: Process,
    reports: Arc<Mutex<Vec<Report>>>,
    has_ended: Arc<AtomicBool>,
}

impl TracedReader {
    /// Starts the process and waits until it is ready to read.
    pub(super) fn start(reader: &PeersReader) -> Result<Self> {
        let role = Role::Trace(reader.clone());
        let mut own = OwnProcess::start(reader.namespace.as_deref(), &role)?;
        own.answer::<()>()?;
        let OwnProcess { process, stdout } = own;
        let (reports, has_ended) = (Arc::default(), Arc::default());
        let (kept, ended) = (Arc::clone(&reports), Arc::clone(&has_ended));
        spawn(move || listen(stdout, &kept, &ended));
        Ok(Self { process, reports, has_ended })
    }

    /// Starts the reads.
    pub(super) fn begin(&mut self) -> Result<()> {
        let stdin = self.process.0.stdin.as_mut().context("take its input")?;
        Ok(writeln!(stdin, "null")?)
    }

    /// Reports so far.
    pub(super) fn reports(&self) -> Vec<Report> {
        locked(&self.reports).clone()
    }

    /// True after the process has finished its work; an error for a failed process.
    pub(super) fn has_ended(&mut self) -> Result<bool> {
        if !self.has_ended.load(Ordering::Acquire) {
            return Ok(false);
        }
        let status = self.process.0.wait()?;
        ensure!(status.success(), "a process that reads has failed: {status}");
        Ok(true)
    }
}

fn listen(stdout: BufReader<ChildStdout>, reports: &Mutex<Vec<Report>>, has_ended: &AtomicBool) {
    for line in stdout.lines().map_while(Result::ok) {
        let report = serde_json::from_str::<Report>(&line);
        locked(reports).extend(report);
    }
    has_ended.store(true, Ordering::Release);
}

/// Number of files of all processes at a time, interpolated between their reports.
pub(super) fn files_at(traces: &[Vec<Report>], at: f64) -> f64 {
    traces.iter().map(|reports| files_of(reports, at)).sum()
}

fn files_of(reports: &[Report], at: f64) -> f64 {
    let next = reports.partition_point(|(time, _)| *time < at);
    match (next.checked_sub(1).and_then(|last| reports.get(last)), reports.get(next)) {
        (Some((before, from)), Some((after, to))) => {
            *from as f64 + (*to - *from) as f64 * (at - before) / (after - before)
        }
        (Some((_, files)), None) => *files as f64,
        (None, _) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::files_at;

    #[test]
    fn files_between_reports_lie_on_a_line() {
        let traces = [vec![(1.0, 0), (2.0, 10)], vec![(1.0, 0), (3.0, 40)]];
        assert_eq!(files_at(&traces, 0.5), 0.0);
        assert_eq!(files_at(&traces, 1.5), 15.0);
        assert_eq!(files_at(&traces, 4.0), 50.0);
    }
}

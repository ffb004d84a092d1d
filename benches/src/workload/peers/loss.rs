//! Reading speed of a job around the loss of a node (paper, Figure 6), beside memcached with the
//! loss of an instance.
//!
//! Must hold: both sides read over the same links, at the same speed before the loss, with the same
//! store for the lost part. The lost node has no reader.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::since_boot;
use dl_store::Throttle;
use rustix::process::{Pid, Signal, kill_process};

use super::cluster::{FILES, Job, LENGTH, memory, put_files};
use super::figure::Figure;
use super::first::{IN_FLIGHT, LINK, NODES};
use super::trace::{PeersReader, Report, TracedReader, Work, files_at};
use crate::measure::{Bar, Bench, Curve, Plot, Side, add};
use crate::setup::{Network, Process, Settings, SlowServer, memcached};
use crate::workload::agent::node::{Start, Status};
use crate::workload::agent::reader;

const DATASET: &str = "peers-loss";
const GROUP: u32 = 10;

/// Nodes with readers: all but the lost one.
const READERS: u32 = NODES as u32 - 1;

/// Pause after each batch of 64 files in microseconds.
const REST: u64 = 15_000;

/// Memory of all nodes relative to the dataset: enough for all chunks after the loss.
const HELD: f64 = 1.6;

/// Seconds before and after the loss.
const BEFORE: f64 = 8.0;
const BEHIND: f64 = 22.0;
/// Seconds of a speed measurement.
const WINDOW: f64 = 1.0;
/// Seconds between two points of the chart.
const STEP: f64 = 0.5;
/// Part of the earlier speed that counts as recovered.
const BACK: f64 = 0.95;
/// Largest excess of the dip over the lost share, as a part of the speed.
const MORE: f64 = 0.10;

/// Latency of each store request.
const LATENCY: Duration = Duration::from_millis(2);

/// Speed of one side around the loss.
#[derive(Debug)]
struct Course {
    /// Seconds after the loss, and files a second.
    points: Vec<(f64, f64)>,
    before: f64,
    lost_share: f64,
}

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let Some(network) = Network::start(NODES, LINK)? else { return Ok(Vec::new()) };
    let folder = settings.on_disk("peers-loss");
    let server = SlowServer::start(network.address(), IN_FLIGHT)?;
    let files = settings.scaled(FILES);
    put_files(&server.address, DATASET, files)?;
    let job = Job {
        network: Some(&network),
        ..Job::new("loss", &server.address, DATASET, &folder, NODES)
    };
    let dip = "deepest dip of the speed, by a second";
    let back = ["seconds until the speed is back", "memcached, which is never back"];
    let mut sides = [dip, "lost share and a tenth", dip, back[0], back[1]].map(Side::new);
    let mut courses = None;
    for _ in 0..settings.runs() {
        let ours = of_agents(&job, &server, files)?;
        let known = of_memcached(&job, &network, &server)?;
        add(
            &mut sides,
            [ours.dip(), ours.lost_share + MORE, known.dip(), ours.back(), known.back()],
        );
        courses = Some((ours, known));
    }
    let (ours, known) = courses.context("there is a run")?;
    let described = format!(
        "{files} files of 4 KiB, {NODES} nodes with links of {LINK} Mbit/s, {READERS} readers with a rest of \
         {REST} us after 64 files and {:.0} files/s together before; one node without a reader is killed, a \
         store of 1.5 times the lost share with 2 ms",
        ours.before
    );
    draw(settings, &described, &ours, &known)?;
    let [dip, bound, known_dip, back, known_back] = sides;
    let bench = |name: &str, unit, sides, bar| {
        Bench::new(format!("peers loss of a node{name}"), &described, unit, sides, bar)
    };
    Ok(vec![
        bench(", dip", "of the speed", [dip.clone(), bound], Bar::AtMostTimes(1.0)),
        bench(", dip beside memcached", "of the speed", [dip, known_dip], Bar::None),
        bench(", back", "s", [back, known_back], Bar::AtMost(BEHIND - 2.0 * WINDOW)),
    ])
}

fn draw(settings: &Settings, described: &str, ours: &Course, known: &Course) -> Result<()> {
    let curve = |name: &str, course: &Course| {
        let points = course.points.iter().map(|(at, speed)| (at + BEFORE, *speed)).collect();
        Curve { name: name.to_owned(), points }
    };
    let curves = vec![curve("this system", ours), curve("memcached", known)];
    let title = format!("One of {NODES} nodes is lost after {BEFORE:.0} s");
    Figure {
        name: "figure-6",
        heading: "Reading while a node is lost (paper, Figure 6)",
        claim: "in a Memcached cluster of 20 nodes, the loss of one instance (5 % misses) reduces the reading \
                speed by 90 %",
        seen: format!(
            "the loss of one of {NODES} nodes reduces the speed of memcached by {:.0} %, without an end, and \
             that of this system by {:.0} % at its deepest second; the speed is back after {:.1} s",
            known.dip() * 100.0,
            ours.dip() * 100.0,
            ours.back()
        ),
        settings: described.to_owned(),
        plot: Plot { title, x: "seconds", y: "files/s", curves },
    }
    .write(settings)
}

impl Course {
    /// Computes the course around the loss at `lost_at` from the reports of all readers.
    fn of(traces: &[Vec<Report>], lost_at: f64, lost_share: f64) -> Self {
        let speed = |from: f64, to: f64| {
            (files_at(traces, lost_at + to) - files_at(traces, lost_at + from)) / (to - from)
        };
        let steps = ((BEFORE + BEHIND - WINDOW) / STEP) as u32;
        let starts = (0..steps).map(|step| f64::from(step) * STEP - BEFORE);
        let points = starts.map(|start| (start + WINDOW, speed(start, start + WINDOW))).collect();
        Self { points, before: speed(1.0 - BEFORE, 0.0), lost_share }
    }

    /// Lost part of the speed in the worst second after the loss.
    fn dip(&self) -> f64 {
        let behind = self.points.iter().filter(|(at, _)| *at > 0.0).map(|(_, speed)| *speed);
        1.0 - behind.fold(f64::INFINITY, f64::min) / self.before
    }

    /// Seconds from the loss to the recovered speed; the whole course without recovery.
    fn back(&self) -> f64 {
        let slow = self.points.iter().rfind(|(at, speed)| *at > 0.0 && *speed < BACK * self.before);
        slow.map_or(0.0, |(at, _)| *at)
    }
}

/// Starts readers, loses a node, and returns the reports and the time of the loss.
fn around_loss(
    readers: &mut [TracedReader],
    lose: impl FnOnce() -> Result<()>,
) -> Result<(Vec<Vec<Report>>, f64)> {
    readers.iter_mut().try_for_each(TracedReader::begin)?;
    // The first second does not count.
    sleep(Duration::from_secs_f64(BEFORE + 1.0));
    let lost_at = since_boot().as_secs_f64();
    lose()?;
    sleep(Duration::from_secs_f64(BEHIND));
    for reader in readers.iter_mut() {
        ensure!(!reader.has_ended()?, "a reader has ended");
    }
    Ok((readers.iter().map(TracedReader::reports).collect(), lost_at))
}

/// Store with one and a half times the lost share of this speed.
fn slow(files_per_second: f64, lost_share: f64) -> Throttle {
    let bytes = files_per_second * LENGTH as f64 * lost_share * 1.5;
    Throttle {
        latency: LATENCY,
        bytes_per_second: NonZeroU64::new(bytes as u64),
        ..Throttle::default()
    }
}

/// Reader of a node with the common pause.
fn paused(job: &Job<'_>, rank: u32, work: Work) -> PeersReader {
    PeersReader { rest: REST, ..PeersReader::of(job, rank, READERS, work) }
}

/// Approximate speed of all readers without a loss.
const SPEED: f64 = READERS as f64 * 64.0 / (REST as f64 / 1e6);

fn of_agents(job: &Job<'_>, server: &SlowServer, files: u32) -> Result<Course> {
    server.set_throttle(Throttle::default());
    let memory = memory(files, HELD, NODES);
    let cluster = job.start(&Start { memory, policy: "on-demand", ..Start::default() })?;
    // After two epochs the nodes hold all chunks.
    let mut readers = cluster.readers()?;
    (0..2).try_for_each(|number| reader::epoch(&mut readers, number, GROUP).map(|_| ()))?;
    drop(readers);
    let readers = (0..READERS).map(|rank| {
        let reader = paused(job, rank, Work::Epochs);
        TracedReader::start(&PeersReader { task: Some(job.task.to_owned()), ..reader })
    });
    let mut readers = readers.collect::<Result<Vec<_>>>()?;
    let lost = cluster.nodes[NODES - 1].status()?;
    let lost_share = lost.chunks_kept as f64 / lost.chunks as f64;
    server.set_throttle(slow(SPEED, lost_share));
    let (traces, lost_at) = around_loss(&mut readers, || kill(&lost))?;
    Ok(Course::of(&traces, lost_at, lost_share))
}

fn of_memcached(job: &Job<'_>, network: &Network, server: &SlowServer) -> Result<Course> {
    server.set_throttle(Throttle::default());
    let mut instances = instances(network)?;
    let addresses: Vec<SocketAddr> = instances.iter().map(|(_, address)| *address).collect();
    let of = |rank, work| PeersReader { memcached: addresses.clone(), ..paused(job, rank, work) };
    let fillers = (0..READERS).map(|rank| {
        TracedReader::start(&PeersReader { rest: 0, threads: 4, ..of(rank, Work::Store) })
    });
    finish_all(fillers.collect::<Result<_>>()?)?;
    let readers = (0..READERS).map(|rank| TracedReader::start(&of(rank, Work::Keys)));
    let mut readers = readers.collect::<Result<Vec<_>>>()?;
    let lost_share = 1.0 / NODES as f64;
    server.set_throttle(slow(SPEED, lost_share));
    let (traces, lost_at) = around_loss(&mut readers, || {
        // Drop kills the instance.
        drop(instances.pop());
        Ok(())
    })?;
    Ok(Course::of(&traces, lost_at, lost_share))
}

/// Starts a memcached on each node.
pub(super) fn instances(network: &Network) -> Result<Vec<(Process, SocketAddr)>> {
    (0..NODES).map(|node| instance(network, node)).collect()
}

/// Starts the memcached of one node.
pub(super) fn instance(network: &Network, node: usize) -> Result<(Process, SocketAddr)> {
    let address = SocketAddr::from((network.address_of(node), 11_211));
    Ok((memcached(Some(&network.namespace(node)), address)?, address))
}

pub(super) fn kill(agent: &Status) -> Result<()> {
    let pid = i32::try_from(agent.pid).ok().and_then(Pid::from_raw);
    Ok(kill_process(pid.context("it is a process")?, Signal::KILL)?)
}

/// Runs processes to the end of their work; returns the reports of each.
pub(super) fn finish_all(mut processes: Vec<TracedReader>) -> Result<Vec<Vec<Report>>> {
    processes.iter_mut().try_for_each(TracedReader::begin)?;
    super::cluster::until("the processes take too long", || {
        processes.iter_mut().try_fold(true, |all, process| Ok(all & process.has_ended()?))
    })?;
    Ok(processes.iter().map(TracedReader::reports).collect())
}

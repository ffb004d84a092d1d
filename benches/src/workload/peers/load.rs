//! Load of a dataset into the memory of four nodes, and recovery from a lost node (paper, Figure 11b). The
//! reference is memcached, filled file by file by clients.
//!
//! Must hold: both sides read the same store over the same links. The time of this system includes
//! the start of its agents; the time of memcached does not include the start of its instances.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dl_runtime::since_boot;
use dl_store::Throttle;

use super::cluster::{Cluster, FILES, Job, PER_CHUNK, memory, put_files};
use super::figure::Figure;
use super::first::{IN_FLIGHT, LINK, NODES};
use super::loss::{finish_all, instances, kill};
use super::trace::{PeersReader, Report, TracedReader, Work, files_at};
use crate::measure::{Bar, Bench, Curve, Plot, Side, add};
use crate::setup::{Network, Settings, SlowServer};
use crate::workload::agent::node::Start;

const DATASET: &str = "peers-load";

const SLOW: Throttle = Throttle {
    latency: Duration::from_millis(5),
    bytes_per_second: NonZeroU64::new(200_000_000),
    requests_per_second: None,
};

/// Threads of each node to fill memcached.
const THREADS: u32 = 4;

/// Interval and number of the status queries, and unchanged queries at an end.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
const LOOKS: u32 = 2_000;
const QUIET: u32 = 60;

/// Points of a line of the chart.
const POINTS: u32 = 40;

/// Progress of a load: seconds, and chunks or files present by then.
#[derive(Debug, Default)]
struct Load(Vec<(f64, f64)>);

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let Some(network) = Network::start(NODES, LINK)? else { return Ok(Vec::new()) };
    let folder = settings.on_disk("peers-load");
    let server = SlowServer::start(network.address(), IN_FLIGHT)?;
    let files = settings.scaled(FILES);
    put_files(&server.address, DATASET, files)?;
    server.set_throttle(SLOW);
    let job = Job {
        network: Some(&network),
        ..Job::new("load", &server.address, DATASET, &folder, NODES)
    };
    let mut loading = [Side::new("agents with the policy oneshot"), Side::new(MEMCACHED)];
    let mut recovery =
        [Side::new("a new agent in place of one that was killed"), Side::new(MEMCACHED)];
    let mut last = None;
    for _ in 0..settings.runs() {
        let (load, recover, reads) = of_agents(&job, files)?;
        let (known_load, known_recover) = of_memcached(&job, &network)?;
        for (sides, loads) in
            [(&mut loading, [&load, &known_load]), (&mut recovery, [&recover, &known_recover])]
        {
            add(sides, loads.map(Load::seconds));
        }
        last = Some(([load, recover, known_load, known_recover], reads));
    }
    let (loads, reads) = last.context("there is a run")?;
    let described = format!(
        "{files} files of 4 KiB in {} chunks, {NODES} nodes with links of {LINK} Mbit/s, a store with 5 ms and 200 \
         MB/s, {THREADS} threads of each node fill memcached; {reads} chunks were read from the store, and in the end {} are held, \
         {} after the recovery",
        files.div_ceil(PER_CHUNK),
        loads[0].count(),
        loads[1].count()
    );
    let bench = |name: &str, sides| {
        Bench::new(format!("peers {name}"), &described, "s", sides, Bar::AtMostTimes(0.1))
    };
    let benches = vec![bench("load", loading), bench("recovery", recovery)];
    draw(settings, &described, &loads, &benches)?;
    Ok(benches)
}

const MEMCACHED: &str = "memcached, filled file by file";

fn draw(settings: &Settings, described: &str, loads: &[Load; 4], benches: &[Bench]) -> Result<()> {
    let names =
        ["this system, load", "this system, recovery", "memcached, load", "memcached, recovery"];
    let curves = names.iter().zip(loads).map(|(name, load)| load.curve(name));
    let times = |bench: &Bench| (bench.theirs.median(), bench.ours.median(), 1.0 / bench.ratio());
    let seen = benches.iter().zip(["load", "recovery"]).map(|(bench, name)| {
        let (theirs, ours, faster) = times(bench);
        format!(
            "{name} in {ours:.1} s beside {theirs:.1} s of memcached ({faster:.0} times faster)"
        )
    });
    Figure {
        name: "figure-11b",
        heading: "Load and recovery (paper, Figure 11b)",
        claim: "DIESEL loads ImageNet-1K within 10 s; a Memcached cluster takes more than 100 s for the last \
                20 % of the files alone",
        seen: seen.collect::<Vec<_>>().join("; "),
        settings: described.to_owned(),
        plot: Plot {
            title: "Loaded files".to_owned(),
            x: "seconds",
            y: "percent",
            curves: curves.collect(),
        },
    }
    .write(settings)
}

impl Load {
    fn seconds(&self) -> f64 {
        self.0.last().map_or(f64::NAN, |(at, _)| *at)
    }

    fn count(&self) -> f64 {
        self.0.last().map_or(f64::NAN, |(_, count)| *count)
    }

    /// Progress as a curve in percent of the end.
    fn curve(&self, name: &str) -> Curve {
        let all = self.count();
        let step = (self.0.len() / POINTS as usize).max(1);
        let some = self.0.iter().step_by(step).chain(self.0.last());
        let points = some.map(|(at, count)| (*at, 100.0 * count / all)).collect();
        Curve { name: name.to_owned(), points }
    }
}

/// Watches agents until their links are up and their fetches end. A load ends with the last kept chunk.
fn watch(cluster: &Cluster, start: f64, chunks: u64) -> Result<Load> {
    let mut load = Load::default();
    let mut quiet = 0;
    for _ in 0..LOOKS {
        let kept: u64 = cluster.statuses()?.iter().map(|status| status.chunks_kept).sum();
        let kept = kept.min(chunks) as f64;
        quiet += 1;
        if load.0.last().is_none_or(|(_, last)| *last != kept) {
            load.0.push((since_boot().as_secs_f64() - start, kept));
            quiet = 0;
        }
        if quiet > QUIET && cluster.is_idle()? && cluster.has_all_peers()? {
            return Ok(load);
        }
        sleep(POLL_INTERVAL);
    }
    bail!("the agents don't load the dataset: {:?}", cluster.statuses()?);
}

/// Load and recovery of agents, and the load's chunks from the store.
fn of_agents(job: &Job<'_>, files: u32) -> Result<(Load, Load, u64)> {
    let chunks = u64::from(files.div_ceil(PER_CHUNK));
    let memory = memory(files, 1.3, NODES);
    let start = Start { memory, policy: "oneshot", ..Start::default() };
    let began = since_boot().as_secs_f64();
    let mut cluster = job.start_nodes(&start)?;
    let load = watch(&cluster, began, chunks)?;
    let reads = cluster.server_chunks()?;
    let lost = cluster.nodes.pop().context("there is a node")?;
    kill(&lost.status()?)?;
    drop(lost);
    let began = since_boot().as_secs_f64();
    cluster.nodes.push(job.start_node(NODES - 1, &start)?);
    let recover = watch(&cluster, began, chunks)?;
    Ok((load, recover, reads))
}

/// Load and recovery of memcached; the recovery replaces a lost instance.
fn of_memcached(job: &Job<'_>, network: &Network) -> Result<(Load, Load)> {
    let mut instances = instances(network)?;
    let load = fill(job, &instances, None)?;
    let last = instances.len() - 1;
    drop(instances.pop());
    instances.push(super::loss::instance(network, last)?);
    Ok((load, fill(job, &instances, Some(last))?))
}

/// Fills all instances, or only the given instance.
fn fill<P>(job: &Job<'_>, instances: &[(P, SocketAddr)], only: Option<usize>) -> Result<Load> {
    let fillers = (0..NODES as u32).map(|rank| {
        TracedReader::start(&PeersReader {
            threads: THREADS,
            memcached: instances.iter().map(|(_, address)| *address).collect(),
            only,
            ..PeersReader::of(job, rank, NODES as u32, Work::Fill)
        })
    });
    let fillers = fillers.collect::<Result<Vec<_>>>()?;
    let began = since_boot().as_secs_f64();
    let traces: Vec<Vec<Report>> = finish_all(fillers)?;
    let ends = traces.iter().filter_map(|reports| reports.last()).map(|(at, _)| *at);
    let end = ends.fold(began, f64::max);
    let steps =
        (0..=POINTS).map(|step| began + (end - began) * f64::from(step) / f64::from(POINTS));
    Ok(Load(steps.map(|at| (at - began, files_at(&traces, at))).collect()))
}

//! Read rate of one to four nodes with files of 4 KiB (paper, Figure 11a), beside memcached and
//! beside the servers alone.
//!
//! Must hold: all sides have as many nodes, threads and links, and read the same files. The memory
//! is full before a measurement.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_runtime::since_boot;

use super::cluster::{FILES, Job, PER_CHUNK, memory, put_files, until};
use super::figure::Figure;
use super::first::{LINK, NODES};
use super::loss::{finish_all, instances};
use super::trace::{PeersReader, TracedReader, Work, files_at};
use crate::measure::{Bar, Bench, Curve, Plot, Side, add};
use crate::setup::{Network, Server, Settings};
use crate::workload::agent::node::{Node, Start};

const DATASET: &str = "peers-speed";

/// Threads of each node.
const THREADS: u32 = 2;

/// Seconds before and during a speed measurement.
const BEFORE: f64 = 1.5;
const WINDOW: f64 = 2.0;

/// Sides in the order of [`speeds`].
const SIDES: [&str; 4] =
    ["random, each node holds all", "memcached", "epochs, held together", "servers alone"];

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let Some(network) = Network::start(NODES, LINK)? else { return Ok(Vec::new()) };
    let folder = settings.on_disk("peers-speed");
    let data = folder.join("data");
    let server = Server::start_as(&data, network.address(), &["--without-keys"], &[])?;
    let files = settings.scaled(FILES);
    put_files(&server.address, DATASET, files)?;
    let mut sides = vec![SIDES.map(Side::new); NODES];
    for _ in 0..settings.runs() {
        for (index, sides) in sides.iter_mut().enumerate() {
            let job = Job::new("speed", &server.address, DATASET, &folder, index + 1);
            let job = Job { network: Some(&network), ..job };
            add(sides, speeds(&job, &network, files)?);
        }
    }
    let described = format!(
        "{files} files of 4 KiB in {} chunks, links of {LINK} Mbit/s, {THREADS} threads of each node, one file a \
         call; all nodes share the cores of one machine",
        files.div_ceil(PER_CHUNK)
    );
    draw(settings, &described, &sides)?;
    Ok(sides
        .into_iter()
        .enumerate()
        .flat_map(|(index, sides)| benches(index + 1, &described, sides))
        .collect())
}

fn benches(nodes: usize, described: &str, [random, known, epochs, alone]: [Side; 4]) -> [Bench; 3] {
    let bench = |ours: Side, theirs: &Side| {
        let name = format!("peers speed, {nodes} nodes");
        Bench::new(name, described, "files/s", [ours, theirs.clone()], Bar::None)
    };
    [bench(random, &known), bench(epochs, &known), bench(known.clone(), &alone)]
}

fn draw(settings: &Settings, described: &str, sides: &[[Side; 4]]) -> Result<()> {
    let curves = SIDES.iter().enumerate().map(|(number, name)| {
        let points = sides.iter().enumerate();
        let points = points.map(|(index, sides)| ((index + 1) as f64, sides[number].median()));
        Curve { name: (*name).to_owned(), points: points.collect() }
    });
    let most = &sides[NODES - 1];
    Figure {
        name: "figure-11a",
        heading: "Random reads of 4 KiB files (paper, Figure 11a)",
        claim: "with 10 nodes DIESEL reads 1.2 M files/s, a Memcached cluster 560 k and Lustre 40 k",
        seen: format!(
            "with {NODES} nodes on one machine this system reads {:.0} k files/s at random where each node holds \
             all, and {:.0} k in the order of epochs where the nodes hold all together; memcached reads {:.0} k \
             and the servers alone {:.0} k",
            most[0].median() / 1e3,
            most[2].median() / 1e3,
            most[1].median() / 1e3,
            most[3].median() / 1e3
        ),
        settings: described.to_owned(),
        plot: Plot {
            title: "Files of 4 KiB from memory".to_owned(),
            x: "nodes",
            y: "files/s",
            curves: curves.collect(),
        },
    }
    .write(settings)
}

/// Files a second of each side.
fn speeds(job: &Job<'_>, network: &Network, files: u32) -> Result<[f64; 4]> {
    Ok([
        of_agents(job, files, 1.3 * job.nodes as f64, Work::Random)?,
        of_memcached(job, network)?,
        of_agents(job, files, 1.3, Work::Epochs)?,
        read(&readers(job, Work::Random, None, &[]))?,
    ])
}

/// Speed of agents with memory for a part of the dataset.
fn of_agents(job: &Job<'_>, files: u32, held: f64, work: Work) -> Result<f64> {
    let memory = memory(files, held, job.nodes);
    let policy = if work == Work::Random { "on-demand" } else { "oneshot" };
    let cluster = job.start(&Start { memory, policy, ..Start::default() })?;
    if work == Work::Random {
        // Prefetch also fetches chunks that belong to other agents.
        cluster.nodes.iter().try_for_each(Node::prefetch)?;
    }
    until("the agents don't load the dataset", || {
        Ok(cluster.server_chunks()? >= u64::from(files.div_ceil(PER_CHUNK)) && cluster.is_idle()?)
    })?;
    read(&readers(job, work, Some(job.task), &[]))
}

fn of_memcached(job: &Job<'_>, network: &Network) -> Result<f64> {
    let instances = instances(network)?;
    let addresses: Vec<SocketAddr> =
        instances.iter().take(job.nodes).map(|(_, address)| *address).collect();
    let fillers = readers(job, Work::Store, None, &addresses);
    finish_all(fillers.iter().map(TracedReader::start).collect::<Result<_>>()?)?;
    read(&readers(job, Work::Random, None, &addresses))
}

/// Description of one process for each node.
fn readers(
    job: &Job<'_>,
    work: Work,
    task: Option<&str>,
    memcached: &[SocketAddr],
) -> Vec<PeersReader> {
    let world = job.nodes as u32;
    let reader = |rank| PeersReader {
        // Threads of one process share the order of an epoch.
        threads: if work == Work::Epochs { 1 } else { THREADS },
        task: task.map(str::to_owned),
        memcached: memcached.to_vec(),
        ..PeersReader::of(job, rank, world, work)
    };
    (0..world).map(reader).collect()
}

/// Files a second of all readers together.
fn read(readers: &[PeersReader]) -> Result<f64> {
    let mut traced = readers.iter().map(TracedReader::start).collect::<Result<Vec<_>>>()?;
    traced.iter_mut().try_for_each(TracedReader::begin)?;
    let began = since_boot().as_secs_f64();
    // The last reports come after their time.
    sleep(Duration::from_secs_f64(BEFORE + WINDOW + 0.5));
    for one in &mut traced {
        ensure!(!one.has_ended()?, "a reader has ended");
    }
    let reports: Vec<_> = traced.iter().map(TracedReader::reports).collect();
    let [from, to] = [BEFORE, BEFORE + WINDOW].map(|after| files_at(&reports, began + after));
    Ok((to - from) / WINDOW)
}

//! Files of 4 KiB from another agent's memory in random batches, beside memcached over TCP: over a
//! network link, and on loopback, where the network costs nothing.
//!
//! Must hold: nearly all files arrive without their chunks. The same processes read both sides in
//! turns.

use std::net::SocketAddr;

use anyhow::{Result, ensure};

use super::cluster::{Cluster, FILES, Job, LENGTH, PER_CHUNK, SLOT, put_files};
use super::first::{IN_FLIGHT, LINK};
use super::loss::instance;
use super::transfer::MEMORY;
use crate::measure::{Bar, Bench, Side, add};
use crate::setup::{Network, Server, Settings, SlowServer, free_address, memcached};
use crate::workload::agent::memcached::Listener;
use crate::workload::agent::node::Start;
use crate::workload::agent::reader::{AgentReader, BATCH, Command, Kind, ReaderProcess, together};

const DATASET: &str = "peers-small";
const NODES: usize = 2;

/// Reading processes, each with a batch at a time.
const READERS: u32 = 4;

/// Slots of the readers' agent. Each reader uses a slot, so copies of chunks soon find no free slot.
const SLOTS: u32 = 8;

/// Duration of a side's turn, and turns of a run.
const MILLISECONDS: u64 = 1_000;
const TURNS: usize = 2;

/// Least part of the files without their chunks.
const SHARE_MIN: f64 = 0.9;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let mut benches = over_link(settings)?;
    benches.push(on_loopback(settings)?);
    Ok(benches)
}

/// Between two nodes with a link; nothing where namespaces are not permitted.
fn over_link(settings: &Settings) -> Result<Vec<Bench>> {
    let Some(network) = Network::start(NODES, LINK)? else { return Ok(Vec::new()) };
    let server = SlowServer::start(network.address(), IN_FLIGHT)?;
    let folder = settings.on_disk("peers-small-link");
    let job = Job {
        network: Some(&network),
        ..Job::new("small-link", &server.address, DATASET, &folder, NODES)
    };
    let (_memcached, address) = instance(&network, 0)?;
    let between = format!("a link of {LINK} Mbit/s");
    Ok(vec![of_pair(settings, &job, address, &between, Bar::AtLeastTimes(0.95))?])
}

fn on_loopback(settings: &Settings) -> Result<Bench> {
    let folder = settings.on_disk("peers-small");
    let server = Server::start(&folder.join("data"))?;
    let job = Job::new("small", &server.address, DATASET, &folder, NODES);
    let address = free_address()?;
    let _memcached = memcached(None, address)?;
    of_pair(settings, &job, address, "loopback", Bar::None)
}

/// One agent with the whole dataset and another with readers; memcached stands beside the first.
fn of_pair(
    settings: &Settings,
    job: &Job<'_>,
    memcached: SocketAddr,
    between: &str,
    bar: Bar,
) -> Result<Bench> {
    let files = settings.scaled(FILES);
    put_files(job.server, DATASET, files)?;
    let giving = Start { memory: MEMORY, policy: "oneshot", ..Start::default() };
    let memory = u64::from(SLOTS) * u64::from(SLOT);
    let pair = Cluster::of_giver_and_taker(job, &giving, memory)?;
    let at = Some(Listener::Tcp(memcached));
    let reader = |seed| AgentReader { memcached: at.clone(), ..pair.nodes[1].reader(LENGTH, seed) };
    let readers = (1..=u64::from(READERS)).map(|seed| ReaderProcess::start(&reader(seed)));
    let mut readers = readers.collect::<Result<Vec<_>>>()?;
    let (sides, shares) = measure(settings, &pair, &mut readers)?;
    let described = format!(
        "{files} files of 4 KiB in {} chunks, all at one agent, {SLOTS} slots at the other agent, {READERS} \
         processes with a batch of {BATCH} random files each; sides change every {MILLISECONDS} ms; {shares}; {between}",
        files.div_ceil(PER_CHUNK)
    );
    let name = format!("peers {BATCH} x 4 KiB from a peer's memory, {between}");
    Ok(Bench::new(name, described, "files/s", sides, bar))
}

fn measure(
    settings: &Settings,
    pair: &Cluster,
    readers: &mut [ReaderProcess],
) -> Result<([Side; 2], String)> {
    together(readers, Command::Prepare(Kind::MemcachedMany))?;
    let kinds = [Kind::GetMany, Kind::MemcachedMany];
    let names = [
        "get_many_into by number, files from another agent",
        "one memcached over TCP, a batch of keys",
    ];
    let mut sides = names.map(Side::new);
    for kind in kinds {
        together(readers, Command::Read(kind, MILLISECONDS))?;
    }
    let before = pair.nodes[1].status()?;
    let mut read = 0;
    for _ in 0..settings.runs() {
        let mut rates = [0.0; 2];
        for turn in 0..TURNS {
            for side in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
                let answers = together(readers, Command::Read(kinds[side], MILLISECONDS))?;
                rates[side] += answers.iter().map(|answer| answer.rate()).sum::<f64>();
                if side == 0 {
                    read += answers.iter().map(|answer| answer.files).sum::<u64>();
                }
            }
        }
        add(&mut sides, rates.map(|rate| rate / TURNS as f64));
    }
    let after = pair.nodes[1].status()?;
    let alone = after.files_from_peers - before.files_from_peers;
    let (misses, fallbacks) = (after.misses - before.misses, after.fallbacks - before.fallbacks);
    let shares = format!(
        "{alone} of {read} files came alone, {misses} with their chunks, and {fallbacks} from the servers"
    );
    ensure!(alone as f64 > SHARE_MIN * read as f64, "{shares}");
    Ok((sides, shares))
}

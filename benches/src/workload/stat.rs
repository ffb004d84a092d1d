//! Path queries without a snapshot (paper, Figure 10a), through servers over one Redis. The reference is GET of
//! redis-benchmark on the same Redis.
//!
//! Queries come from 64 threads of a process through libdiesel. A thread sends its next query after the answer,
//! like connections of redis-benchmark; all programs share the machine's cores. Threads of a handle share
//! requests, with two in flight. A row therefore has a handle for each thread; rows with several servers have
//! four handles, as of four processes.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use dl_format::{Attributes, ChunkShape, FilePath};
use libdiesel::{Client, ConnectOptions, Dataset, StatItem};

use crate::measure::{Bar, Bench, Curve, Plot, Side, in_turns, time};
use crate::setup::{Redis, Server, Settings, connect, in_threads, processor_seconds, shuffle};

const NAME: &str = "stat";
const IN_FLIGHT: usize = 64;
const BATCH: usize = 64;
const SERVERS: [usize; 3] = [1, 2, 3];
const HANDLES: usize = 4;
const PER_FOLDER: u32 = 1_000;
const GET: &str = "redis-benchmark GET, 64 connections, no pipelining";

/// A Redis, servers over it, and a dataset on all servers.
struct Setup {
    redis: Redis,
    servers: Vec<Server>,
    paths: Vec<FilePath>,
}

impl Setup {
    fn new(settings: &Settings, servers: usize) -> Result<Self> {
        let redis = Redis::start()?;
        let url = redis.url();
        let data = settings.on_disk("stat");
        let servers = (0..servers).map(|_| Server::start_on(&data, &["--meta", &url], &[]));
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let first = connect(&servers.first().context("there is a server")?.address)?;
        let dataset = first.create_dataset(&NAME.parse()?, ChunkShape::default())?;
        let mut paths = Vec::new();
        for file in 0..settings.scaled(100_000) {
            let folder = 1_440_764 + file / PER_FOLDER * 7;
            let path = format!("n{folder:08}/n{folder:08}_{}.JPEG", 10_026 + file % PER_FOLDER);
            let path = FilePath::new(path)?;
            dataset.put(&path, Attributes::default(), b"x")?;
            paths.push(path);
        }
        dataset.close()?;
        shuffle(&mut paths, 1);
        Ok(Self { redis, servers, paths })
    }

    /// Queries the first `servers` servers `requests` times through `handles` handles, `batch`
    /// paths at a time.
    fn ask(
        &self,
        (servers, handles): (usize, usize),
        batch: usize,
        requests: u32,
    ) -> Result<Measured> {
        let addresses = self.servers.iter().take(servers).map(|server| server.address.clone());
        let addresses: Vec<String> = addresses.collect();
        let handle = |_| -> Result<Dataset> {
            let options = ConnectOptions { servers: addresses.clone(), ..Default::default() };
            Ok(Client::connect(options)?.dataset(&NAME.parse()?)?)
        };
        let handles: Vec<Dataset> = (0..handles).map(handle).collect::<Result<_>>()?;
        let next = AtomicU32::new(0);
        let before = self.seconds()?;
        let asking = handles.iter().cycle().take(IN_FLIGHT);
        let ask = |dataset| ask(dataset, &self.paths, &next, batch, requests);
        let ((), seconds) = time(|| in_threads(asking, ask))?;
        let after = self.seconds()?;
        let used = std::array::from_fn(|of| (after[of] - before[of]) / seconds);
        Ok(Measured { rate: f64::from(requests) * batch as f64 / seconds, used })
    }

    /// Processor time of Redis, the servers and the bench so far.
    fn seconds(&self) -> Result<[f64; 3]> {
        let servers: Vec<_> = self.servers.iter().map(Server::id).collect();
        Ok([
            processor_seconds(&[self.redis.id()])?,
            processor_seconds(&servers)?,
            processor_seconds(&[std::process::id()])?,
        ])
    }

    fn get(&self, settings: &Settings) -> Result<f64> {
        let count = settings.scaled(200_000).to_string();
        self.redis.rate("GET", &["-c", "64", "-n", &count])
    }
}

/// Paths a second, and used cores of Redis, the servers and the bench.
struct Measured {
    rate: f64,
    used: [f64; 3],
}

impl Measured {
    fn cores(&self) -> String {
        let [redis, servers, client] = self.used;
        format!("cores used: Redis {redis:.2}, servers {servers:.2}, client {client:.2}")
    }
}

fn ask(
    dataset: &Dataset,
    paths: &[FilePath],
    next: &AtomicU32,
    batch: usize,
    requests: u32,
) -> Result<()> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= requests {
            return Ok(());
        }
        let from = number as usize * batch % (paths.len() - batch);
        let wanted = paths.get(from..from + batch).context("a run of the paths")?;
        let is_file = |item: &StatItem| matches!(item, StatItem::File(_));
        ensure!(dataset.stat_many(wanted)?.iter().all(is_file), "a file is not there");
    }
}

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let setup = Setup::new(settings, 1)?;
    let (ones, batches) = (settings.scaled(100_000), settings.scaled(10_000));
    let names = [
        "stat of one path, through one server",
        "the same from a handle each, as of processes of one thread",
        "stat of 64 paths, through one server",
        GET,
    ];
    let mut cores = [String::new(), String::new(), String::new()];
    let [one, alone, many, theirs] = in_turns(settings.runs(), names, |_| {
        let singly = setup.ask((1, 1), 1, ones)?;
        let get = setup.get(settings)?;
        let by_itself = setup.ask((1, IN_FLIGHT), 1, ones)?;
        let together = setup.ask((1, 1), BATCH, batches)?;
        cores = [&singly, &by_itself, &together].map(Measured::cores);
        Ok([singly.rate, by_itself.rate, together.rate, get])
    })?;
    let files = setup.paths.len();
    let bench = |name, ours, cores: &str, bar| {
        let settings =
            format!("{files} files, one Redis, {IN_FLIGHT} questions at a time; {cores}");
        Bench::new(name, settings, "paths/s", [ours, theirs.clone()], bar)
    };
    Ok(vec![
        bench("stat", one, &cores[0], Bar::AtLeastTimes(0.5)),
        bench("stat alone", alone, &cores[1], Bar::None),
        bench("stat in batches", many, &cores[2], Bar::AtLeastTimes(2.5)),
    ])
}

pub(super) fn servers(settings: &Settings) -> Result<Vec<Bench>> {
    let setup = Setup::new(settings, SERVERS.into_iter().max().unwrap_or(1))?;
    let requests = settings.scaled(60_000);
    let limit = setup.redis.lookups(settings.scaled(1_000_000))?;
    let files = setup.paths.len();
    let described = format!(
        "{files} files, one Redis, {IN_FLIGHT} questions at a time of {HANDLES} handles; Redis alone \
         answers {:.0} k such lookups/s in pipelines",
        limit / 1e3
    );
    let mut benches = SERVERS.map(|count| {
        let sides = ["stat of one path", GET].map(Side::new);
        Bench::new(format!("{count} servers"), &described, "paths/s", sides, Bar::None)
    });
    for round in 0..=settings.runs() {
        for (bench, count) in benches.iter_mut().zip(SERVERS) {
            let measured = setup.ask((count, HANDLES), 1, requests)?;
            let get = setup.get(settings)?;
            if round > 0 {
                bench.ours.samples.push(measured.rate);
                bench.theirs.samples.push(get);
                bench.ours.what = format!("stat of one path; {}", measured.cores());
            }
        }
    }
    if let Some(folder) = settings.plots() {
        let of = |name: &str, side: fn(&Bench) -> &Side| {
            let points = benches.iter().zip(SERVERS);
            let points = points.map(|(bench, count)| (count as f64, side(bench).median()));
            Curve { name: name.to_owned(), points: points.collect() }
        };
        let curves = vec![
            of("this system", |bench| &bench.ours),
            of("redis-benchmark", |bench| &bench.theirs),
        ];
        let title = "stat through servers over one Redis".to_owned();
        let svg = Plot { title, x: "servers", y: "paths/s", curves }.svg();
        let file = folder.join("servers.svg");
        std::fs::write(&file, svg).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(benches.into())
}

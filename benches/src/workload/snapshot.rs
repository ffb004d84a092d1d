//! Snapshots: building one from the embedded store and from Redis, opening it, and asking it
//! (paper, Figures 10b and 10c), beside the simplest thing that holds the same in memory.
//!
//! Names are like those of ImageNet; files have one byte, so that there are many to a chunk.

use std::collections::HashMap;
use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use dl_format::{Attributes, ChunkShape, FilePath};
use libdiesel::{Client, ConnectOptions, Dataset, Snapshot, SnapshotCache};

use crate::measure::{Bar, Bench, Side, Stopwatch};
use crate::setup::{Redis, Server, Settings, dlcmd, finish, shuffle};

const FILES: u32 = 1_281_167;
const PER_FOLDER: u32 = 1_281;
/// Paths that are looked up one after the other in one run.
const LOOKUPS: usize = 2_000_000;

fn path(file: u32) -> String {
    let folder = 1_440_764 + file / PER_FOLDER * 7;
    format!("train/n{folder:08}/n{folder:08}_{}.JPEG", 10_026 + file % PER_FOLDER)
}

fn fill(server: &Server, files: u32) -> Result<Client> {
    let options = ConnectOptions { servers: vec![server.address.clone()], ..Default::default() };
    let client = Client::connect(options)?;
    let dataset = client.create_dataset(&"imagenet".parse()?, ChunkShape::default())?;
    for file in 0..files {
        let attributes = Attributes { mode: 0o644, mtime: 1_600_000_000_000_000_000 };
        dataset.put(&FilePath::new(path(file))?, attributes, b"x")?;
    }
    dataset.close()?;
    Ok(client)
}

/// Adds a file, so that the next snapshot is another one.
fn touch(client: &Client, round: usize) -> Result<Dataset> {
    let dataset = client.dataset(&"imagenet".parse()?)?;
    dataset.put(&FilePath::new(format!("round/{round}"))?, Attributes::default(), b"x")?;
    let _ = dataset.flush()?.check()?;
    Ok(client.dataset(&"imagenet".parse()?)?)
}

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let files = settings.scaled(FILES);
    let redis = Redis::start()?;
    let embedded = Server::start(&settings.on_disk("snapshot-embedded"))?;
    let url = redis.url();
    let over_redis = Server::start_on(&settings.on_disk("snapshot-redis"), &["--meta", &url], &[])?;
    let cache = SnapshotCache::new(settings.on_disk("snapshots"), 4 << 30);
    let mut benches = Vec::new();
    let mut newest = None;
    for (name, server, bar) in
        [("from the embedded store", &embedded, 1e6), ("from Redis", &over_redis, 400e3)]
    {
        let client = fill(server, files)?;
        let mut ours = Side::new(format!("build {name}, store, fetch, check and map"));
        let mut theirs = Side::new("put the same paths into a hash map, one thread");
        for round in 0..=settings.runs() {
            let dataset = touch(&client, round)?;
            let (reader, building) =
                Stopwatch::new().time(|| Ok(dataset.with_snapshot(&cache)?))?;
            let paths: Vec<String> = (0..files).map(path).collect();
            let (_, hashing) = Stopwatch::new().time(|| {
                let map: HashMap<String, u32> = paths.into_iter().zip(0..).collect();
                Ok(black_box(map.len()))
            })?;
            if round > 0 {
                ours.samples.push(f64::from(files) / building);
                theirs.samples.push(f64::from(files) / hashing);
            }
            newest = Some(reader);
        }
        let told = peak(server.id()).unwrap_or_default() >> 20;
        benches.push(Bench {
            name: format!("snapshot {name}"),
            settings: format!("{files} files; most memory of the server so far: {told} MiB"),
            unit: "files/s",
            ours,
            theirs,
            bar: Bar::AtLeast(bar),
        });
    }
    let reader = newest.context("there was a run")?;
    let snapshot = reader.snapshot().context("it has a snapshot")?;
    let bytes = Bench {
        name: "snapshot size".to_owned(),
        settings: format!("{files} files"),
        unit: "bytes a file",
        ours: Side {
            what: "bytes of the snapshot for each file".to_owned(),
            samples: vec![snapshot.length() as f64 / f64::from(snapshot.files())],
        },
        theirs: Side {
            what: "bytes of the paths".to_owned(),
            samples: vec![
                (0..files).map(|file| path(file).len()).sum::<usize>() as f64 / f64::from(files),
            ],
        },
        bar: Bar::AtMost(40.0),
    };
    benches.push(bytes);
    benches.extend(ask(settings, snapshot, files)?);
    benches.push(list(settings, &over_redis)?);
    benches.push(report(settings, &over_redis)?);
    Ok(benches)
}

fn ask(settings: &Settings, snapshot: &Snapshot, files: u32) -> Result<Vec<Bench>> {
    let mut paths: Vec<String> = (0..files).map(path).collect();
    let map: HashMap<Vec<u8>, u64> =
        paths.iter().map(|path| (path.clone().into_bytes(), 1)).collect();
    shuffle(&mut paths, 1);
    let paths: Vec<FilePath> =
        paths.into_iter().map(|path| Ok(FilePath::new(path)?)).collect::<Result<_>>()?;
    let mut ours = Side::new("path to record, name verified, one core");
    let mut theirs = Side::new("the same paths in a hash map in memory");
    let mut by_number = Side::new("record by number, one core");
    let walk = || paths.iter().cycle().take(LOOKUPS);
    for round in 0..=settings.runs() {
        let (_, asking) = Stopwatch::new().time(|| {
            for path in walk() {
                let number = snapshot.number(path)?.context("it is there")?;
                black_box(snapshot.record(number)?.length);
            }
            Ok(())
        })?;
        let (_, hashing) = Stopwatch::new().time(|| {
            for path in walk() {
                ensure!(black_box(map.get(path.as_bytes())).is_some(), "it is there");
            }
            Ok(())
        })?;
        let (_, counting) = Stopwatch::new().time(|| {
            for number in (0..files).cycle().take(LOOKUPS) {
                black_box(snapshot.record(number)?.length);
            }
            Ok(())
        })?;
        if round > 0 {
            ours.samples.push(LOOKUPS as f64 / asking);
            theirs.samples.push(LOOKUPS as f64 / hashing);
            by_number.samples.push(LOOKUPS as f64 / counting);
        }
    }
    let bench = |name: &str, ours, bar| Bench {
        name: name.to_owned(),
        settings: format!("{files} files, random paths"),
        unit: "files/s",
        ours,
        theirs: theirs.clone(),
        bar: Bar::AtLeast(bar),
    };
    Ok(vec![bench("snapshot lookup", ours, 2e6), bench("snapshot by number", by_number, 30e6)])
}

/// `dlcmd ls -lR`, with the snapshot and by the server.
fn list(settings: &Settings, server: &Server) -> Result<Bench> {
    let file = settings.on_disk("saved.snapshot");
    finish(dlcmd(server)?.args(["snapshot", "save", "dl://imagenet"]).arg(&file))?;
    let mut ours = Side::new("dlcmd ls -lR --snapshot");
    let mut theirs = Side::new("dlcmd ls -lR");
    let home = settings.on_disk("cache");
    for round in 0..=settings.runs() {
        let mut command = dlcmd(server)?;
        command.args(["ls", "-lR", "dl://imagenet", "--snapshot"]).arg(&file);
        let (_, by_snapshot) =
            Stopwatch::new().time(|| finish(command.env("XDG_CACHE_HOME", &home)))?;
        let (_, by_server) = Stopwatch::new()
            .time(|| finish(dlcmd(server)?.args(["ls", "-lR", "dl://imagenet"])))?;
        if round > 0 {
            ours.samples.push(by_snapshot);
            theirs.samples.push(by_server);
        }
    }
    let settings = "1.28 million files at full scale".to_owned();
    let bar = Bar::AtMost(2.0);
    Ok(Bench { name: "snapshot ls -lR".to_owned(), settings, unit: "s", ours, theirs, bar })
}

/// `dlcmd shuffle`, and how random that order is.
fn report(settings: &Settings, server: &Server) -> Result<Bench> {
    let mut ours = Side::new("dlcmd shuffle --report");
    let mut theirs = Side::new("dlcmd shuffle");
    let home = settings.on_disk("cache");
    let shuffle = |more: &[&str]| {
        let mut command = dlcmd(server)?;
        command.args(["shuffle", "dl://imagenet", "--group-size", "10"]).args(more);
        Stopwatch::new().time(|| finish(command.env("XDG_CACHE_HOME", &home)))
    };
    for round in 0..=settings.runs() {
        let (_, reporting) = shuffle(&["--report"])?;
        let (_, printing) = shuffle(&[])?;
        if round > 0 {
            ours.samples.push(reporting);
            theirs.samples.push(printing);
        }
    }
    let settings =
        "1.28 million files at full scale, 1,000 folders, groups of 10 chunks".to_owned();
    let bar = Bar::AtMostTimes(2.0);
    Ok(Bench { name: "shuffle --report".to_owned(), settings, unit: "s", ours, theirs, bar })
}

/// The most memory that a process ever had.
fn peak(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

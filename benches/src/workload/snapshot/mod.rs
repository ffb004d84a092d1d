//! Snapshots: build from the embedded store and from Redis, open and queries (paper, Figures 10b
//! and 10c). The reference is the simplest structure with the same contents in memory.
//!
//! Names are like ImageNet's; files have one byte, so that a chunk has many. The sorted order puts folder by
//! folder. The random order puts files of 1,000 bytes into chunks of 1 MiB, so that files of a folder seldom
//! share a chunk. The size bench has fewer files, each with its own time, and as many per chunk as ImageNet in
//! chunks of 4 MiB.

mod reader;

use std::collections::HashMap;
use std::hint::black_box;
use std::path::Path;

use anyhow::{Context, Result};
use dl_format::{Attributes, ChunkShape, FilePath};
use libdiesel::{Client, Dataset, Snapshot, SnapshotCache};

use super::Role;
use crate::measure::{Bar, Bench, Side, in_turns, time};
use crate::setup::{OwnProcess, Redis, Server, Settings, connect, dlcmd, finish, shuffle};
use reader::Task;
pub(super) use reader::{Reader, read};

const FILES: u32 = 1_281_167;
const MANY_FILES: u32 = 10_000_000;
/// Files of 28 KiB: 36 in a chunk of 1 MiB, like ImageNet's in chunks of 4 MiB.
const LIKE_IMAGENET: u32 = 128_000;
const PER_FOLDER: u32 = 1_281;
const DATASET: &str = "imagenet";
/// Nanoseconds since 1970.
const WRITTEN: i64 = 1_600_000_000_000_000_000;
const EMBEDDED: &str = "the embedded store";

fn path(file: u32) -> String {
    let folder = 1_440_764 + file / PER_FOLDER * 7;
    format!("train/n{folder:08}/n{folder:08}_{}.JPEG", 10_026 + file % PER_FOLDER)
}

/// Order of the puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Put {
    Sorted,
    Random,
}

fn fill(server: &Server, files: u32, put: Put) -> Result<Client> {
    let client = connect(&server.address)?;
    let mut order: Vec<u32> = (0..files).collect();
    let (shape, bytes) = match put {
        Put::Sorted => (ChunkShape::default(), 1),
        Put::Random => (ChunkShape::new(1 << 20, 64)?, 1_000),
    };
    if put == Put::Random {
        shuffle(&mut order, 1);
    }
    let (dataset, bytes) = (client.create_dataset(&DATASET.parse()?, shape)?, vec![b'x'; bytes]);
    for file in order {
        let attributes = Attributes { mode: 0o644, mtime: WRITTEN };
        dataset.put(&FilePath::new(path(file))?, attributes, &bytes)?;
    }
    dataset.close()?;
    Ok(client)
}

fn like_imagenet(settings: &Settings, put: Put) -> Result<Bench> {
    let server = Server::start(&settings.on_disk(&format!("snapshot-like-imagenet-{put:?}")))?;
    let dataset = connect(&server.address)?
        .create_dataset(&DATASET.parse()?, ChunkShape::new(1 << 20, 64)?)?;
    // The files spread over as many folders as there are classes.
    let files = settings.scaled(LIKE_IMAGENET);
    let step = FILES / files;
    let mut order: Vec<u32> = (0..files).map(|file| file * step).collect();
    let mut seconds: Vec<i64> = (0..i64::from(files)).map(|second| second * 97).collect();
    shuffle(&mut seconds, 2);
    if put == Put::Random {
        shuffle(&mut order, 1);
    }
    let bytes = vec![b'x'; 28 << 10];
    for (file, second) in order.into_iter().zip(seconds) {
        let attributes = Attributes { mode: 0o644, mtime: WRITTEN + second * 1_000_000_000 };
        dataset.put(&FilePath::new(path(file))?, attributes, &bytes)?;
    }
    let _ = dataset.flush()?.check()?;
    let saved = dataset.save_meta(&settings.on_disk(&format!("like-imagenet-{put:?}")))?;
    let bar = if put == Put::Sorted { Bar::AtMost(40.0) } else { Bar::None };
    let mut bench = size(&saved, step, bar);
    let order = if put == Put::Sorted { "folder by folder" } else { "in random order" };
    bench.name = format!("snapshot size, like ImageNet, put {order}");
    bench.settings =
        format!("{files} files of 1,000 folders, 36 to a chunk, each with a time of its own");
    Ok(bench)
}

/// Adds a file, which changes the next snapshot.
fn touch(client: &Client, round: u64) -> Result<Dataset> {
    let dataset = client.dataset(&DATASET.parse()?)?;
    dataset.put(&FilePath::new(format!("round/{round}"))?, Attributes::default(), b"x")?;
    let _ = dataset.flush()?.check()?;
    Ok(client.dataset(&DATASET.parse()?)?)
}

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let files = settings.scaled(FILES);
    let redis = Redis::start()?;
    let url = redis.url();
    let over_redis = Server::start_on(&settings.on_disk("snapshot-redis"), &["--meta", &url], &[])?;
    let embedded = Server::start(&settings.on_disk("snapshot-embedded"))?;
    let cache = settings.on_disk("snapshots");
    let mut benches = Vec::new();
    let from = ("Redis", files, Put::Sorted, Bar::AtLeast(400e3));
    benches.extend(build(settings, &over_redis, &cache, from)?);
    let from = (EMBEDDED, files, Put::Sorted, Bar::AtLeast(1e6));
    benches.extend(build(settings, &embedded, &cache, from)?);
    benches.extend(queries(settings, &embedded, &cache, files, 2e6)?);
    benches.push(list(settings, &over_redis, "-lR", Bar::AtMost(2.0))?);
    benches.push(list(settings, &over_redis, "-R", Bar::AtMost(1.0))?);
    benches.push(report(settings, &over_redis)?);
    benches.extend(put_at_random(settings, &cache, files)?);
    benches.push(like_imagenet(settings, Put::Sorted)?);
    benches.push(like_imagenet(settings, Put::Random)?);
    Ok(benches)
}

pub(super) fn run_large(settings: &Settings) -> Result<Vec<Bench>> {
    let files = settings.scaled(MANY_FILES);
    let server = Server::start(&settings.on_disk("snapshot-large"))?;
    let cache = settings.on_disk("snapshots-large");
    let from = (EMBEDDED, files, Put::Sorted, Bar::None);
    let mut benches = build(settings, &server, &cache, from)?;
    benches.extend(queries(settings, &server, &cache, files, 1.5e6)?);
    benches.extend(put_at_random(settings, &cache, files)?);
    Ok(benches)
}

/// Build and list with the same paths, put in random order on a separate server.
fn put_at_random(settings: &Settings, cache: &Path, files: u32) -> Result<Vec<Bench>> {
    let server = Server::start(&settings.on_disk(&format!("snapshot-random-{files}")))?;
    let from = ("the embedded store, put in random order", files, Put::Random, Bar::None);
    let mut benches = build(settings, &server, cache, from)?;
    benches.push(list(settings, &server, "-R", Bar::None)?);
    for bench in &mut benches {
        bench.name.push_str(", random order");
    }
    Ok(benches)
}

/// Build of a snapshot until a reader has mapped it, and its size.
fn build(
    settings: &Settings,
    server: &Server,
    cache: &Path,
    (name, files, put, bar): (&str, u32, Put, Bar),
) -> Result<Vec<Bench>> {
    let client = fill(server, files, put)?;
    let before = peak(server.id()).unwrap_or_default() >> 20;
    let cache = SnapshotCache::new(cache.to_owned(), 4 << 30);
    let names = [
        format!("build from {name}, store, fetch, check and map"),
        "put the same paths into a hash map, one thread".to_owned(),
    ];
    let mut newest = None;
    let sides = in_turns(settings.runs(), names, |round| {
        let dataset = touch(&client, round)?;
        let (reader, building) = time(|| Ok(dataset.with_snapshot(&cache)?))?;
        let paths: Vec<String> = (0..files).map(path).collect();
        let (_, hashing) = time(|| {
            let map: HashMap<String, u32> = paths.into_iter().zip(0..).collect();
            Ok(black_box(map.len()))
        })?;
        newest = Some(reader);
        Ok([building, hashing].map(|seconds| f64::from(files) / seconds))
    })?;
    let peak_after = peak(server.id()).unwrap_or_default() >> 20;
    let reader = newest.context("there was a run")?;
    let snapshot = reader.snapshot().context("it has a snapshot")?;
    let described = format!(
        "{files} files; most memory of the server so far: {peak_after} MiB, {before} MiB before it \
         built any"
    );
    let built = Bench::new(format!("snapshot from {name}"), described, "files/s", sides, bar);
    let bar = if put == Put::Sorted { Bar::AtMost(40.0) } else { Bar::None };
    Ok(vec![built, size(snapshot, 1, bar)])
}

/// Size of a snapshot of every `step`th path.
fn size(snapshot: &Snapshot, step: u32, bar: Bar) -> Bench {
    let files = snapshot.files();
    let paths: usize = (0..files).map(|file| path(file * step).len()).sum();
    let side = |what: &str, bytes: u64| Side {
        what: what.to_owned(),
        samples: vec![bytes as f64 / f64::from(files)],
    };
    let ours = side("bytes of the snapshot for each file", snapshot.length());
    let theirs = side("bytes of the paths", paths as u64);
    Bench::new("snapshot size", format!("{files} files"), "bytes a file", [ours, theirs], bar)
}

/// Queries of a single process and of two concurrent processes on the newest snapshot.
fn queries(
    settings: &Settings,
    server: &Server,
    cache: &Path,
    files: u32,
    bar: f64,
) -> Result<Vec<Bench>> {
    let start = || {
        let (server, cache) = (server.address.clone(), cache.to_owned());
        let mut process = OwnProcess::start(None, &Role::Query(Reader { server, cache, files }))?;
        process.answer::<()>()?;
        anyhow::Ok(process)
    };
    let (mut first, mut second) = (start()?, start()?);
    let names = [
        "open the snapshot of the cache, a process that knows the version",
        "memory of the process that opening adds",
        "put all paths into a hash map",
        "memory of a hash map of all paths",
        "path to record, name verified, one core",
        "the same, 256 paths a question",
        "record by number, in order, one core",
        "record by number, as an epoch gives them, one core",
        "the same paths in a hash map in memory",
        "path to record, two processes at once",
        "own memory of a second process once it asked for everything",
    ];
    let sides = in_turns(settings.runs(), names, |_| measure(&mut first, &mut second))?;
    let [opening, added, filling, filled, alone, batches, numbers, epoch, map, two, further] =
        sides;
    let settings = format!("{files} files, random paths one behind the other in memory");
    let bench = |name: &str, unit, ours: Side, theirs: &Side, bar| {
        Bench::new(format!("snapshot {name}"), &settings, unit, [ours, theirs.clone()], bar)
    };
    Ok(vec![
        bench("open", "ms", opening, &filling, Bar::AtMost(5.0)),
        bench("open, memory", "KiB", added, &filled, Bar::AtMost(1024.0)),
        bench("memory", "KiB", further, &filled, Bar::AtMost(1024.0)),
        bench("two processes", "files/s", two, &alone, Bar::AtLeastTimes(1.8)),
        bench("lookup", "files/s", alone, &map, Bar::AtLeast(bar)),
        bench("lookup in batches", "files/s", batches, &map, Bar::AtLeast(3e6)),
        bench("by number", "files/s", numbers, &map, Bar::AtLeast(30e6)),
        bench("by number along an epoch", "files/s", epoch, &map, Bar::None),
    ])
}

fn ask(process: &mut OwnProcess, task: Task) -> Result<[f64; 2]> {
    process.send(task)?;
    process.answer()
}

/// Figures of a round: milliseconds and added KiB to open the snapshot and to fill a map; then records a second
/// by task, for one process and for both together; then private KiB of the second process.
fn measure(first: &mut OwnProcess, second: &mut OwnProcess) -> Result<[f64; 11]> {
    let (one, other) = (ask(first, Task::Open)?, ask(second, Task::Open)?);
    let [fill, filled] = ask(first, Task::Fill)?;
    // Both processes run their queries once before the measurement.
    for process in [&mut *first, &mut *second] {
        ask(process, Task::Lookup)?;
    }
    let [alone, batches, numbers, epoch, map] =
        [Task::Lookup, Task::Batches, Task::Numbers, Task::Epoch, Task::Map]
            .map(|task| Ok::<_, anyhow::Error>(ask(first, task)?[0]));
    first.send(Task::Lookup)?;
    second.send(Task::Lookup)?;
    let ([one_rate, _], [other_rate, private]): ([f64; 2], [f64; 2]) =
        (first.answer()?, second.answer()?);
    Ok([
        one[0].max(other[0]),
        one[1].max(other[1]) / 1024.0,
        fill,
        filled / 1024.0,
        alone?,
        batches?,
        numbers?,
        epoch?,
        map?,
        one_rate + other_rate,
        private / 1024.0,
    ])
}

/// `dlcmd ls` with the snapshot, beside `dlcmd ls` by the server.
fn list(settings: &Settings, server: &Server, flags: &str, bar: Bar) -> Result<Bench> {
    let file = settings.on_disk(&format!("saved{flags}-{}.snapshot", server.id()));
    finish(dlcmd(server)?.args(["snapshot", "save", "dl://imagenet"]).arg(&file))?;
    let names = [format!("dlcmd ls {flags} --snapshot"), format!("dlcmd ls {flags}")];
    let home = settings.on_disk("cache");
    let sides = in_turns(settings.runs(), names, |_| {
        let mut command = dlcmd(server)?;
        command.args(["ls", flags, "dl://imagenet", "--snapshot"]).arg(&file);
        let (_, by_snapshot) = time(|| finish(command.env("XDG_CACHE_HOME", &home)))?;
        let (_, by_server) = time(|| finish(dlcmd(server)?.args(["ls", flags, "dl://imagenet"])))?;
        Ok([by_snapshot, by_server])
    })?;
    Ok(Bench::new(format!("snapshot ls {flags}"), "all files of the dataset", "s", sides, bar))
}

/// `dlcmd shuffle` with a report of the randomness, beside the plain command.
fn report(settings: &Settings, server: &Server) -> Result<Bench> {
    let home = settings.on_disk("cache");
    let shuffle = |more: &[&str]| {
        let mut command = dlcmd(server)?;
        command.args(["shuffle", "dl://imagenet", "--group-size", "10"]).args(more);
        anyhow::Ok(time(|| finish(command.env("XDG_CACHE_HOME", &home)))?.1)
    };
    let names = ["dlcmd shuffle --report", "dlcmd shuffle"];
    let sides = in_turns(settings.runs(), names, |_| Ok([shuffle(&["--report"])?, shuffle(&[])?]))?;
    let settings = "1.28 million files at full scale, 1,000 folders, groups of 10 chunks";
    Ok(Bench::new("shuffle --report", settings, "s", sides, Bar::AtMostTimes(2.0)))
}

fn peak(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

//! The mount beside the file system of the machine (paper, 6.3 to 6.6).
//!
//! Must hold: both sides read the same files in the same order, in turns. A cold page cache is a new
//! mount, whose chunks are in the memory of the agent.

mod place;

use std::fs::{self, File};
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_format::ChunkShape;
use dl_store::Throttle;

use super::agent::node::{Node, put, put_chunks};
use crate::measure::{Bar, Bench, Side, add, in_turns, time};
use crate::setup::{
    Server, Settings, SlowServer, bytes, finish, in_threads, processor_seconds, shell, shuffle,
};
use place::Place;

const DATASET: &str = "mount";
const SMALL: usize = 4 << 10;
const FILES: u32 = 40_000;
const READERS: usize = 8;

/// Times that all files are read, for a turn of a second.
const WARM_TIMES: usize = 5;

/// Names of ImageNet, in the folders of its classes.
const NAMES: u32 = 1_281_167;

/// A store with latency, for reads of absent chunks.
const LATENCY: Duration = Duration::from_millis(20);
const ABSENT_READS: usize = 32;

/// Files of a chunk of 1 MiB: small chunks, so that latency counts and not the copies.
const APART: usize = 4;
const APART_BYTES: usize = 200 << 10;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    if let Err(why) = File::options().read(true).write(true).open("/dev/fuse") {
        anyhow::bail!("the mount needs /dev/fuse: {why}");
    }
    let mut benches = small(settings)?;
    benches.extend(names(settings)?);
    benches.push(absent(settings)?);
    Ok(benches)
}

/// The files of a dataset, as the bench puts them.
fn paths(files: u32) -> Vec<String> {
    let path = |file: u32| {
        let folder = 1_440_764 + file / 1_000 * 7;
        format!("n{folder:08}/n{folder:08}_{}.JPEG", 10_026 + file % 1_000)
    };
    (0..files).map(path).collect()
}

/// Small files: warm beside the file system, and out of the agent with a cold page cache.
fn small(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("mount-small");
    let server = Server::start(&folder.join("data"))?;
    let files = settings.scaled(FILES);
    put(&server.address, DATASET, files, SMALL)?;
    let mut order = paths(files);
    let local = folder.join("local");
    let data = bytes(SMALL);
    for path in &order {
        let path = local.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&local))?;
        fs::write(path, &data)?;
    }
    shuffle(&mut order, 7);
    let memory = u64::from(files) * SMALL as u64 * 2 + (64 << 20);
    let node = Node::start(DATASET, &server.address, DATASET, &folder, memory, "oneshot")?;
    node.wait()?;
    node.wait_for_huge_pages()?;
    let place = Place::new(&server.address, DATASET, &folder, Some(DATASET))?;

    let mounted = place.mount()?;
    let warm = in_turns(settings.runs(), ["mount", "ext4"], |_| {
        Ok([
            cpu_rate(&mounted, place.dir(), &order, WARM_TIMES)?,
            cpu_rate(&mounted, &local, &order, WARM_TIMES)?,
        ])
    })?;
    let settings_text = format!("{files} files of 4 KiB in random order: open, read, close");
    let mut benches = vec![Bench::new(
        "mount 4 KiB, warm page cache",
        &settings_text,
        "files/CPU s",
        warm,
        Bar::AtLeastTimes(0.65),
    )];
    drop(mounted);
    let names = ["names known", "names unknown"];
    let cold = in_turns(settings.runs(), names, |_| {
        let mut rates = [0.0; 2];
        for (rate, are_known) in rates.iter_mut().zip([true, false]) {
            let mounted = place.mount()?;
            if are_known {
                finish(&mut shell("ls -lR \"$1\" > /dev/null", [place.dir()]))?;
            }
            *rate = cpu_rate(&mounted, place.dir(), &order, 1)?;
        }
        Ok(rates)
    })?;
    benches.push(Bench::new(
        "mount 4 KiB, out of the agent, one reader",
        &settings_text,
        "files/CPU s",
        cold,
        Bar::None,
    ));
    let names = ["out of the agent", "ext4, warm"];
    let rates = in_turns(settings.runs(), names, |_| {
        let _mounted = place.mount()?;
        Ok([rate(place.dir(), &order)?, rate(&local, &order)?])
    })?;
    let text = format!("{settings_text}, {READERS} readers");
    benches.push(Bench::new("mount 4 KiB, rate", text, "files/s", rates, Bar::None));
    let names = ["dlcmd mount, and the first file", "nothing"];
    let first = order.first().map(|path| place.dir().join(path)).unwrap_or_default();
    let mut sides = names.map(Side::new);
    for _ in 0..settings.runs().max(5) {
        let (_mounted, seconds) = time(|| {
            let mounted = place.mount()?;
            read(&first)?;
            Ok(mounted)
        })?;
        add(&mut sides, [seconds * 1e3, 0.0]);
    }
    let text = format!("{files} files, agent and snapshot on this machine");
    benches.push(Bench::new("mount, first byte", text, "ms", sides, Bar::AtMost(150.0)));
    Ok(benches)
}

/// Listings of the names of ImageNet.
fn names(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("mount-names");
    let server = Server::start(&folder.join("data"))?;
    let files = settings.scaled(NAMES);
    put(&server.address, DATASET, files, 0)?;
    let local = folder.join("local");
    for path in paths(files) {
        let path = local.join(path);
        if !path.parent().is_some_and(Path::exists) {
            fs::create_dir_all(path.parent().unwrap_or(&local))?;
        }
        File::create(path)?;
    }
    let place = Place::new(&server.address, DATASET, &folder, None)?;
    let mut benches = Vec::new();
    for (name, script, bar) in
        [("find", "find \"$1\" | wc -l", 2.5), ("ls -lR", "ls -lR \"$1\" > /dev/null", 3.2)]
    {
        let listed =
            |dir: &Path| -> Result<f64> { Ok(time(|| finish(&mut shell(script, [dir])))?.1) };
        listed(&local)?;
        let mut first = ["a new mount", "ext4, warm"].map(Side::new);
        let mut again = ["again", "ext4, warm"].map(Side::new);
        for _ in 0..settings.runs() {
            let _mounted = place.mount()?;
            let of_mount = [listed(place.dir())?, listed(place.dir())?];
            let of_local = listed(&local)?;
            add(&mut first, [of_mount[0], of_local]);
            add(&mut again, [of_mount[1], of_local]);
        }
        let text = format!("{files} names in folders of 1,000");
        let bench = |name: String, sides, bar| Bench::new(name, &text, "s", sides, bar);
        benches.push(bench(format!("mount {name}, first"), first, Bar::AtMostTimes(bar)));
        benches.push(bench(format!("mount {name}, again"), again, Bar::AtMostTimes(1.0)));
    }
    Ok(benches)
}

/// Reads of absent chunks by one thread and by several.
fn absent(settings: &Settings) -> Result<Bench> {
    let folder = settings.on_disk("mount-absent");
    let server = SlowServer::start(Ipv4Addr::LOCALHOST, 64)?;
    let files = (2 * (settings.runs() + 1) * ABSENT_READS * APART) as u32;
    let shape = ChunkShape::new(1 << 20, 64)?;
    put_chunks(&server.address, DATASET, files, APART_BYTES, APART as u32, shape)?;
    server.set_throttle(Throttle { latency: LATENCY, ..Throttle::default() });
    let place = Place::new(&server.address, DATASET, &folder, None)?;
    let _mounted = place.mount()?;
    let mut left: Vec<PathBuf> =
        paths(files).into_iter().step_by(APART).map(|path| place.dir().join(path)).collect();
    shuffle(&mut left, 3);
    let names = ["8 threads", "1 thread"];
    let sides = in_turns(settings.runs(), names, |_| {
        let mut take = |threads: usize| -> Result<f64> {
            let chosen = left.split_off(left.len().saturating_sub(ABSENT_READS));
            ensure!(chosen.len() == ABSENT_READS, "too few chunks");
            let shares = chosen.chunks(ABSENT_READS / threads);
            let ((), seconds) = time(|| {
                in_threads(shares, |share| share.iter().try_for_each(|path| read_start(path)))
            })?;
            Ok(ABSENT_READS as f64 / seconds)
        };
        Ok([take(READERS)?, take(1)?])
    })?;
    let text =
        format!("the first bytes of {ABSENT_READS} files of absent chunks, a store with 20 ms");
    Ok(Bench::new("mount, absent chunks", text, "files/s", sides, Bar::AtLeastTimes(5.0)))
}

/// Reads files; gives the number for a second of processor time of reader and server.
fn cpu_rate(
    mounted: &place::Mounted<'_>,
    root: &Path,
    order: &[String],
    times: usize,
) -> Result<f64> {
    let processes = [std::process::id(), mounted.server];
    let before = processor_seconds(&processes)?;
    for _ in 0..times {
        order.iter().try_for_each(|path| read(&root.join(path)))?;
    }
    Ok((times * order.len()) as f64 / (processor_seconds(&processes)? - before))
}

/// Reads files by several threads; gives the number for a second.
fn rate(root: &Path, order: &[String]) -> Result<f64> {
    let shares = order.chunks(order.len().div_ceil(READERS));
    let ((), seconds) = time(|| {
        in_threads(shares, |share| share.iter().try_for_each(|path| read(&root.join(path))))
    })?;
    Ok(order.len() as f64 / seconds)
}

fn read(path: &Path) -> Result<()> {
    let mut buffer = [0; SMALL];
    let read = File::open(path)?.read(&mut buffer)?;
    ensure!(read == SMALL, "{read} bytes of {}", path.display());
    Ok(())
}

fn read_start(path: &Path) -> Result<()> {
    File::open(path)?.read_exact(&mut [0; 512])?;
    Ok(())
}

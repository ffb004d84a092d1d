//! Puts from memory by several processes (paper, Figure 9), beside memcached and ext4.
//!
//! All processes are ready before the first put, and each has as many files of its own. The time
//! ends with the last acknowledgement; dlserver acknowledges files on disk. memcached gets one set
//! per request, as from its usual client, and makes nothing durable. ext4 gets open, write and
//! close, timed without and with a final sync. The disk's own limit comes from processes that write
//! and sync the same bytes in files of 4 MiB.

use std::fs::{File, create_dir_all, remove_dir_all};
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use dl_format::{Attributes, ChunkShape, FilePath};
use serde::{Deserialize, Serialize};

use super::Role;
use super::agent::memcached::{Connection, Listener};
use crate::measure::{Bar, Bench, Side, time};
use crate::setup::{
    OwnProcess, Server, Settings, answer, bytes, commands, connect, free_address, memcached,
    take_from_the_host,
};

const LENGTH: usize = 4096;
const CHUNK: usize = 4 << 20;
const PROCESSES: [usize; 3] = [1, 2, 4];

/// Destination of the files of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Destination {
    Diesel,
    Memcached,
    Files,
    /// Files of a chunk's size, each synced.
    Chunks,
}

/// One process that puts files.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Worker {
    /// Kind of the destination
    into: Destination,
    /// Address or folder of the destination
    at: PathBuf,
    /// Folder of the files, or prefix of their names
    name: String,
    files: u32,
}

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let server = Server::start(&settings.on_disk("memory"))?;
    let address = free_address()?;
    let _memcached = memcached(None, address)?;
    let folder = settings.on_disk("created");
    let chunks = settings.on_disk("written");
    let places = [
        (Destination::Diesel, PathBuf::from(&server.address)),
        (Destination::Memcached, address.to_string().into()),
        (Destination::Files, folder.clone()),
        (Destination::Chunks, chunks.clone()),
    ];
    let files = settings.scaled(100_000);
    let rates = measure(settings, &places, files)?;
    remove_dir_all(&folder)?;
    remove_dir_all(&chunks)?;
    let names = [
        "DL_put, durable",
        "memcached set",
        "ext4 create",
        "the same bytes in files of 4 MiB, each synced",
        "ext4 create and sync",
    ];
    let mut sides = rates.into_iter().zip(names);
    let mut side = || sides.next().map(|(rates, what)| best(rates, what));
    let (ours, memcached, created, written, synced) = (side(), side(), side(), side(), side());
    let ours = ours.context("one side for each place")?;
    let against = |name: &str, theirs: Option<Side>, bar: Bar| -> Result<Bench> {
        let settings = format!(
            "{files} files of 4 KiB from memory by each of 1, 2 or 4 processes, whichever is fastest"
        );
        let sides = [ours.clone(), theirs.context("one side for each place")?];
        Ok(Bench::new(format!("put-memory beside {name}"), settings, "files/s", sides, bar))
    };
    Ok(vec![
        against("memcached", memcached, Bar::AtLeastTimes(2.0))?,
        against("ext4", created, Bar::AtLeastTimes(5.0))?,
        against("ext4, both durable", synced, Bar::AtLeastTimes(5.0))?,
        against("what the disk takes", written, Bar::None)?,
    ])
}

/// Files a second of each run, by destination and number of processes; the last entry stands for
/// files with a final sync.
fn measure(
    settings: &Settings,
    places: &[(Destination, PathBuf)],
    files: u32,
) -> Result<Vec<Vec<Vec<f64>>>> {
    let mut rates = vec![vec![Vec::new(); PROCESSES.len()]; places.len()];
    let mut synced = vec![Vec::new(); PROCESSES.len()];
    for round in 0..settings.runs() {
        for (count, processes) in PROCESSES.into_iter().enumerate() {
            for (place, (into, at)) in places.iter().enumerate() {
                let name = match into {
                    // A repeated set: memcached has memory for the files of one round.
                    Destination::Memcached => format!("p{processes}"),
                    Destination::Diesel | Destination::Files | Destination::Chunks => {
                        format!("r{round}p{processes}")
                    }
                };
                rustix::fs::sync();
                take_from_the_host(processes * usize::try_from(files)? * LENGTH);
                let seconds = together(*into, at, &name, processes, files)?;
                let files = f64::from(files) * processes as f64;
                rates[place][count].push(files / seconds);
                if *into == Destination::Files {
                    let ((), more) = time(|| {
                        rustix::fs::sync();
                        Ok(())
                    })?;
                    synced[count].push(files / (seconds + more));
                }
            }
        }
    }
    rates.push(synced);
    Ok(rates)
}

/// Samples of the fastest number of processes; the text lists the medians of all.
fn best(rates: Vec<Vec<f64>>, what: &str) -> Side {
    let sides = rates.into_iter().zip(PROCESSES).map(|(samples, processes)| Side {
        what: format!("{what}, {processes} processes"),
        samples,
    });
    let mut sides: Vec<_> = sides.collect();
    sides.sort_by(|a, b| a.median().total_cmp(&b.median()));
    let others: Vec<_> =
        sides.iter().map(|side| format!("{}: {:.0}/s", side.what, side.median())).collect();
    let mut fastest = sides.pop().expect("there are numbers of processes to choose from");
    fastest.what = others.join("; ");
    fastest
}

/// Runs processes that put `files` files each; returns the seconds.
fn together(
    into: Destination,
    at: &std::path::Path,
    name: &str,
    processes: usize,
    files: u32,
) -> Result<f64> {
    let worker = |process| {
        let (at, name) = (at.to_owned(), format!("{name}w{process}"));
        OwnProcess::start(None, &Role::Put(Worker { into, at, name, files }))
    };
    let mut workers = (0..processes).map(worker).collect::<Result<Vec<_>>>()?;
    workers.iter_mut().try_for_each(OwnProcess::answer::<()>)?;
    let ((), seconds) = time(|| {
        workers.iter_mut().try_for_each(|worker| worker.send(()))?;
        workers.iter_mut().try_for_each(OwnProcess::answer)
    })?;
    Ok(seconds)
}

/// Body of a process: prepares, reports, waits, puts its files, and reports the end.
pub(super) fn work(worker: &Worker) -> Result<()> {
    let data = bytes(LENGTH);
    let paths: Vec<String> =
        (0..worker.files).map(|n| format!("{}/n01440764_{n}.JPEG", worker.name)).collect();
    match worker.into {
        Destination::Diesel => put_diesel(worker, &paths, &data),
        Destination::Memcached => put_memcached(worker, &paths, &data),
        Destination::Files => put_files(worker, &paths, &data),
        Destination::Chunks => put_chunks(worker),
    }?;
    answer(())
}

fn wait_for_go() -> Result<()> {
    answer(())?;
    commands().next().context("there is a command")?
}

fn put_diesel(worker: &Worker, paths: &[String], data: &[u8]) -> Result<()> {
    let client = connect(&worker.at.to_string_lossy())?;
    let dataset = client.create_dataset(&"memory".parse()?, ChunkShape::default())?;
    wait_for_go()?;
    for path in paths {
        let path = FilePath::new(path.clone())?;
        dataset.put(&path, Attributes::default(), data)?;
    }
    dataset.close()?;
    Ok(())
}

fn put_memcached(worker: &Worker, paths: &[String], data: &[u8]) -> Result<()> {
    let at = Listener::Tcp(worker.at.to_string_lossy().parse()?);
    let mut server = Connection::open(&at, data.len())?;
    wait_for_go()?;
    paths.iter().try_for_each(|path| server.set(&FilePath::new(path.clone())?, data))
}

fn put_files(worker: &Worker, paths: &[String], data: &[u8]) -> Result<()> {
    create_dir_all(worker.at.join(&worker.name))?;
    wait_for_go()?;
    for path in paths {
        File::create_new(worker.at.join(path))?.write_all(data)?;
    }
    Ok(())
}

fn put_chunks(worker: &Worker) -> Result<()> {
    let (folder, data) = (worker.at.join(&worker.name), bytes(CHUNK));
    create_dir_all(&folder)?;
    wait_for_go()?;
    let mut left = usize::try_from(worker.files)? * LENGTH;
    for number in 0.. {
        if left == 0 {
            break;
        }
        let length = left.min(CHUNK);
        let mut file = File::create_new(folder.join(format!("{number}")))?;
        file.write_all(&data[..length])?;
        file.sync_all()?;
        left -= length;
    }
    File::open(&folder)?.sync_all()?;
    Ok(())
}

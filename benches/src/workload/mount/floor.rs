//! The mount beside its floor: the same layer of FUSE over plain memory, in a process of its own.
//!
//! Must hold: both sides answer names from the same snapshot, by the same code and as many threads. A
//! turn has a new mount of each side.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use dl_fuse::layer::Layer;
use dl_fuse::{Owner, unmount_at};
use serde::{Deserialize, Serialize};

use super::files::Files;
use super::place::learn_names;
use super::{DATASET, READERS, SMALL};
use crate::measure::{Bar, Bench, in_turns};
use crate::setup::{OwnProcess, Settings, answer, bytes, take_from_the_host};
use crate::workload::Role;
use crate::workload::agent::node::open;

const FILES: u32 = 40_000;

/// Larger files, and the times that all are read from a warm page cache.
const LARGE: usize = 128 << 10;
const LARGE_FILES: u32 = 4_000;
const WARM_TIMES: usize = 10;

/// Least number of runs of each side: processor time swings with the load of the machine.
const RUNS_MIN: usize = 5;

/// Threads of a server of the mount, at most.
const THREADS_MAX: usize = 4;

/// The settings of a floor's process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::workload) struct FloorProcess {
    server: String,
    /// Folder of the snapshot.
    folder: PathBuf,
    dir: PathBuf,
    files: usize,
    /// Bytes of each file.
    length: usize,
}

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let mut benches = Vec::new();
    {
        let files = Files::new(settings, "mount-floor", settings.scaled(FILES), SMALL)?;
        for (names, are_known) in [("known", true), ("unknown", false)] {
            for (readers, who) in [(READERS, "8 readers"), (1, "1 reader")] {
                let name = format!("mount 4 KiB, names {names}, {who}");
                let bar = Bar::AtLeastTimes(0.85);
                benches.push(beside_floor(settings, &files, name, are_known, readers, bar)?);
            }
        }
    }
    let files = Files::new(settings, "mount-large", settings.scaled(LARGE_FILES), LARGE)?;
    let name = "mount 128 KiB, names known, 1 reader".to_owned();
    benches.push(beside_floor(settings, &files, name, true, 1, Bar::AtLeastTimes(0.9))?);
    benches.push(warm(settings, &files)?);
    Ok(benches)
}

/// Cold reads through the mount and through its floor.
fn beside_floor(
    settings: &Settings,
    files: &Files,
    name: String,
    are_known: bool,
    readers: usize,
    bar: Bar,
) -> Result<Bench> {
    let reads = files.reads(readers);
    let measure = |dir: &Path, server: u32| {
        if are_known {
            learn_names(dir)?;
        }
        take_from_the_host(files.order.len() * files.length);
        reads.processor_rate(dir, server, 1)
    };
    let of_mount = || {
        let mounted = files.place.mount()?;
        measure(files.place.dir(), mounted.server()?)
    };
    let of_floor = || {
        let floor = Floor::start(files)?;
        measure(&floor.dir, floor.process.process.0.id())
    };
    let names = ["mount, chunks in the agent", "floor"];
    let sides = in_turns(settings.runs().max(RUNS_MIN), names, |round| {
        if round % 2 == 0 {
            return Ok([of_mount()?, of_floor()?]);
        }
        let floor = of_floor()?;
        Ok([of_mount()?, floor])
    })?;
    let text = format!("{}; page cache cold, random order", text_of(files));
    Ok(Bench::new(name, text, "files/CPU s", sides, bar))
}

/// Warm reads of larger files.
fn warm(settings: &Settings, files: &Files) -> Result<Bench> {
    let reads = files.reads(1);
    let mounted = files.place.mount()?;
    let server = mounted.server()?;
    let sides = in_turns(settings.runs(), ["mount", "ext4"], |_| {
        Ok([
            reads.processor_rate(files.place.dir(), server, WARM_TIMES)?,
            reads.processor_rate(&files.local, server, WARM_TIMES)?,
        ])
    })?;
    let name = "mount 128 KiB, warm page cache";
    Ok(Bench::new(name, text_of(files), "files/CPU s", sides, Bar::AtLeastTimes(0.8)))
}

fn text_of(files: &Files) -> String {
    format!("{} files of {} KiB", files.order.len(), files.length >> 10)
}

/// A mounted floor; drop unmounts.
struct Floor {
    process: OwnProcess,
    dir: PathBuf,
}

impl Floor {
    fn start(files: &Files) -> Result<Self> {
        let dir = files.folder.join("floor");
        fs::create_dir_all(&dir)?;
        let (server, folder) = (files.server.address.clone(), files.folder.clone());
        let (count, length) = (files.order.len(), files.length);
        let role = FloorProcess { server, folder, dir: dir.clone(), files: count, length };
        let process = OwnProcess::start(None, &Role::Floor(role))?;
        let mut floor = Self { process, dir };
        floor.process.answer::<()>()?;
        Ok(floor)
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // The end of the bench must not fail.
        let _ = unmount_at(&self.dir, true);
    }
}

/// Body of a floor's process: serves until the end of the mount.
pub(in crate::workload) fn serve_floor(floor: &FloorProcess) -> Result<()> {
    // As the server of a mount: the scheduler treats sessions apart.
    rustix::process::setsid()?;
    let dataset = open(&floor.server, DATASET, &floor.folder, None, None)?;
    let snapshot = dataset.snapshot().map(Arc::clone).context("the dataset has no snapshot")?;
    let place = dl_fuse::Place {
        dir: floor.dir.clone(),
        source: "dl://floor".to_owned(),
        allow_other: false,
        no_exec: false,
    };
    let owner = Owner { uid: 0, gid: 0, umask: 0 };
    let threads = available_parallelism()?.min(NonZeroUsize::new(THREADS_MAX).context("four")?);
    // Memory of its own for each file, as the agent has: a single buffer would stay in the caches of
    // the processor.
    let data = bytes(floor.length).repeat(floor.files);
    let layer = Layer::mount(&place, snapshot, owner, threads)?;
    answer(())?;
    let served = layer.serve(|file, range| {
        let (start, end) = (range.start as usize, range.end as usize);
        let file = data.chunks_exact(floor.length).nth(file as usize).unwrap_or_default();
        file.get(start..end.min(file.len())).unwrap_or_default()
    });
    Ok(served?)
}

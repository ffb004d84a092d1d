//! Processes that open a snapshot from the cache, query it, and time the queries.
//!
//! Must hold: a process times only its task. Paths are made before, and memory is measured before
//! and after.

use std::collections::HashMap;
use std::hint::black_box;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use dl_format::FilePath;
use libdiesel::{DEFAULT_GROUP, Dataset, ShuffleOptions, Snapshot, SnapshotCache, StatItem};
use serde::{Deserialize, Serialize};

use super::{DATASET, path};
use crate::measure::time;
use crate::setup::{answer, commands, connect, shuffle};

/// Lookups of a run, in sequence.
const LOOKUPS: usize = 2_000_000;
/// Paths of a batch query.
const BATCH: usize = 256;

/// A process with queries on a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::workload) struct Reader {
    /// Address of the server, which names the newest version.
    pub(super) server: String,
    /// Folder of the snapshot cache.
    pub(super) cache: PathBuf,
    /// Number of files of the dataset.
    pub(super) files: u32,
}

/// Task of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Task {
    /// Open the snapshot: milliseconds, and bytes of memory added to the process.
    Open,
    /// Look up random single paths: records a second, and private bytes added since before the open, page
    /// tables included.
    Lookup,
    /// Look up the same paths in batches of 256.
    Batches,
    /// Read records by number, in order.
    Numbers,
    /// Read records by number, in the order of an epoch with the default groups.
    Epoch,
    /// Build a hash map of all paths: milliseconds, and bytes of memory added to the process.
    Fill,
    /// Look up the paths of [`Task::Lookup`] in the hash map.
    Map,
}

/// Body of a process: makes its paths, reports, then executes tasks until its input ends.
pub(in crate::workload) fn read(reader: &Reader) -> Result<()> {
    let client = connect(&reader.server)?;
    let cache = SnapshotCache::new(reader.cache.clone(), 4 << 30);
    let paths = paths(reader.files)?;
    let mut map: HashMap<Vec<u8>, u64> = HashMap::new();
    let (mut opened, mut numbers) = (None, Vec::new());
    answer(())?;
    for task in commands() {
        let task = task?;
        if task == Task::Open {
            drop(opened.take());
            let dataset = client.dataset(&DATASET.parse()?)?;
            if numbers.is_empty() {
                numbers = epoch(&dataset.with_snapshot(&cache)?)?;
            }
            let (before, own) = (memory("VmRSS:")?, own_memory()?);
            let (dataset, seconds) = time(|| Ok(dataset.with_snapshot(&cache)?))?;
            let added = memory("VmRSS:")?.saturating_sub(before);
            opened = Some((dataset, own));
            answer([seconds * 1e3, added as f64])?;
            continue;
        }
        if task == Task::Fill {
            drop(std::mem::take(&mut map));
            let before = memory("VmRSS:")?;
            let fill = || (0..reader.files).map(|file| (path(file).into_bytes(), 1)).collect();
            let (filled, seconds) = time(|| Ok(fill()))?;
            map = filled;
            let added = memory("VmRSS:")?.saturating_sub(before);
            answer([seconds * 1e3, added as f64])?;
            continue;
        }
        let (dataset, own) = opened.as_ref().context("the snapshot is opened first")?;
        let snapshot = dataset.snapshot().context("it has a snapshot")?;
        let (count, seconds) = time(|| query(task, snapshot, &paths, &numbers, &map))?;
        let added = own_memory()?.saturating_sub(*own);
        answer([count as f64 / seconds, added as f64])?;
    }
    Ok(())
}

fn epoch(dataset: &Dataset) -> Result<Vec<u32>> {
    let epoch = dataset.shuffle(ShuffleOptions::new(7, 0, DEFAULT_GROUP))?;
    Ok(epoch.cursor()?.take(LOOKUPS).collect())
}

/// Random paths in sequential memory, as in a loader right after their creation.
fn paths(files: u32) -> Result<Vec<FilePath>> {
    let mut numbers: Vec<u32> = (0..files).collect();
    shuffle(&mut numbers, 1);
    let queried = numbers.iter().cycle().take(LOOKUPS);
    queried.map(|file| Ok(FilePath::new(path(*file))?)).collect()
}

fn query(
    task: Task,
    snapshot: &Snapshot,
    paths: &[FilePath],
    epoch: &[u32],
    map: &HashMap<Vec<u8>, u64>,
) -> Result<usize> {
    match task {
        Task::Open | Task::Fill => bail!("that is no question"),
        Task::Lookup => {
            for path in paths {
                let StatItem::File(record) = snapshot.stat(path)? else { bail!("it is there") };
                black_box(record.length);
            }
        }
        Task::Batches => {
            for batch in paths.chunks(BATCH) {
                for item in snapshot.stat_many(batch)? {
                    let StatItem::File(record) = item else { bail!("it is there") };
                    black_box(record.length);
                }
            }
        }
        Task::Numbers => {
            for number in (0..snapshot.files()).cycle().take(LOOKUPS) {
                black_box(snapshot.record(number)?.length);
            }
        }
        Task::Epoch => {
            for number in epoch.iter().cycle().take(LOOKUPS) {
                black_box(snapshot.record(*number)?.length);
            }
        }
        Task::Map => {
            for path in paths {
                ensure!(black_box(map.get(path.as_bytes())).is_some(), "it is there");
            }
        }
    }
    Ok(LOOKUPS)
}

fn own_memory() -> Result<u64> {
    Ok(memory("RssAnon:")? + memory("VmPTE:")?)
}

/// A memory field of the process, in bytes.
fn memory(field: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes =
        line.and_then(|line| line.trim().strip_suffix("kB")).context("no such field")?;
    Ok(kilobytes.trim().parse::<u64>()? << 10)
}

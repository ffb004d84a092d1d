//! Reads of absent chunks by one thread and by several.
//!
//! Must hold: each read meets a chunk that no earlier read fetched.

use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_format::ChunkShape;
use dl_store::Throttle;

use super::place::Place;
use super::{DATASET, READERS, paths};
use crate::measure::{Bar, Bench, in_turns, time};
use crate::setup::{Settings, SlowServer, in_threads, shuffle};
use crate::workload::agent::node::put_chunks;

/// A store with latency.
const LATENCY: Duration = Duration::from_millis(20);
const READS: usize = 32;

/// Files of a chunk of 1 MiB: small chunks, so that latency counts and not the copies.
const PER_CHUNK: usize = 4;
const LENGTH: usize = 200 << 10;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("mount-absent");
    let server = SlowServer::start(Ipv4Addr::LOCALHOST, 64)?;
    let files = (2 * (settings.runs() + 1) * READS * PER_CHUNK) as u32;
    let shape = ChunkShape::new(1 << 20, 64)?;
    put_chunks(&server.address, DATASET, files, LENGTH, PER_CHUNK as u32, shape)?;
    server.set_throttle(Throttle { latency: LATENCY, ..Throttle::default() });
    let place = Place::new(&server.address, DATASET, &folder)?;
    let _mounted = place.mount()?;
    let mut left: Vec<PathBuf> =
        paths(files).into_iter().step_by(PER_CHUNK).map(|path| place.dir().join(path)).collect();
    shuffle(&mut left, 3);
    let sides = in_turns(settings.runs(), ["8 threads", "1 thread"], |_| {
        let mut take = |threads: usize| -> Result<f64> {
            let chosen = left.split_off(left.len().saturating_sub(READS));
            ensure!(chosen.len() == READS, "too few chunks");
            let shares = chosen.chunks(READS / threads);
            let ((), seconds) = time(|| {
                in_threads(shares, |share| share.iter().try_for_each(|path| read_start(path)))
            })?;
            Ok(READS as f64 / seconds)
        };
        Ok([take(READERS)?, take(1)?])
    })?;
    let text = format!("the first bytes of {READS} files of absent chunks, a store with 20 ms");
    let bar = Bar::AtLeastTimes(5.0);
    Ok(vec![Bench::new("mount, absent chunks", text, "files/s", sides, bar)])
}

fn read_start(path: &Path) -> Result<()> {
    File::open(path)?.read_exact(&mut [0; 512])?;
    Ok(())
}

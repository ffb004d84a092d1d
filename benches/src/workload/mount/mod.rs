//! The mount beside the file system of the machine (paper, 6.3 to 6.6).
//!
//! Must hold: both sides read the same files in the same order, in turns. A cold page cache is a new
//! mount.

mod absent;
mod files;
mod floor;
mod names;
mod others;
mod place;
mod small;
mod without;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use super::run_parts;
use crate::measure::{Bench, time};
use crate::setup::{Settings, in_threads, processor_seconds};
pub(super) use floor::{FloorProcess, serve_floor};

const DATASET: &str = "mount";
const SMALL: usize = 4 << 10;

/// Concurrent readers.
const READERS: usize = 8;

/// A part of the rows of the mount workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MountPart {
    /// Files of 4 KiB, warm and cold
    Small,
    /// The same layer over memory, and files of 128 KiB
    Floor,
    /// Listings of the names of ImageNet
    Names,
    /// Reads of absent chunks
    Absent,
    /// Reads without an agent, or with a small agent
    Without,
    /// JuiceFS and rclone on the same files
    Others,
}

pub(super) fn run(part: Option<MountPart>, settings: &Settings) -> Result<Vec<Bench>> {
    if let Err(why) = File::options().read(true).write(true).open("/dev/fuse") {
        anyhow::bail!("the mount needs /dev/fuse: {why}");
    }
    run_parts(part, |part| match part {
        MountPart::Small => small::run(settings),
        MountPart::Floor => floor::run(settings),
        MountPart::Names => names::run(settings),
        MountPart::Absent => absent::run(settings),
        MountPart::Without => without::run(settings),
        MountPart::Others => others::run(settings),
    })
}

/// The files of a dataset, as the bench puts them.
fn paths(files: u32) -> Vec<String> {
    let path = |file: u32| {
        let folder = 1_440_764 + file / 1_000 * 7;
        format!("n{folder:08}/n{folder:08}_{}.JPEG", 10_026 + file % 1_000)
    };
    (0..files).map(path).collect()
}

/// Files to read in a fixed order.
#[derive(Debug, Clone, Copy)]
struct Reads<'a> {
    order: &'a [String],
    /// Bytes of a file.
    length: usize,
    readers: usize,
}

impl Reads<'_> {
    /// Opens, reads and closes each file below `root` once.
    fn read(&self, root: &Path) -> Result<()> {
        let shares = self.order.chunks(self.order.len().div_ceil(self.readers));
        in_threads(shares, |share| {
            let mut buffer = vec![0; self.length];
            share.iter().try_for_each(|path| read(&root.join(path), &mut buffer))
        })
    }

    /// Returns files for a second of processor time of this process and of a server.
    fn processor_rate(&self, root: &Path, server: u32, times: usize) -> Result<f64> {
        let processes = [std::process::id(), server];
        let before = processor_seconds(&processes)?;
        (0..times).try_for_each(|_| self.read(root))?;
        Ok((times * self.order.len()) as f64 / (processor_seconds(&processes)? - before))
    }

    /// Returns files for a second.
    fn rate(&self, root: &Path) -> Result<f64> {
        let ((), seconds) = time(|| self.read(root))?;
        Ok(self.order.len() as f64 / seconds)
    }
}

/// Reads a file as long as the buffer.
fn read(path: &Path, buffer: &mut [u8]) -> Result<()> {
    let read = File::open(path)?.read(buffer)?;
    ensure!(read == buffer.len(), "{read} bytes of {}", path.display());
    Ok(())
}

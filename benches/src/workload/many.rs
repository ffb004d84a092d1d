//! A random read of every file, in batches, as in a training job without a cache.
//!
//! Must hold: both sides read the same files in the same order with as many threads.

use std::path::Path;

use anyhow::{Result, ensure};
use dl_format::FilePath;
use libdiesel::Dataset;

use super::tree::with_small;
use crate::measure::{Bar, Bench, in_turns, time};
use crate::setup::{Settings, connect, in_threads, read_files, shuffle};

const BATCH: usize = 256;
const THREADS: usize = 2;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let (server, tree) = with_small(settings, "many")?;
    let dataset = connect(&server.address)?.dataset(&"small".parse()?)?;
    let mut paths: Vec<String> = tree.paths().collect();
    let names = [
        "get_many by path, checksums verified",
        "open, read, close of the source files, the same order",
    ];
    let sides = in_turns(settings.runs(), names, |round| {
        shuffle(&mut paths, round);
        let (_, reading) = time(|| split(&paths, |share| get_many(&dataset, share)))?;
        let (_, opening) =
            time(|| split(&paths, |share| read_files(Path::new(&tree.root), share)))?;
        Ok([reading, opening].map(|seconds| paths.len() as f64 / seconds))
    })?;
    let settings = format!(
        "{} files of 4 KiB in random batches of {BATCH}, {THREADS} threads, the server on the \
         same cores, warm",
        paths.len()
    );
    Ok(vec![Bench::new("get-many", settings, "files/s", sides, Bar::AtLeast(150e3))])
}

/// Runs `work` on equal shares, each in its own thread.
fn split(paths: &[String], work: impl Fn(&[String]) -> Result<()> + Sync) -> Result<()> {
    in_threads(paths.chunks(paths.len().div_ceil(THREADS)), work)
}

fn get_many(dataset: &Dataset, paths: &[String]) -> Result<()> {
    for batch in paths.chunks(BATCH) {
        let paths: Vec<FilePath> =
            batch.iter().map(|path| Ok(FilePath::new(path.clone())?)).collect::<Result<_>>()?;
        for file in dataset.get_many(&paths)? {
            ensure!(file?.len() == 4096, "a file has another length");
        }
    }
    Ok(())
}

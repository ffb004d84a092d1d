//! One random read of every file in batches, as in a training job without a cache.
//!
//! Must hold: both sides read the same files in the same order with as many threads.

use std::path::Path;
use std::thread;

use anyhow::{Result, ensure};
use dl_format::FilePath;
use libdiesel::{Client, ConnectOptions, Dataset};

use super::tree::with_small;
use crate::measure::{Bar, Bench, Side, Stopwatch};
use crate::setup::{Settings, read_files, shuffle};

const BATCH: usize = 256;
const THREADS: usize = 2;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let (server, tree) = with_small(settings, "many")?;
    let options = ConnectOptions { servers: vec![server.address.clone()], ..Default::default() };
    let dataset = Client::connect(options)?.dataset(&"small".parse()?)?;
    let mut paths: Vec<String> = tree.paths().collect();
    let mut ours = Side::new("get_many by path, checksums verified");
    let mut theirs = Side::new("open, read, close of the source files, the same order");
    let stopwatch = Stopwatch::new();
    for round in 0..=settings.runs() {
        shuffle(&mut paths, round as u64);
        let (_, reading) = stopwatch.time(|| split(&paths, |share| get_many(&dataset, share)))?;
        let (_, opening) =
            stopwatch.time(|| split(&paths, |share| read_files(Path::new(&tree.root), share)))?;
        if round > 0 {
            ours.samples.push(paths.len() as f64 / reading);
            theirs.samples.push(paths.len() as f64 / opening);
        }
    }
    let settings = format!(
        "{} files of 4 KiB in random batches of {BATCH}, {THREADS} threads, the server on the \
         same cores, warm",
        paths.len()
    );
    let (name, bar) = ("get-many".to_owned(), Bar::AtLeast(150e3));
    Ok(vec![Bench { name, settings, unit: "files/s", ours, theirs, bar }])
}

/// Runs `work` on equal shares, one thread each.
fn split(paths: &[String], work: impl Fn(&[String]) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let shares = paths.chunks(paths.len().div_ceil(THREADS));
        let threads: Vec<_> = shares.map(|share| scope.spawn(|| work(share))).collect();
        let mut ended = Ok(());
        for thread in threads {
            ended = ended.and(thread.join().expect("a reader gives its errors back"));
        }
        ended
    })
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

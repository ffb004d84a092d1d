//! Reads every file of a dataset once, in a random order, in batches, from two threads; compares
//! each with the file that it was made from; says how fast that was. With FILES, as many are to be
//! there.
//!
//! `cargo run --release -p libdiesel --example read_shuffled -- 127.0.0.1:7420 DATASET FOLDER FILES`
//!
//! As dlcmd it takes `DIESEL_USER`, `DIESEL_KEY` and `DIESEL_CA` from its environment.

use std::error::Error;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use dl_runtime::{Clock, OsRandom, Random, SystemClock};
use libdiesel::{Client, ConnectOptions, Dataset, DatasetName, DirPath, FilePath, ListEntry};

const BATCH: usize = 256;
const THREADS: usize = 2;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (servers, name, folder, wanted) = match arguments.as_slice() {
        [servers, name, folder] => (servers, name, folder, None),
        [servers, name, folder, files] => (servers, name, folder, Some(files.parse::<usize>()?)),
        _ => return Err("usage: read_shuffled SERVER[,SERVER...] DATASET FOLDER [FILES]".into()),
    };
    let variable = |name| std::env::var(name).ok();
    let ca = variable("DIESEL_CA").map(std::fs::read).transpose()?;
    let dataset = Client::connect(ConnectOptions {
        user: variable("DIESEL_USER").unwrap_or_else(|| "demo".to_owned()),
        key: variable("DIESEL_KEY"),
        servers: servers.split(',').map(str::to_owned).collect(),
        ca,
        ..ConnectOptions::default()
    })?
    .dataset(&DatasetName::new(name.as_str())?)?;

    let mut paths = Vec::new();
    for entry in dataset.list(&DirPath::ROOT, true, true)? {
        if let ListEntry::File(path, _) = entry? {
            paths.push(path);
        }
    }
    if let Some(wanted) = wanted.filter(|wanted| *wanted != paths.len()) {
        return Err(format!("{} files are there, and {wanted} were put", paths.len()).into());
    }
    shuffle(&mut paths);

    let bytes = AtomicU64::new(0);
    let clock = SystemClock::new();
    let began = clock.monotonic();
    std::thread::scope(|scope| -> Result<(), Box<dyn Error + Send + Sync>> {
        let share = paths.len().div_ceil(THREADS).max(1);
        let readers: Vec<_> = paths
            .chunks(share)
            .map(|share| scope.spawn(|| read(&dataset, share, Path::new(folder), &bytes)))
            .collect();
        for reader in readers {
            reader.join().map_err(|_| "a reader panicked")??;
        }
        Ok(())
    })?;
    let seconds = (clock.monotonic() - began).as_secs_f64();
    let (files, bytes) = (paths.len(), bytes.into_inner());
    writeln!(
        std::io::stdout(),
        "{files} files, {:.0} MB, each compared with its original: {seconds:.2} s, \
         {:.0} files/s, {:.0} MB/s (reading the originals included)",
        bytes as f64 / 1e6,
        files as f64 / seconds,
        bytes as f64 / 1e6 / seconds,
    )?;
    Ok(())
}

fn read(
    dataset: &Dataset,
    paths: &[FilePath],
    folder: &Path,
    bytes: &AtomicU64,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    for batch in paths.chunks(BATCH) {
        for (path, file) in batch.iter().zip(dataset.get_many(batch)?) {
            let file = file?;
            let original = std::fs::read(folder.join(OsStr::from_bytes(path.as_bytes())))?;
            if file != original {
                return Err(format!("{path} is not what was put").into());
            }
            bytes.fetch_add(file.len() as u64, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Fisher and Yates, with a fresh seed each time.
fn shuffle(paths: &mut [FilePath]) {
    for last in (1..paths.len()).rev() {
        let other = OsRandom.u64() % (last as u64 + 1);
        paths.swap(last, other as usize);
    }
}

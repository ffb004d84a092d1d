//! Reads every file of a dataset twice, from two threads: in a random order, in batches; and as an
//! epoch in the chunk-wise shuffled order. Compares each file with its original, and prints the
//! speed. With FILES, the dataset must have as many files.
//!
//! `cargo run --release -p libdiesel --example read_shuffled -- 127.0.0.1:7420 DATASET FOLDER FILES`
//!
//! Like dlcmd, the program reads `DIESEL_USER`, `DIESEL_KEY` and `DIESEL_CA` from its environment.

use std::error::Error;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dl_runtime::{Clock, OsRandom, Random, SystemClock};
use libdiesel::{
    Client, ConnectOptions, Dataset, DatasetName, DirPath, Epoch, FilePath, ListEntry,
    ShuffleOptions, SnapshotCache,
};

const BATCH: usize = 256;
const THREADS: usize = 2;
/// Chunks whose files are shuffled together.
const GROUP: u32 = 16;

type Failed = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failed> {
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

    let folder = Path::new(folder);
    let share = paths.len().div_ceil(THREADS).max(1);
    let shares: Vec<&[FilePath]> = paths.chunks(share).collect();
    let batches = |read: &Read| {
        shares.get(read.thread).map_or(Ok(()), |share| {
            share.chunks(BATCH).try_for_each(|batch| read.batch(&dataset, batch))
        })
    };
    tell("any order, in batches of 256", paths.len(), folder, batches)?;
    let cache = SnapshotCache::of_user().ok_or("set HOME or XDG_CACHE_HOME for its snapshot")?;
    let dataset = dataset.with_snapshot(&cache)?;
    let epoch = dataset.shuffle(ShuffleOptions::new(OsRandom.u64(), 0, GROUP))?;
    tell("one epoch, shuffled chunk-wise", paths.len(), folder, |read| read.epoch(&epoch))
}

/// A reading thread, with the totals of all threads.
struct Read<'a> {
    thread: usize,
    folder: &'a Path,
    files: &'a AtomicUsize,
    bytes: &'a AtomicU64,
}

/// Runs the threads, and prints the number of files and the speed.
fn tell(
    what: &str,
    wanted: usize,
    folder: &Path,
    work: impl Fn(&Read) -> Result<(), Failed> + Sync,
) -> Result<(), Failed> {
    let (files, bytes) = (&AtomicUsize::new(0), &AtomicU64::new(0));
    let clock = SystemClock::new();
    let began = clock.monotonic();
    std::thread::scope(|scope| -> Result<(), Failed> {
        let work = &work;
        let readers: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(&Read { thread, folder, files, bytes })))
            .collect();
        for reader in readers {
            reader.join().map_err(|_| "a reader panicked")??;
        }
        Ok(())
    })?;
    let seconds = (clock.monotonic() - began).as_secs_f64();
    let files = files.load(Ordering::Relaxed);
    if files != wanted {
        return Err(format!("{files} files were read, and {wanted} are there").into());
    }
    let megabytes = bytes.load(Ordering::Relaxed) as f64 / 1e6;
    writeln!(
        std::io::stdout(),
        "{what}: {files} files, {megabytes:.0} MB, each compared with its original: \
         {seconds:.2} s, {:.0} files/s, {:.0} MB/s (reading the originals included)",
        files as f64 / seconds,
        megabytes / seconds,
    )?;
    Ok(())
}

impl Read<'_> {
    fn batch(&self, dataset: &Dataset, batch: &[FilePath]) -> Result<(), Failed> {
        for (path, file) in batch.iter().zip(dataset.get_many(batch)?) {
            self.compare(path, &file?)?;
        }
        Ok(())
    }

    fn epoch(&self, epoch: &Epoch) -> Result<(), Failed> {
        while let Some(file) = epoch.next()? {
            self.compare(&file.path, &file.bytes?)?;
        }
        Ok(())
    }

    fn compare(&self, path: &FilePath, file: &[u8]) -> Result<(), Failed> {
        let original = std::fs::read(self.folder.join(OsStr::from_bytes(path.as_bytes())))?;
        if file != original {
            return Err(format!("{path} differs from its original").into());
        }
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(file.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Fisher and Yates, with a fresh seed each time.
fn shuffle(paths: &mut [FilePath]) {
    for last in (1..paths.len()).rev() {
        let other = OsRandom.u64() % (last as u64 + 1);
        paths.swap(last, other as usize);
    }
}

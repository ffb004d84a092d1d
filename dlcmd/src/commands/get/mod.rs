//! `dlcmd get`: copies files of a dataset to this machine.
//!
//! Must hold: afterwards the folder has all files of the dataset, with times and permissions. The
//! command writes only inside DEST. A failing file affects no other file. Memory is bounded.

mod fetch;
mod tar;

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use clap::Args;
use dl_format::{FilePath, FileRecord};
use dl_runtime::{locked, since_boot, units};
use libdiesel::{Dataset, ListEntry, StatItem};
use rustix::fs::FileType;

use self::fetch::{Batch, GetState, Summary, Wanted};
use super::file_at;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::local::{Target, own_umask, special};
use crate::output::Output;
use crate::progress::Progress;
use crate::text::{counted, escaped, shown, sized};

/// The first and the longest interval between two looks for a source.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(200);
/// Entries sorted by chunk at once.
const PAGE: usize = 8_192;
/// Maximum files of one batch: several requests, so that requests overlap with writing.
const BATCH_FILES: usize = 4_096;
/// Bytes after which a batch is full.
const BATCH_BYTES: u64 = 16 << 20;
/// Maximum bytes of paths in a batch: waiting batches hold them in memory.
const BATCH_PATHS: usize = 1 << 20;
/// A larger file is streamed, alone.
const WHOLE_BYTES: u64 = 4 << 20;

/// Get files of a dataset
///
/// A folder, or the whole dataset, is written into DEST, which is created if missing. A file is
/// written as DEST, or into DEST if DEST is a folder. Links, pipes and devices are not replaced.
/// Modification times and permission bits are kept, without setuid, setgid and sticky.
///
/// A local file with the same size, time and permissions is left alone; a differing file is
/// replaced. A file gets its name only when complete.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd get dl://imagenet /data/imagenet
  dlcmd get dl://imagenet/train/n01440764 .
  dlcmd get dl://imagenet/labels.csv /tmp/labels.csv
  dlcmd get dl://imagenet/val --tar val.tar
  dlcmd get dl://laion/train-000 --tar - | tar t
  dlcmd get dl://run-7/checkpoint-3.pt . --wait 10m")]
pub(crate) struct Arguments {
    /// The dataset, folder or file
    #[arg(value_name = "dl://DS[/PATH]")]
    source: Address,

    /// The destination on this machine
    #[arg(value_name = "DEST", required_unless_present = "tar", conflicts_with = "tar")]
    target: Option<PathBuf>,

    /// Write a tar archive instead, in the order of paths; `-` is stdout
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,

    /// Return only once everything is on disk
    #[arg(long)]
    sync: bool,

    /// Wait up to this time for a source that another program is still to put, as in 30s or 5m. Reads
    /// the newest version, so without --task
    #[arg(long, value_name = "TIME")]
    wait: Option<String>,

    /// Threads that write files, at most 1024 [default: one for each core, 2 to 8]
    #[arg(long, value_name = "COUNT", value_parser = crate::from_one::<NonZeroUsize>)]
    threads: Option<NonZeroUsize>,
}

/// The validated arguments.
#[derive(Debug, PartialEq)]
struct GetPlan {
    source: Address,
    target: PathBuf,
    /// Whether the target is an archive.
    is_tar: bool,
    sync: bool,
    threads: usize,
    wait: Option<Duration>,
}

impl Arguments {
    fn plan(self) -> Result<GetPlan, Failure> {
        let Self { source, target, tar, sync, threads, wait } = self;
        let wait = wait.map(|text| {
            units::duration(&text).ok_or_else(|| {
                let text = escaped(text.as_bytes());
                Failure::usage(format!("--wait {text}: type a time such as 30s or 5m"))
            })
        });
        let wait = wait.transpose()?;
        let is_tar = tar.is_some();
        let target = tar.or(target).unwrap_or_default();
        if target.as_os_str().is_empty() {
            return Err(Failure::usage("DEST is empty; type . for the current folder"));
        }
        if target.as_os_str().as_bytes().starts_with(b"dl://") {
            return Err(Failure::usage(
                "DEST is an address; get writes to this machine, and put writes to a dataset",
            ));
        }
        Ok(GetPlan { source, target, is_tar, sync, threads: crate::threads(threads)?, wait })
    }
}

/// Gets the files.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let plan = arguments.plan()?;
    await_source(&plan, context)?;
    if plan.is_tar {
        return tar::run(&plan, context, out);
    }
    let umask = own_umask();
    let dataset = context.dataset(&plan.source)?;
    let Some((path, record)) = file_at("get", &dataset, &plan.source)? else {
        return get_folder(&plan, &dataset, umask, context, out);
    };
    let (target, at) = file_target(&plan.target, path, umask)?;
    let wanted = Wanted { at, path: path.clone(), record };
    transfer(&plan, &dataset, &target, context, out, |shared, give| {
        if shared.is_wanted(&wanted) {
            give(Batch::from(wanted))?;
        }
        Ok(())
    })
}

/// Waits until the source exists, as long as the arguments say.
fn await_source(plan: &GetPlan, context: &Context) -> Result<(), Failure> {
    let Some(wait) = plan.wait else { return Ok(()) };
    if context.task.is_some() {
        let why = "--wait reads the newest version, and a task reads one version: leave out --task";
        return Err(Failure::usage(why));
    }
    let until = since_boot().saturating_add(wait);
    let mut pause = POLL_INTERVAL;
    loop {
        let found = context.dataset(&plan.source).and_then(|dataset| match &plan.source.path {
            Some(_) => file_at("get", &dataset, &plan.source).map(|_| ()),
            None => Ok(()),
        });
        let left = until.saturating_sub(since_boot());
        let is_missing = matches!(found, Err(Failure::Because { exit: Exit::NotFound, .. }));
        if !is_missing || left.is_zero() || context.shutdown.is_requested() {
            return found;
        }
        thread::sleep(pause.min(left));
        pause = pause.saturating_mul(2).min(POLL_INTERVAL_MAX);
    }
}

fn get_folder(
    plan: &GetPlan,
    dataset: &Dataset,
    umask: u16,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let folder = plan.source.folder();
    let prefix = folder.prefix().len();
    // The servers are asked before a folder is created, so a refusal leaves nothing behind.
    let mut listing = dataset.list(&folder, true, false)?;
    let target = Target::create(&plan.target, umask).map_err(|why| {
        refused_by_other(plan).unwrap_or_else(|| {
            Failure::local(format!("make the folder {}", shown(&plan.target)), why)
        })
    })?;
    transfer(plan, dataset, &target, context, out, |shared, give| {
        loop {
            let mut page = Vec::new();
            for entry in listing.by_ref().take(PAGE) {
                let ListEntry::File(path, Some(record)) = entry? else { continue };
                let at = path.clone().into_bytes().slice(prefix..);
                let at = FilePath::new(at).map_err(|why| {
                    Failure::failed(format!("get {path}: its name has no place here: {why}"))
                })?;
                page.push(Wanted { at, path, record });
            }
            if page.is_empty() {
                return Ok(());
            }
            page.retain(|wanted| shared.is_wanted(wanted));
            page.sort_unstable_by_key(|wanted| (wanted.record.holder.chunk, wanted.record.offset));
            for batch in batches(page) {
                give(batch)?;
            }
        }
    })
}

/// The failure for a target path below a file, link or device.
fn refused_by_other(plan: &GetPlan) -> Option<Failure> {
    let is_there = |path: &&Path| fs::symlink_metadata(path).is_ok();
    let other = plan.target.ancestors().find(is_there).filter(|path| !path.is_dir())?;
    let kind = FileType::from_raw_mode(fs::symlink_metadata(other).ok()?.mode());
    let what = if kind == FileType::RegularFile { "a file" } else { special(kind) };
    let (source, other) = (&plan.source, shown(other));
    Some(Failure::failed(format!(
        "get {source}: {other} is {what}, and DEST is to be a folder; move it away, or name another"
    )))
}

/// The folder and name for a file, by the rules of `cp`.
fn file_target(target: &Path, path: &FilePath, umask: u16) -> Result<(Target, FilePath), Failure> {
    let (parent, name) = if target.is_dir() {
        (target, OsStr::from_bytes(path.name()))
    } else if target.as_os_str().as_bytes().ends_with(b"/") {
        return Err(Failure::failed(format!(
            "get {path}: {} is not a folder; make it, or leave out the slash",
            shown(target)
        )));
    } else {
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let name = target.file_name().ok_or_else(|| {
            Failure::usage(format!("DEST {} names no file and no folder", shown(target)))
        })?;
        (parent.unwrap_or(Path::new(".")), name)
    };
    refuse_special(path, &parent.join(name))?;
    let opened = Target::existing(parent, umask).map_err(|why| match why.kind() {
        ErrorKind::NotFound => {
            let parent = shown(parent);
            Failure::failed(format!("get {path}: the folder {parent} is not there; make it first"))
        }
        _ => Failure::local(format!("get {path}: open the folder {}", shown(parent)), why),
    })?;
    let name = FilePath::new(name.as_bytes().to_vec())
        .map_err(|why| Failure::usage(format!("DEST {}: {why}", shown(target))))?;
    Ok((opened, name))
}

/// Refuses to replace a link, a pipe, a socket or a device.
fn refuse_special(path: &FilePath, target: &Path) -> Result<(), Failure> {
    let Ok(there) = fs::symlink_metadata(target) else { return Ok(()) };
    let kind = FileType::from_raw_mode(there.mode());
    let advice = match kind {
        // A folder is refused when the file is written.
        FileType::RegularFile | FileType::Directory => return Ok(()),
        FileType::Symlink => "get replaces no link; type where it leads",
        _ => "get replaces only files; dlcmd cat writes to stdout, for > to send there",
    };
    let (target, what) = (shown(target), special(kind));
    Err(Failure::failed(format!("get {path}: {target} is {what}: {advice}")))
}

/// Groups files into batches, one chunk after the other.
fn batches(files: Vec<Wanted>) -> Vec<Batch> {
    let (mut batches, mut paths) = (Vec::<Batch>::new(), 0);
    for file in files {
        let (length, path) = (file.record.length, file.path.as_bytes().len());
        match batches.last_mut() {
            Some(last)
                if length <= WHOLE_BYTES
                    && !last.is_streamed()
                    && last.files.len() < BATCH_FILES
                    && last.bytes.saturating_add(length) <= BATCH_BYTES
                    && paths + path <= BATCH_PATHS =>
            {
                last.bytes += length;
                last.files.push(file);
                paths += path;
            }
            _ => {
                batches.push(file.into());
                paths = path;
            }
        }
    }
    batches
}

impl Batch {
    /// Whether the batch is a single file too large for memory.
    fn is_streamed(&self) -> bool {
        matches!(self.files.as_slice(), [file] if file.record.length > WHOLE_BYTES)
    }
}

impl From<Wanted> for Batch {
    fn from(file: Wanted) -> Self {
        Self { bytes: file.record.length, files: vec![file] }
    }
}

/// Takes a batch of a listing.
type Give<'a> = dyn FnMut(Batch) -> Result<(), Failure> + 'a;

/// Transfers the files that `list` gives until its first failure, and prints the summary.
fn transfer(
    plan: &GetPlan,
    dataset: &Dataset,
    target: &Target,
    context: &Context,
    out: &mut Output<'_>,
    list: impl FnOnce(&GetState<'_>, &mut Give<'_>) -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    let progress = Progress::new(context.notes.bar());
    let shared = GetState::new(dataset, target, context, &progress);
    let ended = fetch_all(plan, &shared, list);
    progress.end();
    if plan.sync {
        target
            .sync()
            .map_err(|why| Failure::local(format!("sync {}", shown(&plan.target)), why))?;
    }
    shared.print_failures();
    let (summary, first) = shared.into_summary();
    report(&summary, out)?;
    if context.shutdown.is_requested() {
        return Ok(Exit::Interrupted);
    }
    ended?;
    Ok(match (first, summary) {
        (None, _) => Exit::Done,
        (Some(exit), Summary { files: 0, unchanged: 0, failed: 1, .. }) => exit,
        _ => Exit::Partly,
    })
}

/// Runs `list` in parallel with the fetching threads.
fn fetch_all(
    plan: &GetPlan,
    shared: &GetState<'_>,
    list: impl FnOnce(&GetState<'_>, &mut Give<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (give, taken) = sync_channel::<Batch>(plan.threads);
    let taken = Mutex::new(taken);
    thread::scope(|scope| {
        if shared.progress.is_shown() {
            scope.spawn(|| count(plan, shared));
        }
        let work = || fetch_batches(shared, &taken);
        let threads: Vec<_> = (0..plan.threads).map(|_| scope.spawn(work)).collect();
        let listed = list(shared, &mut |batch| {
            if shared.is_stopped() || give.send(batch).is_err() {
                return Err(Failure::failed("stopped"));
            }
            Ok(())
        });
        drop(give);
        let mut ended = Ok(());
        for thread in threads {
            ended = ended.and(thread.join().expect("a fetcher returns its failures"));
        }
        shared.stop();
        ended.and(listed)
    })
}

/// Fetches batches until the channel ends. After a failure the thread still drains the channel, so
/// that the producer never blocks.
fn fetch_batches(shared: &GetState<'_>, batches: &Mutex<Receiver<Batch>>) -> Result<(), Failure> {
    let mut ended = Ok(());
    loop {
        let batch = locked(batches).recv();
        let Ok(batch) = batch else { return ended };
        if !shared.is_stopped() {
            let fetched = shared.fetch(&batch);
            if fetched.is_err() {
                shared.stop();
                ended = fetched;
            }
        }
    }
}

/// Sums up the bytes to fetch during the transfer; only for a visible progress bar.
fn count(plan: &GetPlan, shared: &GetState<'_>) {
    let bytes = match &plan.source.path {
        None => shared.bytes_below(&plan.source.folder()),
        Some(path) => match shared.dataset.stat(path) {
            Ok(StatItem::File(FileRecord { length, .. })) => Some(length),
            _ => shared.bytes_below(&plan.source.folder()),
        },
    };
    if let Some(bytes) = bytes {
        shared.progress.expect(bytes);
    }
}

fn report(summary: &Summary, out: &mut Output<'_>) -> Result<(), Failure> {
    if out.is_json() {
        return out.json("get", summary);
    }
    let Summary { files, bytes, unchanged, failed } = *summary;
    let mut line = format!("{} got, {}", counted(files, "file"), sized(bytes));
    for (count, what) in [(unchanged, "unchanged"), (failed, "failed")] {
        if count > 0 {
            line.push_str(&format!(", {count} {what}"));
        }
    }
    out.line(format_args!("{line}"))
}

#[cfg(test)]
mod tests;

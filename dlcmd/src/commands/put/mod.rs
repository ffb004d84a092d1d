//! `dlcmd put`: stores files of this machine in a dataset (paper, 4).
//!
//! Must hold: files reported as stored are acknowledged and visible. After an interruption the same
//! command continues. Nothing is written for conflicting sources.

mod archive;
mod conflicts;
mod contents;
mod list;
mod reports;
mod send;
mod unpack;

use std::collections::HashSet;
use std::collections::btree_map::{self, BTreeMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;

use clap::Args;
use dl_format::ChunkShape;
use libdiesel::{Dataset, FailedWrite, Flushed, Kind, StatItem};
use serde::Serialize;

use self::reports::Reports;
use self::send::{PutState, Sender};
use self::unpack::{Named, Unpacker};
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure, cause};
use crate::interrupt;
use crate::local::{Destination, Entry, Event, Paths, Root, Walk};
use crate::output::Output;
use crate::progress::Progress;
use crate::text::{counted, shown, sized};

/// Put files and folders into a dataset
///
/// A folder stands for its contents. A single file is stored under the given path and replaces a
/// file there. Below a path that ends in `/` or is a folder of the dataset, the file keeps its last
/// name. Several sources are stored below DIR. A missing dataset is created. A put is refused if a
/// file would hide a folder of the same name, or a folder a file.
///
/// Files already in the dataset with the same size, modification time and mode are skipped: after
/// an interruption, run the same command again. Files put less than 2 seconds after their
/// modification are read again.
///
/// A link to a file inside SRC is stored as a file. Other links (without --follow), pipes, sockets,
/// devices, the data of a dlserver and partial files of a killed get (.dlcmd-*.tmp) are skipped and
/// counted on stderr, the first ten named. Exit code 4 means that a SRC itself was skipped, or that
/// all files were. Empty folders and the modes of folders are not kept; the summary counts empty
/// folders.
///
/// With --unpack, the members of tar archives become files, with their times and modes. Links and
/// devices among them are skipped and counted.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd put train/ dl://imagenet/train
  dlcmd put labels.csv dl://imagenet/train.csv
  dlcmd put labels.csv README dl://imagenet
  find . -name '*.jpg' -print0 | dlcmd put -0 - dl://photos
  dlcmd put --unpack train-000.tar train-001.tar.gz dl://laion
  curl -s https://example.org/coco.tar | dlcmd put --unpack - dl://coco")]
pub(crate) struct Arguments {
    /// Files and folders; or `-` for a list of files on stdin, one per line, each stored under the
    /// given path. With --unpack: archives, or `-` for one on stdin
    #[arg(value_name = "SRC", required = true)]
    sources: Vec<OsString>,

    /// The target folder, or for a single file its new path
    #[arg(value_name = "dl://DS[/DIR]", required = true)]
    target: Address,

    /// The names on stdin end with NUL instead of a newline
    #[arg(short = '0', long)]
    null: bool,

    /// Skip a file only if its contents are equal too: reads every file from disk and from the
    /// dataset, and stores files with damaged or lost bytes again
    #[arg(long)]
    checksum: bool,

    /// Follow all links, also out of SRC and to folders; a link back to a folder above it is
    /// skipped
    #[arg(long)]
    follow: bool,

    /// SRC are tar archives, also with gzip, whose members become files
    #[arg(long, conflicts_with_all = ["null", "checksum", "follow", "threads"])]
    unpack: bool,

    /// Store the members of each archive below a folder with the name of the archive
    #[arg(long, requires = "unpack")]
    under_archive: bool,

    /// Threads that read files, at most 1024 [default: one for each core, 2 to 8]
    #[arg(long, value_name = "COUNT", value_parser = crate::from_one::<NonZeroUsize>)]
    threads: Option<NonZeroUsize>,
}

/// The validated arguments.
#[derive(Debug, PartialEq)]
struct PutPlan {
    sources: Sources,
    target: Address,
    checksum: bool,
    follow: bool,
    threads: usize,
}

#[derive(Debug, PartialEq)]
enum Sources {
    /// Files and folders of the command line.
    Named(Vec<PathBuf>),
    /// The files listed on stdin, each ended by the given byte.
    Listed(u8),
    /// The members of archives.
    Packed(Vec<Named>),
}

impl Arguments {
    fn plan(self) -> Result<PutPlan, Failure> {
        let threads = crate::threads(self.threads)?;
        if self.unpack {
            let sources = Sources::Packed(unpack::archives(self.sources, self.under_archive)?);
            let (target, checksum, follow) = (self.target, false, false);
            return Ok(PutPlan { sources, target, checksum, follow, threads });
        }
        let is_list = self.sources.iter().any(|source| source == "-");
        if is_list && self.sources.len() > 1 {
            return Err(Failure::usage(
                "`-` stands alone: put the files that are named here into the list on stdin, or \
                 call a file of this name ./-",
            ));
        }
        if self.null && !is_list {
            return Err(Failure::usage("-0 needs `-` as SRC: it says how names on stdin end"));
        }
        let sources = if is_list {
            Sources::Listed(if self.null { 0 } else { b'\n' })
        } else {
            Sources::Named(self.sources.into_iter().map(PathBuf::from).collect())
        };
        let Self { target, checksum, follow, .. } = self;
        Ok(PutPlan { sources, target, checksum, follow, threads })
    }
}

impl PutPlan {
    /// The target folder as the place of all files.
    fn below(&self) -> Destination {
        Destination::Below(self.target.folder().prefix())
    }
}

/// An opened source.
#[derive(Debug)]
enum Input {
    Tree(Arc<Root>),
    Files(Arc<Root>, Arc<Paths>, Entry),
}

/// Puts the files.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    stdin: &mut dyn Read,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let plan = arguments.plan()?;
    let mut inputs = match &plan.sources {
        Sources::Packed(archives) => return unpack_all(archives, &plan, context, stdin, out),
        Sources::Named(paths) => open(paths, &plan)?,
        Sources::Listed(end) => {
            let paths = list::read(stdin, *end)?;
            let root = Root::open(Path::new(""), plan.below(), plan.follow)
                .map_err(|why| Failure::local("open the current folder", why))?;
            vec![Input::Files(root, Arc::new(paths), Entry::Found)]
        }
    };
    if inputs.len() > 1
        && let Err(failure) = conflicts::among_sources(&inputs, &context.shutdown)
    {
        return stopped_or(failure, context, out);
    }
    let reports = Reports::default();
    if has_nothing(&inputs, &reports) {
        reports.print(context, false);
        let (skipped, failed) = (reports.skipped(), reports.failed());
        report(&Summary { skipped, failed, ..Summary::default() }, out)?;
        return Ok(Exit::Partly);
    }

    let dataset = context.client()?.create_dataset(&plan.target.dataset, ChunkShape::default())?;
    name_single(&plan, &mut inputs, &dataset)?;
    let is_empty = dataset.info().objects == 0;
    if !is_empty
        && let Err(failure) =
            conflicts::with_dataset(&inputs, &dataset, plan.threads, &context.shutdown)
    {
        return stopped_or(failure, context, out);
    }
    let progress = Progress::new(context.notes.bar());
    let shared = PutState::new(&dataset, context, &progress, is_empty, plan.checksum);
    let (ended, flushed) = interrupt::or_given_up(
        &context.shutdown,
        || put_all(&inputs, &shared, plan.threads),
        || dataset.give_up(),
    );
    progress.end();
    finish(ended, flushed, shared, out)
}

/// Puts the members of archives.
fn unpack_all(
    archives: &[Named],
    plan: &PutPlan,
    context: &Context,
    stdin: &mut dyn Read,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let dataset = context.client()?.create_dataset(&plan.target.dataset, ChunkShape::default())?;
    let is_empty = dataset.info().objects == 0;
    let progress = Progress::new(context.notes.bar());
    let shared = PutState::new(&dataset, context, &progress, is_empty, false);
    let unpack = || {
        let mut unpacker = Unpacker::new(&shared, plan.target.folder(), is_empty);
        (unpacker.unpack(archives, stdin), shared.flush())
    };
    let (ended, flushed) = interrupt::or_given_up(&context.shutdown, unpack, || dataset.give_up());
    progress.end();
    finish(ended, flushed, shared, out)
}

/// The result of a command that stored nothing: a failure, unless Ctrl-C was the reason.
fn stopped_or(failure: Failure, context: &Context, out: &mut Output<'_>) -> Result<Exit, Failure> {
    if context.shutdown.is_requested() {
        report(&Summary::default(), out)?;
        return Ok(Exit::Interrupted);
    }
    Err(failure)
}

/// Whether the sources are only files, none of which can be stored; no dataset is created then.
/// Reports the files in this case.
fn has_nothing(inputs: &[Input], reports: &Reports) -> bool {
    let mut files = inputs.iter().flat_map(Input::files).peekable();
    if files.peek().is_none() || inputs.iter().any(|input| matches!(input, Input::Tree(_))) {
        return false;
    }
    files.all(|(root, path, entry)| match root.open_file(path, entry) {
        Ok(_) => false,
        Err(problem) => {
            reports.add_problem(root, path, entry, &problem);
            true
        }
    })
}

impl Input {
    fn root(&self) -> &Arc<Root> {
        match self {
            Self::Tree(root) | Self::Files(root, ..) => root,
        }
    }

    /// Named and listed files, each below its root.
    fn files(&self) -> impl Iterator<Item = (&Arc<Root>, &[u8], Entry)> {
        let named = match self {
            Self::Tree(_) => None,
            Self::Files(root, paths, entry) => Some((root, paths, *entry)),
        };
        named.into_iter().flat_map(|(root, paths, entry)| {
            paths.iter().map(move |path| (root, path.to_bytes(), entry))
        })
    }
}

/// A single file gets the path of the target, unless the target is a folder. The servers decide,
/// because a snapshot may be stale.
fn name_single(plan: &PutPlan, inputs: &mut [Input], dataset: &Dataset) -> Result<(), Failure> {
    let Sources::Named(sources) = &plan.sources else { return Ok(()) };
    let ([_], [Input::Files(root, names, _)], false, Some(path)) =
        (sources.as_slice(), inputs, plan.target.is_folder, &plan.target.path)
    else {
        return Ok(());
    };
    let Some(name) = names.iter().next() else { return Ok(()) };
    if dataset.stat(path)? == StatItem::Folder {
        return Ok(());
    }
    let named = root.of_file(name.to_bytes().to_vec(), path.clone());
    *root = named.map_err(|why| Failure::local("open the folder of the source", why))?;
    Ok(())
}

/// Sends all files and waits for acknowledgement. Returns the results of sending and of the last
/// flush.
fn put_all(
    inputs: &[Input],
    shared: &PutState<'_>,
    threads: usize,
) -> (Result<(), Failure>, Result<(), Failure>) {
    let ended = transfer(inputs, shared, threads);
    let ended = ended.and_then(|()| shared.finish());
    (ended, shared.flush())
}

/// Opens all sources before anything is written.
fn open(paths: &[PathBuf], plan: &PutPlan) -> Result<Vec<Input>, Failure> {
    let mut inputs = Vec::new();
    // Files of one folder share its root: a shell may name thousands of them.
    let mut parents: BTreeMap<&Path, (Arc<Root>, Paths)> = BTreeMap::new();
    let mut named = HashSet::new();
    for path in paths {
        if path.as_os_str().is_empty() {
            return Err(Failure::usage("SRC is empty; type . for the current folder"));
        }
        if path.as_os_str().as_bytes().starts_with(b"dl://") {
            return Err(Failure::usage(format!(
                "{} is an address; put reads files of this machine: dlcmd get brings a dataset here",
                shown(path)
            )));
        }
        let failed = |why: io::Error| {
            let what = format!("open {}", shown(path));
            match why.kind() {
                io::ErrorKind::NotFound => Failure::not_found(format!("{what}: it is not there")),
                _ => Failure::local(what, why),
            }
        };
        if fs::metadata(path).map_err(failed)?.is_dir() {
            let root = Root::open(path, plan.below(), plan.follow).map_err(failed)?;
            inputs.push(Input::Tree(root));
            continue;
        }
        let parent = path.parent().unwrap_or(Path::new(""));
        let (_, names) = match parents.entry(parent) {
            btree_map::Entry::Occupied(known) => known.into_mut(),
            btree_map::Entry::Vacant(new) => {
                let root = Root::open(parent, plan.below(), plan.follow).map_err(failed)?;
                new.insert((root, Paths::default()))
            }
        };
        let name = path.file_name().unwrap_or(OsStr::new(""));
        if !named.insert((parent, name)) {
            return Err(Failure::usage(format!("{} is named twice", shown(path))));
        }
        names.push(name.as_bytes());
    }
    let files = parents.into_values();
    let files = files.map(|(root, names)| Input::Files(root, Arc::new(names), Entry::Named));
    inputs.extend(files);
    Ok(inputs)
}

fn walk(inputs: &[Input]) -> Result<Walk, Failure> {
    let walk = Walk::default();
    for input in inputs {
        match input {
            Input::Tree(root) => walk.add_tree(root, b""),
            Input::Files(root, paths, entry) => walk
                .add_files(root, paths, *entry)
                .map_err(|why| Failure::local("open a source folder", why))?,
        }
    }
    Ok(walk)
}

fn transfer(inputs: &[Input], shared: &PutState<'_>, threads: usize) -> Result<(), Failure> {
    let files = walk(inputs)?;
    thread::scope(|scope| {
        if shared.progress.is_shown() {
            scope.spawn(|| count(inputs, shared));
        }
        let work = || {
            let mut sender = Sender::new(shared);
            files.join(|event| sender.take(event)).and_then(|()| sender.finish())
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut ended = Ok(());
        for thread in threads {
            let end = thread.join().expect("a sender gives its failures back");
            ended = ended.and(end);
        }
        shared.has_ended.store(true, Ordering::Relaxed);
        ended
    })
}

/// Sums up the bytes to send during the transfer; only for a visible progress bar.
fn count(inputs: &[Input], shared: &PutState<'_>) {
    let mut bytes = 0u64;
    let counted = walk(inputs).and_then(|walk| {
        walk.join(|event| {
            if let Event::File { folder, name, entry } = event {
                bytes = bytes.saturating_add(folder.stat(name, entry).map_or(0, |(size, _)| size));
            }
            if shared.has_ended.load(Ordering::Relaxed) {
                Err(Failure::StdoutClosed)
            } else {
                Ok(())
            }
        })
    });
    if counted.is_ok() {
        shared.progress.expect(bytes);
    }
}

/// The summary for `--json`.
#[derive(Debug, Default, Serialize)]
struct Summary {
    files: u64,
    bytes: u64,
    unchanged: u64,
    skipped: u64,
    failed: u64,
    empty_folders: u64,
}

fn finish(
    ended: Result<(), Failure>,
    last: Result<(), Failure>,
    shared: PutState<'_>,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let PutState { dataset, context, flushed, reports, unchanged, empty_folders, .. } = shared;
    let flushed = flushed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (unchanged, empty_folders) = (unchanged.into_inner(), empty_folders.into_inner());
    let is_interrupted = context.shutdown.is_requested();
    if let Err(failure) = last {
        reports.print(context, true);
        return Err(ended.err().unwrap_or(failure));
    }
    if has_lost_it(&ended, &flushed) && is_gone(dataset) {
        report(&Summary::default(), out)?;
        return Err(Failure::not_found(format!(
            "put: dl://{} was deleted meanwhile, and what was put into it with it",
            dataset.info().name
        )));
    }
    let mut first = None;
    // After Ctrl-C, cancelled files belong to the files not tried, which are not reported.
    let is_reported =
        |write: &&FailedWrite| write.error.kind() != Kind::Cancelled || !is_interrupted;
    for write in flushed.failed.iter().filter(is_reported) {
        first.get_or_insert(write.error.kind());
        let why = cause(&write.error);
        write.paths.iter().for_each(|path| reports.fail("store", path, &why));
    }
    let is_stored = flushed.files + unchanged + reports.failed() > 0;
    let is_refused = reports.print(context, is_stored);
    let summary = Summary {
        files: flushed.files,
        bytes: flushed.bytes,
        unchanged,
        skipped: reports.skipped(),
        failed: reports.failed(),
        empty_folders,
    };
    report(&summary, out)?;
    if is_interrupted {
        return Ok(Exit::Interrupted);
    }
    if let Err(failure) = ended {
        if summary.files == 0 {
            return Err(failure);
        }
        let stored = counted(summary.files, "file");
        context.notes.note(format_args!("{stored} stored; the same command goes on from there"));
        // Not `Exit::Partly`, because the other files are not listed.
        return Err(failure.while_doing("stopped, the rest was not tried"));
    }
    Ok(match first {
        Some(kind) if summary.files == 0 => Exit::of(kind),
        _ if summary.failed > 0 || is_refused => Exit::Partly,
        _ => Exit::Done,
    })
}

/// Whether anything failed because the dataset or a file is missing.
fn has_lost_it(ended: &Result<(), Failure>, flushed: &Flushed) -> bool {
    matches!(ended, Err(Failure::Because { exit: Exit::NotFound, .. }))
        || flushed.failed.iter().any(|write| write.error.kind() == Kind::NotFound)
}

/// Whether the dataset was deleted.
fn is_gone(dataset: &Dataset) -> bool {
    dataset.refresh().is_err_and(|error| error.kind() == Kind::NotFound)
}

fn report(summary: &Summary, out: &mut Output<'_>) -> Result<(), Failure> {
    if out.is_json() {
        return out.json("put", summary);
    }
    let Summary { files, bytes, unchanged, skipped, failed, empty_folders } = *summary;
    let mut line = format!("{} put, {}", counted(files, "file"), sized(bytes));
    for (count, what) in [(unchanged, "unchanged"), (skipped, "skipped"), (failed, "failed")] {
        if count > 0 {
            line.push_str(&format!(", {count} {what}"));
        }
    }
    if empty_folders > 0 {
        line.push_str(&format!(", {} not kept", counted(empty_folders, "empty folder")));
    }
    out.line(format_args!("{line}"))
}

#[cfg(test)]
mod tests;

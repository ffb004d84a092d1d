//! `dlcmd put`: files of this machine into a dataset (paper, 4).
//!
//! Must hold: what the command reports as put is acknowledged and visible; run again after any
//! interruption it goes on; nothing is written when the sources contradict each other.

mod conflicts;
mod contents;
mod list;
mod send;

use std::collections::HashSet;
use std::collections::btree_map::{self, BTreeMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use dl_format::{ChunkShape, DirPath, FilePath};
use libdiesel::{Dataset, FailedWrite, Flushed, Kind, StatItem};
use serde::Serialize;

use self::send::{Sender, Shared, Tally};
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::local::{Entry, Event, Paths, Problem, Root, Walk};
use crate::output::Output;
use crate::progress::Progress;
use crate::text::{counted, shown};

/// Put files and folders into a dataset
///
/// A folder stands for its contents, a file keeps its last name, and all of them land under DIR.
/// The dataset is created when it is new. Files that are there already, with the same size and
/// modification time, are skipped: after an interruption, run the same command again.
///
/// A link to a file inside SRC is stored as that file. Other links, pipes, sockets, devices and what
/// a get that was killed left (.dlcmd-*.tmp) are skipped and named on stderr.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd put train/ dl://imagenet/train
  dlcmd put labels.csv README dl://imagenet
  find . -name '*.jpg' -print0 | dlcmd put -0 - dl://photos")]
pub(crate) struct Arguments {
    /// Files and folders; or `-` for a list of files on stdin, one a line, each stored as given
    #[arg(value_name = "SRC", required = true)]
    sources: Vec<OsString>,

    /// Where they go
    #[arg(
        value_name = "dl://DS[/DIR]",
        required = true,
        value_parser = OsStringValueParser::new().try_map(Address::from_argument)
    )]
    target: Address,

    /// The names on stdin end with NUL instead of a newline
    #[arg(short = '0', long)]
    null: bool,

    /// Skip a file only when its contents are the same too; reads every file, here and back from
    /// the dataset: one whose stored bytes are damaged or lost is put again
    #[arg(long)]
    checksum: bool,

    /// Threads that read files, at most 1024 [default: one for each core, 2 to 8]
    #[arg(long, value_name = "COUNT", value_parser = crate::from_one::<NonZeroUsize>)]
    threads: Option<NonZeroUsize>,
}

/// What will be done.
#[derive(Debug, PartialEq)]
struct Plan {
    sources: Sources,
    target: Address,
    checksum: bool,
    threads: usize,
}

#[derive(Debug, PartialEq)]
enum Sources {
    /// Files and folders.
    Named(Vec<PathBuf>),
    /// The files listed on stdin, each ended by this byte.
    Listed(u8),
}

impl Arguments {
    fn plan(self) -> Result<Plan, Failure> {
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
        let threads = crate::threads(self.threads)?;
        Ok(Plan { sources, target: self.target, checksum: self.checksum, threads })
    }
}

/// One source, opened.
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
    let folder = plan.target.folder();
    let inputs = match &plan.sources {
        Sources::Named(paths) => open(paths, &folder.prefix())?,
        Sources::Listed(end) => {
            let paths = list::read(stdin, *end)?;
            let root = Root::open(Path::new(""), folder.prefix())
                .map_err(|why| Failure::local("open the current folder", why))?;
            vec![Input::Files(root, Arc::new(paths), Entry::Found)]
        }
    };
    let both = match inputs.as_slice() {
        [] | [_] => HashSet::new(),
        inputs => match conflicts::check(inputs, &context.shutdown) {
            Err(_) if context.shutdown.is_requested() => {
                report(&Summary::default(), out)?;
                return Ok(Exit::Interrupted);
            }
            checked => checked?,
        },
    };
    if is_all_unreadable(&inputs) {
        report(&Summary { failed: name_unreadable(&inputs, context), ..Summary::default() }, out)?;
        return Ok(Exit::Partly);
    }

    let dataset = context.client()?.create_dataset(&plan.target.dataset, ChunkShape::default())?;
    let is_empty = dataset.info().objects == 0;
    let progress = Progress::new(context.notes.bar(), &context.clock);
    let shared = Shared::new(&dataset, context, &progress, is_empty, plan.checksum, both);
    if !is_empty {
        files_on_the_way(&dataset, &folder)?.into_iter().for_each(|path| shared.covers(path));
    }
    let (ended, flushed) = interrupt::or_given_up(
        &context.shutdown,
        || put_all(&inputs, &dataset, &shared, plan.threads),
        || dataset.give_up(),
    );
    progress.end();
    let hidden = shared.tell_hidden(ended.is_err() || flushed.is_err());
    finish(ended, flushed, (shared.into_tally(), hidden), &dataset, context, out)
}

/// Whether there is nothing but files that can't be read: nothing is made for them.
fn is_all_unreadable(inputs: &[Input]) -> bool {
    let mut found = inputs.iter().flat_map(Input::named).peekable();
    let is_any = found.peek().is_some();
    let is_tree = inputs.iter().any(|input| matches!(input, Input::Tree(_)));
    let failed = |opened| matches!(opened, Err(Problem::Failed(_)));
    is_any && !is_tree && found.all(|(root, path, entry)| failed(root.open_file(path, entry)))
}

/// Names these files with the reasons; gives how many.
fn name_unreadable(inputs: &[Input], context: &Context) -> u64 {
    let mut count = 0;
    for (root, path, entry) in inputs.iter().flat_map(Input::named) {
        count += 1;
        let path_shown = root.shown(path);
        let from = shown(&path_shown);
        match root.open_file(path, entry) {
            Err(Problem::Failed(why)) => {
                context.notes.error(format_args!("read {from}: {why}"));
            }
            Ok(_) | Err(Problem::Skipped(_)) => {
                context.notes.error(format_args!("read {from}: it was not there a moment ago"));
            }
        }
    }
    count
}

impl Input {
    /// The files that were named, each below its root.
    fn named(&self) -> impl Iterator<Item = (&Arc<Root>, &[u8], Entry)> {
        let named = match self {
            Self::Tree(_) => None,
            Self::Files(root, paths, entry) => Some((root, paths, *entry)),
        };
        named.into_iter().flat_map(|(root, paths, entry)| {
            paths.iter().map(move |path| (root, path.to_bytes(), entry))
        })
    }
}

/// Sends everything, and waits until it is acknowledged.
fn put_all(
    inputs: &[Input],
    dataset: &Dataset,
    shared: &Shared<'_>,
    threads: usize,
) -> (Result<(), Failure>, Result<Flushed, libdiesel::Error>) {
    let ended = transfer(inputs, shared, threads);
    let flushed = dataset.flush();
    if ended.is_err() || !shared.has_late() {
        return (ended, flushed);
    }
    // Whether these would be hidden shows now that the others are there.
    let ended = Sender::new(shared).finish_late();
    let both = |first: Flushed, mut last: Flushed| {
        last.failed.extend(first.failed);
        Flushed { files: first.files + last.files, bytes: first.bytes + last.bytes, ..last }
    };
    (ended, flushed.and_then(|first| dataset.flush().map(|last| both(first, last))))
}

/// Opens what was named; nothing is written before all of it is there.
fn open(paths: &[PathBuf], prefix: &[u8]) -> Result<Vec<Input>, Failure> {
    let mut inputs = Vec::new();
    // Files of one folder share it: a shell may name thousands of them.
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
            inputs.push(Input::Tree(Root::open(path, prefix.to_vec()).map_err(failed)?));
            continue;
        }
        let parent = path.parent().unwrap_or(Path::new(""));
        let (_, names) = match parents.entry(parent) {
            btree_map::Entry::Occupied(known) => known.into_mut(),
            btree_map::Entry::Vacant(new) => {
                let root = Root::open(parent, prefix.to_vec()).map_err(failed)?;
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
            Input::Tree(root) => walk.add_tree(root),
            Input::Files(root, paths, entry) => walk
                .add_files(root, paths, *entry)
                .map_err(|why| Failure::local("open a source folder", why))?,
        }
    }
    Ok(walk)
}

fn transfer(inputs: &[Input], shared: &Shared<'_>, threads: usize) -> Result<(), Failure> {
    let files = walk(inputs)?;
    thread::scope(|scope| {
        if shared.progress().is_shown() {
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
        shared.end();
        ended
    })
}

/// Adds up sizes beside the transfer, to know how much is left; only for somebody who looks.
fn count(inputs: &[Input], shared: &Shared<'_>) {
    let mut bytes = 0u64;
    let counted = walk(inputs).and_then(|walk| {
        walk.join(|event| {
            if let Event::File { folder, name, .. } = event {
                bytes = bytes.saturating_add(folder.stat(name).map_or(0, |(size, _)| size));
            }
            if shared.has_ended() { Err(Failure::StdoutClosed) } else { Ok(()) }
        })
    });
    if counted.is_ok() {
        shared.progress().expect(bytes);
    }
}

/// The files among the folders that the target lies in.
fn files_on_the_way(dataset: &Dataset, folder: &DirPath) -> Result<Vec<FilePath>, Failure> {
    let bytes = folder.as_bytes();
    let ends = (0..bytes.len()).filter(|at| bytes.get(*at) == Some(&b'/')).chain([bytes.len()]);
    let paths = ends.filter_map(|end| FilePath::new(bytes.get(..end)?.to_vec()).ok());
    let paths: Vec<_> = paths.collect();
    let found = dataset.stat_many(&paths)?;
    let files = paths.into_iter().zip(found);
    Ok(files.filter(|(_, item)| matches!(item, StatItem::File(_))).map(|(path, _)| path).collect())
}

/// What `--json` says at the end.
#[derive(Debug, Default, Serialize)]
struct Summary {
    files: u64,
    bytes: u64,
    unchanged: u64,
    skipped: u64,
    failed: u64,
    hidden: u64,
}

fn finish(
    ended: Result<(), Failure>,
    flushed: Result<Flushed, libdiesel::Error>,
    (mut tally, hidden): (Tally, u64),
    dataset: &Dataset,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let is_interrupted = context.shutdown.is_requested();
    let flushed = match flushed {
        Ok(flushed) => flushed,
        Err(error) => return Err(ended.err().unwrap_or_else(|| error.into())),
    };
    if has_lost_it(&ended, &flushed) && is_gone(dataset) {
        report(&Summary::default(), out)?;
        return Err(Failure::not_found(format!(
            "put: dl://{} was deleted meanwhile, and what was put into it with it",
            dataset.info().name
        )));
    }
    let mut first = None;
    // What was given up for Ctrl-C is part of the rest, which nobody counts.
    let is_told = |write: &&FailedWrite| write.error.kind() != Kind::Cancelled || !is_interrupted;
    for write in flushed.failed.iter().filter(is_told) {
        first.get_or_insert(write.error.kind());
        tally.failed += write.paths.len() as u64;
        // The reason once, whatever the number of files that share a chunk.
        let error = Failure::from(write.error.clone());
        let files = counted(write.paths.len() as u64, "file");
        context.notes.error(format_args!("{files} not stored: {error}"));
        for path in &write.paths {
            context.notes.error(format_args!("{path} is not stored"));
        }
    }
    let summary = Summary {
        files: flushed.files,
        bytes: flushed.bytes,
        unchanged: tally.unchanged,
        skipped: tally.skipped,
        failed: tally.failed,
        hidden,
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
        // Not in part: nobody lists the rest.
        return Err(failure.while_doing("stopped, the rest was not tried"));
    }
    Ok(match first {
        Some(kind) if summary.files == 0 => Exit::of(kind),
        _ if summary.failed > 0 => Exit::Partly,
        _ => Exit::Done,
    })
}

/// Whether anything failed because something is not there.
fn has_lost_it(ended: &Result<(), Failure>, flushed: &Flushed) -> bool {
    matches!(ended, Err(Failure::Because { exit: Exit::NotFound, .. }))
        || flushed.failed.iter().any(|write| write.error.kind() == Kind::NotFound)
}

/// Whether the dataset is there no more.
fn is_gone(dataset: &Dataset) -> bool {
    dataset.refresh().is_err_and(|error| error.kind() == Kind::NotFound)
}

fn report(summary: &Summary, out: &mut Output<'_>) -> Result<(), Failure> {
    if out.is_json() {
        return out.json("put", summary);
    }
    let Summary { files, bytes, unchanged, skipped, failed, hidden } = *summary;
    let mut line = format!("{} put, {}", counted(files, "file"), counted(bytes, "byte"));
    for (count, what) in
        [(unchanged, "unchanged"), (skipped, "skipped"), (failed, "failed"), (hidden, "hidden")]
    {
        if count > 0 {
            line.push_str(&format!(", {count} {what}"));
        }
    }
    out.line(format_args!("{line}"))
}

#[cfg(test)]
mod tests;

//! `dlcmd put`: files of this machine into a dataset (paper, 4).
//!
//! Must hold: what the command reports as put is acknowledged and visible; run again after any
//! interruption it goes on; nothing is written when the sources contradict each other.

mod conflicts;
mod list;
mod send;

use std::collections::HashMap;
use std::ffi::{CString, OsStr, OsString};
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
use libdiesel::{Dataset, Flushed, StatItem};
use serde::Serialize;

use self::send::{Sender, Shared, Tally};
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::local::{Entry, Event, Root, Walk};
use crate::output::Output;
use crate::progress::Progress;
use crate::text::counted;

/// Put files and folders into a dataset
///
/// A folder stands for its contents, a file keeps its last name, and all of them land under DIR.
/// The dataset is created when it is new. Files that are there already, with the same size and
/// modification time, are skipped: after an interruption, run the same command again.
///
/// A link to a file inside SRC is stored as that file. Other links, pipes, sockets and devices are
/// skipped and named on stderr.
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

    /// Skip a file only when its contents are the same too (compares CRC-32C; reads every file)
    #[arg(long)]
    checksum: bool,

    /// Threads that read files [default: one for each core, at least 2]
    #[arg(long, value_name = "COUNT")]
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
        let threads = crate::threads(self.threads);
        Ok(Plan { sources, target: self.target, checksum: self.checksum, threads })
    }
}

/// One source, opened.
#[derive(Debug)]
enum Input {
    Tree(Arc<Root>),
    Files(Arc<Root>, Vec<CString>, Entry),
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
            vec![Input::Files(root, paths, Entry::Found)]
        }
    };
    let mut both = if inputs.len() > 1 { conflicts::check(&inputs)? } else { Vec::new() };

    let dataset = context.client()?.create_dataset(&plan.target.dataset, ChunkShape::default())?;
    let is_empty = dataset.info().objects == 0;
    if !is_empty {
        both.extend(files_on_the_way(&dataset, &folder)?);
    }
    let progress = Progress::new(context.notes.bar(), &context.clock);
    let shared = Shared::new(&dataset, context, &progress, is_empty, plan.checksum);
    let ended = transfer(&inputs, &shared, plan.threads);
    let flushed = dataset.flush();
    progress.end();
    finish(ended, flushed, shared.into_tally(both), context, out)
}

/// Opens what was named; nothing is written before all of it is there.
fn open(paths: &[PathBuf], prefix: &[u8]) -> Result<Vec<Input>, Failure> {
    let mut inputs = Vec::new();
    // Files of one folder share it: a shell may name thousands of them.
    let mut parents: HashMap<&Path, Arc<Root>> = HashMap::new();
    for path in paths {
        let failed = |why: io::Error| {
            let what = format!("open {}", path.display());
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
        let root = match parents.get(parent) {
            Some(root) => Arc::clone(root),
            None => Root::open(parent, prefix.to_vec()).map_err(failed)?,
        };
        parents.insert(parent, Arc::clone(&root));
        let name = path.file_name().unwrap_or(OsStr::new("")).as_bytes();
        let name = CString::new(name).map_err(|why| failed(why.into()))?;
        inputs.push(Input::Files(root, vec![name], Entry::Named));
    }
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
#[derive(Debug, Serialize)]
struct Summary {
    files: u64,
    bytes: u64,
    unchanged: u64,
    skipped: u64,
    failed: u64,
}

fn finish(
    ended: Result<(), Failure>,
    flushed: Result<Flushed, libdiesel::Error>,
    mut tally: Tally,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let is_interrupted = context.shutdown.is_requested();
    let flushed = match flushed {
        Ok(flushed) => flushed,
        Err(error) => return Err(ended.err().unwrap_or_else(|| error.into())),
    };
    let mut first = None;
    for write in &flushed.failed {
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
    for path in &tally.both {
        context.notes.note(format_args!("{path} is a file and a folder; the folder holds"));
    }
    let summary = Summary {
        files: flushed.files,
        bytes: flushed.bytes,
        unchanged: tally.unchanged,
        skipped: tally.skipped,
        failed: tally.failed,
    };
    report(&summary, out)?;
    if is_interrupted {
        return Ok(Exit::Interrupted);
    }
    if let Err(failure) = ended {
        if summary.files == 0 {
            return Err(failure);
        }
        context.notes.error(format_args!("stopped, the rest was not tried: {failure}"));
        let stored = counted(summary.files, "file");
        context.notes.note(format_args!("{stored} stored; the same command goes on from there"));
        return Ok(Exit::Partly);
    }
    Ok(match first {
        Some(kind) if summary.files == 0 => Exit::of(kind),
        _ if summary.failed > 0 => Exit::Partly,
        _ => Exit::Done,
    })
}

fn report(summary: &Summary, out: &mut Output<'_>) -> Result<(), Failure> {
    if out.is_json() {
        return out.json("put", summary);
    }
    let Summary { files, bytes, unchanged, skipped, failed } = *summary;
    let mut line = format!("{} put, {}", counted(files, "file"), counted(bytes, "byte"));
    for (count, what) in [(unchanged, "unchanged"), (skipped, "skipped"), (failed, "failed")] {
        if count > 0 {
            line.push_str(&format!(", {count} {what}"));
        }
    }
    out.line(format_args!("{line}"))
}

#[cfg(test)]
mod tests;

//! `dlcmd shuffle`: the files of a dataset in the order of one epoch, or a report on the randomness
//! of the order.
//!
//! Must hold: the order of docs/ORDER.md, one path per line and nothing else.

mod read;
mod report;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use clap::Args;
use libdiesel::order::{Cursor, Order, OrderError, Stage};
use libdiesel::report::ReportOptions;
use libdiesel::{
    DEFAULT_GROUP, DirPath, Kind, OrderSettings, Partition, ResumeToken, Selection, ShuffleOptions,
    Snapshot, StatItem, Tail,
};

use super::{not_a_folder, not_there, of_one_dataset};
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::json;
use crate::output::Output;
use crate::text::write_escaped;

/// Print the files of a dataset, or of some of its folders, in the order of an epoch
///
/// Chunks are shuffled and cut into groups, and the files of each group are shuffled. The same seed,
/// epoch and group size give the same order everywhere, for the same version of the dataset.
///
/// With --world and --rank, prints the files of one rank of a task. Each rank has its own chunks,
/// as in libdiesel. With --nodes, the ranks of a node share their chunks, and with --global all
/// ranks share all chunks. --resume continues at a resume token, also with another number of ranks.
/// Edit a token to skip files (docs/ORDER.md). --token prints the token of a task whose ranks have
/// each read the given number of files.
///
/// With --report, compares the order with a full shuffle: how far files move, how well their
/// classes are mixed, and how much memory the groups take. A class is a folder of files. The report
/// names the smallest group with a good mix. It warns of groups that are too small for files put
/// sorted by class.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd shuffle dl://imagenet --seed 7 --epoch 3
  dlcmd shuffle dl://imagenet/train --report --group-size 200
  dlcmd shuffle dl://imagenet/train/n01440764 dl://imagenet/train/n01443537
  dlcmd shuffle dl://imagenet --world 8 --nodes 2 --rank 3
  dlcmd shuffle dl://imagenet --world 4 --resume $(cat token)
  dlcmd shuffle dl://imagenet/train --group-size 50 --snapshot imagenet.snapshot")]
pub(crate) struct Arguments {
    /// The dataset, or folders and files of a dataset
    #[arg(value_name = "dl://DS[/DIR]", required = true)]
    folders: Vec<Address>,

    /// The seed of the task
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,

    /// The epoch, counted from 0
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    epoch: u64,

    /// Chunks whose files are shuffled together
    #[arg(long, value_name = "CHUNKS", default_value_t = DEFAULT, value_parser = crate::from_one::<NonZeroU32>)]
    group_size: NonZeroU32,

    /// Ranks of the task
    #[arg(long, value_name = "RANKS", default_value_t = 1, conflicts_with = "report")]
    world: u32,

    /// Print the files of this rank, counted from 0
    #[arg(long, value_name = "NUMBER", default_value_t = 0, conflicts_with = "report")]
    rank: u32,

    /// Share the chunks among the given number of nodes [default: one node for each rank]
    #[arg(long, value_name = "NODES", conflicts_with = "report")]
    nodes: Option<u32>,

    /// Share the files of every group among all ranks, and not the chunks
    #[arg(long, conflicts_with_all = ["nodes", "report"])]
    global: bool,

    /// Read some files twice, so that each rank has the same number and none is left out
    #[arg(long, conflicts_with = "report")]
    pad: bool,

    /// Continue at this resume token, with its seed, epoch and group size
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["seed", "epoch", "group_size", "report"])]
    resume: Option<ResumeToken>,

    /// Print the resume token of a task whose ranks have each read the given number of files
    #[arg(long, value_name = "FILES", conflicts_with_all = ["null", "report"])]
    token: Option<u64>,

    /// Print names as they are, each ended by NUL
    #[arg(short = '0', long)]
    null: bool,

    /// Print the randomness of the order instead of the order
    #[arg(long, conflicts_with = "null")]
    report: bool,

    /// Read the files in the order, and print the speed instead of their names
    #[arg(long, conflicts_with_all = ["null", "report", "token"])]
    read: bool,

    /// Number of consecutive files for counting classes, such as a batch [default: 256, or an
    /// eighth of the files]
    #[arg(long, value_name = "FILES", requires = "report", value_parser = crate::from_one::<NonZeroU32>)]
    window: Option<NonZeroU32>,

    /// Number of leading folders of a path that name its class [default: all of them]
    #[arg(long, value_name = "FOLDERS", requires = "report")]
    class_depth: Option<u32>,
}

const DEFAULT: NonZeroU32 = match NonZeroU32::new(DEFAULT_GROUP) {
    Some(group) => group,
    None => NonZeroU32::MIN,
};

impl Arguments {
    fn settings(&self) -> OrderSettings {
        let partition = if self.global {
            Partition::Global
        } else {
            Partition::Local { nodes: self.nodes.unwrap_or(self.world) }
        };
        let tail = if self.pad { Tail::Pad } else { Tail::Drop };
        let (seed, epoch, group) = match &self.resume {
            Some(token) => (token.seed, token.epoch, token.group),
            None => (self.seed, self.epoch, self.group_size.get()),
        };
        OrderSettings { seed, epoch, group, world: self.world, partition, tail }
    }
}

/// The addresses to shuffle together.
#[derive(Debug)]
struct Folders(Vec<Address>);

impl Folders {
    fn of_one_dataset(&self) -> Result<&Address, Failure> {
        of_one_dataset("shuffle", &self.0, ", each of which has an order of its own; shuffle")
    }

    fn select(&self, snapshot: &Snapshot) -> Result<Selection, Failure> {
        let folders: Vec<_> = self.0.iter().map(Address::folder).collect();
        if folders.contains(&DirPath::ROOT) {
            return Ok(Selection::all(snapshot.files()));
        }
        for address in &self.0 {
            match address.path.as_ref().map(|path| snapshot.stat(path)).transpose()? {
                Some(StatItem::Missing) => return Err(not_there("shuffle", address)),
                Some(StatItem::File(_)) if address.is_folder => {
                    return Err(not_a_folder("shuffle", address));
                }
                _ => {}
            }
        }
        Ok(snapshot.select(&folders)?)
    }
}

impl fmt::Display for Folders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, folder) in self.0.iter().enumerate() {
            write!(f, "{}{folder}", if number > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// Prints the order, or the report.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let folders = Folders(arguments.folders.clone());
    let dataset = context.with_snapshot(folders.of_one_dataset()?)?;
    let Some(snapshot) = dataset.snapshot() else {
        return Err(Failure::failed(format!("shuffle {folders}: the dataset has no snapshot")));
    };
    let selection = Arc::new(folders.select(snapshot)?);
    let settings = arguments.settings();
    let OrderSettings { seed, epoch, group, .. } = settings;
    if arguments.report {
        let (window, class_depth) = (arguments.window.map(NonZeroU32::get), arguments.class_depth);
        let options =
            ReportOptions { seed, epoch, group, window, class_depth, ..ReportOptions::default() };
        return report::run(&folders, snapshot, selection, options, out);
    }
    if arguments.read {
        let Arguments { rank, resume, .. } = arguments;
        let selection = Some(Selection::clone(&selection));
        let options =
            ShuffleOptions { order: settings, rank, worker: None, selection, resume, read: 0 };
        return read::run(&dataset, options, context, out);
    }
    let wrong = |why: &dyn fmt::Display| Failure::usage(format!("shuffle {folders}: {why}"));
    let failed = |why: OrderError| match why.kind() {
        Kind::Invalid => wrong(&why),
        _ => Failure::failed(format!("shuffle {folders}: {why}")),
    };
    let (id, version) = (snapshot.dataset().to_string(), snapshot.version().to_string());
    let label = selection.label();
    let mut stages: &[Stage] = &[];
    if let Some(token) = &arguments.resume {
        token.check(&id, &version, &label).map_err(|why| wrong(&why))?;
        stages = &token.stages;
    }
    let order = Order::resumed(snapshot.first_files()?, selection, settings, stages);
    let order = Arc::new(order.map_err(failed)?);
    if let Some(read) = arguments.token {
        let stages = order.stages_after(read);
        let (dataset, selection) = (id, label);
        let token = ResumeToken { dataset, version, selection, seed, epoch, group, stages };
        out.line(format_args!("{token}"))?;
        return Ok(Exit::Done);
    }
    let files = Cursor::new(order, arguments.rank).map_err(failed)?;
    print_files(snapshot, files, arguments.null, context, out)
}

fn print_files(
    snapshot: &Snapshot,
    files: Cursor,
    null: bool,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    for number in files {
        let path = snapshot.path(number)?;
        if out.is_json() {
            out.json("file", &json::Name::new(path.as_bytes()))?;
        } else {
            out.write(|out| {
                if null {
                    out.write_all(path.as_bytes())?;
                    return out.write_all(b"\0");
                }
                write_escaped(out, path.as_bytes())?;
                out.write_all(b"\n")
            })?;
        }
        if context.shutdown.is_requested() {
            return Ok(Exit::Interrupted);
        }
    }
    Ok(Exit::Done)
}

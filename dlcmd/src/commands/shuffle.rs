//! `dlcmd shuffle`: the files of a dataset in the order in which one epoch reads them; or how random
//! that order is.
//!
//! Must hold: the order of docs/ORDER.md, one path a line and nothing else.

mod report;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use libdiesel::{
    Cursor, DEFAULT_GROUP, DirPath, Order, OrderSettings, ReportOptions, Selection, Snapshot,
};

use super::not_there;
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
/// With --report, says instead how random that order is beside a full shuffle: how far files move, how
/// well mixed their classes are, which are the folders that hold them, and how much memory the groups
/// take; names the smallest group that mixes well enough; and warns when files were put sorted by class
/// and the groups are too small for that.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd shuffle dl://imagenet --seed 7 --epoch 3
  dlcmd shuffle dl://imagenet/train --report --group-size 200
  dlcmd shuffle dl://imagenet/train/n01440764 dl://imagenet/train/n01443537
  dlcmd shuffle dl://imagenet/train --group-size 50 --snapshot imagenet.snapshot")]
pub(crate) struct Arguments {
    /// The dataset, or folders of it
    #[arg(
        required = true,
        value_name = "dl://DS[/DIR]",
        value_parser = OsStringValueParser::new().try_map(Address::from_argument)
    )]
    folders: Vec<Address>,

    /// A number of the task's own
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,

    /// Which epoch, counted from 0
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    epoch: u64,

    /// Chunks whose files are shuffled together
    #[arg(long, value_name = "CHUNKS", default_value_t = DEFAULT)]
    group_size: NonZeroU32,

    /// Print names as they are, each ended by NUL
    #[arg(short = '0', long)]
    null: bool,

    /// Say how random the order is, instead of printing it
    #[arg(long, conflicts_with = "null")]
    report: bool,

    /// Files in a row among which classes are counted, such as a batch [default: 256, or an eighth
    /// of the files]
    #[arg(long, value_name = "FILES", requires = "report")]
    window: Option<NonZeroU32>,

    /// Folders of a path, from the dataset's root, that name a class [default: all of them]
    #[arg(long, value_name = "FOLDERS", requires = "report")]
    class_depth: Option<u32>,
}

const DEFAULT: NonZeroU32 = match NonZeroU32::new(DEFAULT_GROUP) {
    Some(group) => group,
    None => NonZeroU32::MIN,
};

/// What is shuffled together.
#[derive(Debug)]
struct Folders(Vec<Address>);

impl Folders {
    fn of_one_dataset(&self) -> Result<&Address, Failure> {
        let nothing = || Failure::usage("shuffle: name a dataset or a folder");
        let (first, others) = self.0.split_first().ok_or_else(nothing)?;
        match others.iter().find(|other| other.dataset != first.dataset) {
            None => Ok(first),
            Some(other) => Err(Failure::usage(format!(
                "shuffle {first} with {other}: they are in two datasets, each of which has an \
                 order of its own; shuffle them one by one"
            ))),
        }
    }

    fn select(&self, snapshot: &Snapshot) -> Result<Selection, Failure> {
        for folder in &self.0 {
            if snapshot.below(&folder.folder())?.is_none() {
                return Err(not_there("shuffle", folder));
            }
        }
        let folders: Vec<_> = self.0.iter().map(Address::folder).collect();
        Ok(match folders.contains(&DirPath::ROOT) {
            true => Selection::all(snapshot.files()),
            false => snapshot.select(&folders)?,
        })
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
    let Arguments { folders, seed, epoch, group_size, null, report, window, class_depth } =
        arguments;
    let folders = Folders(folders);
    let dataset = context.with_snapshot(folders.of_one_dataset()?)?;
    let Some(snapshot) = dataset.snapshot() else {
        return Err(Failure::failed(format!("shuffle {folders}: there is no snapshot of it")));
    };
    let selection = folders.select(snapshot)?;
    let group = group_size.get();
    if report {
        let window = window.map(NonZeroU32::get);
        let options =
            ReportOptions { seed, epoch, group, window, class_depth, ..ReportOptions::default() };
        return report::run(&folders, snapshot, Arc::new(selection), options, out);
    }
    let settings = OrderSettings::new(seed, epoch, group);
    let failed = |why| Failure::failed(format!("shuffle {folders}: {why}"));
    let order =
        Order::new(snapshot.first_files()?, Arc::new(selection), settings).map_err(failed)?;
    for number in Cursor::new(Arc::new(order), 0).map_err(failed)? {
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

//! `dlcmd shuffle --report`: how random an order is, as a table or as one JSON line.
//!
//! Must hold: table and JSON show the same figures (docs/JSON.md, docs/SHUFFLING.md).

use std::sync::Arc;

use indicatif::BinaryBytes;
use libdiesel::report::{Advice, GroupBytes, Randomness, ReportOptions, ShuffleReport};
use libdiesel::{Selection, Snapshot};
use serde::Serialize;

use super::Folders;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::counted;

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Line {
    seed: u64,
    epoch: u64,
    group_size: u32,
    window: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    class_depth: Option<u32>,
    files: u32,
    chunks: u32,
    classes: u32,
    /// The number of files measured, from the start of the order.
    measured: u32,
    chunk_by_chunk: Column,
    order: Column,
    full: Column,
    /// Relative to a full shuffle, 0 to 1; absent when all files are of one class.
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<f64>,
    /// The share below which a warning is given.
    wanted_share: f64,
    group_bytes: u64,
    two_groups_bytes: u64,
    /// Absent when no group reaches the wanted share, or there is only one class.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<Advised>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

#[derive(Debug, Serialize)]
struct Column {
    moved: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    apart: Option<f64>,
    longest_run: f64,
    mean_run: f64,
    classes: f64,
    effective_classes: f64,
}

#[derive(Debug, Serialize)]
struct Advised {
    group_size: u32,
    share: f64,
    group_bytes: u64,
    two_groups_bytes: u64,
}

impl From<&Randomness> for Column {
    fn from(of: &Randomness) -> Self {
        Self {
            moved: of.moved,
            apart: of.apart,
            longest_run: of.longest_run,
            mean_run: of.mean_run,
            classes: of.classes,
            effective_classes: of.effective,
        }
    }
}

impl From<&Advice> for Advised {
    fn from(Advice { group, share, bytes }: &Advice) -> Self {
        Self {
            group_size: *group,
            share: *share,
            group_bytes: bytes.one,
            two_groups_bytes: bytes.two,
        }
    }
}

impl Line {
    fn new(folders: &Folders, report: &ShuffleReport) -> Self {
        let options = &report.options;
        Self {
            seed: options.seed,
            epoch: options.epoch,
            group_size: options.group,
            window: report.window,
            class_depth: options.class_depth,
            files: report.files,
            chunks: report.chunks,
            classes: report.classes,
            measured: report.measured,
            chunk_by_chunk: Column::from(&report.chunk_by_chunk),
            order: Column::from(&report.order),
            full: Column::from(&report.full),
            share: report.share(),
            wanted_share: options.share,
            group_bytes: report.bytes.one,
            two_groups_bytes: report.bytes.two,
            advice: report.advice.as_ref().map(Advised::from),
            warning: warning(folders, report),
        }
    }
}

/// Measures the order of the selected files, and prints the result.
pub(super) fn run(
    folders: &Folders,
    snapshot: &Snapshot,
    selection: Arc<Selection>,
    options: ReportOptions,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    if selection.count(0..snapshot.files()) == 0 {
        return Err(Failure::failed(format!("shuffle {folders}: there are no files to report on")));
    }
    let report = ShuffleReport::of(snapshot, selection, options)?;
    if out.is_json() {
        out.json("shuffle-report", &Line::new(folders, &report))?;
    } else {
        table(folders, &report, out)?;
    }
    Ok(Exit::Done)
}

/// A figure of an order; none where there is nothing to measure.
type Figure = fn(&Randomness) -> Option<f64>;

fn table(folders: &Folders, report: &ShuffleReport, out: &mut Output<'_>) -> Result<(), Failure> {
    let options = &report.options;
    let [files, chunks, measured] = [report.files, report.chunks, report.measured].map(u64::from);
    let classes = match (report.classes, options.class_depth) {
        (1, _) => "one class, so that nothing is known of their mix".to_owned(),
        (classes, None) => format!("{classes} classes, the folders that hold them"),
        (classes, Some(depth)) => {
            format!("{classes} classes, by {} of the path", counted(depth.into(), "folder"))
        }
    };
    let (files_text, chunks) = (counted(files, "file"), counted(chunks, "chunk"));
    out.line(format_args!("files:     {files_text} in {chunks}; {classes}"))?;
    let group = counted(options.group.into(), "chunk");
    let (seed, epoch) = (options.seed, options.epoch);
    out.line(format_args!("order:     seed {seed}, epoch {epoch}, groups of {group}"))?;
    let part = if measured == files { "all of it" } else { "its beginning, whole groups" };
    out.line(format_args!("measured:  {part}, {}", counted(measured, "file")))?;
    out.line(format_args!(
        "\n{:36}{:>15}{:>15}{:>15}",
        "", "chunk by chunk", "order", "full shuffle"
    ))?;
    let window = counted(report.window.into(), "file");
    let rows: [(String, Figure); 6] = [
        ("files moved, mean distance".to_owned(), |of| Some(of.moved)),
        ("written neighbours, mean distance".to_owned(), |of| of.apart),
        ("longest run of a class".to_owned(), |of| Some(of.longest_run)),
        ("mean run of a class".to_owned(), |of| Some(of.mean_run)),
        (format!("classes in {window}"), |of| Some(of.classes)),
        ("  as many equally frequent ones".to_owned(), |of| Some(of.effective)),
    ];
    for (name, value) in rows {
        let [one, order, full] = [&report.chunk_by_chunk, &report.order, &report.full]
            .map(|of| value(of).map_or_else(|| "-".to_owned(), number));
        out.line(format_args!("{name:36}{one:>15}{order:>15}{full:>15}"))?;
    }
    let mix = report.share().map(|share| format!("{} of a full shuffle's", percent(share)));
    let mix = mix.unwrap_or_else(|| "nothing is known of one class".to_owned());
    out.line(format_args!("\nmix:       {mix}"))?;
    out.line(format_args!("memory:    {}", memory(report.bytes)))?;
    let wanted = percent(options.share);
    match &report.advice {
        Some(advice) => {
            let group = counted(advice.group.into(), "chunk");
            let memory = memory(advice.bytes);
            out.line(format_args!("advice:    groups of {group} reach {wanted}: {memory}"))?;
        }
        None if report.classes < 2 => {}
        None => out.line(format_args!("advice:    no group among these files reaches {wanted}"))?,
    }
    match warning(folders, report) {
        Some(warning) => out.line(format_args!("warning:   {warning}")),
        None => Ok(()),
    }
}

fn warning(folders: &Folders, report: &ShuffleReport) -> Option<String> {
    let share = report.share().filter(|_| report.is_too_small())?;
    let larger = match &report.advice {
        Some(advice) => format!("--group-size {} or more", advice.group),
        None => "larger groups".to_owned(),
    };
    Some(format!(
        "the files of {folders} were put sorted by class, and groups of {} mix them to {} of what a \
         full shuffle gives: read it with {larger}, or put it in random order",
        counted(report.options.group.into(), "chunk"),
        percent(share),
    ))
}

fn memory(GroupBytes { one, two }: GroupBytes) -> String {
    format!("{} for a group, {} for two in flight", BinaryBytes(one), BinaryBytes(two))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// With the number of meaningful digits.
fn number(value: f64) -> String {
    if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

//! Order of an epoch without file bytes: set-up, seek and next, each beside the simplest operation
//! with the same result.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::Result;
use libdiesel::order::{Cursor, Order};
use libdiesel::{OrderSettings, Selection};

use crate::measure::{Bar, Bench, Side, Stopwatch};
use crate::setup::{Settings, shuffle};

const CHUNKS: u32 = 10_000;
const FILES_OF_A_CHUNK: u32 = 1_000;
/// Group of the seeks: 512,000 files.
const GROUP: u32 = 512;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let chunks = settings.scaled(CHUNKS);
    let files = chunks * FILES_OF_A_CHUNK;
    let group = settings.scaled(GROUP);
    let first_files: Arc<[u32]> = (0..=chunks).map(|chunk| chunk * FILES_OF_A_CHUNK).collect();
    let selection = Arc::new(Selection::all(files));
    let mut making = (
        Side::new("make the order of an epoch"),
        Side::new("shuffle the numbers of all files, as a list"),
    );
    let mut seeking = (
        Side::new("go to a random position and give a file"),
        Side::new("shuffle the numbers of as many files as a group has"),
    );
    let mut giving = (Side::new("give the next file, one core"), Side::new("walk through a list"));
    let dataset = Dataset { first_files, selection, files, group };
    for round in 0..=settings.runs() {
        let [set_up, seek, next] = dataset.measure(round as u64)?;
        if round > 0 {
            add(&mut making, set_up.map(|seconds| seconds * 1e3));
            add(&mut seeking, seek.map(|seconds| seconds * 1e3));
            add(&mut giving, next.map(|seconds| f64::from(files) / seconds));
        }
    }
    let bench = |name: &str, unit, (ours, theirs), bar| Bench {
        name: name.to_owned(),
        settings: format!("{files} files in {chunks} chunks, groups of {group} chunks"),
        unit,
        ours,
        theirs,
        bar,
    };
    Ok(vec![
        bench("order set-up", "ms", making, Bar::AtMost(50.0)),
        bench("order seek", "ms", seeking, Bar::AtMost(5.0)),
        bench("order next", "files/s", giving, Bar::AtLeast(50e6)),
    ])
}

/// Adds the figures of one run to both sides.
fn add((ours, theirs): &mut (Side, Side), [our_figure, their_figure]: [f64; 2]) {
    ours.samples.push(our_figure);
    theirs.samples.push(their_figure);
}

/// Shape of a dataset without bytes.
struct Dataset {
    first_files: Arc<[u32]>,
    selection: Arc<Selection>,
    files: u32,
    group: u32,
}

impl Dataset {
    /// Seconds of set-up, seek and a whole epoch, each for the order and for the reference.
    fn measure(&self, epoch: u64) -> Result<[[f64; 2]; 3]> {
        let Self { first_files, selection, files, group } = self;
        let stopwatch = Stopwatch::new();
        let of = OrderSettings::new(7, epoch, *group);
        let (order, made) = stopwatch
            .time(|| Ok(Order::new(Arc::clone(first_files), Arc::clone(selection), of)?))?;
        let mut all: Vec<u32> = (0..*files).collect();
        let ((), listed) = stopwatch.time(|| {
            shuffle(&mut all, epoch);
            Ok(())
        })?;

        let mut cursor = Cursor::new(Arc::new(order), 0)?;
        let position = u64::from(all.first().copied().unwrap_or_default());
        let (_, sought) = stopwatch.time(|| {
            cursor.seek(position);
            Ok(black_box(cursor.next()))
        })?;
        let mut some: Vec<u32> = (0..(group * FILES_OF_A_CHUNK).min(*files)).collect();
        let ((), shuffled) = stopwatch.time(|| {
            shuffle(&mut some, epoch);
            Ok(())
        })?;

        cursor.seek(0);
        let sum = |numbers: &mut dyn Iterator<Item = u32>| Ok(numbers.map(u64::from).sum::<u64>());
        let (given, gave) = stopwatch.time(|| Ok(cursor.map(u64::from).sum::<u64>()))?;
        let (walked, walk) = stopwatch.time(|| sum(&mut black_box(&all).iter().copied()))?;
        anyhow::ensure!(given == walked, "the order leaves files out");
        Ok([[made, listed], [sought, shuffled], [gave, walk]])
    }
}

//! Order of an epoch without file bytes: set-up, seek and next, each beside the simplest operation
//! with the same result.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::Result;
use libdiesel::order::{Cursor, Order};
use libdiesel::{OrderSettings, Selection};

use crate::measure::{Bar, Bench, in_turns, time};
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
    let dataset = Dataset { first_files, selection, files, group };
    let names = [
        "make the order of an epoch",
        "shuffle the numbers of all files, as a list",
        "go to a random position and give a file",
        "shuffle the numbers of as many files as a group has",
        "give the next file, one core",
        "walk through a list",
    ];
    let sides = in_turns(settings.runs(), names, |round| dataset.measure(round))?;
    let [making, listing, seeking, shuffling, giving, walking] = sides;
    let settings = format!("{files} files in {chunks} chunks, groups of {group} chunks");
    let bench = |name, unit, sides, bar| Bench::new(name, &settings, unit, sides, bar);
    Ok(vec![
        bench("order set-up", "ms", [making, listing], Bar::AtMost(50.0)),
        bench("order seek", "ms", [seeking, shuffling], Bar::AtMost(5.0)),
        bench("order next", "files/s", [giving, walking], Bar::AtLeast(50e6)),
    ])
}

/// Shape of a dataset without bytes.
struct Dataset {
    first_files: Arc<[u32]>,
    selection: Arc<Selection>,
    files: u32,
    group: u32,
}

impl Dataset {
    /// Milliseconds of set-up and seek, and files a second of a whole epoch, each for the order and
    /// for the reference.
    fn measure(&self, epoch: u64) -> Result<[f64; 6]> {
        let Self { first_files, selection, files, group } = self;
        let of = OrderSettings::new(7, epoch, *group);
        let (order, made) =
            time(|| Ok(Order::new(Arc::clone(first_files), Arc::clone(selection), of)?))?;
        let mut all: Vec<u32> = (0..*files).collect();
        let ((), listed) = time(|| {
            shuffle(&mut all, epoch);
            Ok(())
        })?;

        let mut cursor = Cursor::new(Arc::new(order), 0)?;
        let position = u64::from(all.first().copied().unwrap_or_default());
        let (_, sought) = time(|| {
            cursor.seek(position);
            Ok(black_box(cursor.next()))
        })?;
        let mut some: Vec<u32> = (0..(group * FILES_OF_A_CHUNK).min(*files)).collect();
        let ((), shuffled) = time(|| {
            shuffle(&mut some, epoch);
            Ok(())
        })?;

        cursor.seek(0);
        let sum = |numbers: &mut dyn Iterator<Item = u32>| Ok(numbers.map(u64::from).sum::<u64>());
        let (given, gave) = time(|| Ok(cursor.map(u64::from).sum::<u64>()))?;
        let (walked, walk) = time(|| sum(&mut black_box(&all).iter().copied()))?;
        anyhow::ensure!(given == walked, "the order leaves files out");
        let [made, listed, sought, shuffled] =
            [made, listed, sought, shuffled].map(|seconds| seconds * 1e3);
        let [gave, walk] = [gave, walk].map(|seconds| f64::from(*files) / seconds);
        Ok([made, listed, sought, shuffled, gave, walk])
    }
}

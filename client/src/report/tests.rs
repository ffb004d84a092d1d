//! Reports beside a direct measurement of the same orders, and beside many full shuffles.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use bytes::BufMut;
use dl_format::snapshot::{LiveFile, Observed, SnapshotChunk, SnapshotOf, SnapshotWriter};
use dl_format::{
    Attributes, ChunkId, ChunkShape, Crc32c, DatasetId, EntryVersion, Extent, FilePath, FileRecord,
    Stamp, Version,
};

use super::*;
use crate::order::Cursor;
use crate::snapshot::tests::laid_out;

const OBJECT: u32 = 100_000;

/// A snapshot of chunks with files at the given paths. A path with the prefix `large` is the end of
/// a file of 10 MB.
pub(crate) fn snapshot(chunks: &[Vec<String>]) -> Snapshot {
    let chunk = |number: usize| {
        let mut id = [0; 16];
        (&mut id[..]).put_u128(number as u128);
        ChunkId::from_bytes(id)
    };
    let holder = |number: usize| EntryVersion {
        stamp: Stamp::new(1 + number as u64),
        chunk: chunk(number),
        entry: EntryVersion::UNKNOWN_ENTRY,
    };
    let file = |number: usize, path: &String| {
        let is_large = path.starts_with("large");
        let part =
            Extent { part: ChunkId::from_bytes([7; 16]), length: 10_000_000, crc: Crc32c::of(b"") };
        let extents: Vec<Extent> = is_large.then_some(part).into_iter().collect();
        let record = FileRecord {
            version: holder(number),
            holder: holder(number),
            attributes: Attributes::default(),
            length: if is_large { 10_000_001 } else { 1 },
            crc: Crc32c::of(b"x"),
            offset: 4096,
            stored: 1,
            has_extents: is_large,
        };
        LiveFile { path: FilePath::new(path.as_bytes().to_vec()).unwrap(), record, extents }
    };
    let chunks: Vec<Vec<LiveFile>> = chunks
        .iter()
        .enumerate()
        .map(|(number, paths)| paths.iter().map(|path| file(number, path)).collect())
        .collect();
    snapshot_of(chunks)
}

/// A snapshot of chunks with the given files, at least one in each.
pub(crate) fn snapshot_of(chunks: Vec<Vec<LiveFile>>) -> Snapshot {
    let mut observed = Observed::default();
    chunks.iter().flatten().for_each(|file| observed.file(&file.record));
    chunks.iter().for_each(|_| observed.chunk());
    let dataset = DatasetId::from_bytes([3; 16]);
    let of = SnapshotOf { dataset, version: Version::default(), shape: ChunkShape::default() };
    let mut writer = SnapshotWriter::new(of, observed).unwrap();
    let mut hashes = Vec::new();
    for files in chunks {
        let EntryVersion { stamp, chunk: id, .. } = files[0].record.holder;
        hashes.extend(writer.chunk(&SnapshotChunk { id, stamp, object_length: OBJECT }, files));
    }
    writer.end_files();
    let runs = writer.runs().into_iter();
    let runs: BTreeSet<_> = runs.map(|run| writer.placed(run)).collect();
    runs.into_iter().for_each(|run| writer.run(run));
    hashes.sort_unstable();
    hashes.into_iter().for_each(|(hash, number)| writer.index(hash, number));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot");
    std::fs::write(&path, laid_out(writer)).unwrap();
    Snapshot::check(&path).unwrap()
}

/// Files of classes, with a number of files per chunk; sorted by class, or dealt to the chunks.
fn written(classes: &[usize], per_chunk: usize, sorted: bool) -> Snapshot {
    let mut files: Vec<String> = (0..)
        .zip(classes)
        .flat_map(|(class, count)| (0..*count).map(move |n| format!("a/c{class}/x{}/f{n}", n % 3)))
        .collect();
    if !sorted {
        // 7,919 is prime, so the steps reach every file.
        files = (0..files.len()).map(|n| files[n * 7_919 % files.len()].clone()).collect();
    }
    let chunks: Vec<Vec<String>> = files.chunks(per_chunk).map(<[_]>::to_vec).collect();
    snapshot(&chunks)
}

fn options(group: u32, window: u32) -> ReportOptions {
    let class_depth = Some(2);
    ReportOptions { seed: 5, group, window: Some(window), class_depth, ..ReportOptions::default() }
}

fn report(snapshot: &Snapshot, options: ReportOptions) -> ShuffleReport {
    ShuffleReport::of(snapshot, Arc::new(Selection::all(snapshot.files())), options).unwrap()
}

/// The first `depth` folders of a path.
fn class(snapshot: &Snapshot, number: u32, depth: usize) -> String {
    let path = snapshot.path(number).unwrap().to_string();
    let folders: Vec<&str> = path.split('/').collect();
    folders[..(folders.len() - 1).min(depth)].join("/")
}

/// The measurement of [`Randomness`], as documented, over the files of a cursor.
fn reference(snapshot: &Snapshot, selected: &[u32], options: &ReportOptions) -> Randomness {
    let selection = Selection::of(snapshot.files(), selected.iter().copied()).unwrap();
    let settings = OrderSettings::new(options.seed, options.epoch, options.group);
    let first_files = snapshot.first_files().unwrap();
    let order = Order::new(Arc::clone(&first_files), Arc::new(selection), settings).unwrap();
    let files: Vec<u32> = Cursor::new(Arc::new(order), 0).unwrap().collect();
    let depth = options.class_depth.map_or(usize::MAX, |depth| depth as usize);
    let classes: Vec<String> = files.iter().map(|file| class(snapshot, *file, depth)).collect();
    let read: BTreeMap<u32, usize> = files.iter().copied().zip(0..).collect();
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let moved =
        selected.iter().zip(0..).map(|(file, at): (_, usize)| read[file].abs_diff(at) as f64);
    let chunk = |file: u32| first_files.partition_point(|first| *first <= file);
    let apart = selected.windows(2).filter(|two| chunk(two[0]) == chunk(two[1]));
    let apart = apart.map(|two| read[&two[0]].abs_diff(read[&two[1]]) as f64);
    let runs: Vec<f64> = classes.chunk_by(|a, b| a == b).map(|run| run.len() as f64).collect();
    let window = options.window.map_or(256, |window| window as usize).min(files.len());
    let (mut distinct, mut simpson) = (Vec::new(), Vec::new());
    for window in classes.chunks_exact(window) {
        let mut counts: HashMap<&str, f64> = HashMap::new();
        window.iter().for_each(|class| *counts.entry(class).or_default() += 1.0);
        distinct.push(counts.len() as f64);
        simpson.push(counts.values().map(|count| (count / window.len() as f64).powi(2)).sum());
    }
    Randomness {
        moved: mean(moved.collect()),
        apart: Some(mean(apart.collect())),
        longest_run: runs.iter().copied().fold(0.0, f64::max),
        mean_run: mean(runs),
        classes: mean(distinct),
        effective: 1.0 / mean(simpson),
    }
}

fn figures(of: &Randomness) -> [f64; 6] {
    let apart = of.apart.unwrap_or(f64::NAN);
    [of.moved, apart, of.longest_run, of.mean_run, of.classes, of.effective]
}

fn is_near(one: &Randomness, other: &Randomness, share: f64) -> bool {
    let figures = figures(one).into_iter().zip(figures(other));
    figures.into_iter().all(|(one, other)| (one - other).abs() <= share * other.abs())
}

#[test]
fn figures_agree_with_a_direct_measurement() {
    for (classes, per_chunk) in [(&[60, 200, 1, 90][..], 11), (&[40; 9], 1_000), (&[33], 4)] {
        for sorted in [true, false] {
            let snapshot = written(classes, per_chunk, sorted);
            let all: Vec<u32> = (0..snapshot.files()).collect();
            let some: Vec<u32> = all.iter().copied().filter(|file| file % 7 > 2).collect();
            for (selected, depth) in [(&all, Some(2)), (&some, None), (&all, Some(0))] {
                for (group, window) in [(1, 16), (4, 50), (1_000, 7), (5, 100_000)] {
                    let options = ReportOptions { class_depth: depth, ..options(group, window) };
                    let selection =
                        Selection::of(snapshot.files(), selected.iter().copied()).unwrap();
                    let found =
                        ShuffleReport::of(&snapshot, Arc::new(selection), options.clone()).unwrap();
                    let plain = reference(&snapshot, selected, &options);
                    assert!(is_near(&found.order, &plain, 1e-9), "{found:?}\n{plain:?}");
                    let single = ReportOptions { group: 1, ..options };
                    let plain = reference(&snapshot, selected, &single);
                    assert!(is_near(&found.chunk_by_chunk, &plain, 1e-9), "{found:?}\n{plain:?}");
                    let depth = depth.map_or(usize::MAX, |depth| depth as usize);
                    let classes: BTreeSet<String> =
                        selected.iter().map(|file| class(&snapshot, *file, depth)).collect();
                    assert_eq!(found.classes as usize, classes.len());
                    assert_eq!(found.files as usize, selected.len());
                    assert_eq!(found.measured, found.files, "nothing is left out");
                }
            }
        }
    }
}

fn mean(reports: &[Randomness]) -> Randomness {
    let mean = |figure: fn(&Randomness) -> f64| {
        reports.iter().map(figure).sum::<f64>() / reports.len() as f64
    };
    Randomness {
        moved: mean(|of| of.moved),
        apart: Some(mean(|of| of.apart.unwrap_or(f64::NAN))),
        longest_run: mean(|of| of.longest_run),
        // For ratios: the mean of their inverses, which are sums.
        mean_run: 1.0 / mean(|of| 1.0 / of.mean_run),
        classes: mean(|of| of.classes),
        effective: 1.0 / mean(|of| 1.0 / of.effective),
    }
}

#[test]
fn the_result_for_a_full_shuffle_is_the_mean_of_many() {
    for (classes, window) in [(&[50, 50, 50, 50][..], 20), (&[300, 20, 7], 64), (&[2; 90], 30)] {
        let snapshot = written(classes, 10, true);
        let whole = snapshot.chunks();
        let found: Vec<ShuffleReport> = (0..800)
            .map(|seed| report(&snapshot, ReportOptions { seed, ..options(whole, window) }))
            .collect();
        let orders: Vec<Randomness> = found.iter().map(|report| report.order).collect();
        let (mean, expected) = (mean(&orders), found[0].full);
        let longest = mean.longest_run / expected.longest_run;
        assert!((0.9..1.1).contains(&longest), "an approximation: {mean:?}\n{expected:?}");
        let exact = Randomness { longest_run: expected.longest_run, ..mean };
        assert!(is_near(&exact, &expected, 0.03), "{mean:?}\n{expected:?}");
    }
}

#[test]
fn a_sorted_dataset_needs_groups_of_the_advised_size() {
    let snapshot = written(&[64; 20], 8, true);
    let found = report(&snapshot, options(4, 32));
    assert!(found.is_too_small() && found.share() < Some(0.5), "{found:?}");
    let advice = found.advice.expect("all chunks together are a full shuffle");
    assert!(advice.group > 4 && advice.share >= 0.9, "{advice:?}");
    let with = |group| report(&snapshot, options(group, 32));
    assert!(!with(advice.group).is_too_small());
    assert_eq!(with(advice.group).share(), Some(advice.share));
    assert!(with(advice.group - 1).is_too_small(), "a smaller group is too small");
    assert!(!with(snapshot.chunks()).is_too_small());
    // A lower share needs a smaller group.
    let half = report(&snapshot, ReportOptions { share: 0.5, ..options(4, 32) });
    assert!(half.advice.is_some_and(|half| half.group < advice.group), "{half:?}");
}

#[test]
fn a_dataset_written_in_random_order_needs_no_large_groups() {
    let snapshot = written(&[64; 20], 32, false);
    let found = report(&snapshot, options(1, 32));
    assert!(!found.is_too_small(), "{found:?}");
    assert_eq!(found.advice.map(|advice| advice.group), Some(1));
    // Neighbours still stay within a chunk of each other.
    let apart = |of: &Randomness| of.apart.unwrap_or_default();
    assert!(apart(&found.order) < 12.0 && apart(&found.full) > 400.0, "{found:?}");
}

#[test]
fn files_of_a_single_class_get_no_advice() {
    let snapshot = written(&[300], 10, true);
    for group in [1, 30] {
        let found = report(&snapshot, options(group, 32));
        assert_eq!((found.classes, found.share(), found.advice), (1, None, None), "{found:?}");
        assert!(!found.is_too_small());
    }
}

#[test]
fn a_small_dataset_of_small_classes_gets_smaller_windows() {
    // 256 consecutive files are nearly all files.
    let sorted = written(&[10; 28], 10, true);
    let usual = |group| ReportOptions { window: None, ..options(group, 1) };
    let found = report(&sorted, usual(1));
    assert_eq!((found.window, found.chunk_by_chunk.longest_run), (35, 10.0), "{found:?}");
    assert!(found.is_too_small() && found.share() < Some(0.5), "{found:?}");
    let advice = found.advice.expect("all chunks together are a full shuffle");
    assert!(advice.group > 4, "{advice:?}");
    let advised = report(&sorted, usual(advice.group));
    assert!(!advised.is_too_small() && advised.order.mean_run < 1.3, "{advised:?}");
    // A requested window of the size is used.
    let batch = report(&sorted, options(1, 256));
    assert_eq!((batch.window, batch.is_too_small()), (256, false), "{batch:?}");
    for (classes, window) in [(&[2_000, 2_000][..], 256), (&[1_000; 2], 250), (&[1; 3], 2)] {
        let found = report(&written(classes, 10, true), usual(1));
        assert_eq!(found.window, window, "{classes:?}");
    }
    // A single group of all chunks is a full shuffle, for any content of a few windows.
    for seed in 0..50 {
        let few = written(&[5, 5], 3, true);
        let whole = report(&few, ReportOptions { seed, ..usual(few.chunks()) });
        assert!(!whole.is_too_small() && whole.advice.is_some(), "{whole:?}");
    }
}

#[test]
fn the_first_groups_of_a_large_dataset_are_measured() {
    let snapshot = written(&[100; 30], 20, true);
    let part = ReportOptions { files_max: 500, ..options(9, 50) };
    let found = report(&snapshot, part.clone());
    // 25 chunks hold 500 files, and 27 chunks are whole groups.
    assert_eq!((found.files, found.measured, found.chunks), (3_000, 540, 150));
    let mean_of = |options: ReportOptions| {
        let seeds =
            (0..300).map(|seed| report(&snapshot, ReportOptions { seed, ..options.clone() }));
        let (orders, full): (Vec<_>, Vec<_>) = seeds.map(|found| (found.order, found.full)).unzip();
        (mean(&orders), full[0])
    };
    let (some, all) = (mean_of(part).0, mean_of(options(9, 50)).0);
    // The longest run is that of fewer files; the other figures agree.
    assert!(some.longest_run < all.longest_run);
    let same = Randomness { longest_run: all.longest_run, moved: all.moved, ..some };
    assert!(is_near(&same, &all, 0.05), "{some:?}\n{all:?}");
    let (mean, full) = mean_of(ReportOptions { files_max: 500, ..options(25, 50) });
    assert!((mean.moved / full.moved - 1.0).abs() < 0.05, "{mean:?}\n{full:?}");
}

#[test]
fn memory_counts_whole_chunks_and_large_files() {
    let folder = |range: Range<u32>| range.map(|n| format!("d/f{n}")).collect::<Vec<_>>();
    let chunks = [folder(0..5), folder(5..6), vec!["large/file".to_owned()], folder(6..9)];
    let snapshot = snapshot(&chunks);
    let bytes = |group| report(&snapshot, options(group, 4)).bytes;
    let (object, large) = (u64::from(OBJECT), 10_000_001);
    assert_eq!(bytes(1), GroupBytes { one: large, two: large + object });
    assert_eq!(bytes(4), GroupBytes { one: large + 3 * object, two: large + 3 * object });
    assert_eq!(bytes(2), GroupBytes { one: large + object, two: large + 3 * object });
}

#[test]
fn invalid_reports_are_refused() {
    let snapshot = written(&[5], 2, true);
    let refused = |selection: Selection, options| {
        let refused = ShuffleReport::of(&snapshot, Arc::new(selection), options);
        assert_eq!(refused.expect_err("no report").kind(), Kind::Invalid);
    };
    let all = || Selection::all(5);
    refused(all(), options(0, 1));
    refused(all(), options(1, 0));
    refused(all(), ReportOptions { share: 0.0, ..options(1, 1) });
    refused(all(), ReportOptions { share: f64::NAN, ..options(1, 1) });
    refused(Selection::all(4), options(1, 1));
    refused(Selection::of(5, []).expect("none"), options(1, 1));
}

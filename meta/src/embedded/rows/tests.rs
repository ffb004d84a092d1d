//! What is kept of the index, and when it is let go.

use dl_format::{Attributes, ChunkId, Crc32c, EntryVersion, Stamp};

use super::*;

const DATASET: DatasetId = DatasetId::from_bytes([1; 16]);
const OTHER: DatasetId = DatasetId::from_bytes([2; 16]);

fn path(number: usize) -> FilePath {
    FilePath::new(format!("folder/{number:06}")).unwrap()
}

fn file(number: u32) -> Found {
    let version =
        EntryVersion { stamp: Stamp::new(7), chunk: ChunkId::from_bytes([3; 16]), entry: number };
    Found::File(FileRecord {
        version,
        holder: version,
        attributes: Attributes { mode: 0o644, mtime: -5 },
        length: 1 << 40,
        crc: Crc32c::from_value(number),
        offset: 4096,
        stored: 100,
        has_extents: true,
    })
}

fn known(rows: &Rows, dataset: DatasetId, number: usize) -> Option<Found> {
    rows.find(dataset, &[path(number)]).found.pop().flatten()
}

fn keep(rows: &Rows, dataset: DatasetId, number: usize) {
    let seen = rows.find(dataset, &[path(number)]);
    rows.keep(dataset, &seen, [(&path(number), &file(number as u32))].into_iter());
}

#[test]
fn a_file_is_found_as_it_was_kept_and_only_in_its_dataset() {
    let rows = Rows::new(1 << 20);
    keep(&rows, DATASET, 1);
    assert_eq!(known(&rows, DATASET, 1), Some(file(1)));
    assert_eq!(known(&rows, OTHER, 1), None);
    assert_eq!(known(&rows, DATASET, 2), None);
}

#[test]
fn what_is_no_file_is_not_kept() {
    let rows = Rows::new(1 << 20);
    let seen = rows.find(DATASET, &[]);
    let paths = [path(1), path(2)];
    rows.keep(DATASET, &seen, paths.iter().zip(&[Found::Folder, Found::Missing]));
    assert!(
        paths.iter().all(|path| rows.find(DATASET, std::slice::from_ref(path)).found[0].is_none())
    );
}

#[test]
fn a_change_lets_go_of_its_dataset_and_of_no_other() {
    let rows = Rows::new(1 << 20);
    keep(&rows, DATASET, 1);
    keep(&rows, OTHER, 1);
    drop(rows.change([DATASET]));
    assert_eq!(known(&rows, DATASET, 1), None);
    assert_eq!(known(&rows, OTHER, 1), Some(file(1)));
}

#[test]
fn what_was_read_before_or_during_a_change_is_not_kept() {
    let rows = Rows::new(1 << 20);
    let keep = |seen| rows.keep(DATASET, seen, [(&path(1), &file(1))].into_iter());
    let before = rows.find(DATASET, &[path(1)]);
    let change = rows.change([DATASET]);
    let during = rows.find(DATASET, &[path(1)]);
    assert!(!keep(&before) && !keep(&during));
    drop(change);
    assert!(!keep(&before) && !keep(&during));
    assert_eq!(known(&rows, DATASET, 1), None);
    assert!(keep(&rows.find(DATASET, &[path(1)])));
    assert_eq!(known(&rows, DATASET, 1), Some(file(1)));
}

#[test]
fn there_are_never_more_bytes_than_the_bound() {
    let rows = Rows::new(20_000);
    for number in 0..1_000 {
        keep(&rows, if number % 3 == 0 { OTHER } else { DATASET }, number);
        let kept = rows.read();
        let counted: usize =
            kept.datasets.values().flat_map(|known| &known.rows).map(Row::size).sum();
        assert_eq!(counted, kept.bytes);
        assert!(counted <= 20_000);
    }
    assert_eq!(known(&rows, DATASET, 1), Some(file(1)));
    assert_eq!(known(&rows, DATASET, 998), None);
    drop(rows.change([DATASET, OTHER]));
    assert_eq!(rows.read().bytes, 0);
}

#[test]
fn a_dataset_that_nobody_asks_about_makes_room() {
    let rows = Rows::new(1_000);
    for number in 0..100 {
        keep(&rows, DATASET, number);
    }
    keep(&rows, OTHER, 1);
    assert_eq!(known(&rows, OTHER, 1), None);
    for _ in 0..=IDLE_AFTER {
        known(&rows, OTHER, 1);
    }
    keep(&rows, OTHER, 1);
    assert_eq!((known(&rows, OTHER, 1), known(&rows, DATASET, 1)), (Some(file(1)), None));
}

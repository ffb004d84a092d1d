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
fn kept_files_are_found_until_their_dataset_changes() {
    let rows = Rows::new(1 << 20);
    keep(&rows, DATASET, 1);
    assert_eq!(known(&rows, OTHER, 1), None);
    keep(&rows, OTHER, 1);
    // Other entries are not kept.
    let (seen, paths) = (rows.find(DATASET, &[]), [path(2), path(3)]);
    rows.keep(DATASET, &seen, paths.iter().zip(&[Found::Folder, Found::Missing]));
    let all = || [1, 2, 3].map(|number| known(&rows, DATASET, number));
    assert_eq!(all(), [Some(file(1)), None, None]);
    drop(rows.change([DATASET]));
    assert_eq!((all(), known(&rows, OTHER, 1)), ([None; 3], Some(file(1))));
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

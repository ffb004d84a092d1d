//! The rows of an object by folder, a few folders at a time.
//!
//! Must hold: each folder above a file comes once, with all its rows from the object. Memory holds the rows
//! of a header, twice at most, and a piece or two, though the paths of all the folders together may be a
//! thousand times as long as the header.

use std::collections::BTreeMap;
use std::vec::IntoIter;

use bytes::Bytes;
use dl_format::{Committed, Entry, FileRecord};

use super::command::Ask;
use super::keys::{Key, LARGE_ROWS, bucket_of};
use super::rows::{file, folder, range_of};
use super::scripts::APPLY;

/// Bytes of questions after which a piece takes no more folders.
const PIECE: usize = 256 << 10;
/// Approximate bytes of a question beside its key and its rows.
const QUESTION: usize = 256;
/// Approximate bytes of a row in a question beside its own.
const ARGUMENT: usize = 32;

/// The rows of an object in a single folder.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    /// Names of folders in the folder, without repetitions.
    folders: Vec<Vec<u8>>,
    /// Rows of files in their order, a row for each name.
    files: Vec<Vec<u8>>,
}

/// The batches of an object, each with the path of its folder; the folders inside come first.
#[derive(Clone, Debug)]
pub(super) struct Batches<'a> {
    object: &'a Committed,
    /// By path: all files below a folder come together.
    entries: IntoIter<Entry>,
    /// The path of the last entry.
    path: Bytes,
    /// The folders above `path`, which may still get rows: the end of each folder's path, and its batch.
    open: Vec<(usize, Batch)>,
}

impl<'a> Batches<'a> {
    pub(super) fn of(object: &'a Committed) -> Self {
        let mut entries: Vec<Entry> = object.header().entries().collect();
        entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        let open = if entries.is_empty() { Vec::new() } else { vec![(0, Batch::default())] };
        Self { object, entries: entries.into_iter(), path: Bytes::new(), open }
    }

    /// The entries that are in no batch yet, by path.
    pub(super) fn entries(&self) -> &[Entry] {
        self.entries.as_slice()
    }

    /// The batches that go to Redis together; empty at the end. A usual object is a single piece.
    pub(super) fn piece(&mut self) -> Vec<(Vec<u8>, Batch)> {
        let (mut piece, mut size) = (Vec::new(), 0);
        while size < PIECE
            && let Some((path, batch)) = self.next()
        {
            size += QUESTION + path.len() + batch.size();
            piece.push((path, batch));
        }
        piece
    }

    /// Takes a file below the innermost folder, whose path ends at `end`. The file's own folder becomes the
    /// innermost folder; returns the end of its path.
    fn add(&mut self, entry: Entry, mut end: usize) -> usize {
        let record = FileRecord::of(self.object, &entry);
        self.path = entry.path.into_bytes();
        while let Some((_, innermost)) = self.open.last_mut() {
            let start = if end == 0 { 0 } else { end + 1 };
            let rest = self.path.get(start..).unwrap_or_default();
            let Some(length) = rest.iter().position(|byte| *byte == b'/') else {
                innermost.files.push(file(rest, &record));
                break;
            };
            innermost.folders.push(rest.get(..length).unwrap_or_default().to_vec());
            end = start + length;
            self.open.push((end, Batch::default()));
        }
        end
    }
}

impl Iterator for Batches<'_> {
    type Item = (Vec<u8>, Batch);

    fn next(&mut self) -> Option<Self::Item> {
        let mut end = self.open.last()?.0;
        loop {
            let folder = self.path.get(..end).unwrap_or_default();
            let is_next = |next: &Entry| is_below(next.path.as_bytes(), folder);
            if !self.entries().first().is_some_and(is_next) {
                break;
            }
            let Some(entry) = self.entries.next() else { break };
            end = self.add(entry, end);
        }
        let (_, mut batch) = self.open.pop()?;
        batch.files.sort_unstable();
        // The winner of each name came first.
        batch.files.dedup_by(|later, first| name_of(later) == name_of(first));
        Some((self.path.get(..end).unwrap_or_default().to_vec(), batch))
    }
}

fn is_below(path: &[u8], folder: &[u8]) -> bool {
    folder.is_empty() || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with(b"/"))
}

fn name_of(row: &[u8]) -> &[u8] {
    row.split(|byte| *byte == 0).next().unwrap_or_default()
}

impl Batch {
    /// Bytes of the rows in a question.
    fn size(&self) -> usize {
        let folders = self.folders.iter().map(|name| 2 * (name.len() + ARGUMENT));
        folders.chain(self.files.iter().map(|row| row.len() + ARGUMENT)).sum()
    }

    pub(super) fn ask(&self, key: &Key, is_first: bool) -> Ask {
        let [low, high] = match (self.files.first(), self.files.last()) {
            (Some(first), Some(last)) => {
                let ([low, _], [_, high]) = (range_of(name_of(first)), range_of(name_of(last)));
                [low, high]
            }
            _ => [Vec::new(), Vec::new()],
        };
        let first_file = 5 + 2 * self.folders.len();
        let most = if is_first { LARGE_ROWS.to_string() } else { String::new() };
        let mut ask = Ask::script(&APPLY, key, &[]).arg(most).arg(first_file).arg(low).arg(high);
        for row in self.folders.iter().flat_map(|name| folder(name)) {
            ask = ask.arg(row);
        }
        for row in &self.files {
            ask = ask.arg(row);
        }
        ask
    }

    /// Whether the batch alone would make its folder large.
    pub(super) fn is_large(&self) -> bool {
        (2 * self.folders.len() + self.files.len()) as u64 > LARGE_ROWS
    }

    /// The batch without its files; none without folders.
    pub(super) fn folders(&self) -> Option<Self> {
        let (folders, files) = (self.folders.clone(), Vec::new());
        (!folders.is_empty()).then_some(Self { folders, files })
    }

    /// The batch by hashed bucket.
    pub(super) fn parts(&self) -> BTreeMap<u8, Self> {
        let mut parts: BTreeMap<u8, Self> = BTreeMap::new();
        for name in &self.folders {
            parts.entry(bucket_of(name)).or_default().folders.push(name.clone());
        }
        for row in &self.files {
            parts.entry(bucket_of(name_of(row))).or_default().files.push(row.clone());
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use dl_format::DatasetId;
    use dl_format::layout::PATH_MAX;

    use super::*;
    use crate::conformance::history::Maker;

    fn chunk(names: impl IntoIterator<Item = String>) -> Committed {
        Maker::new(DatasetId::from_bytes([1; 16]), 1).files(names)
    }

    #[test]
    fn a_piece_is_bounded_however_deep_the_paths_are() {
        let object = chunk((10..50).map(|n| format!("{n}{}/f", "/x".repeat(2_000))));
        let mut batches = Batches::of(&object);
        let (mut folders, mut most) = (0, 0usize);
        loop {
            let piece = batches.piece();
            if piece.is_empty() {
                break;
            }
            folders += piece.len();
            let bytes = piece.iter().map(|(path, batch)| path.len() + batch.size()).sum();
            most = most.max(bytes);
            assert!(batches.open.len() <= 2_002);
        }
        assert_eq!(folders, 40 * 2_001 + 1);
        assert!(most < PIECE + PATH_MAX, "{most} bytes");
    }

    #[test]
    fn a_usual_object_is_one_piece() {
        let object = chunk((0..1_000).map(|n| format!("train/n{:08}/{n}.JPEG", n % 8)));
        let mut batches = Batches::of(&object);
        assert_eq!((batches.piece().len(), batches.piece().len()), (10, 0));
    }
}

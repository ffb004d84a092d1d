//! The class of each file in an order: its folder.
//!
//! Must hold: memory holds a number for each measured file and each folder, and no path.

use std::ops::Range;

use crate::error::Error;
use crate::order::Selection;
use crate::snapshot::Snapshot;

/// No class, or no place.
const NONE: u32 = u32::MAX;

/// The classes of a selection.
#[derive(Debug)]
pub(super) struct Classes {
    /// The number of selected files in each class.
    sizes: Vec<u32>,
    /// The class of the file at each place of the sequence.
    by_place: Vec<u32>,
}

impl Classes {
    /// The classes of all selected files, and of each place on the given shuffled chunks; `starts`
    /// has their first places. `depth` folders of a path name a class; none: all folders.
    pub(super) fn of(
        snapshot: &Snapshot,
        selection: &Selection,
        first_files: &[u32],
        (chunks, starts): (&[u32], &[u64]),
        depth: Option<u32>,
    ) -> Result<Self, Error> {
        let mut pieces = vec![NONE; first_files.len()];
        for (chunk, piece) in chunks.iter().zip(0..) {
            if let Some(place) = pieces.get_mut(*chunk as usize) {
                *place = piece;
            }
        }
        let files = starts.last().copied().unwrap_or(0);
        let mut classes = Self { sizes: Vec::new(), by_place: vec![NONE; files as usize] };
        let mut numbers = vec![NONE; snapshot.folders() as usize];
        // A folder, the folder that names its class, and its depth.
        let mut waiting = vec![(0, 0, 0)];
        while let Some((folder, class, level)) = waiting.pop() {
            for run in snapshot.files_in(folder)? {
                for (chunk, run) in by_chunk(first_files, run) {
                    let count = selection.count(run.clone());
                    if count == 0 {
                        continue;
                    }
                    let number = classes.number(&mut numbers, class);
                    classes.add(number, count);
                    let piece = pieces.get(chunk).copied().unwrap_or(NONE) as usize;
                    if let Some(start) = starts.get(piece).filter(|_| piece < chunks.len()) {
                        let first = first_files.get(chunk).copied().unwrap_or(run.start);
                        let place = *start as usize + selection.count(first..run.start) as usize;
                        let places = classes.by_place.get_mut(place..place + count as usize);
                        places.unwrap_or_default().fill(number);
                    }
                }
            }
            for inside in snapshot.folders_in(folder)? {
                let is_own = depth.is_none_or(|depth| level < depth);
                waiting.push((inside, if is_own { inside } else { class }, level + 1));
            }
        }
        Ok(classes)
    }

    /// The number of the class named by a folder.
    fn number(&mut self, numbers: &mut [u32], folder: u32) -> u32 {
        let new = self.sizes.len() as u32;
        match numbers.get_mut(folder as usize) {
            Some(number) if *number != NONE => *number,
            found => {
                self.sizes.push(0);
                found.map_or(new, |number| {
                    *number = new;
                    new
                })
            }
        }
    }

    fn add(&mut self, class: u32, count: u32) {
        if let Some(size) = self.sizes.get_mut(class as usize) {
            *size += count;
        }
    }

    /// The number of selected files in each class.
    pub(super) fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// The classes of the files at a range of places.
    pub(super) fn on(&self, places: Range<u64>) -> &[u32] {
        self.by_place.get(places.start as usize..places.end as usize).unwrap_or_default()
    }
}

/// A run of files, cut at the ends of chunks.
fn by_chunk(
    first_files: &[u32],
    mut run: Range<u32>,
) -> impl Iterator<Item = (usize, Range<u32>)> + '_ {
    let mut chunk = first_files.partition_point(|first| *first <= run.start).saturating_sub(1);
    std::iter::from_fn(move || {
        if run.is_empty() {
            return None;
        }
        let end = first_files.get(chunk + 1).copied().unwrap_or(run.end).min(run.end);
        let piece = (chunk, run.start..end);
        run.start = end;
        chunk += 1;
        Some(piece)
    })
}

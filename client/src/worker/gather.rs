//! Files that come without their absent chunks, from the memory of other nodes.
//!
//! Must hold: a file left out is read with its chunk, or from the servers.

use std::cell::OnceCell;

use dl_node::{Maps, NO_FILE, Pinned};

use super::attach::Attached;
use crate::snapshot::FilePlace;

/// A group of files in a read.
#[derive(Debug)]
pub(super) struct Batch<'a, 'b> {
    attached: &'a Attached,
    numbers: &'b [u32],
    places: &'b [FilePlace],
    /// The slot, and the offset of each file of the batch in the slot.
    gathered: OnceCell<Option<(Pinned<'a>, Vec<u32>)>>,
}

impl<'a, 'b> Batch<'a, 'b> {
    /// A batch of files with their places.
    pub(super) fn new(attached: &'a Attached, numbers: &'b [u32], places: &'b [FilePlace]) -> Self {
        Self { attached, numbers, places, gathered: OnceCell::new() }
    }

    /// The place of a file in its chunk.
    #[inline]
    pub(super) fn place(&self, index: usize) -> FilePlace {
        self.places.get(index).copied().unwrap_or(FilePlace::NOWHERE)
    }

    /// A file delivered without its chunk, with its place in the slot. A single request asks for
    /// all absent files from the index on.
    #[cold]
    pub(super) fn file(&self, index: usize) -> Option<(Pinned<'a>, FilePlace)> {
        let (pinned, offsets) = self.gathered.get_or_init(|| self.gather(index)).as_ref()?;
        let offset = offsets.get(index).copied().filter(|offset| *offset != NO_FILE)?;
        let place = FilePlace { offset, ..*self.places.get(index)? };
        Some((Maps::pin_again(pinned)?, place))
    }

    fn gather(&self, from: usize) -> Option<(Pinned<'a>, Vec<u32>)> {
        let maps = &self.attached.maps;
        if !self.attached.files_alone().asks_agent() {
            return None;
        }
        let files = self.numbers.iter().zip(self.places).enumerate().skip(from);
        let absent = files.filter(|(_, (_, place))| {
            **place != FilePlace::NOWHERE && maps.table.load(place.chunk).slot().is_none()
        });
        let (indexes, absent): (Vec<_>, Vec<_>) =
            absent.map(|(index, (number, _))| (index, *number)).unzip();
        let (pinned, found) = self.attached.want_files(absent)?;
        let mut offsets = vec![NO_FILE; self.numbers.len()];
        for (index, offset) in indexes.into_iter().zip(found) {
            *offsets.get_mut(index)? = offset;
        }
        Some((pinned, offsets))
    }
}

//! Reads of files cut into several objects, piece by piece.
//!
//! Must hold: a read pins a single piece at a time, so a file of any size needs a single slot.

use super::copying::copy_bytes;
use super::read::{AgentReader, count};
use crate::snapshot::FilePlace;

/// Pieces fetched during the copy of a piece.
const AHEAD: usize = 4;

impl AgentReader {
    /// A large file in memory; none if the caller must read from the servers.
    #[cold]
    pub(super) fn read_large(&self, number: u32) -> Option<Vec<u8>> {
        let length = self.snapshot().place(number).ok()?.length;
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.read_large_into(number, &mut bytes)?;
        Some(bytes)
    }

    /// Copies a large file to the beginning of `buffer`; gives its length. None if the buffer is
    /// too short, or if the caller must read from the servers.
    #[cold]
    pub(super) fn read_large_into(&self, number: u32, buffer: &mut [u8]) -> Option<usize> {
        let whole = self.snapshot().place(number).ok()?;
        let length = usize::try_from(whole.length).ok()?;
        let buffer = buffer.get_mut(..length)?;
        let pieces = self.snapshot().pieces(number).ok().filter(|pieces| !pieces.is_empty())?;
        let mut left = buffer;
        for (index, piece) in pieces.iter().enumerate() {
            let (into, rest) = left.split_at_mut_checked(usize::try_from(piece.length).ok()?)?;
            self.copy_piece(number, *piece, pieces.get(index + 1..).unwrap_or_default(), into)?;
            left = rest;
        }
        let attached = self.attached();
        count(attached.as_ref()?, whole);
        Some(length)
    }

    fn copy_piece(
        &self,
        number: u32,
        piece: FilePlace,
        next: &[FilePlace],
        into: &mut [u8],
    ) -> Option<()> {
        if into.is_empty() {
            return Some(());
        }
        let attached = self.attached();
        let attached = attached.as_ref()?;
        let pinned = attached.maps.pin(piece.chunk).or_else(|| {
            let hints: Vec<_> = next.iter().take(AHEAD).map(|piece| piece.chunk).collect();
            self.miss(attached, number, piece, &hints)
        })?;
        copy_bytes(pinned.bytes(piece.offset, into.len())?, into);
        Some(())
    }
}

//! The chunks of a group that one rank reads, and how far each of them has come.
//!
//! Must hold: each file is in one place, whose bytes are there, will come, or are not kept.

use bytes::Bytes;

use crate::error::Error;
use crate::order::ChunkPlan;

/// What is kept of a file.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// All of it.
    Bytes(Bytes),
    /// Why it can't be had.
    Failed(Box<Error>),
    /// Nothing: it is read by itself.
    Apart,
}

/// How far a chunk has come.
#[derive(Debug)]
pub(super) enum State {
    /// Nobody fetches it.
    Waiting,
    /// Somebody does.
    Fetching,
    /// For each of its files.
    Ready(Vec<Content>),
    /// Why no server could be asked.
    Failed(Error),
}

/// The files of one chunk.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) state: State,
    /// Whether somebody waits for it.
    pub(super) is_wanted: bool,
    /// Which of its files were handed over.
    taken: Vec<bool>,
}

/// Chunks whose files are shuffled together, as far as they are one rank's.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) plan: ChunkPlan,
    /// One for each chunk of the plan.
    pub(super) pieces: Vec<Piece>,
    /// Files that were not handed over.
    left: usize,
}

impl Group {
    pub(super) fn new(plan: ChunkPlan) -> Self {
        let piece = |chunk| Piece {
            state: State::Waiting,
            is_wanted: false,
            taken: vec![false; plan.files_of(chunk).len()],
        };
        let (pieces, left) = ((0..plan.chunks()).map(piece).collect(), plan.files());
        Self { plan, pieces, left }
    }

    /// Takes note that a file was handed over.
    pub(super) fn take(&mut self, piece: usize, place: usize) {
        let piece = self.pieces.get_mut(piece);
        if let Some(taken) = piece.and_then(|piece| piece.taken.get_mut(place))
            && !std::mem::replace(taken, true)
        {
            self.left -= 1;
        }
    }

    /// Whether a file was handed over.
    pub(super) fn is_taken(&self, piece: usize, place: usize) -> bool {
        let piece = self.pieces.get(piece);
        piece.and_then(|piece| piece.taken.get(place)).is_some_and(|taken| *taken)
    }

    /// Files that were handed over, of how many.
    pub(super) fn progress(&self) -> (usize, usize) {
        (self.plan.files() - self.left, self.plan.files())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::order::{Cursor, Order, OrderSettings, Selection};

    #[test]
    fn a_file_that_is_handed_over_twice_counts_once() {
        let first_files: Arc<[u32]> = Arc::new([0, 5, 10, 40]);
        let selection = Arc::new(Selection::of(40, [2, 9, 30]).unwrap());
        let order = Order::new(first_files, selection, OrderSettings::new(1, 0, 3)).unwrap();
        let mut cursor = Cursor::new(Arc::new(order), 0).unwrap();
        let mut group = Group::new(ChunkPlan::next_of(&mut cursor).unwrap());
        let (piece, place) = group.plan.find(2).unwrap();
        for _ in 0..2 {
            group.take(piece, place);
            assert!(group.is_taken(piece, place));
            assert_eq!(group.progress(), (1, 3));
        }
        let (piece, place) = group.plan.find(9).unwrap();
        assert!(!group.is_taken(piece, place));
    }
}

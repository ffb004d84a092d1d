//! The chunks of a group for a rank, with their states.
//!
//! Must hold: each file belongs to a single chunk, and is present, in progress, or read separately.

use bytes::Bytes;

use crate::error::Error;
use crate::order::ChunkPlan;

/// The kept content of a file.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Bytes(Bytes),
    Failed(Box<Error>),
    /// Nothing: the file is read separately.
    Separate,
}

#[derive(Debug)]
pub(super) enum State {
    /// Not requested yet.
    Waiting,
    Fetching,
    /// The content of each file.
    Ready(Vec<Content>),
    /// Without a result, because no server answered.
    Failed(Error),
}

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) state: State,
    /// Whether a thread waits for the chunk.
    pub(super) is_wanted: bool,
    /// The delivered files of the chunk.
    taken: Vec<bool>,
}

/// The part of a group of chunks that belongs to a rank.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) plan: ChunkPlan,
    /// The state of each chunk of the plan.
    pub(super) pieces: Vec<Piece>,
    /// The number of files without delivery.
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

    pub(super) fn take(&mut self, piece: usize, place: usize) {
        let piece = self.pieces.get_mut(piece);
        if let Some(taken) = piece.and_then(|piece| piece.taken.get_mut(place))
            && !std::mem::replace(taken, true)
        {
            self.left -= 1;
        }
    }

    /// Leaves the files of a chunk to other sources.
    pub(super) fn pass_over(&mut self, piece: usize) {
        let Some(passed) = self.pieces.get_mut(piece) else { return };
        self.left -= passed.taken.iter().filter(|taken| !**taken).count();
        passed.taken.fill(true);
        passed.state = State::Ready(Vec::new());
    }

    pub(super) fn is_taken(&self, piece: usize, place: usize) -> bool {
        let piece = self.pieces.get(piece);
        piece.and_then(|piece| piece.taken.get(place)).is_some_and(|taken| *taken)
    }

    /// The number of delivered files, and the number of all files.
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
    fn a_file_delivered_twice_counts_once() {
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

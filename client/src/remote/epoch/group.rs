//! The files of a group that one rank reads: in which order, and by the chunks that they lie in.
//!
//! Must hold: each file is in one place, whose bytes are there, will come, or are not kept.

use std::ops::Range;

use bytes::Bytes;

use crate::error::Error;

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
    /// Which of the group's files, in the order of their numbers.
    files: Range<usize>,
    pub(super) state: State,
    /// Whether somebody waits for it.
    pub(super) is_wanted: bool,
}

/// Chunks whose files are shuffled together, as far as they are one rank's.
#[derive(Debug)]
pub(super) struct Group {
    /// Which of the rank's files the first one is.
    start: u64,
    /// Numbers of the files, in the order in which they are read.
    order: Vec<u32>,
    /// How many of these were given out.
    given: usize,
    /// The same numbers, ascending.
    numbers: Vec<u32>,
    /// Which of these were handed over.
    taken: Vec<bool>,
    left: usize,
    pub(super) pieces: Vec<Piece>,
}

impl Group {
    /// Of files in the order in which they are read. `first_files` holds for each chunk the number
    /// of its first file.
    pub(super) fn new(start: u64, order: Vec<u32>, first_files: &[u32]) -> Self {
        let mut numbers = order.clone();
        numbers.sort_unstable();
        numbers.dedup();
        let mut pieces = Vec::new();
        let mut from = 0;
        while let Some(first) = numbers.get(from) {
            let chunk = first_files.partition_point(|start| start <= first);
            let end = first_files.get(chunk).copied().unwrap_or(u32::MAX);
            let rest = numbers.get(from..).unwrap_or_default();
            let to = from + rest.partition_point(|number| *number < end).max(1);
            pieces.push(Piece { files: from..to, state: State::Waiting, is_wanted: false });
            from = to;
        }
        let (taken, left) = (vec![false; numbers.len()], numbers.len());
        Self { start, order, given: 0, numbers, taken, left, pieces }
    }

    /// The pieces, in the order in which the first file of each is read.
    pub(super) fn pieces_as_read(&self) -> Vec<usize> {
        let mut seen = vec![false; self.pieces.len()];
        let mut pieces = Vec::with_capacity(self.pieces.len());
        for number in &self.order {
            if pieces.len() == self.pieces.len() {
                break;
            }
            let piece = self.piece_of(*number);
            if let Some(seen) = seen.get_mut(piece)
                && !std::mem::replace(seen, true)
            {
                pieces.push(piece);
            }
        }
        pieces
    }

    /// The next file to be read, and which of the rank's files it is.
    pub(super) fn give(&mut self) -> Option<(u64, u32)> {
        let number = *self.order.get(self.given)?;
        let position = self.start + self.given as u64;
        self.given += 1;
        Some((position, number))
    }

    /// Which of the rank's files comes next here; none when all were given out.
    pub(super) fn next_position(&self) -> Option<u64> {
        (self.given < self.order.len()).then(|| self.start + self.given as u64)
    }

    /// Where a file is: its piece, and its place among the files of that.
    pub(super) fn find(&self, number: u32) -> Option<(usize, usize)> {
        let index = self.piece_of(number);
        let files = self.files(index);
        let first = *files.first()?;
        let dense = number.checked_sub(first)? as usize;
        let place = if files.get(dense) == Some(&number) {
            dense
        } else {
            files.binary_search(&number).ok()?
        };
        Some((index, place))
    }

    /// The numbers of a piece's files, ascending.
    pub(super) fn files(&self, piece: usize) -> &[u32] {
        let files = self.pieces.get(piece).map_or(0..0, |piece| piece.files.clone());
        self.numbers.get(files).unwrap_or_default()
    }

    /// Takes note that a file was handed over.
    pub(super) fn take(&mut self, piece: usize, place: usize) {
        let first = self.pieces.get(piece).map_or(0, |piece| piece.files.start);
        if let Some(taken) = self.taken.get_mut(first + place)
            && !std::mem::replace(taken, true)
        {
            self.left -= 1;
        }
    }

    /// Whether a file was handed over.
    pub(super) fn is_taken(&self, piece: usize, place: usize) -> bool {
        let first = self.pieces.get(piece).map_or(0, |piece| piece.files.start);
        self.taken.get(first + place).is_some_and(|taken| *taken)
    }

    /// Files that were handed over, of how many.
    pub(super) fn progress(&self) -> (usize, usize) {
        (self.numbers.len() - self.left, self.numbers.len())
    }

    /// The piece that a file lies in, if it is one of the group's.
    fn piece_of(&self, number: u32) -> usize {
        let starts_by = |piece: &Piece| {
            self.numbers.get(piece.files.start).is_some_and(|first| *first <= number)
        };
        self.pieces.partition_point(starts_by).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_their_chunks_and_no_others_are() {
        let group = Group::new(40, vec![9, 2, 30, 3, 8, 29], &[0, 0, 5, 10, 10, 40]);
        let files: Vec<&[u32]> = (0..group.pieces.len()).map(|piece| group.files(piece)).collect();
        assert_eq!(files, [&[2, 3][..], &[8, 9], &[29, 30]]);
        assert_eq!(group.pieces_as_read(), [1, 0, 2]);
        for number in 0..50 {
            let found = group.find(number);
            let files = found.map(|(piece, place)| group.files(piece)[place]);
            assert_eq!(files, [2, 3, 8, 9, 29, 30].contains(&number).then_some(number));
        }
    }

    #[test]
    fn files_are_given_in_their_order_and_counted_once() {
        let mut group = Group::new(40, vec![9, 2, 30], &[0, 5, 10, 40]);
        let given: Vec<_> = std::iter::from_fn(|| group.give()).collect();
        assert_eq!(given, [(40, 9), (41, 2), (42, 30)]);
        for _ in 0..2 {
            let (piece, place) = group.find(2).unwrap();
            group.take(piece, place);
            assert!(group.is_taken(piece, place));
            assert_eq!(group.progress(), (1, 3));
        }
        let (piece, place) = group.find(9).unwrap();
        assert!(!group.is_taken(piece, place));
    }
}

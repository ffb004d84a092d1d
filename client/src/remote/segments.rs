//! A sequence of received buffers, read as one buffer without joining.
//!
//! Must hold: bytes within a single piece are never copied.

use std::collections::{VecDeque, vec_deque};

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Non-empty pieces in order.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Segments {
    pub(crate) fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    /// A copy of the first bytes, without removal.
    pub(crate) fn first<const COUNT: usize>(&self) -> Option<[u8; COUNT]> {
        let mut first = [0; COUNT];
        let mut bytes = self.pieces.iter().flatten();
        for slot in &mut first {
            *slot = *bytes.next()?;
        }
        Some(first)
    }

    /// A reader of up to `most` bytes, without removal.
    pub(crate) fn look(&self, most: usize) -> impl Buf {
        let mut pieces = self.pieces.iter();
        let piece: &[u8] = pieces.next().map_or(&[], |piece| piece);
        Look { piece, pieces, bytes: self.bytes }.take(most)
    }
}

/// A reader that leaves the pieces in place.
struct Look<'a> {
    /// The rest of the current piece; empty only at the end.
    piece: &'a [u8],
    pieces: vec_deque::Iter<'a, Bytes>,
    bytes: usize,
}

impl Buf for Look<'_> {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.piece
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.bytes, "no further than to the end");
        self.bytes -= count;
        loop {
            let step = count.min(self.piece.len());
            self.piece.advance(step);
            count -= step;
            if !self.piece.is_empty() {
                return;
            }
            let Some(next) = self.pieces.next() else { return };
            self.piece = next;
        }
    }
}

impl Buf for Segments {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.bytes, "no further than to the end");
        self.bytes -= count;
        while let Some(piece) = self.pieces.front_mut().filter(|_| count > 0) {
            let step = count.min(piece.len());
            piece.advance(step);
            count -= step;
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        match self.pieces.front_mut() {
            Some(piece) if piece.len() > count => {
                self.bytes -= count;
                piece.split_to(count)
            }
            Some(piece) if piece.len() == count => {
                self.bytes -= count;
                self.pieces.pop_front().unwrap_or_default()
            }
            _ => {
                let mut joined = BytesMut::with_capacity(count);
                joined.put(self.take(count));
                joined.freeze()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_read_as_one_and_a_range_within_one_is_not_copied() {
        let whole: Vec<u8> = (0..=255).collect();
        let whole = Bytes::from(whole);
        for cuts in [vec![], vec![1], vec![4, 4, 9], vec![7, 100, 101, 255]] {
            let mut segments = Segments::default();
            let mut start = 0;
            for end in cuts.into_iter().chain([whole.len()]) {
                segments.push(whole.slice(start..end));
                start = end;
            }
            assert_eq!(segments.first(), Some([0, 1, 2, 3, 4]));
            for most in [0, 3, 200, 256, 300] {
                let mut look = segments.look(most);
                let seen: Vec<u8> = std::iter::from_fn(|| look.try_get_u8().ok()).collect();
                assert_eq!(seen, whole.slice(..most.min(whole.len())));
                let mut look = segments.look(most);
                look.advance(most.min(150));
                assert_eq!(look.chunk().first(), whole.slice(..most.min(256)).get(150));
            }
            let mut at = 0;
            for count in [0, 3, 5, 60, 100, 20, 68] {
                let lies_in_one = segments.chunk().len() >= count;
                let taken = segments.copy_to_bytes(count);
                assert_eq!(taken, whole.slice(at..at + count));
                if count > 0 {
                    let is_same = taken.as_ptr() == whole.slice(at..).as_ptr();
                    assert_eq!(is_same, lies_in_one, "{count} bytes from {at} on");
                }
                at += count;
                assert_eq!(segments.remaining(), whole.len() - at);
            }
            assert_eq!(segments.first::<1>(), None);
        }
    }
}

//! The index from the hash of a path to its file number, in buckets of one cache line.
//!
//! Must hold: every file is found in the home bucket of its hash or in a following bucket, before
//! the first bucket without overflow.

use std::collections::VecDeque;

use crate::layout::{SNAPSHOT_BUCKET_FILES, SNAPSHOT_BUCKET_LEN, SNAPSHOT_BUCKET_LOAD};

/// Number of home buckets for hashes; the buckets behind take overflow at the end.
pub(super) fn home_buckets(files: u32) -> u64 {
    u64::from(files).div_ceil(SNAPSHOT_BUCKET_LOAD as u64)
}

/// The home bucket of a hash.
#[inline]
pub(super) fn home(hash: u64, buckets: u64) -> u64 {
    (u128::from(hash).wrapping_mul(u128::from(buckets)) >> 64) as u64
}

/// The byte of a hash stored in a bucket.
#[inline]
fn mark(hash: u64) -> u8 {
    hash as u8
}

/// Offset of the count, behind the marks; then the overflow flag, and two zeroes.
const COUNT: usize = SNAPSHOT_BUCKET_FILES;
const GOES_ON: usize = COUNT + 1;
const NUMBERS: usize = COUNT + 4;

/// Writes buckets from files in the order of their hashes.
#[derive(Debug)]
pub(super) struct IndexWriter {
    buckets: u64,
    /// The number of the bucket being filled.
    current: u64,
    bucket: Vec<(u8, u32)>,
    /// Files that exceed the current bucket.
    waiting: VecDeque<(u8, u32)>,
}

impl IndexWriter {
    pub(super) fn new(files: u32) -> Self {
        let (bucket, waiting) = (Vec::new(), VecDeque::new());
        Self { buckets: home_buckets(files), current: 0, bucket, waiting }
    }

    /// Adds a file. Hashes must ascend.
    pub(super) fn push(&mut self, hash: u64, number: u32, index: &mut Vec<u8>) {
        while self.current < home(hash, self.buckets) {
            self.turn(index);
        }
        let file = (mark(hash), number);
        if self.bucket.len() < SNAPSHOT_BUCKET_FILES {
            self.bucket.push(file);
        } else {
            self.waiting.push_back(file);
        }
    }

    /// Writes the last buckets.
    pub(super) fn end(mut self, index: &mut Vec<u8>) {
        while self.current < self.buckets || !self.bucket.is_empty() {
            self.turn(index);
        }
    }

    /// Writes the current bucket, and starts the next bucket with the overflow.
    fn turn(&mut self, index: &mut Vec<u8>) {
        let start = index.len();
        index.extend(self.bucket.iter().map(|(mark, _)| *mark));
        index.resize(start.saturating_add(COUNT), 0);
        index.push(self.bucket.len() as u8);
        index.push(u8::from(!self.waiting.is_empty()));
        index.extend_from_slice(&[0; 2]);
        index.extend(self.bucket.iter().flat_map(|(_, number)| number.to_le_bytes()));
        index.resize(start.saturating_add(SNAPSHOT_BUCKET_LEN), 0);
        let moved = self.waiting.len().min(SNAPSHOT_BUCKET_FILES);
        self.bucket = self.waiting.drain(..moved).collect();
        self.current = self.current.saturating_add(1);
    }
}

/// A bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket<'a>(pub(super) &'a [u8; SNAPSHOT_BUCKET_LEN]);

impl<'a> Bucket<'a> {
    /// The files that may have the given hash.
    #[inline]
    pub(super) fn candidates(self, hash: u64) -> impl Iterator<Item = u32> + 'a {
        let Self(bytes) = self;
        let (marks, rest) = bytes.split_at(COUNT);
        let count = rest.first().copied().unwrap_or_default();
        let mut alike =
            marks.iter().enumerate().fold(0_u32, |bits, (place, found)| {
                bits | u32::from(*found == mark(hash)) << place
            }) & 1_u32.wrapping_shl(count.into()).wrapping_sub(1);
        std::iter::from_fn(move || {
            (alike != 0).then(|| {
                let place = alike.trailing_zeros() as usize;
                alike &= alike.wrapping_sub(1);
                number(bytes, place)
            })
        })
    }

    /// Whether files of this bucket may be in the next bucket.
    #[inline]
    pub(super) fn goes_on(self) -> bool {
        self.0.get(GOES_ON).is_some_and(|byte| *byte != 0)
    }

    /// The number of files; too large in a damaged bucket.
    pub(super) fn count(self) -> usize {
        self.0.get(COUNT).copied().unwrap_or_default().into()
    }
}

#[inline]
fn number(bytes: &[u8; SNAPSHOT_BUCKET_LEN], place: usize) -> u32 {
    let at = NUMBERS.wrapping_add(place.wrapping_mul(4));
    let number = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    number.map_or(u32::MAX, |number| u32::from_le_bytes(*number))
}

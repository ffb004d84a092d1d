//! How a copy lies in the fast store: the bytes of the object as they are, then a checksum of each
//! page of them.
//!
//! Must hold: bytes that were checked are those of the object, at that place in it, whatever the
//! fast store made of the copy.

use std::ops::Range;

use bytes::Bytes;
use dl_format::Crc32c;

use crate::range::Span;
use crate::{ByteRange, Key};

/// Copies lie below it, and nothing else in the fast store is looked at or removed.
pub const COPIES: &str = "copies";

/// At the end of the names of copies of this form; what else lies there is of no use.
const FORM: &str = ".s";

/// Bytes of the object in one page.
pub(super) const PAGE: u64 = 4096;
const SUM: u64 = 4;

/// The name of a copy; none for a key that is too long to have one.
pub(super) fn name(key: &Key) -> Option<Key> {
    Key::new(format!("{COPIES}/{key}{FORM}")).ok()
}

/// The object of a copy.
pub(super) fn original(name: &Key) -> Option<Key> {
    let key = name.as_str().strip_prefix(COPIES)?.strip_prefix('/')?.strip_suffix(FORM)?;
    Key::new(key).ok()
}

/// The copy of an object.
pub(super) fn of(key: &Key, object: &[u8]) -> Bytes {
    let (tag, pages) = (tag(key), object.chunks(PAGE as usize));
    let mut copy = Vec::with_capacity(object.len() + pages.len() * SUM as usize);
    copy.extend_from_slice(object);
    for (number, page) in (0..).zip(pages) {
        copy.extend_from_slice(&sum(tag, number, page));
    }
    copy.into()
}

/// A page's checksum: of its bytes, and of where they belong.
fn sum(tag: u32, number: u64, page: &[u8]) -> [u8; SUM as usize] {
    (Crc32c::of(page).value() ^ tag.rotate_left(number as u32 % 32) ^ number as u32).to_le_bytes()
}

fn tag(key: &Key) -> u32 {
    Crc32c::of(key.as_str().as_bytes()).value()
}

/// Bytes of an object whose copy has `stored` bytes; none when no copy has so many.
pub(super) fn object_length(stored: u64) -> Option<u64> {
    let pages = stored.div_ceil(PAGE + SUM);
    let length = stored.checked_sub(pages * SUM)?;
    (length.div_ceil(PAGE) == pages).then_some(length)
}

/// Bytes of the copy of an object that has so many.
pub(super) fn length_of(object: u64) -> u64 {
    object.saturating_add(object.div_ceil(PAGE).saturating_mul(SUM))
}

/// Some bytes of an object that has a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    start: u64,
    end: u64,
    length: u64,
}

impl Cut {
    /// Bytes `start..end` of an object of `length` bytes; none when it ends before.
    pub(super) fn new(start: u64, end: u64, length: u64) -> Option<Self> {
        (start < end && end <= length).then_some(Self { start, end, length })
    }

    /// The numbers of the pages that hold them.
    pub(super) fn pages(self) -> Range<u64> {
        self.start / PAGE..self.end.div_ceil(PAGE)
    }

    /// What to read of the copy to check them: these pages, and their checksums.
    pub(super) fn to_check(self) -> [ByteRange; 2] {
        let Range { start, end } = self.pages();
        let pages = Span::Exact { start: start * PAGE, end: (end * PAGE).min(self.length) };
        let sums = |page| self.length + page * SUM;
        [ByteRange(pages), ByteRange(Span::Exact { start: sums(start), end: sums(end) })]
    }

    /// The bytes out of what [`to_check`](Self::to_check) says; none when any of it is damaged.
    pub(super) fn take(self, key: &Key, pages: &Bytes, sums: &[u8]) -> Option<Bytes> {
        let (numbers, tag) = (self.pages(), tag(key));
        let (whole, _) = sums.as_chunks::<{ SUM as usize }>();
        let data = pages.chunks(PAGE as usize);
        if data.len() != whole.len() || data.len() as u64 != numbers.end - numbers.start {
            return None;
        }
        let mut all = numbers.clone().zip(data).zip(whole);
        if !all.all(|((number, page), stored)| sum(tag, number, page) == *stored) {
            return None;
        }
        let skip = usize::try_from(self.start - numbers.start * PAGE).ok()?;
        let end = skip + usize::try_from(self.end - self.start).ok()?;
        (end <= pages.len()).then(|| pages.slice(skip..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_is_given_as_it_was_and_none_that_a_flipped_bit_touches() {
        let (key, other) = (Key::new("a/b").unwrap(), Key::new("a/c").unwrap());
        let page = PAGE as usize;
        for length in [1, page - 1, page, page + 1, 3 * page, 3 * page + 17] {
            let object: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            let copy = of(&key, &object);
            assert_eq!(copy[..length], object, "the bytes lie as they are");
            assert_eq!(object_length(copy.len() as u64), Some(length as u64));
            assert!(Cut::new(0, length as u64 + 1, length as u64).is_none());
            for (start, end) in [(0, 1), (0, length), (length / 2, length), (length - 1, length)] {
                let Some(cut) = Cut::new(start as u64, end as u64, length as u64) else {
                    continue;
                };
                let read = cut.to_check().map(|range| {
                    let range = range.within(copy.len() as u64).unwrap();
                    copy.slice(range.start as usize..range.end as usize)
                });
                let [pages, sums] = &read;
                assert_eq!(cut.take(&key, pages, sums).unwrap(), object[start..end]);
                assert!(cut.take(&other, pages, sums).is_none(), "the copy of another object");
                for at in [0, pages.len() / 2, pages.len() - 1] {
                    let mut rotten = pages.to_vec();
                    rotten[at] ^= 4;
                    assert!(cut.take(&key, &rotten.into(), sums).is_none(), "{length} {at}");
                }
                for at in 0..sums.len() {
                    let mut rotten = sums.to_vec();
                    rotten[at] ^= 4;
                    assert!(cut.take(&key, pages, &rotten).is_none(), "{length} {at}");
                }
                let short = pages.slice(..pages.len() - 1);
                assert!(cut.take(&key, &short, sums).is_none(), "cut off");
                assert!(cut.take(&key, pages, &sums[1..]).is_none(), "cut off");
            }
        }
    }

    #[test]
    fn pages_that_changed_places_are_damaged() {
        let key = Key::new("a").unwrap();
        let copy = of(&key, &[7; 2 * PAGE as usize]);
        let (pages, sums) = (copy.slice(..2 * PAGE as usize), copy.slice(2 * PAGE as usize..));
        let swapped = [&sums[4..], &sums[..4]].concat();
        let cut = Cut::new(0, 2 * PAGE, 2 * PAGE).unwrap();
        assert!(cut.take(&key, &pages, &sums).is_some());
        assert!(cut.take(&key, &pages, &swapped).is_none());
    }

    #[test]
    fn a_length_that_no_copy_has_is_told() {
        let lengths: Vec<u64> = (0..3 * (PAGE + SUM)).filter_map(object_length).collect();
        assert_eq!(lengths, (0..3 * PAGE).collect::<Vec<_>>());
        assert_eq!(
            [4, 5, PAGE + 5, PAGE + 8, PAGE + 9].map(object_length),
            [None, Some(1), None, None, Some(PAGE + 1)]
        );
    }
}

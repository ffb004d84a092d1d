//! How a copy lies in the fast store: in pages that each end with their checksum.
//!
//! Must hold: bytes that are not those of the object, at that place in it, are never given out,
//! whatever the fast store made of the copy.

use bytes::Bytes;
use dl_format::Crc32c;

use crate::{ByteRange, Key};

/// Copies lie below it, and nothing else in the fast store is looked at or removed.
pub(super) const COPIES: &str = "copies";

/// At the end of the names of copies of this form; what else lies there is of no use.
const FORM: &str = ".p";

/// Bytes of the object in one page.
const DATA: u64 = 4096;
const SUM: usize = 4;
const PAGE: u64 = DATA + SUM as u64;

/// The name of a copy; none for a key that is too long to have one.
pub(super) fn name(key: &Key) -> Option<Key> {
    Key::new(format!("{COPIES}/{key}{FORM}")).ok()
}

/// The object of a copy.
pub(super) fn original(name: &Key) -> Option<Key> {
    let key = name.as_str().strip_prefix(COPIES)?.strip_prefix('/')?.strip_suffix(FORM)?;
    Key::new(key).ok()
}

/// The pages of an object.
pub(super) fn pages(key: &Key, object: &[u8]) -> Bytes {
    let mut copy = Vec::with_capacity(object.len() + object.len().div_ceil(DATA as usize) * SUM);
    for (number, data) in (0u64..).zip(object.chunks(DATA as usize)) {
        copy.extend_from_slice(data);
        copy.extend_from_slice(&sum(tag(key), number, data));
    }
    copy.into()
}

/// A page's checksum: of its bytes, and of where they belong.
fn sum(tag: u32, number: u64, data: &[u8]) -> [u8; SUM] {
    (Crc32c::of(data).value() ^ tag.rotate_left(number as u32 % 32) ^ number as u32).to_le_bytes()
}

fn tag(key: &Key) -> u32 {
    Crc32c::of(key.as_str().as_bytes()).value()
}

/// Bytes of an object whose copy has `stored` bytes.
fn object_length(stored: u64) -> u64 {
    stored / PAGE * DATA + (stored % PAGE).saturating_sub(SUM as u64)
}

/// Some bytes of an object, and the pages of its copy that hold them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    start: u64,
    end: u64,
    stored: u64,
}

impl Cut {
    /// Bytes `start..end` of an object whose copy has `stored` bytes; none when it ends before.
    pub(super) fn new(start: u64, end: u64, stored: u64) -> Option<Self> {
        (start < end && end <= object_length(stored)).then_some(Self { start, end, stored })
    }

    fn first_page(self) -> u64 {
        self.start / DATA
    }

    /// What to read of the copy.
    pub(super) fn range(self) -> Option<ByteRange> {
        let end = (self.end.div_ceil(DATA) * PAGE).min(self.stored);
        ByteRange::exact(self.first_page() * PAGE, end).ok()
    }

    /// The bytes out of the pages; none when one of them is damaged.
    pub(super) fn take(self, key: &Key, pages: &Bytes) -> Option<Bytes> {
        let (tag, first) = (tag(key), self.first_page());
        let length = usize::try_from(self.end - self.start).ok()?;
        let mut skip = usize::try_from(self.start - first * DATA).ok()?;
        if pages.len() <= PAGE as usize {
            check(tag, first, pages)?;
            return (skip + length + SUM <= pages.len()).then(|| pages.slice(skip..skip + length));
        }
        let mut bytes = Vec::with_capacity(length);
        for (number, page) in (first..).zip(pages.chunks(PAGE as usize)) {
            let data = check(tag, number, page)?;
            let rest = length - bytes.len();
            let data = data.get(skip..)?;
            bytes.extend_from_slice(data.get(..rest).unwrap_or(data));
            skip = 0;
        }
        (bytes.len() == length).then(|| bytes.into())
    }
}

/// The data of a page that is what it was.
fn check(tag: u32, number: u64, page: &[u8]) -> Option<&[u8]> {
    let (data, stored) = page.split_last_chunk::<SUM>()?;
    (sum(tag, number, data) == *stored).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_is_given_as_it_was_and_none_that_a_flipped_bit_touches() {
        let key = Key::new("a/b").unwrap();
        let data = DATA as usize;
        for length in [1, data - 1, data, data + 1, 3 * data, 3 * data + 17] {
            let object: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            let copy = pages(&key, &object);
            assert_eq!(object_length(copy.len() as u64), length as u64);
            assert!(Cut::new(0, length as u64 + 1, copy.len() as u64).is_none());
            for (start, end) in [(0, 1), (0, length), (length / 2, length), (length - 1, length)] {
                let Some(cut) = Cut::new(start as u64, end as u64, copy.len() as u64) else {
                    continue;
                };
                let read = cut.range().unwrap().within(copy.len() as u64).unwrap();
                let read = copy.slice(read.start as usize..read.end as usize);
                assert_eq!(cut.take(&key, &read).unwrap(), object[start..end]);
                let other = Key::new("a/c").unwrap();
                assert!(cut.take(&other, &read).is_none(), "the copy of another object");
                for at in [0, read.len() / 2, read.len() - 1] {
                    let mut rotten = read.to_vec();
                    rotten[at] ^= 4;
                    assert!(cut.take(&key, &rotten.into()).is_none(), "{length} {start} {at}");
                }
                assert!(cut.take(&key, &read.slice(..read.len() - 1)).is_none(), "cut off");
            }
        }
    }

    #[test]
    fn pages_that_changed_places_are_damaged() {
        let key = Key::new("a").unwrap();
        let copy = pages(&key, &[7; 2 * DATA as usize]);
        let (first, second) = copy.split_at(PAGE as usize);
        let swapped: Bytes = [second, first].concat().into();
        let cut = Cut::new(0, 2 * DATA, copy.len() as u64).unwrap();
        assert!(cut.take(&key, &copy).is_some() && cut.take(&key, &swapped).is_none());
    }
}

//! The paths of a snapshot's files, in blocks of sixteen: the first path in full, each further path
//! as its difference from the path before.

use crate::error::DecodeError;
use crate::layout::PATH_MAX;

use crate::layout::SNAPSHOT_BLOCK_FILES;

/// Writes paths in the order of the files' numbers.
#[derive(Debug, Default)]
pub(super) struct NameWriter {
    previous: Vec<u8>,
    files: usize,
    written: u64,
}

impl NameWriter {
    /// Adds a path, and the start of its block for the first path of a block.
    pub(super) fn push(&mut self, path: &[u8], names: &mut Vec<u8>, blocks: &mut Vec<u8>) {
        let before = names.len();
        let shared = if self.files.is_multiple_of(SNAPSHOT_BLOCK_FILES) {
            blocks.extend_from_slice(&self.written.to_le_bytes());
            0
        } else {
            let shared = common(&self.previous, path);
            varint(shared, names);
            shared
        };
        let rest = path.get(shared..).unwrap_or_default();
        varint(rest.len(), names);
        names.extend_from_slice(rest);
        self.previous.clear();
        self.previous.extend_from_slice(path);
        self.files = self.files.saturating_add(1);
        self.written = self.written.saturating_add(names.len().saturating_sub(before) as u64);
    }

    /// Adds the end of the last block.
    pub(super) fn end(&self, blocks: &mut Vec<u8>) {
        blocks.extend_from_slice(&self.written.to_le_bytes());
    }
}

/// The length of the common prefix of two paths.
pub(super) fn common(one: &[u8], other: &[u8]) -> usize {
    let (words, _) = one.as_chunks::<8>();
    let (others, _) = other.as_chunks::<8>();
    let mut alike = 0_usize;
    for (word, other) in words.iter().zip(others) {
        let differs = u64::from_le_bytes(*word) ^ u64::from_le_bytes(*other);
        if differs != 0 {
            return alike.saturating_add((differs.trailing_zeros() / 8) as usize);
        }
        alike = alike.saturating_add(8);
    }
    let rest = one.get(alike..).unwrap_or_default().iter();
    let others = other.get(alike..).unwrap_or_default();
    alike.saturating_add(rest.zip(others).take_while(|(a, b)| a == b).count())
}

fn varint(number: usize, bytes: &mut Vec<u8>) {
    let mut left = number;
    while left >= 0x80 {
        bytes.push((left & 0x7F) as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
}

/// A stored name: the length of its common prefix with the name before, and the rest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coded<'a> {
    pub(super) shared: usize,
    pub(super) rest: &'a [u8],
}

impl Coded<'_> {
    pub(super) fn length(&self) -> usize {
        self.shared.saturating_add(self.rest.len())
    }
}

/// Reads the names of one block.
#[derive(Debug, Clone)]
pub(super) struct BlockReader<'a> {
    bytes: &'a [u8],
    /// The length of the name before; none before the first.
    length: Option<usize>,
}

impl<'a> BlockReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, length: None }
    }

    /// Reads the end of a block, behind a path of the given length.
    pub(super) fn behind(bytes: &'a [u8], length: usize) -> Self {
        Self { bytes, length: Some(length) }
    }

    /// Remaining bytes of the block.
    pub(super) fn left(&self) -> usize {
        self.bytes.len()
    }

    /// The next name, or its problem.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Coded<'a>, DecodeError> {
        let shared = match self.length {
            None => 0,
            Some(length) => {
                let shared = self.varint()?;
                if shared > length {
                    return Err(wrong("shares more than there is"));
                }
                shared
            }
        };
        let length = self.varint()?;
        let (rest, others) =
            self.bytes.split_at_checked(length).ok_or(wrong("the block ends within a name"))?;
        self.bytes = others;
        let coded = Coded { shared, rest };
        if coded.length() > PATH_MAX {
            return Err(wrong("a path has at most 4096 bytes"));
        }
        self.length = Some(coded.length());
        Ok(coded)
    }

    #[inline]
    fn varint(&mut self) -> Result<usize, DecodeError> {
        let (first, rest) = self.bytes.split_first().ok_or(wrong("the block ends"))?;
        self.bytes = rest;
        if *first < 0x80 {
            return Ok(usize::from(*first));
        }
        let (second, rest) = self.bytes.split_first().ok_or(wrong("the block ends"))?;
        self.bytes = rest;
        if *second >= 0x80 {
            return Err(wrong("a number beyond what a path can have"));
        }
        Ok(usize::from(*first & 0x7F) | usize::from(*second).wrapping_shl(7))
    }
}

/// The caller knows the snapshot and adds the offset of the block.
pub(super) fn wrong(problem: &'static str) -> DecodeError {
    DecodeError::new("snapshot names", 0, problem)
}

/// Whether the name at a position of a block is `path`. No name is decoded: the length of each
/// name's common prefix with `path` suffices.
#[inline]
pub(super) fn is_at(block: &[u8], place: usize, path: &[u8]) -> Result<bool, DecodeError> {
    let mut reader = BlockReader::new(block);
    let mut alike = 0;
    for before in 0..=place {
        let coded = reader.next()?;
        if coded.shared <= alike {
            let wanted = path.get(coded.shared..).unwrap_or_default();
            alike = coded.shared.saturating_add(common(coded.rest, wanted));
        }
        if before == place {
            return Ok(coded.length() == path.len() && alike == path.len());
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_at_their_places_and_nowhere_else() {
        let long = [b'x'; 300];
        let paths: Vec<&[u8]> =
            vec![b"a/b1", b"a/b2", b"a/b22", b"a/b", b"z", &long, b"xxx", b"xxxy", b"xxx/z"];
        let (mut names, mut blocks, mut writer) = (Vec::new(), Vec::new(), NameWriter::default());
        paths.iter().for_each(|path| writer.push(path, &mut names, &mut blocks));
        for (place, _) in paths.iter().enumerate() {
            for (other, path) in paths.iter().enumerate() {
                assert_eq!(is_at(&names, place, path), Ok(place == other), "{place} {other}");
            }
            for strange in [&b""[..], b"a", b"a/b222", b"xx", b"xxxz"] {
                assert_eq!(is_at(&names, place, strange), Ok(false), "{place}");
            }
        }
        assert!(is_at(&names, paths.len(), b"a").is_err());
    }

    #[test]
    fn common_beginnings_are_counted_to_the_byte() {
        let text = b"0123456789abcdef0123456789";
        for length in 0..text.len() {
            let mut other = text[..length].to_vec();
            assert_eq!(common(text, &other), length);
            other.extend(b"~~~~~~~~~~~");
            assert_eq!(common(text, &other), length);
        }
    }
}

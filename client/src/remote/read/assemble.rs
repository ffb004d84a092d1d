//! From the pieces of an answer to whole files.
//!
//! Must hold: what comes out is complete and, when it is a whole file, has the checksum that was
//! written with it.

use bytes::Bytes;
use dl_format::Crc32c;
use dl_proto::ReadPiece;

use crate::error::Kind;
use crate::remote::failure::Failure;
use crate::remote::read::wanted::Wanted;

/// A slice of less than one part in so many of its message is copied out of it, so that a small
/// file doesn't keep a large message alive.
const SLICE_SHARE: usize = 4;

/// A file that is complete, or why it can't be had; by its number among the wanted.
pub(super) type Settled = (usize, Result<Bytes, Failure>);

/// The files of one answer, as far as they are there.
#[derive(Debug)]
pub(super) struct Assembly<'a> {
    wanted: &'a [Wanted<'a>],
    /// Which of the wanted were asked for, in the order in which they were.
    asked: &'a [usize],
    /// What came of the items in several pieces.
    partial: Vec<Vec<u8>>,
}

impl<'a> Assembly<'a> {
    pub(super) fn new(wanted: &'a [Wanted<'a>], asked: &'a [usize]) -> Self {
        Self { wanted, asked, partial: Vec::new() }
    }

    /// Takes the next piece; gives the number of the wanted file with its bytes when it is
    /// complete, or why it can't be had. `message` is the number of bytes that came with it.
    pub(super) fn add(
        &mut self,
        piece: ReadPiece,
        message: usize,
    ) -> Result<Option<Settled>, Failure> {
        let item = piece.item as usize;
        let found =
            self.asked.get(item).and_then(|number| Some((*number, self.wanted.get(*number)?)));
        let Some((number, wanted)) = found else {
            let problem = format!("an answer that makes no sense: item {item} was not asked for");
            return Err(Failure::new(Kind::Internal, problem));
        };
        let data = match piece.data {
            Ok(data) => data,
            Err((kind, problem)) => {
                return Ok(Some((number, Err(Failure::new(kind.into(), problem)))));
            }
        };
        let begun = self.partial.get_mut(item).filter(|begun| !begun.is_empty());
        let bytes = match begun {
            None if piece.last && data.len() >= message / SLICE_SHARE => data,
            None if piece.last => Bytes::copy_from_slice(&data),
            None => {
                self.begin(item, wanted, &data);
                return Ok(None);
            }
            Some(begun) => {
                begun.extend_from_slice(&data);
                if !piece.last {
                    return Ok(None);
                }
                std::mem::take(begun).into()
            }
        };
        Ok(Some((number, verify(wanted, bytes, piece.length, piece.crc))))
    }

    fn begin(&mut self, item: usize, wanted: &Wanted<'_>, data: &[u8]) {
        if self.partial.is_empty() {
            self.partial.resize_with(self.asked.len(), Vec::new);
        }
        if let Some(begun) = self.partial.get_mut(item) {
            begun.reserve_exact(wanted.expected().unwrap_or(data.len()));
            begun.extend_from_slice(data);
        }
    }
}

/// `length` and `crc` are what the server says of the whole file.
fn verify(wanted: &Wanted<'_>, bytes: Bytes, length: u64, crc: Crc32c) -> Result<Bytes, Failure> {
    // What was said when the file was looked up holds.
    let (length, crc) = match &wanted.item.record {
        Some(record) => (record.length, record.crc),
        None => (length, crc),
    };
    let expected = length.saturating_sub(wanted.offset).min(wanted.length.unwrap_or(u64::MAX));
    if bytes.len() as u64 != expected {
        let problem = format!("{} bytes came instead of {expected}", bytes.len());
        return Err(Failure::new(Kind::Corrupt, problem));
    }
    if expected == length && Crc32c::of(&bytes) != crc {
        return Err(Failure::new(Kind::Corrupt, "its checksum does not match its bytes"));
    }
    Ok(bytes)
}

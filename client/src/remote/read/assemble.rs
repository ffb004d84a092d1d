//! Assembly of files from the pieces of an answer.
//!
//! Must hold: a result is complete, and a whole file has its stored checksum. A range comes with
//! the ends of a large file's parts, so the caller can verify the parts.

use bytes::Bytes;
use dl_format::{Crc32c, Extent};
use dl_proto::ReadPiece;

use crate::error::Kind;
use crate::remote::failure::{DAMAGED, Failure};
use crate::remote::read::runs::Run;
use crate::remote::read::wanted::Wanted;

/// The parts of a large file that end in a range, with their ends.
pub(super) type Extents = Vec<(usize, Extent)>;

/// The bytes of a file or a range, with the parts that end there.
pub(super) type Received = (Bytes, Extents);

/// The files of an answer in progress.
#[derive(Debug)]
pub(super) struct Assembly<'a> {
    wanted: &'a [Wanted<'a>],
    /// The requested files, in the order of the request.
    asked: &'a [usize],
    runs: &'a [Run],
    /// The received bytes of items in several pieces.
    partial: Vec<(Vec<u8>, Extents)>,
}

impl<'a> Assembly<'a> {
    pub(super) fn new(wanted: &'a [Wanted<'a>], asked: &'a [usize], runs: &'a [Run]) -> Self {
        Self { wanted, asked, runs, partial: Vec::new() }
    }

    /// Takes the next piece; settles each complete file, by its index in the wanted files, with its
    /// bytes or the error.
    pub(super) fn add(
        &mut self,
        piece: ReadPiece,
        mut record: impl FnMut(usize, Result<Received, Failure>),
    ) -> Result<(), Failure> {
        let item = piece.item as usize;
        let found = self.runs.get(item).and_then(|run| {
            let files = self.asked.get(run.files.clone())?;
            Some((run, files, self.wanted.get(*files.first()?)?))
        });
        let Some((run, files, first)) = found else {
            let problem = format!("the answer makes no sense: item {item} was not requested");
            return Err(Failure::new(Kind::Internal, problem));
        };
        let data = match piece.data {
            Ok(data) => data,
            Err((kind, problem)) => {
                let failure = Failure::of_object(kind.into(), problem);
                files.iter().for_each(|number| record(*number, Err(failure.clone())));
                return Ok(());
            }
        };
        let ended = |end| piece.extent.map(|extent| (end, extent));
        let is_begun = self.partial.get(item).is_some_and(|(begun, _)| !begun.is_empty());
        let (bytes, extents) = if piece.last && !is_begun {
            let extents = ended(data.len()).into_iter().collect();
            (data, extents)
        } else {
            if self.partial.is_empty() {
                self.partial.resize_with(self.runs.len(), Default::default);
            }
            let Some((begun, extents)) = self.partial.get_mut(item) else { return Ok(()) };
            if !is_begun {
                begun.reserve_exact(run.expected(first).unwrap_or(data.len()));
            }
            begun.extend_from_slice(&data);
            extents.extend(ended(begun.len()));
            if !piece.last {
                return Ok(());
            }
            (std::mem::take(begun).into(), std::mem::take(extents))
        };
        for number in files {
            let Some(wanted) = self.wanted.get(*number) else { continue };
            let received = match run.part(wanted) {
                None => (bytes.clone(), extents.clone()),
                // In a short answer, only the last files are incomplete.
                Some(part) => {
                    let part = part.start.min(bytes.len())..part.end.min(bytes.len());
                    (bytes.slice(part), Extents::new())
                }
            };
            record(*number, verify(wanted, received, piece.length, piece.crc));
        }
        Ok(())
    }

    /// The received bytes of an incomplete item, with the number of its first file.
    pub(super) fn begun(&self, item: usize) -> Option<(usize, usize)> {
        let (bytes, _) = self.partial.get(item).filter(|(bytes, _)| !bytes.is_empty())?;
        Some((*self.asked.get(self.runs.get(item)?.files.start)?, bytes.len()))
    }
}

/// `length` and `crc` describe the whole file, by the server.
fn verify(
    wanted: &Wanted<'_>,
    received: Received,
    length: u64,
    crc: Crc32c,
) -> Result<Received, Failure> {
    let (bytes, extents) = &received;
    // An earlier record takes precedence.
    let (length, crc) = match &wanted.item.record {
        Some(record) => (record.length, record.crc),
        None => (length, crc),
    };
    let expected = length.saturating_sub(wanted.offset).min(wanted.length.unwrap_or(u64::MAX));
    if bytes.len() as u64 != expected {
        let problem = format!("{} bytes arrived instead of {expected}", bytes.len());
        return Err(Failure::new(Kind::Corrupt, problem));
    }
    if expected == length && Crc32c::of(bytes) != crc {
        return Err(damage(bytes, extents));
    }
    Ok(received)
}

/// The damaged part of a file; the last chunk if all named parts are good.
fn damage(bytes: &Bytes, extents: &Extents) -> Failure {
    let is_damaged = |(end, extent): &&(usize, Extent)| {
        let start = end.checked_sub(extent.length as usize);
        start.and_then(|start| bytes.get(start..*end)).map(Crc32c::of) != Some(extent.crc)
    };
    match extents.iter().find(is_damaged) {
        Some((_, extent)) => Failure::damaged(extent.part),
        None => Failure::new(Kind::Corrupt, DAMAGED),
    }
}

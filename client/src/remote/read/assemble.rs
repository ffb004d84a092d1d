//! From the pieces of an answer to whole files.
//!
//! Must hold: what comes out is complete and, when it is a whole file, has the checksum that was
//! written with it. Of a range it is told which parts of a large file end in it, for who checks them.

use bytes::Bytes;
use dl_format::{Crc32c, Extent};
use dl_proto::ReadPiece;

use crate::error::Kind;
use crate::remote::failure::{DAMAGED, Failure};
use crate::remote::read::runs::Run;
use crate::remote::read::wanted::Wanted;

/// The parts of a large file that end in some of its bytes, each with where in them it does.
pub(super) type Extents = Vec<(usize, Extent)>;

/// The bytes of a file or a range, and the parts that end in them.
pub(super) type Came = (Bytes, Extents);

/// The files of one answer, as far as they are there.
#[derive(Debug)]
pub(super) struct Assembly<'a> {
    wanted: &'a [Wanted<'a>],
    /// Which of the wanted were asked for, in the order in which they were.
    asked: &'a [usize],
    /// The items of the request.
    runs: &'a [Run],
    /// What came of the items in several pieces.
    partial: Vec<(Vec<u8>, Extents)>,
}

impl<'a> Assembly<'a> {
    pub(super) fn new(wanted: &'a [Wanted<'a>], asked: &'a [usize], runs: &'a [Run]) -> Self {
        Self { wanted, asked, runs, partial: Vec::new() }
    }

    /// Takes the next piece; settles the files that are complete with it, by their numbers among
    /// the wanted, with their bytes or why they can't be had.
    pub(super) fn add(
        &mut self,
        piece: ReadPiece,
        mut settle: impl FnMut(usize, Result<Came, Failure>),
    ) -> Result<(), Failure> {
        let item = piece.item as usize;
        let found = self.runs.get(item).and_then(|run| {
            let files = self.asked.get(run.files.clone())?;
            Some((run, files, self.wanted.get(*files.first()?)?))
        });
        let Some((run, files, first)) = found else {
            let problem = format!("an answer that makes no sense: item {item} was not asked for");
            return Err(Failure::new(Kind::Internal, problem));
        };
        let data = match piece.data {
            Ok(data) => data,
            Err((kind, problem)) => {
                let failure = Failure::of_object(kind.into(), problem);
                files.iter().for_each(|number| settle(*number, Err(failure.clone())));
                return Ok(());
            }
        };
        let ended = |end| piece.extent.map(|extent| (end, extent));
        let begun = self.partial.get_mut(item).filter(|(begun, _)| !begun.is_empty());
        let (bytes, extents) = match begun {
            None if piece.last => {
                let extents = ended(data.len()).into_iter().collect();
                (data, extents)
            }
            None => {
                self.begin(item, run.expected(first), &data, ended(data.len()));
                return Ok(());
            }
            Some((begun, extents)) => {
                begun.extend_from_slice(&data);
                extents.extend(ended(begun.len()));
                if !piece.last {
                    return Ok(());
                }
                (std::mem::take(begun).into(), std::mem::take(extents))
            }
        };
        for number in files {
            let Some(wanted) = self.wanted.get(*number) else { continue };
            let file = match run.part(wanted) {
                None => {
                    let came = (bytes.clone(), extents.clone());
                    verify(wanted, came, piece.length, piece.crc)
                }
                // Of one that came short, what is missing is no file's fault but the last ones'.
                Some(part) => {
                    let part = part.start.min(bytes.len())..part.end.min(bytes.len());
                    let came = (bytes.slice(part), Extents::new());
                    verify(wanted, came, piece.length, piece.crc)
                }
            };
            settle(*number, file);
        }
        Ok(())
    }

    /// How many bytes there are of an item that is not whole, by the number of its first file.
    pub(super) fn begun(&self, item: usize) -> Option<(usize, usize)> {
        let (bytes, _) = self.partial.get(item).filter(|(bytes, _)| !bytes.is_empty())?;
        Some((*self.asked.get(self.runs.get(item)?.files.start)?, bytes.len()))
    }

    fn begin(
        &mut self,
        item: usize,
        expected: Option<usize>,
        data: &[u8],
        ended: Option<(usize, Extent)>,
    ) {
        if self.partial.is_empty() {
            self.partial.resize_with(self.runs.len(), Default::default);
        }
        if let Some((begun, extents)) = self.partial.get_mut(item) {
            begun.reserve_exact(expected.unwrap_or(data.len()));
            begun.extend_from_slice(data);
            extents.extend(ended);
        }
    }
}

/// `length` and `crc` are what the server says of the whole file.
fn verify(wanted: &Wanted<'_>, came: Came, length: u64, crc: Crc32c) -> Result<Came, Failure> {
    let (bytes, extents) = &came;
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
    if expected == length && Crc32c::of(bytes) != crc {
        return Err(damage(bytes, extents));
    }
    Ok(came)
}

/// Which part of a file is damaged; when it is none of them, its last chunk.
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

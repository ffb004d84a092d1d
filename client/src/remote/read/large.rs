//! Reads of files of any size, piece by piece.
//!
//! Must hold: memory is bounded. All pieces belong to the same version. No byte is delivered before
//! the checksum of its part was verified.

use std::io::Write;

use bytes::Bytes;
use dl_format::{ChunkId, Crc32c, FileRecord};
use futures::{StreamExt, stream};

use crate::error::{Error, Kind};
use crate::remote::dataset::RemoteDataset;
use crate::remote::failure::Failure;
use crate::remote::read::ReadItem;
use crate::remote::read::batch::{read_one, read_range};
use crate::remote::read::wanted::Wanted;
use crate::remote::session::Session;

/// Bytes of a request, at most; a shorter file is verified as a whole.
const WINDOW: u64 = 8 << 20;
/// Windows requested ahead of the writing.
const WINDOWS_AHEAD: usize = 2;

impl RemoteDataset {
    /// Reads a file of any size with bounded memory, by the record of `item`; gives its length in
    /// bytes.
    pub(crate) fn read_to(
        &self,
        item: &ReadItem,
        record: FileRecord,
        writer: &mut dyn Write,
    ) -> Result<u64, Error> {
        let session = self.session()?;
        let mut write = |bytes: &[u8]| {
            let written = writer.write_all(bytes);
            written.map_err(|why| Error::new(Kind::Local, "write", self.subject(item), why))
        };
        if record.length <= WINDOW {
            let whole = Wanted { item, offset: 0, length: None };
            write(&session.wait(read_one(&session, self.info(), whole))?)?;
            return Ok(record.length);
        }
        let shape = self.info().shape;
        let windows = windows(record.length, shape.part_length().into()).map(|(offset, length)| {
            let wanted = Wanted { item, offset, length: Some(length) };
            read_range(&session, self.info(), wanted)
        });
        let mut windows = Box::pin(stream::iter(windows).buffered(WINDOWS_AHEAD));
        let mut part = Part::default();
        while let Some(window) = session.wait(windows.next()) {
            let (bytes, extents) = window?;
            let mut start = 0;
            for (end, extent) in extents {
                part.push(bytes.slice(start..end));
                start = end;
                if part.length != u64::from(extent.length) {
                    let why = "the answer makes no sense: the parts are not adjacent";
                    return Err(self.failed(item, Failure::new(Kind::Internal, why)));
                }
                let is_whole = |crc| crc == extent.crc;
                let crc = self.checked(&session, item, &mut part, is_whole, extent.part)?;
                part.end(crc, &mut write)?;
            }
            part.push(bytes.slice(start..));
            if part.length > shape.size().into() {
                let why = "the servers do not name the ends of its parts; update servers of older versions";
                return Err(self.failed(item, Failure::new(Kind::Internal, why)));
            }
        }
        // The last part lies in the chunk with the list of the other parts.
        let (before, length) = (part.before, part.length);
        let is_whole = |crc| before.then(crc, length) == record.crc;
        let crc = self.checked(&session, item, &mut part, is_whole, record.holder.chunk)?;
        part.end(crc, &mut write)?;
        Ok(record.length)
    }

    /// Verifies a part in `chunk`, and gives its checksum. A damaged part is read once more, for
    /// the damage may be in transfer or in a copy.
    fn checked(
        &self,
        session: &Session,
        item: &ReadItem,
        part: &mut Part,
        is_whole: impl Fn(Crc32c) -> bool,
        chunk: ChunkId,
    ) -> Result<Crc32c, Error> {
        let received = part.crc();
        if is_whole(received) {
            return Ok(received);
        }
        let again = ReadItem { pass_copies: true, ..item.clone() };
        let wanted = Wanted { item: &again, offset: part.start, length: Some(part.length) };
        part.pieces = vec![session.wait(read_one(session, self.info(), wanted))?];
        let received = part.crc();
        if is_whole(received) {
            Ok(received)
        } else {
            Err(self.failed(item, Failure::damaged(chunk)))
        }
    }

    fn failed(&self, item: &ReadItem, why: Failure) -> Error {
        Error::new(why.kind, "read", self.subject(item), why)
    }

    fn subject(&self, item: &ReadItem) -> String {
        format!("{}/{}", self.address(), item.path)
    }
}

/// The bytes of the current part, behind verified parts.
#[derive(Debug, Default)]
struct Part {
    /// The offset of the part in the file.
    start: u64,
    /// The checksum of all earlier parts.
    before: Crc32c,
    pieces: Vec<Bytes>,
    length: u64,
}

impl Part {
    fn push(&mut self, piece: Bytes) {
        self.length = self.length.saturating_add(piece.len() as u64);
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }

    fn crc(&self) -> Crc32c {
        let add = |crc: Crc32c, piece: &Bytes| crc.then(Crc32c::of(piece), piece.len() as u64);
        self.pieces.iter().fold(Crc32c::default(), add)
    }

    /// Delivers the part with the checksum `crc`, and begins the next part.
    fn end(
        &mut self,
        crc: Crc32c,
        write: &mut impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let before = self.before.then(crc, self.length);
        let start = self.start.saturating_add(self.length);
        let Self { pieces, .. } =
            std::mem::replace(self, Self { start, before, ..Self::default() });
        pieces.iter().try_for_each(|piece| write(piece))
    }
}

/// The ranges of the file, in order. Each but the last holds whole parts of the given length, as
/// many as fit into a window.
fn windows(length: u64, part_length: u64) -> impl Iterator<Item = (u64, u64)> {
    let parts = WINDOW.checked_div(part_length).unwrap_or_default();
    let window = if parts > 0 { parts * part_length } else { WINDOW };
    let mut offset = 0;
    std::iter::from_fn(move || {
        let (start, next) = (offset, window.min(length.saturating_sub(offset)));
        offset = start.saturating_add(next);
        (next > 0).then_some((start, next))
    })
}

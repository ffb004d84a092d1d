//! Files too large for one chunk: first parts, then the chunk with their list, which publishes the
//! file in one step.
//!
//! Must hold: the last chunk is sent only after the acknowledgement of all parts.

use std::io::Read;
use std::sync::mpsc::{self, Sender, TryRecvError};

use dl_format::layout::{EXTENT_LEN, HEADER_MAX, PATH_MAX};
use dl_format::{Attributes, Extent, FilePath, PackError, Sealed};

use crate::error::{Error, Kind};
use crate::remote::writer::Writer;
use crate::remote::writer::ledger::{Ledger, Token};

/// No header has room for the list of more parts.
const PARTS_MAX: u64 = ((HEADER_MAX - PATH_MAX) / EXTENT_LEN) as u64;

/// The reading of a file. The drop gives the file up unless a chunk names it, also after a panic of
/// the caller's reader.
struct Reading<'a> {
    ledger: &'a Ledger,
    token: Option<Token>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            // The caller gets the error now, so a flush need not report the file.
            self.ledger.record(token, Ok((0, 0)));
        }
    }
}

impl Writer {
    /// Writes a file of any size within the memory of the chunks in flight. The call returns after
    /// the acknowledgement of the parts; the next flush acknowledges the file.
    pub(super) fn put_large(
        &self,
        path: &FilePath,
        attributes: Attributes,
        length: u64,
        reader: &mut dyn Read,
    ) -> Result<(), Error> {
        if length / u64::from(self.shape.part_length()) > PARTS_MAX {
            return Err(self.error(Kind::Invalid, path, PackError::TooManyParts));
        }
        self.await_path(path);
        let token = self.ledger.begin_reading(path)?;
        let mut reading = Reading { ledger: &self.ledger, token: Some(token) };
        self.put_parts(path, attributes, length, reader, token)?;
        reading.token = None;
        Ok(())
    }

    fn put_parts(
        &self,
        path: &FilePath,
        attributes: Attributes,
        length: u64,
        reader: &mut dyn Read,
        token: Token,
    ) -> Result<(), Error> {
        let part_length = u64::from(self.shape.part_length());
        let (done, results) = mpsc::channel();
        let mut extents = Vec::new();
        let (mut buffer, mut rest) = (Vec::new(), length);
        let chunk = loop {
            let data = self.fill(path, &mut buffer, rest.min(part_length), reader)?;
            rest = rest.saturating_sub(data.len() as u64);
            if rest == 0 {
                let mut chunk = self.fresh_chunk();
                match chunk.append_tail(path, attributes, extents.clone(), data) {
                    Ok(()) => break chunk,
                    // Such data becomes another part, and the chunk holds only the list.
                    Err(PackError::TooLarge) if !data.is_empty() => {}
                    Err(why) => return Err(self.error(Kind::Invalid, path, why)),
                }
            }
            extents.push(self.send_part(path, data, &done)?);
            match results.try_recv() {
                Ok(result) => result?,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
        };
        drop(done);
        for result in results {
            result?;
        }
        let token = self.ledger.end_reading(token);
        self.send_chunk(token, chunk, (1, length));
        Ok(())
    }

    fn send_part(
        &self,
        path: &FilePath,
        data: &[u8],
        done: &Sender<Result<(), Error>>,
    ) -> Result<Extent, Error> {
        let in_flight = self.ledger.begin_sending()?;
        let id = self.session.process.next_id();
        let (sealed, extent) = Sealed::part(self.shape, id, self.dataset, data)
            .map_err(|why| self.error(Kind::Invalid, path, why))?;
        let done = done.clone();
        self.send(in_flight, id, sealed.into_parts().0.into(), move |result| {
            // After a failure, no thread waits for the result.
            drop(done.send(result));
        });
        Ok(extent)
    }
}

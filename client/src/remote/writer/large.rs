//! Files that don't fit into one chunk: parts first, then the chunk that names them, which
//! publishes the file in one step.
//!
//! Must hold: the last chunk is sent when all parts are acknowledged, never before.

use std::io::Read;
use std::sync::mpsc::{self, Sender, TryRecvError};

use dl_format::layout::{EXTENT_LEN, HEADER_MAX, PATH_MAX};
use dl_format::{Attributes, Extent, FilePath, PackError, Sealed};

use crate::error::{Error, Kind};
use crate::remote::writer::Writer;
use crate::remote::writer::ledger::{Ledger, Token};

/// More parts than this fit no header, whatever else is in it.
const PARTS_MAX: u64 = ((HEADER_MAX - PATH_MAX) / EXTENT_LEN) as u64;

/// A file that is given up unless it gets a chunk, also where the caller's reader panics.
struct Reading<'a> {
    ledger: &'a Ledger,
    token: Option<Token>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            // The caller hears of it now, so the flush need not tell it again.
            self.ledger.settle(token, Ok((0, 0)));
        }
    }
}

impl Writer {
    /// Writes a file of any size with the memory of the chunks under way. The parts are
    /// acknowledged when it returns, the file itself by the next flush.
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
        let (landed, landings) = mpsc::channel();
        let mut extents = Vec::new();
        let (mut buffer, mut rest) = (Vec::new(), length);
        let chunk = loop {
            let data = self.fill(path, &mut buffer, rest.min(part_length), reader)?;
            rest = rest.saturating_sub(data.len() as u64);
            if rest == 0 {
                let mut chunk = self.fresh_chunk();
                match chunk.append_tail(path, attributes, extents.clone(), data) {
                    Ok(()) => break chunk,
                    // Then it is a part as the others, and the chunk holds only the list.
                    Err(PackError::TooLarge) if !data.is_empty() => {}
                    Err(why) => return Err(self.error(Kind::Invalid, path, why)),
                }
            }
            extents.push(self.send_part(path, data, &landed)?);
            match landings.try_recv() {
                Ok(became) => became?,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
        };
        drop(landed);
        for became in landings {
            became?;
        }
        let token = self.ledger.end_reading(token);
        self.send_chunk(token, chunk, (1, length));
        Ok(())
    }

    fn send_part(
        &self,
        path: &FilePath,
        data: &[u8],
        landed: &Sender<Result<(), Error>>,
    ) -> Result<Extent, Error> {
        let under_way = self.ledger.begin_sending()?;
        let id = self.session.process.next_id();
        let (sealed, extent) = Sealed::part(self.shape, id, self.dataset, data)
            .map_err(|why| self.error(Kind::Invalid, path, why))?;
        let landed = landed.clone();
        self.send(under_way, id, sealed.into_parts().0.into(), move |became| {
            // Nobody listens when the file was given up.
            drop(landed.send(became));
        });
        Ok(extent)
    }
}

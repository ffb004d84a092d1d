//! Files of any size, read piece by piece.
//!
//! Must hold: memory is bounded whatever the file's size; all pieces are of one version.

use std::io::Write;

use dl_format::{Crc32c, FileRecord};
use dl_proto::StatItem;
use futures::{StreamExt, stream};

use crate::error::{Error, Kind};
use crate::remote::dataset::Dataset;
use crate::remote::failure::Failure;
use crate::remote::read::ReadItem;
use crate::remote::read::batch::read_one;
use crate::remote::read::wanted::Wanted;

/// Bytes asked for at once. Files up to this size are verified before a byte is handed over.
const WINDOW: u64 = 8 << 20;
/// So that the next comes while one is written.
const WINDOWS_AHEAD: usize = 2;

impl Dataset {
    /// Reads a file of any size with bounded memory; gives its length in bytes. When it fails,
    /// what was written is the beginning of the file, or, after
    /// [`Kind::Corrupt`], bytes not to be trusted.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`Kind::Local`] when `writer` fails.
    pub fn read_to(&self, item: impl Into<ReadItem>, writer: &mut dyn Write) -> Result<u64, Error> {
        let mut item = item.into();
        let record = match &item.record {
            Some(record) => *record,
            None => self.find(&item)?,
        };
        item.record = Some(record);
        let session = self.session()?;
        let windows = windows(record.length).map(|(offset, length)| {
            let wanted = Wanted { item: &item, offset, length: Some(length) };
            read_one(&session, self.info(), wanted)
        });
        let mut windows = Box::pin(stream::iter(windows).buffered(WINDOWS_AHEAD));
        let mut crc = None;
        while let Some(window) = session.wait(windows.next()) {
            let bytes = window?;
            let own = Crc32c::of(&bytes);
            crc = Some(crc.map_or(own, |crc: Crc32c| crc.then(own, bytes.len() as u64)));
            writer
                .write_all(&bytes)
                .map_err(|why| Error::new(Kind::Local, "write", self.subject(&item), why))?;
        }
        if crc.unwrap_or(Crc32c::of(&[])) == record.crc {
            return Ok(record.length);
        }
        let problem =
            format!("chunk {}: its checksum does not match its bytes", record.holder.chunk);
        let why = Failure::new(Kind::Corrupt, problem);
        Err(Error::new(Kind::Corrupt, "read", self.subject(&item), why))
    }

    fn find(&self, item: &ReadItem) -> Result<FileRecord, Error> {
        let (kind, problem) = match self.stat(&item.path)? {
            StatItem::File(record) => return Ok(record),
            StatItem::Folder => (Kind::Conflict, "it is a folder"),
            StatItem::Missing => (Kind::NotFound, "no such file"),
        };
        Err(Error::new(kind, "read", self.subject(item), Failure::new(kind, problem)))
    }

    fn subject(&self, item: &ReadItem) -> String {
        format!("dl://{}/{}", self.info().name, item.path)
    }
}

/// Offsets and lengths that together are the file.
fn windows(length: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let (start, next) = (offset, WINDOW.min(length.saturating_sub(offset)));
        offset = start.saturating_add(next);
        (next > 0).then_some((start, next))
    })
}

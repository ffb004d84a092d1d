//! The writer (paper, 4, Figure 3): the calling threads pack files into chunks, and full chunks are
//! sent in the background.
//!
//! Must hold: memory is bounded. A flush reports exactly the acknowledged files. There are at most
//! as many open chunks as threads in a put.

mod large;
mod ledger;
mod send;
#[cfg(test)]
mod tests;

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use dl_format::{Attributes, ChunkShape, ChunkWriter, DatasetId, FilePath, PackError};
use dl_proto::Dataset as DatasetInfo;
use dl_runtime::{Buffers, copy_checked};
use rustix::fs::OFlags;

use crate::error::{Error, Kind};
use crate::remote::session::Session;
pub use ledger::{FailedWrite, Flushed};
use ledger::{Ledger, Token};

const NANOS: i64 = 1_000_000_000;
const PERMISSIONS: u32 = 0o7777;

/// Packs and sends the puts of a process into a dataset.
#[derive(Debug)]
pub(crate) struct Writer {
    session: Session,
    dataset: DatasetId,
    name: String,
    shape: ChunkShape,
    ledger: Arc<Ledger>,
    /// Buffers of chunks in packing or in flight.
    buffers: Arc<Buffers>,
    /// Buffers of files between their source and their chunk.
    scratch: Buffers,
}

#[derive(Debug)]
struct Open {
    token: Token,
    chunk: ChunkWriter,
}

impl Writer {
    pub(crate) fn new(session: Session, dataset: &DatasetInfo, in_flight: usize) -> Arc<Self> {
        Arc::new(Self {
            session,
            dataset: dataset.id,
            name: dataset.name.to_string(),
            shape: dataset.shape,
            ledger: Arc::new(Ledger::new(in_flight)),
            buffers: Arc::default(),
            scratch: Buffers::default(),
        })
    }

    pub(crate) fn put(
        &self,
        path: &FilePath,
        attributes: Attributes,
        data: &[u8],
    ) -> Result<(), Error> {
        if self.is_large(path, data.len() as u64) {
            return self.put_large(path, attributes, data.len() as u64, &mut &*data);
        }
        self.pack(path, attributes, data)
    }

    pub(crate) fn put_file(&self, path: &FilePath, source: &Path) -> Result<u64, Error> {
        let local = |why: io::Error| Error::new(Kind::Local, "read", source.display(), why);
        // The opening of a pipe would wait for the other end; the check below refuses a pipe.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut file =
            OpenOptions::new().read(true).custom_flags(flags).open(source).map_err(local)?;
        let metadata = file.metadata().map_err(local)?;
        if !metadata.is_file() {
            return Err(local(io::Error::new(io::ErrorKind::InvalidInput, "no regular file")));
        }
        let length = match metadata.len() {
            // A file made up by the kernel may report 0 bytes and have content.
            0 => io::copy(&mut file, &mut io::sink()).map_err(local)?,
            length => length,
        };
        file.rewind().map_err(local)?;
        let attributes = Attributes {
            mode: u16::try_from(metadata.mode() & PERMISSIONS).unwrap_or_default(),
            mtime: modified(&metadata),
        };
        let mut file = Exact { source, file, metadata, left: length };
        self.put_reader(path, attributes, length, &mut file)?;
        Ok(length)
    }

    pub(crate) fn put_reader(
        &self,
        path: &FilePath,
        attributes: Attributes,
        length: u64,
        reader: &mut dyn Read,
    ) -> Result<(), Error> {
        if self.is_large(path, length) {
            return self.put_large(path, attributes, length, reader);
        }
        // Reads before taking a chunk, so a slow source can't hold up a flush.
        let mut scratch = self.scratch.take(self.shape.size() as usize);
        let filled = self.fill(path, &mut scratch, length, reader);
        let packed = filled.and_then(|data| self.pack(path, attributes, data));
        self.scratch.give_back(scratch);
        packed
    }

    /// Sends all open chunks, and waits for all earlier puts.
    pub(crate) fn flush(&self) -> Flushed {
        let (number, open) = self.ledger.start_flush();
        for open in open {
            self.send_open(open);
        }
        self.ledger.finish_flush(number)
    }

    /// Whether a put of less than a chunk would not block.
    pub(crate) fn has_room(&self) -> bool {
        self.ledger.has_room()
    }

    /// Gives up all objects in flight, and puts until the next flush.
    pub(crate) fn give_up(&self) {
        let dataset = format!("dl://{}", self.name);
        self.ledger.give_up(&Error::new(Kind::Cancelled, "write", dataset, "the caller gave up"));
    }

    /// Waits for the result of all earlier puts of the path.
    pub(crate) fn await_path(&self, path: &FilePath) {
        while let Some(open) = self.ledger.await_path(path) {
            self.send_open(open);
        }
    }

    fn is_large(&self, path: &FilePath, length: u64) -> bool {
        length > self.shape.largest_file(path)
    }

    /// Adds a file to an open chunk, or to a new chunk if the open chunk is full.
    fn pack(&self, path: &FilePath, attributes: Attributes, data: &[u8]) -> Result<(), Error> {
        let added = loop {
            let (mut open, is_fresh) = match self.ledger.take(path)? {
                Ok(open) => (open, false),
                Err(token) => (Open { token, chunk: self.fresh_chunk() }, true),
            };
            let added = open.chunk.append(path, attributes, data);
            if matches!(added, Err(PackError::Full)) && !is_fresh {
                self.send_open(open);
                continue;
            }
            let new = added.is_ok().then_some(path);
            if let Some(open) = self.ledger.give_back(open, new) {
                self.send_open(open);
            }
            break added;
        };
        added.map_err(|why| self.error(Kind::Invalid, path, why))
    }

    fn fresh_chunk(&self) -> ChunkWriter {
        let buffer = self.buffers.take(ChunkWriter::buffer_length(self.shape));
        ChunkWriter::new(self.shape, buffer).copied_by(copy_checked())
    }

    /// Reads exactly `length` bytes of `reader`, at most those of a chunk, into `buffer`.
    fn fill<'b>(
        &self,
        path: &FilePath,
        buffer: &'b mut Vec<u8>,
        length: u64,
        reader: &mut dyn Read,
    ) -> Result<&'b [u8], Error> {
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(self.shape.size() as usize);
        // Old bytes are overwritten, so only new memory needs zeros.
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        let data = buffer.get_mut(..length).unwrap_or_default();
        match reader.read_exact(data) {
            Ok(()) => Ok(data),
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.error(Kind::Local, path, PackError::LengthChanged))
            }
            Err(why) => Err(self.error(Kind::Local, path, why)),
        }
    }

    fn error(
        &self,
        kind: Kind,
        path: &FilePath,
        why: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Error::new(kind, "put", format!("dl://{}/{path}", self.name), why)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let lost = self.ledger.open_files();
        if lost > 0 {
            tracing::warn!(
                dataset = %self.name,
                files = lost,
                "writer dropped without flush or close; these files were not written"
            );
        }
    }
}

/// A file with a number of bytes left to read, which must end after these bytes.
struct Exact<'a> {
    source: &'a Path,
    file: File,
    /// The metadata at the opening.
    metadata: Metadata,
    left: u64,
}

impl Exact<'_> {
    fn read_on(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read(buffer.get_mut(..most).unwrap_or_default())?;
        self.left = self.left.saturating_sub(read as u64);
        if read > 0 && self.left == 0 {
            self.check_end()?;
        }
        Ok(read)
    }

    /// Refuses a file changed during the reading: the bytes may be a mixture.
    fn check_end(&self) -> io::Result<()> {
        if io::copy(&mut (&self.file).take(1), &mut io::sink())? > 0 {
            return Err(io::Error::other(
                "the file has more bytes than at its opening; put the file again",
            ));
        }
        let now = self.file.metadata()?;
        if now.len() != self.metadata.len() || modified(&now) != modified(&self.metadata) {
            return Err(io::Error::other("the file changed during the read; put the file again"));
        }
        Ok(())
    }
}

impl Read for Exact<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_on(buffer).map_err(|why| {
            io::Error::new(why.kind(), format!("read {}: {why}", self.source.display()))
        })
    }
}

/// Nanoseconds since 1970; the nearest value for a time beyond 64 bits.
fn modified(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(NANOS).saturating_add(metadata.mtime_nsec())
}

//! The write half (paper, 4, Figure 3): files are packed into chunks by the threads that put
//! them, and full chunks are sent in the background.
//!
//! Must hold: memory is bounded, whatever is put; a flush tells exactly which files are
//! acknowledged; there are never more open chunks than threads that put at the same time.

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

/// Packs and sends what one process puts into one dataset.
#[derive(Debug)]
pub(crate) struct Writer {
    session: Session,
    dataset: DatasetId,
    name: String,
    shape: ChunkShape,
    ledger: Arc<Ledger>,
    /// Of chunks that are packed or under way.
    buffers: Arc<Buffers>,
    /// Of files between their source and their chunk.
    scratch: Buffers,
}

/// A chunk that takes files.
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
        // Opening a pipe would wait for its other end; it is refused below instead.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut file =
            OpenOptions::new().read(true).custom_flags(flags).open(source).map_err(local)?;
        let metadata = file.metadata().map_err(local)?;
        if !metadata.is_file() {
            return Err(local(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        let length = match metadata.len() {
            // What the kernel makes up when it is read says so, and is not empty.
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
        // Read before a chunk is taken: a slow source must not hold up a flush.
        let mut scratch = self.scratch.take(self.shape.size() as usize);
        let filled = self.fill(path, &mut scratch, length, reader);
        let packed = filled.and_then(|data| self.pack(path, attributes, data));
        self.scratch.give_back(scratch);
        packed
    }

    /// Sends what is open, and waits for all that was put before.
    pub(crate) fn flush(&self) -> Flushed {
        let (number, open) = self.ledger.start_flush();
        for open in open {
            self.send_open(open);
        }
        self.ledger.finish_flush(number)
    }

    /// Gives up all that is under way, and what is put until the next flush.
    pub(crate) fn has_room(&self) -> bool {
        self.ledger.has_room()
    }

    pub(crate) fn give_up(&self) {
        let dataset = format!("dl://{}", self.name);
        self.ledger.give_up(&Error::new(Kind::Cancelled, "write", dataset, "it was given up here"));
    }

    /// Waits until what was put at this path before is acknowledged or has failed.
    pub(crate) fn await_path(&self, path: &FilePath) {
        while let Some(open) = self.ledger.await_path(path) {
            self.send_open(open);
        }
    }

    fn is_large(&self, path: &FilePath, length: u64) -> bool {
        length > self.shape.largest_file(path)
    }

    /// Adds a file to an open chunk, or to a fresh one when it is full.
    fn pack(&self, path: &FilePath, attributes: Attributes, data: &[u8]) -> Result<(), Error> {
        let added = loop {
            let (mut open, is_fresh) = match self.ledger.take(path)? {
                Ok(open) => (open, false),
                Err(token) => (self.fresh(token), true),
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

    fn fresh(&self, token: Token) -> Open {
        Open { token, chunk: self.fresh_chunk() }
    }

    fn fresh_chunk(&self) -> ChunkWriter {
        ChunkWriter::new(self.shape, self.chunk_buffer()).copied_by(copy_checked())
    }

    fn chunk_buffer(&self) -> Vec<u8> {
        self.buffers.take(ChunkWriter::buffer_length(self.shape))
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
        // What was there before is overwritten, so that nothing has to be zeroed for each file.
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
                "dropped without flush or close: these files were not written"
            );
        }
    }
}

/// A file of which so many bytes are still to be read, and of which there may be no more.
struct Exact<'a> {
    source: &'a Path,
    file: File,
    /// What was said of it when it was opened.
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

    /// Refuses a file that somebody wrote to meanwhile: what was read may be half of each.
    fn check_end(&self) -> io::Result<()> {
        if io::copy(&mut (&self.file).take(1), &mut io::sink())? > 0 {
            return Err(io::Error::other(
                "it has more bytes than it said: it grew while it was read",
            ));
        }
        let now = self.file.metadata()?;
        if now.len() != self.metadata.len() || modified(&now) != modified(&self.metadata) {
            return Err(io::Error::other("it changed while it was read"));
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

/// Nanoseconds since 1970; times beyond 64 bits become the nearest.
fn modified(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(NANOS).saturating_add(metadata.mtime_nsec())
}

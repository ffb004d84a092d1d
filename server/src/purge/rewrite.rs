//! Moves the live files of chunks with holes into full chunks.
//!
//! Must hold: each file keeps the version it was first written as, so that a copy neither beats a
//! newer write nor escapes a delete; only bytes with the right checksum are moved; at most one
//! chunk and [`READ_BYTES`] are in memory.

use bytes::Bytes;
use dl_format::{
    ChunkId, ChunkIdMaker, ChunkShape, ChunkWriter, Committed, Crc32c, Entry, EntrySet,
    EntryVersion, PackError,
};
use dl_meta::DatasetRecord;
use dl_proto::Kind;
use dl_store::{ByteRange, Key, ObjectRange};

use crate::commit;
use crate::error::Error;
use crate::headers::read_header;
use crate::parts::Parts;

/// Bytes of files that are read at once.
const READ_BYTES: u64 = 4 << 20;

/// The memory that rewriting takes, in bytes: the open chunk, the one that is being committed, and
/// what is read.
pub(super) fn memory(shape: ChunkShape) -> u64 {
    ChunkWriter::buffer_length(shape) as u64 + u64::from(shape.size()) + READ_BYTES
}

/// Packs files into one chunk after the other.
#[derive(Debug)]
pub(super) struct Rewriter<'a> {
    parts: &'a Parts,
    record: &'a DatasetRecord,
    ids: &'a mut ChunkIdMaker,
    open: ChunkWriter,
    /// Chunks that were committed.
    pub(super) written: u64,
}

impl<'a> Rewriter<'a> {
    pub(super) fn new(
        parts: &'a Parts,
        record: &'a DatasetRecord,
        ids: &'a mut ChunkIdMaker,
    ) -> Self {
        let open = ChunkWriter::new(record.shape, Vec::new());
        Self { parts, record, ids, open, written: 0 }
    }

    /// Moves the entries `kept` of a chunk; gives what is wrong with those that stay where they
    /// are. What it moved is committed by [`Rewriter::finish`] at the latest.
    pub(super) async fn take(
        &mut self,
        chunk: ChunkId,
        key: &Key,
        kept: &EntrySet,
    ) -> Result<Vec<String>, Error> {
        let header = match read_header(self.parts, key).await {
            Ok(header) => header,
            // Another purge was faster.
            Err(error) if error.kind == Kind::NotFound => return Ok(Vec::new()),
            Err(error) if error.kind.is_retryable() => return Err(error),
            Err(error) => return Ok(vec![error.chain()]),
        };
        let header = match header.committed() {
            Ok(header) => header,
            Err(error) => return Ok(vec![format!("{key}: {error}")]),
        };
        let mut problems = Vec::new();
        let entries = header.header().entries().filter(|entry| kept.contains(entry.number));
        let mut entries = entries.peekable();
        while entries.peek().is_some() {
            let mut bytes = 0;
            let batch: Vec<Entry> = std::iter::from_fn(|| {
                let next = entries.next_if(|entry| bytes == 0 || fits(bytes, entry))?;
                bytes += u64::from(next.stored).max(1);
                Some(next)
            })
            .collect();
            let read = self.read(key, &batch).await?;
            for (entry, data) in batch.iter().zip(read) {
                let is_whole = |data: &Bytes| Crc32c::of(data) == entry.crc;
                match data {
                    Ok(data) if is_whole(&data) => {
                        if let Err(why) = self.add(&header, entry, &data).await? {
                            problems.push(format!("{key}: {}: {why}", entry.path));
                        }
                    }
                    Ok(_) => problems.push(format!(
                        "{key}: {} is damaged: its bytes don't match their checksum",
                        entry.path
                    )),
                    Err(error) if error.is_retryable() => {
                        return Err(Error::store("read chunk", key, error));
                    }
                    Err(error) => {
                        let error = Error::store("read chunk", key, error);
                        problems.push(format!("{}: {}", entry.path, error.chain()));
                    }
                }
            }
        }
        // For whoever reads the header: nothing here depends on it. Without room for it, without.
        if problems.is_empty() && !self.open.is_empty() {
            let _ = self.open.replace(chunk);
        }
        Ok(problems)
    }

    async fn read(
        &self,
        key: &Key,
        batch: &[Entry],
    ) -> Result<Vec<Result<Bytes, dl_store::Error>>, Error> {
        let range = |entry: &Entry| {
            let start = u64::from(entry.offset);
            let range = ByteRange::exact(start, start + u64::from(entry.stored)).ok()?;
            Some(ObjectRange { key: key.clone(), range })
        };
        let wanted: Vec<ObjectRange> = batch.iter().filter_map(range).collect();
        // A copy that is damaged is not to be taken for a chunk that is.
        self.parts.store.doubt(key);
        let mut read = self.parts.store.read(&wanted).await.into_iter();
        let mut answers = Vec::with_capacity(batch.len());
        for entry in batch {
            // An empty file has no range.
            answers.push(match entry.stored {
                0 => Ok(Bytes::new()),
                _ => read.next().ok_or_else(|| {
                    Error::new(Kind::Internal, "read chunk", key, "the store gave no answer")
                })?,
            });
        }
        Ok(answers)
    }

    /// Adds a file to the open chunk, or to the next one.
    async fn add(
        &mut self,
        from: &Committed,
        entry: &Entry,
        data: &[u8],
    ) -> Result<Result<(), PackError>, Error> {
        let (stamp, chunk) = (from.stamp(), from.header().id());
        let origin = entry.origin.unwrap_or(EntryVersion { stamp, chunk, entry: entry.number });
        match self.open.rewrite(&entry.path, entry.attributes, data, origin) {
            Err(PackError::Full) if !self.open.is_empty() => {
                self.finish().await?;
                Ok(self.open.rewrite(&entry.path, entry.attributes, data, origin))
            }
            added => Ok(added),
        }
    }

    /// Commits what is in the open chunk.
    pub(super) async fn finish(&mut self) -> Result<(), Error> {
        if self.open.is_empty() {
            return Ok(());
        }
        let next = ChunkWriter::new(self.record.shape, Vec::new());
        let id = self.ids.next(self.parts.clock.now());
        let sealed = std::mem::replace(&mut self.open, next).seal(id, self.record.id);
        let object = sealed.as_slice().to_vec();
        drop(sealed);
        commit::put_rewritten(self.parts, object).await?;
        self.written += 1;
        Ok(())
    }
}

fn fits(bytes: u64, next: &Entry) -> bool {
    bytes + u64::from(next.stored) <= READ_BYTES
}

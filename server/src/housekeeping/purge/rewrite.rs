//! Moves the live files of chunks with holes into full chunks.
//!
//! Must hold: each file keeps the version of its first commit, so that a copy neither beats a newer write
//! nor escapes a delete; a file is committed only a moment after its last look-up; only bytes with the right
//! checksum are moved; no more than [`memory`] bytes are held.

use std::time::Duration;

use bytes::Bytes;
use dl_format::{
    ChunkId, ChunkIdMaker, ChunkShape, ChunkWriter, Committed, Crc32c, Entry, EntrySet,
    EntryVersion, FilePath, FileRecord, PackError,
};
use dl_meta::{DatasetRecord, Found};
use dl_proto::Kind;
use dl_runtime::copy_checked;
use dl_store::{ByteRange, Key, ObjectRange};

use crate::datasets::headers::read_header;
use crate::error::{Doing, Error};
use crate::shared::context::ServerContext;
use crate::write::commit;

/// Bytes of files read together.
const READ_BYTES: u64 = 4 << 20;

/// Paths looked up together.
const PATHS_AT_ONCE: usize = 4_096;

/// The memory of a rewrite in bytes: two open chunks, the chunk in its commit, and the bytes read.
pub(super) fn memory(shape: ChunkShape) -> u64 {
    let size = u64::from(shape.size());
    2 * ChunkWriter::buffer_length(shape) as u64 + size + READ_BYTES.max(size)
}

/// Packs files into chunks.
#[derive(Debug)]
pub(super) struct Rewriter<'a> {
    context: &'a ServerContext,
    record: &'a DatasetRecord,
    ids: &'a mut ChunkIdMaker,
    /// Time after the look-up of a file within which its copy may be committed.
    fresh: Duration,
    /// The time at which the survey began.
    surveyed: Duration,
    open: ChunkWriter,
    /// The earliest look-up of a file in the open chunk.
    seen: Option<Duration>,
    /// The number of committed chunks.
    pub(super) written: u64,
}

/// What became of the live entries of a chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// No live entry is left in the chunk.
    All,
    /// Entries that folders hide stay: whether they are still alive can't be looked up any more.
    NotHidden,
    /// The header or the bytes of a file are damaged.
    Damaged(String),
}

impl<'a> Rewriter<'a> {
    pub(super) fn new(
        context: &'a ServerContext,
        record: &'a DatasetRecord,
        ids: &'a mut ChunkIdMaker,
        fresh: Duration,
        surveyed: Duration,
    ) -> Self {
        let open = fresh_chunk(record);
        Self { context, record, ids, fresh, surveyed, open, seen: None, written: 0 }
    }

    /// Moves the entries `kept` of a chunk that are still alive. [`Rewriter::finish`] commits the last of them.
    pub(super) async fn take(
        &mut self,
        chunk: ChunkId,
        key: &Key,
        kept: &EntrySet,
    ) -> Result<Moved, Error> {
        // Another chunk takes a while. The files in the open chunk must not become too old meanwhile.
        if self.seen.is_some_and(|seen| self.since(seen) > self.fresh / 2) {
            self.finish().await?;
        }
        let header = match read_header(self.context, key).await {
            Ok(header) => header,
            // Another purge was faster.
            Err(error) if error.kind == Kind::NotFound => return Ok(Moved::All),
            Err(error) if error.kind.is_retryable() => return Err(error),
            Err(error) => return Ok(Moved::Damaged(error.chain())),
        };
        let header = match header.committed() {
            Ok(header) => header,
            Err(error) => return Ok(Moved::Damaged(format!("{key}: {error}"))),
        };
        let Alive { entries, is_hidden, seen } = self.alive(&header, kept).await?;
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            let mut bytes = 0;
            let batch: Vec<Entry> = std::iter::from_fn(|| {
                let next = entries.next_if(|entry| bytes == 0 || fits(bytes, entry))?;
                bytes += u64::from(next.stored).max(1);
                Some(next)
            })
            .collect();
            if let Err(found) = self.take_batch(&header, key, &batch, seen).await? {
                return Ok(Moved::Damaged(found));
            }
        }
        // The id is information for readers of the header. A header without room for it lacks the id.
        if !is_hidden && !self.open.is_empty() {
            let _ = self.open.replace(chunk);
        }
        Ok(if is_hidden { Moved::NotHidden } else { Moved::All })
    }

    /// Moves entries of a chunk that were `seen` alive. The inner error says which file is damaged.
    async fn take_batch(
        &mut self,
        header: &Committed,
        key: &Key,
        batch: &[Entry],
        seen: Duration,
    ) -> Result<Result<(), String>, Error> {
        let read = self.read(key, batch).await?;
        for (entry, data) in batch.iter().zip(read) {
            let data = match data {
                Ok(data) => data,
                Err(error) if error.is_retryable() => {
                    return Err(Error::store("read chunk", key, error));
                }
                Err(error) => {
                    let error = Error::store("read chunk", key, error);
                    return Ok(Err(format!("{}: {}", entry.path, error.chain())));
                }
            };
            if Crc32c::of(&data) != entry.crc {
                let why = "its bytes don't match their checksum";
                return Ok(Err(format!("{key}: {} is damaged: {why}", entry.path)));
            }
            if let Err(why) = self.add(header, entry, &data, seen).await? {
                return Ok(Err(format!("{key}: {}: {why}", entry.path)));
            }
        }
        Ok(Ok(()))
    }

    /// The entries of the survey that are still alive. A file hidden by a folder can't be looked up, and counts
    /// as alive as long as the survey is fresh.
    async fn alive(&self, chunk: &Committed, kept: &EntrySet) -> Result<Alive, Error> {
        let mut alive =
            Alive { entries: Vec::new(), is_hidden: false, seen: self.context.clock.monotonic() };
        let is_fresh = self.since(self.surveyed) <= self.fresh / 2;
        let entries = chunk.header().entries().filter(|entry| kept.contains(entry.number));
        let entries: Vec<Entry> = entries.collect();
        for entries in entries.chunks(PATHS_AT_ONCE) {
            let paths: Vec<FilePath> = entries.iter().map(|entry| entry.path.clone()).collect();
            let found = self
                .context
                .meta
                .lookup(self.record.id, &paths)
                .await
                .doing("look up files of dataset", self.record.id)?;
            for (entry, found) in entries.iter().zip(found) {
                match found {
                    Found::File(record) if record.holder == FileRecord::of(chunk, entry).holder => {
                        alive.entries.push(entry.clone());
                    }
                    Found::Folder if is_fresh => {
                        alive.seen = alive.seen.min(self.surveyed);
                        alive.entries.push(entry.clone());
                    }
                    Found::Folder => alive.is_hidden = true,
                    // Overwritten, deleted or moved since.
                    Found::File(_) | Found::Missing => {}
                }
            }
        }
        Ok(alive)
    }

    fn since(&self, seen: Duration) -> Duration {
        self.context.clock.monotonic().saturating_sub(seen)
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
        // A damaged copy in the fast store must not pass for a damaged chunk.
        self.context.store.invalidate(key);
        let mut read = self.context.store.read(&wanted).await.into_iter();
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

    /// Adds a file, `seen` alive, to the open chunk or to another one. Of two chunks that don't fit into one the
    /// fuller is committed, and the other stays open: so no committed chunk is small, except for the last.
    async fn add(
        &mut self,
        from: &Committed,
        entry: &Entry,
        data: &[u8],
        seen: Duration,
    ) -> Result<Result<(), PackError>, Error> {
        let (stamp, chunk) = (from.stamp(), from.header().id());
        let origin = entry.origin.unwrap_or(EntryVersion { stamp, chunk, entry: entry.number });
        let mut added = self.open.rewrite(&entry.path, entry.attributes, data, origin);
        if !self.open.is_empty() && matches!(added, Err(PackError::Full)) {
            let mut full = fresh_chunk(self.record);
            added = full.rewrite(&entry.path, entry.attributes, data, origin);
            let mut full_seen = Some(seen);
            if full.fill() <= self.open.fill() {
                std::mem::swap(&mut full, &mut self.open);
                std::mem::swap(&mut full_seen, &mut self.seen);
            }
            self.commit(full, full_seen).await?;
        } else {
            self.seen = Some(self.seen.map_or(seen, |old| old.min(seen)));
        }
        Ok(added)
    }

    /// Commits the open chunk.
    pub(super) async fn finish(&mut self) -> Result<(), Error> {
        let open = std::mem::replace(&mut self.open, fresh_chunk(self.record));
        let seen = self.seen.take();
        self.commit(open, seen).await
    }

    /// Commits a chunk, unless the earliest look-up of its files was too long ago.
    async fn commit(&mut self, chunk: ChunkWriter, seen: Option<Duration>) -> Result<(), Error> {
        if chunk.is_empty() {
            return Ok(());
        }
        if seen.is_some_and(|seen| self.since(seen) > self.fresh) {
            let why = "reading them took so long that they may have changed: none of them was moved; \
                       look at the chunk store, and run purge again";
            return Err(Error::new(Kind::TimedOut, "move files of dataset", self.record.id, why));
        }
        let id = self.ids.next(self.context.clock.now());
        let sealed = chunk.seal(id, self.record.id);
        let object = sealed.as_slice().to_vec();
        drop(sealed);
        commit::put_rewritten(self.context, object).await?;
        self.written += 1;
        Ok(())
    }
}

/// The movable entries of a chunk.
struct Alive {
    entries: Vec<Entry>,
    /// Whether entries hidden by folders are left out.
    is_hidden: bool,
    /// The earliest of their look-ups.
    seen: Duration,
}

fn fits(bytes: u64, next: &Entry) -> bool {
    bytes + u64::from(next.stored) <= READ_BYTES
}

fn fresh_chunk(record: &DatasetRecord) -> ChunkWriter {
    ChunkWriter::new(record.shape, Vec::new()).copied_by(copy_checked())
}

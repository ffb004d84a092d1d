//! Reads by request: many files in a request, each verified before its delivery.
//!
//! Must hold: a file, or a part of a large file, is delivered only with a matching checksum. A
//! damaged file is requested once more, past all copies. A small file never keeps a large message
//! in memory.

mod assemble;
mod batch;
mod large;
mod piece;
mod runs;
#[cfg(test)]
mod tests;
mod wanted;

use std::ops::Range;
use std::sync::OnceLock;

use bytes::Bytes;
use dl_format::{FilePath, FileRecord};
use dl_proto::READ_ITEMS_MAX;
use futures::{StreamExt, stream};
use tokio::sync::mpsc;

use crate::error::{Error, Kind};
use crate::remote::dataset::RemoteDataset;
use crate::remote::split;
use batch::read_one;
pub(super) use batch::{Arrived, read_batch, read_whole};
pub(super) use wanted::Wanted;

/// Files in a request: enough to share the fixed cost, few enough to keep all connections busy.
const BATCH_FILES: usize = 1_024;
const _: () = assert!(BATCH_FILES <= READ_ITEMS_MAX);
/// Bytes in a request, with known lengths.
const BATCH_BYTES: u64 = 4 << 20;

/// The weight of a file with unknown length, in bytes; a request with the longest paths still fits.
const RESERVED: u64 = 32 << 10;

/// Receives each file of a [`Dataset::read_files`](crate::Dataset::read_files): the index in the
/// items, and the bytes or the error.
pub type FileSink<'a> = dyn FnMut(usize, Result<&[u8], Error>) + 'a;

/// A file to read: a path alone, or with the record of an earlier answer. A record spares the
/// servers the lookup, and selects the exact version.
#[derive(Debug, Clone)]
pub struct ReadItem {
    /// The path.
    pub path: FilePath,
    /// The record from [`Dataset::stat`](crate::Dataset::stat) or
    /// [`Dataset::list`](crate::Dataset::list).
    pub record: Option<FileRecord>,
    /// Whether to read from the chunk store, past copies in a fast store. Such a read drops the
    /// copy, and is slower.
    pub pass_copies: bool,
    /// Whether a damaged header counts as corrupt too: without the header, recovery can't bring
    /// back the file.
    pub check_headers: bool,
}

impl From<FilePath> for ReadItem {
    fn from(path: FilePath) -> Self {
        Self { path, record: None, pass_copies: false, check_headers: false }
    }
}

impl From<&FilePath> for ReadItem {
    fn from(path: &FilePath) -> Self {
        path.clone().into()
    }
}

impl From<(FilePath, FileRecord)> for ReadItem {
    fn from((path, record): (FilePath, FileRecord)) -> Self {
        Self { path, record: Some(record), pass_copies: false, check_headers: false }
    }
}

impl RemoteDataset {
    pub(crate) fn get(&self, item: &ReadItem) -> Result<Bytes, Error> {
        let session = self.session()?;
        let wanted = Wanted { item, offset: 0, length: None };
        session.wait(read_one(&session, self.info(), wanted))
    }

    /// Reads many files into memory: each, or why it could not be read, in their order.
    pub(crate) fn get_many(&self, items: &[ReadItem]) -> Result<Vec<Result<Bytes, Error>>, Error> {
        let session = self.session()?;
        let batches = split::by_path(items, BATCH_FILES, |item| &item.path).map(Wanted::whole);
        let reads = batches.map(|wanted| read_whole(&session, self.info(), wanted));
        let mut reads = stream::iter(reads).buffered(session.connections.width());
        let mut files = Vec::with_capacity(items.len());
        while let Some(read) = session.wait(reads.next()) {
            files.extend(read?);
        }
        let unanswered = items.iter().skip(files.len()).map(|item| {
            let why = "the answer has no result for the file";
            Err(Error::new(Kind::Internal, "read", &item.path, why))
        });
        files.extend(unanswered);
        Ok(files)
    }

    /// Reads many files, and hands each over as soon as it is there, with its number among `items`.
    pub(crate) fn read_files(&self, items: &[ReadItem], sink: &mut FileSink<'_>) {
        let session = match self.session() {
            Ok(session) => session,
            Err(error) => return (0..items.len()).for_each(|item| sink(item, Err(error.clone()))),
        };
        let (give, mut given) = mpsc::unbounded_channel();
        let lost = &OnceLock::<Error>::new();
        let reads = batches(items).map(|batch| {
            let (give, start, count) = (give.clone(), batch.start, batch.len());
            let wanted = Wanted::whole(items.get(batch).unwrap_or_default());
            // Bounded by the throughput of the connections between two waits.
            let hand_over = move |number, file| {
                let _ = give.send((start + number, file));
            };
            let session = &session;
            async move {
                // After a batch without servers, the next batches don't wait for them.
                if let Some(error) = lost.get() {
                    return (0..count).for_each(|number| hand_over(number, Err(error.clone())));
                }
                let failed = read_batch(session, self.info(), wanted, hand_over).await;
                if let Some(error) = failed.filter(|error| error.kind().is_retryable()) {
                    let _ = lost.set(error);
                }
            }
        });
        let mut reads = Box::pin(stream::iter(reads).buffer_unordered(session.connections.width()));
        let mut files = Vec::new();
        loop {
            let more = session.wait(async {
                tokio::select! {
                    biased;
                    _ = given.recv_many(&mut files, BATCH_FILES) => true,
                    read = reads.next() => read.is_some(),
                }
            });
            // Outside of the runtime, so the sink may call the library.
            for (item, file) in files.drain(..) {
                match file {
                    Ok(Arrived { bytes, .. }) => sink(item, Ok(&bytes)),
                    Err(error) => sink(item, Err(error)),
                }
            }
            if !more {
                return;
            }
        }
    }
}

fn batches(items: &[ReadItem]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let mut bytes = 0u64;
        let fit = items.get(start..)?.iter().take(BATCH_FILES).take_while(|item| {
            let before = bytes;
            // The request contains the path of an item without a record.
            let length = item.record.as_ref().map_or(RESERVED, |record| record.length);
            bytes = bytes.saturating_add(length);
            before == 0 || bytes <= BATCH_BYTES
        });
        let end = start + fit.count();
        (end > start).then(|| std::mem::replace(&mut start, end)..end)
    })
}

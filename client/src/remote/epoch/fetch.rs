//! Background fetches of the chunks of an epoch, and separate reads of other files.
//!
//! Must hold: a chunk costs a single request: for a range if most of its bytes are wanted, else for
//! the files. A file is kept only with its checksum. All fetches end with the reader.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use dl_format::FileRecord;
use dl_proto::{Dataset as DatasetInfo, REPLY_BYTES};
use dl_runtime::locked;
use tokio::sync::watch;

use crate::epoch::{FileRead, FileSource};
use crate::error::{Error, Kind};
use crate::order::Cursor;
use crate::remote::chunks::get_chunks;
use crate::remote::dataset::RemoteDataset;
use crate::remote::epoch::chunk_bytes::{ChunkBytes, range_of};
use crate::remote::epoch::group::Content;
use crate::remote::epoch::window::{Fetch, IsElsewhere, Taken, Window};
use crate::remote::read::{Arrived, ReadItem, Wanted, read_batch, read_whole};
use crate::remote::session::Session;
use crate::snapshot::Snapshot;

/// Files in a request, at most; all of them fit even as separate items.
const FILES_AT_ONCE: usize = 8_192;

/// Concurrent fetches per connection: within the memory of a server, and enough to overlap transfer
/// and lookup.
const CHUNKS_PER_CONNECTION: usize = 2;

/// The source of the files of an epoch.
#[derive(Debug)]
struct EpochSource {
    session: Session,
    info: DatasetInfo,
    snapshot: Arc<Snapshot>,
}

/// The groups of an epoch in one process, from the servers.
pub(crate) struct EpochReader {
    window: Arc<Window>,
    source: Arc<EpochSource>,
    /// The drop ends all fetchers.
    _open: watch::Sender<()>,
}

impl std::fmt::Debug for EpochReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpochReader").field("source", &self.source).finish_non_exhaustive()
    }
}

impl EpochReader {
    /// The files of a cursor, without the files of chunks that another source has. Fetching begins
    /// with the first read.
    pub(crate) fn new(
        dataset: &RemoteDataset,
        snapshot: Arc<Snapshot>,
        cursor: Cursor,
        is_elsewhere: IsElsewhere,
    ) -> Result<Self, Error> {
        let source = Arc::new(EpochSource::new(dataset, snapshot)?);
        let (open, closed) = watch::channel(());
        let most = source.session.connections.width() * CHUNKS_PER_CONNECTION;
        let window = Arc::new_cyclic(|window: &Weak<Window>| {
            let (window, source) = (Weak::clone(window), Arc::clone(&source));
            let start = move || {
                let (window, source, mut closed) =
                    (Weak::clone(&window), Arc::clone(&source), closed.clone());
                dl_runtime::spawn_on(source.session.process.runtime.handle(), async move {
                    let Some(window) = window.upgrade() else { return };
                    tokio::select! {
                        () = fetch_all(window, &source) => {}
                        // The channel has no messages, only an end.
                        _ = closed.changed() => {}
                    }
                });
            };
            Window::new(cursor, Box::new(start), most, is_elsewhere)
        });
        Ok(Self { window, source, _open: open })
    }

    /// The file at a position, or [`Taken::Separate`]. None as in [`FileSource::read`].
    pub(crate) fn take_at(&self, position: u64, number: u32) -> Option<Taken> {
        self.window.take_at(position, number)
    }

    /// Reads a file in a separate request.
    pub(crate) fn read_separately(&self, number: u32) -> FileRead {
        self.source.read(number)
    }

    /// Fetches no further group. Returns the position behind the planned groups.
    pub(crate) fn end_ahead(&self) -> Option<u64> {
        self.window.end_ahead()
    }

    /// Whether a position lies behind the planned groups.
    pub(crate) fn is_behind(&self, position: u64) -> bool {
        self.window.is_behind(position)
    }
}

/// Reads a file of a snapshot in a separate request.
pub(crate) fn read_separately(
    dataset: &RemoteDataset,
    snapshot: &Arc<Snapshot>,
    number: u32,
) -> FileRead {
    EpochSource::new(dataset, Arc::clone(snapshot))?.read(number)
}

impl FileSource for EpochReader {
    fn read(&self, position: u64, number: u32) -> Option<FileRead> {
        let taken = self.take_at(position, number)?;
        Some(taken.read().unwrap_or_else(|| self.read_separately(number)))
    }

    /// Reads by number advance the groups without help.
    fn pass(&self, _: u64) {}

    fn skip(&self, position: u64) {
        self.window.skip(position);
    }

    fn read_out_of_order(&self, number: u32) -> Option<FileRead> {
        let kept = |bytes| Arrived::with_message(bytes, REPLY_BYTES).into_kept();
        let read = self.window.take(number).read()?;
        Some(read.map(|file| file.map(kept)))
    }
}

impl Taken {
    /// The result for a file source; none for a file read separately.
    pub(crate) fn read(self) -> Option<FileRead> {
        match self {
            Self::File(file) => Some(Ok(file)),
            Self::Unreachable(error) => Some(Err(error)),
            Self::Separate => None,
        }
    }
}

impl Drop for EpochReader {
    fn drop(&mut self) {
        self.window.close();
    }
}

/// A fetch in progress. A drop before the end counts as a failure.
struct FetchGuard {
    window: Arc<Window>,
    fetch: Option<Fetch>,
}

impl Drop for FetchGuard {
    fn drop(&mut self) {
        if let Some(fetch) = self.fetch.take() {
            let why = "the fetching task ended early";
            self.window.lose(&fetch, Error::new(Kind::Internal, "read", "a chunk", why));
        }
    }
}

async fn fetch_all(window: Arc<Window>, source: &EpochSource) {
    let mut guard = FetchGuard { window, fetch: None };
    while let Some(fetch) = guard.window.next_fetch() {
        let numbers = fetch.numbers.clone();
        guard.fetch = Some(fetch);
        let result = source.fetch(&numbers).await;
        if let Some(fetch) = guard.fetch.take() {
            guard.window.record(&fetch, result);
        }
    }
}

#[derive(Debug)]
struct WantedFile {
    /// The index among the requested files.
    place: usize,
    number: u32,
    record: FileRecord,
}

impl EpochSource {
    fn new(dataset: &RemoteDataset, snapshot: Arc<Snapshot>) -> Result<Self, Error> {
        let (session, info) = (dataset.session()?, dataset.info().clone());
        Ok(Self { session, info, snapshot })
    }

    /// The files of a chunk, or the error of the servers.
    async fn fetch(&self, numbers: &[u32]) -> Result<Vec<Content>, Error> {
        let mut contents = vec![Content::Separate; numbers.len()];
        let mut files = Vec::with_capacity(numbers.len());
        for ((place, number), content) in numbers.iter().enumerate().zip(&mut contents) {
            match self.snapshot.record(*number) {
                // Too large to keep.
                Ok(record) if record.has_extents => {}
                Ok(record) => files.push(WantedFile { place, number: *number, record }),
                Err(error) => *content = Content::Failed(Box::new(error)),
            }
        }
        let files = self.fetch_range(files, &mut contents).await?;
        self.fetch_files(files, contents).await
    }

    /// Fetches files as a range of their chunk. Gives the files to request separately: damaged
    /// files and files of a missing chunk. Gives all files if few of the bytes are wanted.
    async fn fetch_range(
        &self,
        mut files: Vec<WantedFile>,
        contents: &mut [Content],
    ) -> Result<Vec<WantedFile>, Error> {
        let range = range_of(files.iter().map(|file| &file.record));
        let Some(range) = range else { return Ok(files) };
        let mut came = ChunkBytes::of(&range);
        let take = |_, _, bytes| came.push(bytes);
        let asked = get_chunks(&self.session, &self.info, &[range], false, take).await;
        let unavailable = match asked {
            Err(error) if error.kind().is_retryable() => return Err(error),
            // The requests for the files will report the cause.
            Err(_) => None,
            Ok(ended) => ended.into_iter().find_map(Result::err),
        };
        // After a store's timeout, the files are not requested separately, for each could time out.
        let unavailable = unavailable.filter(|error| error.kind().is_retryable());
        files.retain(|file| {
            let result = match (came.file(&file.record), &unavailable) {
                (Some(bytes), _) => Content::Bytes(bytes),
                (None, Some(error)) => Content::Failed(Box::new(error.clone())),
                (None, None) => return true,
            };
            if let Some(content) = contents.get_mut(file.place) {
                *content = result;
            }
            false
        });
        Ok(files)
    }

    /// Requests files by their records.
    async fn fetch_files(
        &self,
        files: Vec<WantedFile>,
        mut contents: Vec<Content>,
    ) -> Result<Vec<Content>, Error> {
        let mut items = Vec::with_capacity(files.len());
        for WantedFile { place, number, record } in files {
            match (self.snapshot.path(number), contents.get_mut(place)) {
                (Ok(path), _) => items.push((place, ReadItem::from((path, record)))),
                (Err(error), Some(content)) => *content = Content::Failed(Box::new(error)),
                (Err(_), None) => {}
            }
        }
        items.sort_by_key(|(_, item)| item.record.map(|record| record.offset));
        let (places, items): (Vec<usize>, Vec<ReadItem>) = items.into_iter().unzip();
        let contents = Mutex::new(contents);
        let batches = places.chunks(FILES_AT_ONCE).zip(items.chunks(FILES_AT_ONCE));
        for (places, items) in batches {
            let keep = |index: usize, file: Result<Arrived, Error>| {
                let mut contents = locked(&contents);
                let place = places.get(index);
                if let Some(content) = place.and_then(|place| contents.get_mut(*place)) {
                    *content = match file {
                        Ok(file) => Content::Bytes(file.bytes),
                        Err(error) => Content::Failed(Box::new(error)),
                    };
                }
            };
            let wanted = Wanted::whole(items);
            if let Some(error) = read_batch(&self.session, &self.info, wanted, keep).await {
                return Err(error);
            }
        }
        Ok(contents.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads a file in a separate request.
    fn read(&self, number: u32) -> FileRead {
        let named = self.snapshot.record(number).and_then(|record| {
            let path = self.snapshot.path(number)?;
            Ok(ReadItem::from((path, record)))
        });
        let item = match named {
            Ok(item) => item,
            Err(error) => return Ok(Err(error)),
        };
        let wanted = Wanted::whole(std::slice::from_ref(&item));
        let read = read_whole(&self.session, &self.info, wanted);
        let mut files = self.session.wait(read)?;
        Ok(files.pop().expect("a result for each wanted file"))
    }
}

#[cfg(test)]
mod tests;

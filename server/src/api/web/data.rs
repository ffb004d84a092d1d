//! Datasets, their folders and files, for the page.
//!
//! Must hold: reads are bounded as those of gRPC; a file's bytes get the type of a picture only by their first
//! bytes, and otherwise the type of plain text.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use dl_format::{DatasetId, DatasetName, DirPath, FilePath, FileRecord};
use dl_meta::{Found, ListEntry, ListQuery};
use dl_proto::{Counts, Dataset, Kind, ReadItem, ReadPiece, ReadRequest, ReadSource};
use futures::stream;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::Refusal;
use crate::answers::answer::Reply;
use crate::answers::reservation::Reservation;
use crate::api::shown::Shown;
use crate::auth::Caller;
use crate::datasets::catalog::{self, Detail};
use crate::error::Error;
use crate::read::browse;
use crate::read::executor::Executor;
use crate::read::files;
use crate::shared::context::{Budget, ServerContext};
use crate::tasks;

/// Entries of a page of a folder.
const PAGE: usize = 100;

/// Largest answer with a file.
const FILE_MAX: u64 = 8 << 20;

/// Requests of pages that work at once, so that pages are no load for readers.
pub(crate) const AT_ONCE: usize = 4;

/// Messages of a read that wait for the connection.
const REPLIES_AHEAD: usize = 2;

/// The first bytes of pictures that a browser shows without running anything.
const PICTURES: [(&[u8], &str); 5] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xFF\xD8\xFF", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
];

/// Reads datasets for a page.
#[derive(Debug)]
pub(crate) struct Browser {
    pub(crate) context: ServerContext,
    pub(crate) executor: Executor,
    pub(crate) reads: Budget,
    /// Requests of pages at work: the others wait.
    pub(crate) turns: Arc<Semaphore>,
}

#[derive(Debug, Serialize)]
pub(super) struct DatasetPage {
    name: String,
    id: String,
    version: String,
    /// Microseconds since 1970.
    created: u64,
    chunk_size: u32,
    alignment: u32,
    objects: u64,
    files: Option<u64>,
    bytes: Option<u64>,
    problem: Option<String>,
    small_chunks: u64,
    small_chunk_bytes: u64,
    leases: Vec<LeasePart>,
}

#[derive(Debug, Serialize)]
struct LeasePart {
    task: String,
    user: String,
    version: String,
    until: u64,
    in_use: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct FolderPage {
    entries: Vec<EntryPart>,
    /// The parameter `after` of the next page, percent-encoded; none after the last.
    next: Option<String>,
}

/// An entry; texts that are not UTF-8 are shown with replacements.
#[derive(Debug, Serialize)]
struct EntryPart {
    name: String,
    /// The whole path, percent-encoded.
    path: String,
    is_folder: bool,
    #[serde(flatten)]
    file: Option<FilePart>,
}

#[derive(Debug, Serialize)]
pub(super) struct FilePart {
    size: u64,
    /// Nanoseconds since 1970.
    mtime: i64,
    mode: u16,
    chunk: String,
    crc32c: String,
}

impl From<FileRecord> for FilePart {
    fn from(file: FileRecord) -> Self {
        Self {
            size: file.length,
            mtime: file.attributes.mtime,
            mode: file.attributes.mode,
            chunk: file.holder.chunk.to_string(),
            crc32c: format!("{:08x}", file.crc.value()),
        }
    }
}

impl Browser {
    pub(super) async fn dataset(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<DatasetPage, Refusal> {
        let _turn = self.turns.acquire().await;
        let Dataset { name, id, shape, created, objects, version, counts, small } =
            self.find(caller, name, Detail::Counts).await?;
        let record = self.context.meta.record(id).await;
        let leases = match record {
            Ok(Some(record)) => tasks::leases(&self.context, caller, &record).await?,
            _ => Vec::new(),
        };
        let leases = leases.into_iter().map(|lease| LeasePart {
            task: lease.task.map(|task| task.to_string()).unwrap_or_else(|| lease.id.to_string()),
            user: lease.user,
            version: lease.version.to_string(),
            until: lease.until.get(),
            in_use: lease.in_use,
        });
        let (files, bytes, problem) = match counts {
            Counts::Known { files, bytes } => (Some(files), Some(bytes), None),
            Counts::Unknown(why) => (None, None, Some(why)),
            Counts::Unasked => (None, None, None),
        };
        Ok(DatasetPage {
            name: name.to_string(),
            id: id.to_string(),
            version: version.to_string(),
            created: created.get(),
            chunk_size: shape.size(),
            alignment: shape.alignment(),
            objects,
            files,
            bytes,
            problem,
            small_chunks: small.chunks,
            small_chunk_bytes: small.bytes,
            leases: leases.collect(),
        })
    }

    pub(super) async fn list(
        &self,
        caller: &Caller,
        name: &str,
        folder: Vec<u8>,
        after: Option<Vec<u8>>,
    ) -> Result<FolderPage, Refusal> {
        let _turn = self.turns.acquire().await;
        let dataset = self.find(caller, name, Detail::Record).await?;
        // Not while files may be missing in the metadata.
        catalog::by_id(&self.context, dataset.id).await?;
        let dir = DirPath::new(folder).map_err(Refusal::invalid)?;
        let query =
            ListQuery { after: after.map(Bytes::from), ..ListQuery::of(dir.clone(), false, PAGE) };
        let page = match self.context.meta.list(dataset.id, &query).await {
            Ok(page) => page,
            Err(error) => {
                let error = Error::meta("list dataset", dataset.id, error);
                return Err(catalog::explained(&self.context, dataset.id, error).await.into());
            }
        };
        let next = (!query.is_last(&page)).then(|| page.last().map(ListEntry::key)).flatten();
        let prefix = dir.prefix().len();
        let entries = page.into_iter().map(|entry| match entry {
            ListEntry::File(path, file) => EntryPart {
                name: last_part(path.as_bytes(), prefix),
                path: encoded(path.as_bytes()),
                is_folder: false,
                file: Some(file.into()),
            },
            ListEntry::Folder(path) => EntryPart {
                name: last_part(path.as_bytes(), prefix),
                path: encoded(path.as_bytes()),
                is_folder: true,
                file: None,
            },
        });
        Ok(FolderPage { entries: entries.collect(), next: next.map(|key| encoded(&key)) })
    }

    /// The first `length` bytes of a file; a whole file only up to [`FILE_MAX`].
    pub(super) async fn file(
        &self,
        caller: &Caller,
        name: &str,
        path: Vec<u8>,
        length: Option<u64>,
    ) -> Result<Response, Refusal> {
        let (dataset, file) = self.look_up(caller, name, path).await?;
        let length = length.unwrap_or(file.length).min(file.length);
        if length > FILE_MAX {
            let why = format!(
                "the file has {length} bytes, and a page shows at most {FILE_MAX}: take it by `dlcmd get`"
            );
            return Err(Refusal(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        let item = ReadItem { source: ReadSource::File(file), offset: 0, length: Some(length) };
        let request =
            ReadRequest { dataset, items: vec![item], pass_copies: false, check_headers: false };
        self.read(request, length).await
    }

    /// The attributes of a file.
    pub(super) async fn entry(
        &self,
        caller: &Caller,
        name: &str,
        path: Vec<u8>,
    ) -> Result<FilePart, Refusal> {
        Ok(self.look_up(caller, name, path).await?.1.into())
    }

    async fn look_up(
        &self,
        caller: &Caller,
        name: &str,
        path: Vec<u8>,
    ) -> Result<(DatasetId, FileRecord), Refusal> {
        let _turn = self.turns.acquire().await;
        let id = self.find(caller, name, Detail::Record).await?.id;
        catalog::by_id(&self.context, id).await?;
        let path = FilePath::new(path).map_err(Refusal::invalid)?;
        let found = browse::look_up(&self.context, id, std::slice::from_ref(&path)).await?;
        match found.into_iter().next() {
            Some(Found::File(file)) => Ok((id, file)),
            Some(Found::Folder) => Err(Refusal::invalid("it is a folder")),
            Some(Found::Missing) | None => {
                let why = "there is no such file".to_owned();
                Err(Refusal(StatusCode::NOT_FOUND, why))
            }
        }
    }

    async fn read(&self, request: ReadRequest, length: u64) -> Result<Response, Refusal> {
        let (replies, mut pieces) = mpsc::channel(REPLIES_AHEAD);
        let memory = Arc::<Reservation>::default();
        let held = Arc::clone(&memory);
        let Self { context, executor, reads, .. } = self;
        let (context, executor, reads) = (context.clone(), executor.clone(), reads.clone());
        let work = Work(dl_runtime::spawn(async move {
            files::read(&context, &executor, &reads, &held, request, replies).await
        }));
        // The first bytes tell the type, and a failure has a page of its own.
        let first =
            next(&mut pieces).await.map_err(|(kind, why)| Refusal(super::status_of(kind), why))?;
        let Some(first) = first else { return Err(ended(work).await) };
        let kind = type_of(&first);
        let rest =
            stream::unfold((pieces, memory, work), |(mut pieces, memory, work)| async move {
                let bytes = next(&mut pieces).await;
                let bytes = bytes.map_err(|(_, why)| io::Error::other(why)).transpose()?;
                Some((bytes, (pieces, memory, work)))
            });
        let body = futures::StreamExt::chain(stream::iter([Ok(first)]), rest);
        let headers = [(CONTENT_TYPE, kind.to_owned()), (CONTENT_LENGTH, length.to_string())];
        Ok((headers, Body::from_stream(body)).into_response())
    }

    async fn find(&self, caller: &Caller, name: &str, detail: Detail) -> Result<Dataset, Refusal> {
        let name = DatasetName::new(name.to_owned())
            .map_err(|why| Refusal::invalid(format!("{}: {why}", Shown(name))))?;
        Ok(catalog::by_name(&self.context, &name, caller, detail).await?)
    }
}

type Pieces = mpsc::Receiver<Reply<Vec<ReadPiece>>>;

/// The next bytes of a file; none after the last.
async fn next(pieces: &mut Pieces) -> Result<Option<Bytes>, (Kind, String)> {
    loop {
        let (message, is_last) = match pieces.recv().await {
            Some(Reply::More(message)) => (message, false),
            Some(Reply::Last(message)) => (message, true),
            None => return Ok(None),
        };
        let mut bytes = Vec::new();
        for piece in message {
            bytes.extend_from_slice(&piece.data?);
        }
        if is_last || !bytes.is_empty() {
            return Ok(Some(bytes.into()));
        }
    }
}

/// A read, which ends with its answer.
struct Work(JoinHandle<Result<(), Error>>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The failure of a read that told nothing.
async fn ended(mut work: Work) -> Refusal {
    match (&mut work.0).await {
        Ok(Err(error)) => error.into(),
        _ => Refusal(StatusCode::INTERNAL_SERVER_ERROR, "the read ended early".to_owned()),
    }
}

fn type_of(first: &[u8]) -> &'static str {
    let is_webp = first.starts_with(b"RIFF") && first.get(8..12) == Some(b"WEBP");
    let picture = PICTURES.iter().find(|(magic, _)| first.starts_with(magic));
    match picture {
        Some((_, kind)) => kind,
        None if is_webp => "image/webp",
        None => "text/plain; charset=utf-8",
    }
}

fn last_part(path: &[u8], prefix: usize) -> String {
    String::from_utf8_lossy(path.get(prefix..).unwrap_or(path)).into_owned()
}

fn encoded(bytes: &[u8]) -> String {
    percent_encode(bytes, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pictures_have_another_type_than_text() {
        let png = b"\x89PNG\r\n\x1a\n....";
        assert_eq!(type_of(png), "image/png");
        assert_eq!(type_of(b"RIFF....WEBPVP8 "), "image/webp");
        for text in [&b"<svg onload=alert(1)>"[..], b"<!doctype html><script>", b"", b"RIFF"] {
            assert_eq!(type_of(text), "text/plain; charset=utf-8");
        }
    }
}

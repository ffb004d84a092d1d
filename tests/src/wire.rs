//! A client without retries, connected to a single server, with ids chosen by the caller. Tests use
//! it to see each request and its answer.
//!
//! Must hold: no request is repeated, and no state is kept between calls.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use dl_format::{
    Attributes, ChunkId, ChunkIdMaker, ChunkShape, ChunkWriter, Crc32c, DatasetId, DatasetName,
    Deletions, FilePath, FileRecord, Stamp,
};
use dl_proto::pb::diesel_client::DieselClient;
use dl_proto::{
    DeleteRequest, Finding, ListEntry, MESSAGE_BYTES_MAX, PurgeProgress, PurgeRequest,
    RecoverProgress, StatItem, StatRequest, pb,
};
use dl_runtime::{Clock, OsRandom, Random, SystemClock};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// The files of a dataset: path and bytes.
pub type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// The smallest chunk size, in bytes.
const CHUNK: u32 = 1 << 20;

/// A connection to a server.
#[derive(Debug, Clone)]
pub struct Wire {
    server: DieselClient<Channel>,
}

impl Wire {
    /// Connects to a server.
    ///
    /// # Errors
    /// When nothing listens at the address.
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await;
        let channel = channel.with_context(|| format!("connect to {address}"))?;
        let server = DieselClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        Ok(Self { server })
    }

    /// Connects to a server and looks a dataset up.
    ///
    /// # Errors
    /// When nothing listens at the address, or the dataset is missing.
    pub async fn open(address: &str, dataset: &str) -> Result<(Self, DatasetId)> {
        let client = Self::connect(address.parse()?).await?;
        let id = client.dataset(dataset).await?;
        Ok((client, id.with_context(|| format!("there is no dataset {dataset}"))?))
    }

    /// The generated stub.
    pub fn stub(&self) -> DieselClient<Channel> {
        self.server.clone()
    }

    /// Creates a dataset with small chunks, or returns the existing one.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn create(&self, name: &str) -> Result<DatasetId, Status> {
        self.create_with(name, CHUNK).await
    }

    /// Creates a dataset with this chunk size in bytes, or returns the existing one.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn create_with(&self, name: &str, chunk_size: u32) -> Result<DatasetId, Status> {
        let request = pb::CreateDatasetRequest { name: name.to_owned(), chunk_size, alignment: 64 };
        let dataset = self.stub().create_dataset(request).await?.into_inner();
        id(&dataset.id)
    }

    /// The id of a dataset; none for an unknown name.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn dataset(&self, name: &str) -> Result<Option<DatasetId>, Status> {
        match self
            .stub()
            .get_dataset(pb::GetDatasetRequest { name: name.to_owned(), without_counts: true })
            .await
        {
            Ok(dataset) => id(&dataset.into_inner().id).map(Some),
            Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Deletes a dataset.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn delete_dataset(&self, name: &str, id: DatasetId) -> Result<(), Status> {
        let id = Bytes::copy_from_slice(id.as_bytes());
        let request = pb::DeleteDatasetRequest { name: name.to_owned(), id };
        self.stub().delete_dataset(request).await.map(drop)
    }

    /// Sends a sealed object.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn put(&self, dataset: DatasetId, object: &[u8]) -> Result<Stamp, Status> {
        let message = pb::PutChunkRequest {
            dataset: Bytes::copy_from_slice(dataset.as_bytes()),
            length: object.len() as u64,
            data: Bytes::copy_from_slice(object),
        };
        let reply = self.stub().put_chunk(tokio_stream::once(message)).await?;
        Ok(Stamp::new(reply.into_inner().stamp))
    }

    /// Deletes versions with a tombstone of the given id.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn delete(
        &self,
        dataset: DatasetId,
        tombstone: ChunkId,
        deletions: &Deletions,
    ) -> Result<Stamp, Status> {
        let request = DeleteRequest { dataset, tombstone, deletions: deletions.clone() };
        let reply = self.stub().delete(pb::DeleteRequest::from(request)).await?;
        Ok(Stamp::new(reply.into_inner().stamp))
    }

    /// Rebuilds the metadata of all datasets; returns the last progress of each, with all problems.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn recover(&self) -> Result<Vec<RecoverProgress>, Status> {
        let mut told = BTreeMap::<String, RecoverProgress>::new();
        let mut steps = self.stub().recover(pb::RecoverRequest::default()).await?.into_inner();
        while let Some(mut step) = steps.message().await? {
            if let Some(mut before) = told.remove(&step.dataset) {
                before.problems.append(&mut step.problems);
                step.problems = before.problems;
            }
            told.insert(step.dataset.clone(), step);
        }
        Ok(told.into_values().collect())
    }

    /// Purges a dataset; returns the last progress, with all problems.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn purge(&self, name: &str, grace: Duration) -> Result<PurgeProgress, Status> {
        let dataset = DatasetName::new(name).map_err(|why| Status::internal(why.to_string()))?;
        let request = PurgeRequest { dataset: Some(dataset), grace, dry_run: false, force: false };
        let mut steps = self.stub().purge(pb::PurgeRequest::from(request)).await?.into_inner();
        let mut last = PurgeProgress::default();
        while let Some(step) = steps.message().await? {
            let mut step = PurgeProgress::from(step);
            last.problems.append(&mut step.problems);
            step.problems = last.problems;
            last = step;
        }
        Ok(last)
    }

    /// Verifies a dataset and returns the findings.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn verify(&self, name: &str, checksums: bool) -> Result<Vec<Finding>, Status> {
        let request = pb::VerifyRequest { dataset: name.to_owned(), checksums };
        let mut steps = self.stub().verify(request).await?.into_inner();
        let mut findings = Vec::new();
        while let Some(step) = steps.message().await? {
            findings.extend(step.findings);
        }
        Ok(findings)
    }

    /// All files of a dataset, from a recursive listing of its root.
    ///
    /// # Errors
    /// As the server answers, or when the answer is invalid.
    pub async fn list(&self, dataset: DatasetId) -> Result<Vec<(FilePath, FileRecord)>> {
        let request = pb::ListRequest {
            dataset: Bytes::copy_from_slice(dataset.as_bytes()),
            recursive: true,
            ..pb::ListRequest::default()
        };
        let mut pages = self.stub().list(request).await?.into_inner();
        let mut files = Vec::new();
        while let Some(page) = pages.message().await? {
            for entry in page.entries {
                match ListEntry::try_from(entry)? {
                    ListEntry::File(path, Some(record)) => files.push((path, record)),
                    other => anyhow::bail!("{other:?} in a listing of files"),
                }
            }
        }
        ensure!(files.is_sorted_by(|a, b| a.0 < b.0), "a listing is not sorted");
        Ok(files)
    }

    /// The state of each path, in order.
    ///
    /// # Errors
    /// As the server answers, or when the answer is invalid.
    pub async fn stat(&self, dataset: DatasetId, paths: &[FilePath]) -> Result<Vec<StatItem>> {
        let request = StatRequest { dataset, paths: paths.to_vec() };
        let reply = self.stub().stat(pb::StatRequest::from(request)).await?.into_inner();
        let count = reply.items.len();
        ensure!(count == paths.len(), "{count} of {} paths were answered", paths.len());
        let items = reply.items.into_iter().map(StatItem::try_from);
        Ok(items.collect::<Result<_, _>>()?)
    }

    /// The bytes of the files at these paths, in order; none for a missing path.
    ///
    /// # Errors
    /// As the server answers, or when a file can't be read.
    pub async fn read(
        &self,
        dataset: DatasetId,
        paths: &[FilePath],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let items = paths.iter().map(|path| pb::ReadItem {
            source: Some(pb::read_item::Source::Path(path.clone().into_bytes())),
            ..pb::ReadItem::default()
        });
        let request = pb::ReadRequest {
            dataset: Bytes::copy_from_slice(dataset.as_bytes()),
            items: items.collect(),
            ..Default::default()
        };
        let mut found = vec![Some(Vec::new()); paths.len()];
        let mut ended = 0;
        let mut replies = self.stub().read(request).await?.into_inner();
        while let Some(reply) = replies.message().await? {
            for piece in reply.pieces {
                let slot = found.get_mut(piece.item as usize).context("another item")?;
                match piece.status() {
                    pb::ItemStatus::Ok => {
                        slot.get_or_insert_default().extend_from_slice(&piece.data);
                    }
                    pb::ItemStatus::NotFound => *slot = None,
                    status => anyhow::bail!("read: {status:?}: {}", piece.problem),
                }
                ended += usize::from(piece.last);
            }
        }
        ensure!(ended == paths.len(), "{ended} of {} items were answered", paths.len());
        Ok(found)
    }

    /// All files with their bytes, read by path and compared with their checksums.
    ///
    /// # Errors
    /// As the server answers, or when a file differs from the listing.
    pub async fn files(&self, dataset: DatasetId) -> Result<Files> {
        let listed = self.list(dataset).await?;
        let paths: Vec<FilePath> = listed.iter().map(|(path, _)| path.clone()).collect();
        let found = self.read(dataset, &paths).await?;
        let mut files = Files::new();
        for ((path, record), bytes) in listed.into_iter().zip(found) {
            let bytes = bytes.with_context(|| format!("{path} was listed and is not there"))?;
            ensure!(Crc32c::of(&bytes) == record.crc, "{path} has another checksum");
            files.insert(path.as_bytes().to_vec(), bytes);
        }
        Ok(files)
    }
}

fn id(bytes: &[u8]) -> Result<DatasetId, Status> {
    let bytes = bytes.try_into().map_err(|_| Status::internal("an id has 16 bytes"))?;
    Ok(DatasetId::from_bytes(bytes))
}

/// A new chunk id.
pub fn new_id() -> ChunkId {
    let mut origin = [0; 9];
    OsRandom.fill(&mut origin);
    ChunkIdMaker::new(origin).next(SystemClock::new().now())
}

/// The shape of the chunks of the test datasets.
///
/// # Errors
/// None, while the format permits the shape.
pub fn shape() -> Result<ChunkShape> {
    Ok(ChunkShape::new(CHUNK, 64)?)
}

/// A sealed chunk of these files, as from a client.
///
/// # Errors
/// When the files don't fit.
pub fn chunk<'a>(
    id: ChunkId,
    dataset: DatasetId,
    files: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<Vec<u8>> {
    let mut writer = ChunkWriter::new(shape()?, Vec::new());
    for (path, data) in files {
        let path = FilePath::new(path.to_vec())?;
        writer.append(&path, Attributes { mode: 0o644, mtime: 1 }, data)?;
    }
    Ok(writer.seal(id, dataset).as_slice().to_vec())
}

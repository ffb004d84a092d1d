//! A scripted server for tests.

use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use dl_format::{
    Attributes, ChunkId, ChunkShape, Crc32c, DatasetId, DatasetName, EntryVersion, FilePath,
    FileRecord, Stamp, Version,
};
use dl_proto::pb::diesel_server::{Diesel, DieselServer};
use dl_proto::{
    Counts, Dataset as DatasetInfo, GetChunksRequest, GetSnapshotRequest, ListRequest, ReadRequest,
    SmallChunks, StatItem, StatRequest, pb,
};
use futures::stream::{self, BoxStream};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

use crate::dataset::Dataset;
use crate::remote::process::Process;
use crate::remote::{Client, ConnectOptions};

pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;
type Messages<T> = Vec<Result<T, Status>>;

type Admit = Box<dyn Fn(&str, &str) -> Result<(), Status> + Send + Sync>;

/// The answers of the server.
pub(crate) struct Script {
    /// The answer for each complete object.
    pub(crate) put: Box<dyn Fn(Bytes) -> Answer<()> + Send + Sync>,
    pub(crate) read: Box<dyn Fn(ReadRequest) -> Messages<pb::ReadReply> + Send + Sync>,
    pub(crate) stat: Box<dyn Fn(StatRequest) -> Vec<StatItem> + Send + Sync>,
    pub(crate) chunks: Box<dyn Fn(GetChunksRequest) -> Messages<pb::GetChunksReply> + Send + Sync>,
    pub(crate) list: Box<dyn Fn(ListRequest) -> Messages<pb::ListReply> + Send + Sync>,
    pub(crate) snapshot:
        Box<dyn Fn(GetSnapshotRequest) -> Messages<pb::GetSnapshotReply> + Send + Sync>,
    /// The verdict on the user and key of each request for a dataset.
    pub(crate) admit: Admit,
}

impl Script {
    /// A server with the given answer for each object.
    pub(crate) fn putting(put: impl Fn(Bytes) -> Answer<()> + Send + Sync + 'static) -> Self {
        Self { put: Box::new(put), ..Self::default() }
    }
}

impl Default for Script {
    fn default() -> Self {
        Self {
            put: Box::new(|_| Box::pin(async { Ok(()) })),
            read: Box::new(|_| Vec::new()),
            stat: Box::new(|request| vec![StatItem::Missing; request.paths.len()]),
            chunks: Box::new(|_| vec![Err(Status::unimplemented("no chunks here"))]),
            list: Box::new(|_| Vec::new()),
            snapshot: Box::new(|_| vec![Err(Status::unimplemented("no snapshots here"))]),
            admit: Box::new(|_, _| Ok(())),
        }
    }
}

/// Small chunks, so tests need few bytes.
pub(crate) fn shape() -> ChunkShape {
    ChunkShape::new(1 << 20, 64).unwrap()
}

pub(crate) fn info() -> DatasetInfo {
    DatasetInfo {
        name: DatasetName::new("pets").unwrap(),
        id: DatasetId::from_bytes([9; 16]),
        shape: shape(),
        created: Stamp::new(1),
        objects: 0,
        version: Version::default(),
        counts: Counts::Unasked,
        small: SmallChunks::default(),
    }
}

pub(crate) fn path(text: &str) -> FilePath {
    FilePath::new(text.as_bytes().to_vec()).unwrap()
}

pub(crate) fn chunk_id() -> ChunkId {
    ChunkId::from_bytes([5; 16])
}

pub(crate) fn record(data: &[u8]) -> FileRecord {
    let version = EntryVersion { stamp: Stamp::new(7), chunk: chunk_id(), entry: 0 };
    FileRecord {
        version,
        holder: version,
        attributes: Attributes { mode: 0o644, mtime: 1 },
        length: data.len() as u64,
        crc: Crc32c::of(data),
        offset: 4096,
        stored: u32::try_from(data.len()).unwrap(),
        has_extents: false,
    }
}

/// Bytes that differ from their neighbours.
pub(crate) fn data(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|n| (n.wrapping_mul(31) >> 3) as u8 ^ seed).collect()
}

/// Starts a server for the rest of the test.
pub(crate) fn start(script: Script) -> SocketAddr {
    let runtime = &Process::current().unwrap().runtime;
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(DieselServer::new(Fake(Arc::new(script))).max_decoding_message_size(1 << 24))
        .serve_with_incoming(TcpListenerStream::new(listener));
    dl_runtime::spawn_on(runtime.handle(), server);
    address
}

/// An address that accepts connections and never answers.
pub(crate) fn silent() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub(crate) fn refusing() -> SocketAddr {
    silent().1
}

pub(crate) fn options(servers: &[SocketAddr]) -> ConnectOptions {
    ConnectOptions {
        servers: servers.iter().map(ToString::to_string).collect(),
        connect_timeout: Duration::from_secs(2),
        request_timeout: Duration::from_secs(20),
        ..ConnectOptions::default()
    }
}

pub(crate) fn open(options: ConnectOptions) -> Dataset {
    Client::connect(options).unwrap().dataset(&info().name).unwrap()
}

/// A dataset at a scripted server.
pub(crate) fn dataset(script: Script) -> Dataset {
    open(options(&[start(script)]))
}

struct Fake(Arc<Script>);

fn said<'a>(request: &'a Request<pb::GetDatasetRequest>, name: &str) -> &'a str {
    request.metadata().get(name).map_or("", |value| value.to_str().unwrap())
}

fn streamed<T: Send + 'static>(
    messages: Messages<T>,
) -> Result<Response<BoxStream<'static, Result<T, Status>>>, Status> {
    Ok(Response::new(Box::pin(stream::iter(messages))))
}

#[tonic::async_trait]
impl Diesel for Fake {
    type ReadStream = BoxStream<'static, Result<pb::ReadReply, Status>>;
    type ListStream = BoxStream<'static, Result<pb::ListReply, Status>>;
    type GetChunksStream = BoxStream<'static, Result<pb::GetChunksReply, Status>>;
    type GetSnapshotStream = BoxStream<'static, Result<pb::GetSnapshotReply, Status>>;
    type RecoverStream = BoxStream<'static, Result<pb::RecoverProgress, Status>>;
    type PurgeStream = BoxStream<'static, Result<pb::PurgeProgress, Status>>;
    type VerifyStream = BoxStream<'static, Result<pb::VerifyProgress, Status>>;

    async fn create_dataset(
        &self,
        _: Request<pb::CreateDatasetRequest>,
    ) -> Result<Response<pb::Dataset>, Status> {
        Ok(Response::new(info().into()))
    }

    async fn get_dataset(
        &self,
        request: Request<pb::GetDatasetRequest>,
    ) -> Result<Response<pb::Dataset>, Status> {
        if request.get_ref().name.is_empty() {
            return Err(Status::invalid_argument("no name"));
        }
        (self.0.admit)(said(&request, "diesel-user"), said(&request, "diesel-key"))?;
        Ok(Response::new(info().into()))
    }

    async fn list_datasets(
        &self,
        _: Request<pb::ListDatasetsRequest>,
    ) -> Result<Response<pb::ListDatasetsReply>, Status> {
        Ok(Response::new(pb::ListDatasetsReply {
            datasets: vec![info().into()],
            unread: Vec::new(),
        }))
    }

    async fn delete_dataset(
        &self,
        request: Request<pb::DeleteDatasetRequest>,
    ) -> Result<Response<pb::DeleteDatasetReply>, Status> {
        let removed = u64::from(request.get_ref().id == info().id.as_bytes()[..]);
        Ok(Response::new(pb::DeleteDatasetReply { removed, more_left: false }))
    }

    async fn put_chunk(
        &self,
        request: Request<Streaming<pb::PutChunkRequest>>,
    ) -> Result<Response<pb::PutChunkReply>, Status> {
        let mut stream = request.into_inner();
        let head = stream.message().await?.unwrap();
        let mut object = BytesMut::from(&head.data[..]);
        while let Some(piece) = stream.message().await? {
            object.extend_from_slice(&piece.data);
        }
        assert_eq!((head.length, &head.dataset[..]), (object.len() as u64, &[9; 16][..]));
        (self.0.put)(object.freeze()).await?;
        Ok(Response::new(pb::PutChunkReply { stamp: 1 }))
    }

    async fn delete(
        &self,
        _: Request<pb::DeleteRequest>,
    ) -> Result<Response<pb::DeleteReply>, Status> {
        Ok(Response::new(pb::DeleteReply { stamp: 1 }))
    }

    async fn read(
        &self,
        request: Request<pb::ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        streamed((self.0.read)(request.into_inner().try_into().unwrap()))
    }

    async fn get_chunks(
        &self,
        request: Request<pb::GetChunksRequest>,
    ) -> Result<Response<Self::GetChunksStream>, Status> {
        streamed((self.0.chunks)(request.into_inner().try_into().unwrap()))
    }

    async fn stat(
        &self,
        request: Request<pb::StatRequest>,
    ) -> Result<Response<pb::StatReply>, Status> {
        let items = (self.0.stat)(request.into_inner().try_into().unwrap());
        let items = items.into_iter().map(pb::StatItem::from).collect();
        Ok(Response::new(pb::StatReply { items }))
    }

    async fn list(
        &self,
        request: Request<pb::ListRequest>,
    ) -> Result<Response<Self::ListStream>, Status> {
        streamed((self.0.list)(request.into_inner().try_into().unwrap()))
    }

    async fn get_snapshot(
        &self,
        request: Request<pb::GetSnapshotRequest>,
    ) -> Result<Response<Self::GetSnapshotStream>, Status> {
        streamed((self.0.snapshot)(request.into_inner().try_into().unwrap()))
    }

    /// A job with the caller as its only member.
    async fn status(
        &self,
        _: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusReply>, Status> {
        Err(Status::unimplemented("status"))
    }

    async fn join_task(
        &self,
        request: Request<pb::JoinTaskRequest>,
    ) -> Result<Response<pb::JoinTaskReply>, Status> {
        let request = request.into_inner();
        let pb::JoinTaskRequest {
            version, member, address, key_fingerprint, memory, chunks, ..
        } = request;
        let members = vec![pb::TaskMember { member, address, key_fingerprint, memory, chunks }];
        Ok(Response::new(pb::JoinTaskReply { version, members, ..Default::default() }))
    }

    /// No job leases a version.
    async fn list_leases(
        &self,
        _: Request<pb::ListLeasesRequest>,
    ) -> Result<Response<pb::ListLeasesReply>, Status> {
        Ok(Response::new(pb::ListLeasesReply::default()))
    }

    async fn end_leases(
        &self,
        _: Request<pb::EndLeasesRequest>,
    ) -> Result<Response<pb::EndLeasesReply>, Status> {
        Err(Status::not_found("no lease"))
    }

    async fn recover(
        &self,
        _: Request<pb::RecoverRequest>,
    ) -> Result<Response<Self::RecoverStream>, Status> {
        let step = |listed, done| {
            let dataset = "pets".to_owned();
            Ok(pb::RecoverProgress { dataset, listed, done, ..pb::RecoverProgress::default() })
        };
        streamed(vec![step(1, false), step(2, true)])
    }

    async fn purge(
        &self,
        _: Request<pb::PurgeRequest>,
    ) -> Result<Response<Self::PurgeStream>, Status> {
        let step = |problems: &[&str], removed, done| {
            let problems = problems.iter().map(ToString::to_string).collect();
            let dataset = "pets".to_owned();
            Ok(pb::PurgeProgress { dataset, problems, removed, done, ..Default::default() })
        };
        streamed(vec![step(&["one"], 0, false), step(&["one", "two"], 7, true)])
    }

    async fn verify(
        &self,
        _: Request<pb::VerifyRequest>,
    ) -> Result<Response<Self::VerifyStream>, Status> {
        let step = |problem: &str, files, done| {
            let (problem, remedy) = (problem.to_owned(), "repair the file".to_owned());
            let findings = vec![pb::Finding { problem, remedy }];
            Ok(pb::VerifyProgress { findings, files, done, ..Default::default() })
        };
        streamed(vec![step("one", 4, false), step("two", 9, true)])
    }
}

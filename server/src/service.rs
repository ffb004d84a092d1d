//! The gRPC adapter: converts a request, asks the gate, calls one function of the domain, converts
//! the answer.
//!
//! Must hold: nothing is said of a dataset before the gate has let its caller through.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dl_format::{ChunkShape, DatasetId, DatasetName};
use dl_proto::pb::{self, diesel_server::Diesel};
use dl_proto::{
    DeleteRequest, GetChunksRequest, GetSnapshotRequest, JoinTask, Kind, ListRequest,
    MESSAGE_BYTES_MAX, PurgeRequest, PutHead, REQUEST_BYTES_MAX, ReadRequest, RecoverRequest,
    StatRequest, VerifyRequest, WireError,
};
use dl_runtime::Buffers;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use crate::answer::{Replies, answer, answer_with};
use crate::catalog::Detail;
use crate::error::Error;
use crate::executor::Executor;
use crate::guard::Admitted;
use crate::lease::{Items, Lease};
use crate::leftovers::Leftovers;
use crate::metrics::{Gauges, SnapshotMetrics, TaskMetrics};
use crate::parts::{Budget, Parts};
use crate::shown::Shown;
use crate::snapshot::{self, Snapshots};
use crate::turns::Turns;
use crate::unread::Intake;
use crate::{browse, catalog, chunks, commit, gate, purge, read, recover, spelled, tasks, verify};

/// Answer messages that wait for the connection: one that is sent, one that is ready.
const REPLIES_AHEAD: usize = 2;

/// Pages of a listing that wait for the connection.
const PAGES_AHEAD: usize = 1;

/// Bytes of paths and rows that are looked up, until the answer is taken.
const LOOKUP_BYTES: u32 = 32 << 20;

/// Bytes of what requests to read name, until they are answered: some of the largest ones.
const ITEMS_BYTES: u32 = 32 << 20;

/// Bytes of listings on their way. Apart, for who lists may stop to read what was listed.
const LISTING_BYTES: u32 = 32 << 20;

/// Memory for an object that is received, at least: below it, sizes don't matter.
const BUFFER_LENGTH_MIN: usize = 64 << 10;

/// Room that is taken for an object, at least: what else its connection may send meanwhile, and
/// the message that is received, count for something.
const ROOM_MIN: u64 = 512 << 10;
/// What a chunk that a tombstone names takes of it, beside its entries, in bytes.
const DELETION_ROOM: u64 = 256;

/// A put looks the record of its dataset up again when receiving the chunk took longer.
const RECORD_FRESH: Duration = Duration::from_secs(5);

/// One of so many parts of patience is how long a chunk waits for memory: less than its client waits
/// for an answer, which hears why.
const WRITE_WAIT_PART: u32 = 3;

/// Answers requests with the parts it was given; keeps nothing else.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    parts: Parts,
    executor: Executor,
    writes: Budget,
    buffers: Arc<Buffers>,
    reads: Budget,
    items: Items,
    lookups: Budget,
    listings: Budget,
    snapshots: Snapshots,
    tasks: Arc<TaskMetrics>,
    turns: Turns,
    leftovers: Leftovers,
}

impl Service {
    pub(crate) fn new(
        parts: Parts,
        snapshots: Arc<SnapshotMetrics>,
        tasks: Arc<TaskMetrics>,
    ) -> Self {
        Self {
            executor: Executor::new(Arc::clone(&parts.store)),
            writes: Budget::new(parts.limits.write_bytes, "receive a chunk"),
            buffers: Arc::default(),
            reads: Budget::new(parts.limits.read_bytes, "read files"),
            items: Items::new(Budget::new(ITEMS_BYTES, "read files")),
            lookups: Budget::new(LOOKUP_BYTES, "look files up"),
            listings: Budget::new(LISTING_BYTES, "list files"),
            snapshots: Snapshots::new(snapshots),
            tasks,
            turns: Turns::new(),
            leftovers: Leftovers::default(),
            parts,
        }
    }

    /// What it is at.
    pub(crate) fn gauges(&self) -> Gauges {
        Gauges {
            executor: self.executor.clone(),
            writes: self.writes.clone(),
            reads: self.reads.clone(),
        }
    }

    /// What its requests leave to be removed later.
    pub(crate) fn leftovers(&self) -> Leftovers {
        self.leftovers.clone()
    }

    /// Memory that answers take until they are sent.
    pub(crate) fn answers(&self) -> Arc<[Budget]> {
        let budgets = [&self.reads, &self.items.budget, &self.lookups, &self.listings];
        Arc::new(budgets.map(Budget::clone))
    }

    /// This service as tonic serves it.
    pub(crate) fn into_server(self) -> pb::diesel_server::DieselServer<Self> {
        pb::diesel_server::DieselServer::new(self)
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// The next message of a client that must not keep memory for nothing.
    async fn next_piece(
        &self,
        pieces: &mut Streaming<pb::PutChunkRequest>,
    ) -> Result<Option<pb::PutChunkRequest>, Status> {
        let patience = self.parts.limits.patience;
        tokio::select! {
            piece = pieces.message() => piece,
            () = self.parts.clock.sleep(patience) => {
                let why = format!("nothing came for {patience:?}; send it again");
                Err(Error::new(Kind::TimedOut, "receive", "a chunk", why).into())
            }
        }
    }

    async fn receive(
        &self,
        pieces: &mut Streaming<pb::PutChunkRequest>,
        head: PutHead,
        first: Bytes,
        intake: &Intake,
    ) -> Result<Vec<u8>, Status> {
        let length = usize::try_from(head.length).unwrap_or(usize::MAX);
        let room = room_of(length);
        let mut sending = self.writes.senders().begin(&*self.parts.clock, room);
        sending.came(first.len());
        let mut object = self.buffers.take(buffer_length(length));
        object.clear();
        object.extend_from_slice(&first);
        drop(first);
        let _expected = intake.expect();
        intake.taken();
        loop {
            let piece = tokio::select! {
                biased;
                given_up = sending.given_up("a chunk") => return Err(given_up.into()),
                piece = self.next_piece(pieces) => piece?,
            };
            let Some(piece) = piece else { break };
            if object.len().saturating_add(piece.data.len()) > length {
                break;
            }
            object.extend_from_slice(&piece.data);
            sending.came(piece.data.len());
            drop(piece);
            intake.taken();
        }
        if object.len() == length {
            return Ok(object);
        }
        let why = format!("{length} bytes were announced and another number came");
        Err(Error::new(Kind::Invalid, "receive", "a chunk", why).into())
    }
}

/// Room for an object, of few different sizes, so that it can be used again.
fn buffer_length(object_length: usize) -> usize {
    object_length
        .clamp(BUFFER_LENGTH_MIN, dl_format::layout::CHUNK_SIZE_MAX as usize)
        .next_power_of_two()
}

/// What an object takes of the memory for writes.
fn room_of(object_length: usize) -> u64 {
    ROOM_MIN.max(buffer_length(object_length) as u64)
}

/// What a tombstone takes of it: the sets of the request and of the header, and the object.
fn room_to_delete(wire: &pb::DeleteRequest) -> u64 {
    let of_one = |one: &pb::ChunkDeletions| DELETION_ROOM + 4 * one.entries.len() as u64;
    ROOM_MIN.max(wire.deletions.iter().map(of_one).sum())
}

#[tonic::async_trait]
impl Diesel for Service {
    type ReadStream = Replies<pb::ReadReply>;
    type ListStream = Replies<pb::ListReply>;
    type GetChunksStream = Replies<pb::GetChunksReply>;
    type GetSnapshotStream = Replies<pb::GetSnapshotReply>;
    type RecoverStream = Replies<pb::RecoverProgress>;
    type PurgeStream = Replies<pb::PurgeProgress>;
    type VerifyStream = Replies<pb::VerifyProgress>;

    #[tracing::instrument(name = "create_dataset", skip_all, fields(name = %Shown(&request.get_ref().name)))]
    async fn create_dataset(
        &self,
        request: Request<pb::CreateDatasetRequest>,
    ) -> Result<Response<pb::Dataset>, Status> {
        let admitted = Admitted::of(&request)?;
        let wire = request.into_inner();
        let or = |number, default| if number == 0 { default } else { number };
        let default = ChunkShape::default();
        let shape = ChunkShape::new(
            or(wire.chunk_size, default.size()),
            or(wire.alignment, default.alignment()),
        );
        let name = dataset_name(wire.name)?;
        admitted.made(&name)?;
        let shape = shape.map_err(|why| Error::new(Kind::Invalid, "create dataset", &name, why))?;
        let parts = self.parts.clone();
        let dataset = whole(async move { catalog::create(&parts, &name, shape).await }).await?;
        Ok(Response::new(dataset.into()))
    }

    #[tracing::instrument(name = "get_dataset", skip_all, fields(name = %Shown(&request.get_ref().name)))]
    async fn get_dataset(
        &self,
        request: Request<pb::GetDatasetRequest>,
    ) -> Result<Response<pb::Dataset>, Status> {
        let caller = Admitted::of(&request)?.caller;
        let wire = request.into_inner();
        let name = dataset_name(wire.name)?;
        let detail = if wire.without_counts { Detail::Outline } else { Detail::Counts };
        let dataset = catalog::by_name(&self.parts, &name, &caller, detail).await?;
        Ok(Response::new(dataset.into()))
    }

    #[tracing::instrument(name = "list_datasets", skip_all)]
    async fn list_datasets(
        &self,
        request: Request<pb::ListDatasetsRequest>,
    ) -> Result<Response<pb::ListDatasetsReply>, Status> {
        let caller = Admitted::of(&request)?.caller;
        let detail = if request.get_ref().names_only { Detail::Record } else { Detail::Counts };
        let listed = catalog::list(&self.parts, &caller, detail).await?;
        Ok(Response::new(listed.into()))
    }

    #[tracing::instrument(name = "delete_dataset", skip_all, fields(name = %Shown(&request.get_ref().name)))]
    async fn delete_dataset(
        &self,
        request: Request<pb::DeleteDatasetRequest>,
    ) -> Result<Response<pb::DeleteDatasetReply>, Status> {
        let admitted = Admitted::of(&request)?;
        let wire = request.into_inner();
        let (name, id) = (dataset_name(wire.name)?, dataset_id(&wire.id)?);
        admitted.named("delete dataset", &name)?;
        let Self { parts, leftovers, .. } = self.clone();
        let deletion = async move { catalog::delete(&parts, &leftovers, (&name, id)).await };
        Ok(Response::new(whole(deletion).await?.into()))
    }

    #[tracing::instrument(name = "put_chunk", skip_all, fields(dataset, bytes))]
    async fn put_chunk(
        &self,
        request: Request<Streaming<pb::PutChunkRequest>>,
    ) -> Result<Response<pb::PutChunkReply>, Status> {
        let admitted = Admitted::of(&request)?;
        let intake = request.extensions().get().cloned().unwrap_or_else(Intake::uncounted);
        let mut pieces = request.into_inner();
        let first = self.next_piece(&mut pieces).await?;
        let arrived = self.parts.clock.now();
        let first = first.ok_or(WireError::Missing("its first message")).map_err(invalid)?;
        let head = PutHead::try_from(&first).map_err(invalid)?;
        let looked = self.parts.clock.monotonic();
        let record = gate::by_id(&self.parts, &admitted, head.dataset).await?;
        let span = tracing::Span::current();
        span.record("dataset", tracing::field::display(head.dataset)).record("bytes", head.length);
        commit::admit(&record, head.length)?;
        if intake.is_over() {
            let why = "too much waits here for memory; try again";
            return Err(Error::new(Kind::Unavailable, "receive", "a chunk", why).into());
        }
        let room = room_of(usize::try_from(head.length).unwrap_or(usize::MAX));
        let limit = self.parts.limits.patience / WRITE_WAIT_PART;
        let room = self.writes.take_within(limit, room, &self.parts).await?;
        let object = self.receive(&mut pieces, head, first.data, &intake).await?;
        let age = self.parts.clock.monotonic().saturating_sub(looked);
        // Over a slow line the dataset may have ended, or be lost, since.
        let record = if age > RECORD_FRESH {
            catalog::by_id(&self.parts, head.dataset).await?
        } else {
            record
        };
        let (parts, buffers) = (self.parts.clone(), Arc::clone(&self.buffers));
        let commit = async move {
            // The memory is in use until the commit has ended, whether the client waits or not.
            let _room = room;
            commit::put_chunk(&parts, &buffers, &record, object, arrived).await
        };
        let stamp = whole(commit).await?;
        Ok(Response::new(pb::PutChunkReply { stamp: stamp.get() }))
    }

    #[tracing::instrument(name = "delete", skip_all)]
    async fn delete(
        &self,
        request: Request<pb::DeleteRequest>,
    ) -> Result<Response<pb::DeleteReply>, Status> {
        let admitted = Admitted::of(&request)?;
        let wire = request.into_inner();
        let limit = self.parts.limits.patience / WRITE_WAIT_PART;
        let room = self.writes.take_within(limit, room_to_delete(&wire), &self.parts).await?;
        let request = DeleteRequest::try_from(wire).map_err(invalid)?;
        gate::by_id(&self.parts, &admitted, request.dataset).await?;
        let parts = self.parts.clone();
        let commit = async move {
            // As of a chunk: until the commit has ended.
            let _room = room;
            commit::delete(&parts, &request).await
        };
        let stamp = whole(commit).await?;
        Ok(Response::new(pb::DeleteReply { stamp: stamp.get() }))
    }

    #[tracing::instrument(name = "read", skip_all, fields(items = request.get_ref().items.len()))]
    async fn read(
        &self,
        request: Request<pb::ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = ReadRequest::try_from(request.into_inner()).map_err(invalid)?;
        // Before anything is waited for: it is in memory already.
        let (items, paths) = (request.items.len(), request.path_bytes());
        let lease = Lease::of_items(&self.parts, &self.items, items, paths).await?;
        gate::by_id(&self.parts, &admitted, request.dataset).await?;
        let (replies, pieces) = mpsc::channel(REPLIES_AHEAD);
        let Self { parts, executor, reads, .. } = self.clone();
        let held = Arc::clone(&lease);
        let work =
            async move { read::read(&parts, &executor, &reads, &held, request, replies).await };
        let to_wire = |pieces: read::Pieces| pb::ReadReply {
            pieces: pieces.into_iter().map(Into::into).collect(),
        };
        answer_with(&self.parts, lease, work, pieces, to_wire).await.map(spelled::emptied)
    }

    #[tracing::instrument(name = "get_chunks", skip_all, fields(ranges = request.get_ref().ranges.len()))]
    async fn get_chunks(
        &self,
        request: Request<pb::GetChunksRequest>,
    ) -> Result<Response<Self::GetChunksStream>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = GetChunksRequest::try_from(request.into_inner()).map_err(invalid)?;
        let lease = Lease::of_items(&self.parts, &self.items, request.ranges.len(), 0).await?;
        gate::by_id(&self.parts, &admitted, request.dataset).await?;
        let (replies, pieces) = mpsc::channel(REPLIES_AHEAD);
        let Self { parts, executor, reads, .. } = self.clone();
        let held = Arc::clone(&lease);
        let work =
            async move { chunks::get(&parts, &executor, (&reads, &held), request, replies).await };
        let to_wire = |pieces: chunks::Pieces| pb::GetChunksReply {
            pieces: pieces.into_iter().map(Into::into).collect(),
        };
        answer_with(&self.parts, lease, work, pieces, to_wire).await.map(spelled::emptied)
    }

    #[tracing::instrument(name = "join_task", skip_all, fields(task = %Shown(&request.get_ref().task)))]
    async fn join_task(
        &self,
        request: Request<pb::JoinTaskRequest>,
    ) -> Result<Response<pb::JoinTaskReply>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = JoinTask::try_from(request.into_inner()).map_err(invalid)?;
        let record = gate::by_id(&self.parts, &admitted, request.dataset).await?;
        let Self { parts, snapshots, tasks, .. } = self.clone();
        let join = async move {
            tasks::join(&parts, &snapshots, &tasks, &admitted.caller, &record, request).await
        };
        Ok(Response::new(whole(join).await?.into()))
    }

    #[tracing::instrument(name = "stat", skip_all, fields(paths = request.get_ref().paths.len()))]
    async fn stat(
        &self,
        request: Request<pb::StatRequest>,
    ) -> Result<Response<pb::StatReply>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = StatRequest::try_from(request.into_inner()).map_err(invalid)?;
        gate::by_id(&self.parts, &admitted, request.dataset).await?;
        let lease = browse::room(&self.parts, &self.lookups, &request.paths).await?;
        let items = browse::stat(&self.parts, &request).await?;
        let items = items.into_iter().map(Into::into).collect();
        let mut response = Response::new(pb::StatReply { items });
        response.extensions_mut().insert(lease);
        Ok(response)
    }

    #[tracing::instrument(name = "list", skip_all)]
    async fn list(
        &self,
        request: Request<pb::ListRequest>,
    ) -> Result<Response<Self::ListStream>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = ListRequest::try_from(request.into_inner()).map_err(invalid)?;
        gate::by_id(&self.parts, &admitted, request.dataset).await?;
        let (replies, pages) = mpsc::channel(PAGES_AHEAD);
        let Self { parts, listings, .. } = self.clone();
        let lease = Arc::<Lease>::default();
        let held = Arc::clone(&lease);
        let work = async move { browse::list(&parts, &listings, &held, request, replies).await };
        let to_wire = |page: Vec<dl_proto::ListEntry>| pb::ListReply {
            entries: page.into_iter().map(Into::into).collect(),
        };
        answer_with(&self.parts, lease, work, pages, to_wire).await
    }

    #[tracing::instrument(name = "get_snapshot", skip_all)]
    async fn get_snapshot(
        &self,
        request: Request<pb::GetSnapshotRequest>,
    ) -> Result<Response<Self::GetSnapshotStream>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = GetSnapshotRequest::try_from(request.into_inner()).map_err(invalid)?;
        gate::by_id(&self.parts, &admitted, request.dataset).await?;
        let (replies, pieces) = mpsc::channel(REPLIES_AHEAD);
        let Self { parts, snapshots, reads, .. } = self.clone();
        let lease = Arc::<Lease>::default();
        let held = Arc::clone(&lease);
        let work = async move {
            snapshot::get(&parts, &snapshots, (&reads, &held), request, replies).await
        };
        answer_with(&self.parts, lease, work, pieces, pb::GetSnapshotReply::from).await
    }

    #[tracing::instrument(name = "recover", skip_all, fields(dataset = %Shown(&request.get_ref().dataset)))]
    async fn recover(
        &self,
        request: Request<pb::RecoverRequest>,
    ) -> Result<Response<Self::RecoverStream>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = RecoverRequest::try_from(request.into_inner()).map_err(invalid)?;
        match &request.dataset {
            Some(name) => admitted.named("recover dataset", name)?,
            None => admitted.all()?,
        }
        let (progress, told) = mpsc::channel(REPLIES_AHEAD);
        let parts = self.parts.clone();
        let (caller, place) = (admitted.caller, self.turns.recovery()?);
        let work = async move {
            let _place = place;
            recover::recover(&parts, request, &caller, &progress).await
        };
        answer(&self.parts, work, told, pb::RecoverProgress::from).await
    }

    #[tracing::instrument(name = "purge", skip_all, fields(dataset = %Shown(&request.get_ref().dataset)))]
    async fn purge(
        &self,
        request: Request<pb::PurgeRequest>,
    ) -> Result<Response<Self::PurgeStream>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = PurgeRequest::try_from(request.into_inner()).map_err(invalid)?;
        match &request.dataset {
            Some(name) => admitted.named("purge dataset", name)?,
            None => admitted.all()?,
        }
        let caller = admitted.caller;
        let (progress, told) = mpsc::channel(REPLIES_AHEAD);
        let Self { parts, turns, leftovers, .. } = self.clone();
        let work = async move {
            purge::purge(&parts, &turns, &leftovers, request, &caller, &progress).await
        };
        answer(&self.parts, work, told, pb::PurgeProgress::from).await
    }

    #[tracing::instrument(name = "verify", skip_all, fields(dataset = %Shown(&request.get_ref().dataset)))]
    async fn verify(
        &self,
        request: Request<pb::VerifyRequest>,
    ) -> Result<Response<Self::VerifyStream>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = VerifyRequest::try_from(request.into_inner()).map_err(invalid)?;
        admitted.named("verify dataset", &request.dataset)?;
        let caller = admitted.caller;
        let (progress, found) = mpsc::channel(REPLIES_AHEAD);
        let Self { parts, reads, turns, .. } = self.clone();
        let work = async move {
            verify::verify(&parts, (&reads, &turns), request, &caller, &progress).await
        };
        answer(&self.parts, work, found, pb::VerifyProgress::from).await
    }
}

/// Runs a change in a task of its own: a client that goes away doesn't cut it in the middle.
async fn whole<T: Send + 'static>(
    change: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let changed = dl_runtime::spawn(change).await;
    changed.unwrap_or_else(|error| Err(Error::new(Kind::Internal, "finish", "a change", error)))
}

fn dataset_name(text: String) -> Result<DatasetName, Status> {
    DatasetName::new(text.clone())
        .map_err(|why| Error::new(Kind::Invalid, "find dataset", Shown(&text), why).into())
}

fn dataset_id(bytes: &[u8]) -> Result<DatasetId, Status> {
    let id = bytes.try_into().map_err(|_| WireError::Missing("the 16 bytes of an id"));
    id.map(DatasetId::from_bytes).map_err(invalid)
}

fn invalid(error: WireError) -> Status {
    Error::new(Kind::Invalid, "understand", "the request", error).into()
}

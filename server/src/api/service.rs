//! The gRPC adapter: converts a request, asks the gate, calls the domain, converts the answer.
//!
//! Must hold: no method answers about a dataset before the gate admits the caller.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dl_format::{ChunkShape, DatasetId, DatasetName};
use dl_proto::pb::{self, diesel_server::Diesel};
use dl_proto::{
    DeleteRequest, EndLeases, GetChunksRequest, GetSnapshotRequest, JoinTask, Kind, ListRequest,
    MESSAGE_BYTES_MAX, PurgeRequest, PutHead, REQUEST_BYTES_MAX, ReadRequest, RecoverRequest,
    StatRequest, VerifyRequest, WireError,
};
use dl_runtime::Buffers;
use tokio::sync::{Semaphore, mpsc};
use tonic::{Request, Response, Status, Streaming};

use crate::answers::answer::{Replies, answer, answer_with};
use crate::answers::reservation::Reservation;
use crate::api::admission::Admitted;
use crate::api::frames;
use crate::api::gate;
use crate::api::shown::Shown;
use crate::api::web::{BROWSED_AT_ONCE, Browser};
use crate::datasets::catalog;
use crate::datasets::catalog::Detail;
use crate::datasets::leftovers::Leftovers;
use crate::error::Error;
use crate::housekeeping::purge;
use crate::housekeeping::turns::Turns;
use crate::housekeeping::verify;
use crate::metrics::{Gauges, SnapshotMetrics, TaskMetrics};
use crate::net::inflight::Intake;
use crate::read::browse;
use crate::read::chunks;
use crate::read::executor::Executor;
use crate::read::files;
use crate::recovery::recover;
use crate::shared::context::{Budget, ServerContext};
use crate::snapshot::{self, Snapshots};
use crate::status::{Board, Viewer};
use crate::tasks;
use crate::write::commit;

/// Messages that wait for the connection: the first is sent, the second is ready.
const REPLIES_AHEAD: usize = 2;

/// Pages of a listing that wait for the connection.
const PAGES_AHEAD: usize = 1;

/// Bytes of requests' items until their answers are sent: a few of the largest requests.
const ITEMS_BYTES: u32 = 48 << 20;

/// Bytes of an item of a read beside its path, until its last piece.
const ITEM_BYTES: usize = 256;

/// Bytes of unsent listings. Apart, as a client may stop a listing to read the files in it.
const LISTING_BYTES: u32 = 32 << 20;

/// Least length of a buffer for an object.
const BUFFER_LENGTH_MIN: usize = 64 << 10;

/// Least memory for an object, for the message received beside the object.
const ROOM_MIN: u64 = 512 << 10;
/// Memory for a chunk in a tombstone, beside its entries, in bytes.
const DELETION_ROOM: u64 = 256;

/// Age of a dataset's record after which a put looks the record up again.
const RECORD_FRESH: Duration = Duration::from_secs(5);

/// Part of the patience for a wait for memory, so that the client still hears the reason.
const WRITE_WAIT_PART: u32 = 3;

/// Answers requests; has no state beside its parts.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    context: ServerContext,
    executor: Executor,
    writes: Budget,
    buffers: Arc<Buffers>,
    reads: Budget,
    items: Budget,
    listings: Budget,
    snapshots: Snapshots,
    tasks: Arc<TaskMetrics>,
    board: Arc<Board>,
    turns: Turns,
    leftovers: Leftovers,
}

impl Service {
    pub(crate) fn new(
        context: ServerContext,
        snapshots: Arc<SnapshotMetrics>,
        tasks: Arc<TaskMetrics>,
        board: Arc<Board>,
    ) -> Self {
        Self {
            executor: Executor::new(Arc::clone(&context.store)),
            writes: Budget::new(context.limits.write_bytes, "receive a chunk"),
            buffers: Arc::default(),
            reads: Budget::new(context.limits.read_bytes, "read files"),
            items: Budget::new(ITEMS_BYTES, "look files up"),
            listings: Budget::new(LISTING_BYTES, "list files"),
            snapshots: Snapshots::new(snapshots),
            tasks,
            board,
            turns: Turns::new(),
            leftovers: Leftovers::default(),
            context,
        }
    }

    /// Sources of the gauges.
    pub(crate) fn gauges(&self) -> Gauges {
        Gauges {
            executor: self.executor.clone(),
            writes: self.writes.clone(),
            reads: self.reads.clone(),
        }
    }

    /// Reads for the status page.
    pub(crate) fn browser(&self) -> Browser {
        let Self { context, executor, reads, .. } = self.clone();
        Browser { context, executor, reads, turns: Arc::new(Semaphore::new(BROWSED_AT_ONCE)) }
    }

    /// Objects left by requests for a later removal.
    pub(crate) fn leftovers(&self) -> Leftovers {
        self.leftovers.clone()
    }

    /// Budgets of answers until they are sent.
    pub(crate) fn answers(&self) -> Vec<Budget> {
        [&self.reads, &self.items, &self.listings].map(Budget::clone).into()
    }

    /// The service with its limits, for tonic.
    pub(crate) fn into_server(self) -> pb::diesel_server::DieselServer<Self> {
        pb::diesel_server::DieselServer::new(self)
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    async fn receive(
        &self,
        pieces: &mut Streaming<pb::PutChunkRequest>,
        head: PutHead,
        first: Bytes,
        intake: &Intake,
    ) -> Result<Vec<u8>, Status> {
        let length = usize::try_from(head.length).unwrap_or(usize::MAX);
        let mut object = self.buffers.take(buffer_length(length));
        object.clear();
        object.extend_from_slice(&first);
        drop(first);
        intake.fund();
        intake.taken();
        while let Some(piece) = pieces.message().await? {
            if object.len().saturating_add(piece.data.len()) > length {
                break;
            }
            object.extend_from_slice(&piece.data);
            drop(piece);
            intake.taken();
        }
        intake.end();
        if object.len() == length {
            return Ok(object);
        }
        let why = format!("{length} bytes were announced and another number came");
        Err(Error::new(Kind::Invalid, "receive", "a chunk", why).into())
    }
}

/// The length of an object's buffer: few different lengths, so that buffers are reused.
fn buffer_length(object_length: usize) -> usize {
    object_length
        .clamp(BUFFER_LENGTH_MIN, dl_format::layout::CHUNK_SIZE_MAX as usize)
        .next_power_of_two()
}

fn room_of(object_length: usize) -> u64 {
    ROOM_MIN.max(buffer_length(object_length) as u64)
}

/// Memory for a tombstone: the sets of the request and of the header, and the object.
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
        let context = self.context.clone();
        let dataset = whole(async move { catalog::create(&context, &name, shape).await }).await?;
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
        let dataset = catalog::by_name(&self.context, &name, &caller, detail).await?;
        Ok(Response::new(dataset.into()))
    }

    #[tracing::instrument(name = "list_datasets", skip_all)]
    async fn list_datasets(
        &self,
        request: Request<pb::ListDatasetsRequest>,
    ) -> Result<Response<pb::ListDatasetsReply>, Status> {
        let caller = Admitted::of(&request)?.caller;
        let detail = if request.get_ref().names_only { Detail::Record } else { Detail::Counts };
        let listed = catalog::list(&self.context, &caller, detail).await?;
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
        let Self { context, leftovers, .. } = self.clone();
        let deletion = async move { catalog::delete(&context, &leftovers, (&name, id)).await };
        Ok(Response::new(whole(deletion).await?))
    }

    #[tracing::instrument(name = "put_chunk", skip_all, fields(dataset, bytes))]
    async fn put_chunk(
        &self,
        request: Request<Streaming<pb::PutChunkRequest>>,
    ) -> Result<Response<pb::PutChunkReply>, Status> {
        let admitted = Admitted::of(&request)?;
        let intake = Intake::of(&request)?;
        let mut pieces = request.into_inner();
        let first = pieces.message().await?;
        let arrived = self.context.clock.now();
        let first = first.ok_or(WireError::Missing("its first message")).map_err(invalid)?;
        let head = PutHead::try_from(&first).map_err(invalid)?;
        let looked = self.context.clock.monotonic();
        let record = gate::by_id(&self.context, &admitted, head.dataset).await?;
        let span = tracing::Span::current();
        span.record("dataset", tracing::field::display(head.dataset)).record("bytes", head.length);
        commit::admit(&record, head.length)?;
        if intake.is_over() {
            let why = "too much waits here for memory; try again";
            return Err(Error::new(Kind::Unavailable, "receive", "a chunk", why).into());
        }
        let room = room_of(usize::try_from(head.length).unwrap_or(usize::MAX));
        let limit = self.context.limits.patience / WRITE_WAIT_PART;
        let room = self.writes.take_within(limit, room, &self.context).await?;
        let object = self.receive(&mut pieces, head, first.data, &intake).await?;
        let age = self.context.clock.monotonic().saturating_sub(looked);
        // After a slow transfer, the dataset may have ended or be lost.
        let record = if age > RECORD_FRESH {
            catalog::by_id(&self.context, head.dataset).await?
        } else {
            record
        };
        let (context, buffers) = (self.context.clone(), Arc::clone(&self.buffers));
        let commit = async move {
            // The memory is in use until the commit ends, even without a client.
            let _room = room;
            commit::put_chunk(&context, &buffers, &record, object, arrived).await
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
        let limit = self.context.limits.patience / WRITE_WAIT_PART;
        let room = self.writes.take_within(limit, room_to_delete(&wire), &self.context).await?;
        let request = DeleteRequest::try_from(wire).map_err(invalid)?;
        gate::by_id(&self.context, &admitted, request.dataset).await?;
        let context = self.context.clone();
        let commit = async move {
            // As for a chunk.
            let _room = room;
            let DeleteRequest { dataset, tombstone, deletions } = request;
            commit::put_tombstone(&context, dataset, tombstone, &deletions).await
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
        // Before any wait, as the request is in memory already.
        let (items, paths) = (request.items.len(), request.path_bytes());
        let bytes = items.saturating_mul(ITEM_BYTES).saturating_add(paths);
        let memory = Reservation::for_items(&self.context, &self.items, items, bytes).await?;
        if paths > 0 {
            gate::by_id(&self.context, &admitted, request.dataset).await?;
        } else {
            gate::by_place(&self.context, &admitted, request.dataset).await?;
        }
        let (replies, pieces) = mpsc::channel(REPLIES_AHEAD);
        let Self { context, executor, reads, .. } = self.clone();
        let held = Arc::clone(&memory);
        let work =
            async move { files::read(&context, &executor, &reads, &held, request, replies).await };
        let to_wire = |pieces: files::Pieces| pb::ReadReply {
            pieces: pieces.into_iter().map(Into::into).collect(),
        };
        answer_with(&self.context, memory, work, pieces, to_wire).await.map(frames::without_frames)
    }

    #[tracing::instrument(name = "get_chunks", skip_all, fields(ranges = request.get_ref().ranges.len()))]
    async fn get_chunks(
        &self,
        request: Request<pb::GetChunksRequest>,
    ) -> Result<Response<Self::GetChunksStream>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = GetChunksRequest::try_from(request.into_inner()).map_err(invalid)?;
        let ranges = request.ranges.len();
        let bytes = ranges.saturating_mul(ITEM_BYTES);
        let memory = Reservation::for_items(&self.context, &self.items, ranges, bytes).await?;
        gate::by_place(&self.context, &admitted, request.dataset).await?;
        let (replies, pieces) = mpsc::channel(REPLIES_AHEAD);
        let Self { context, executor, reads, .. } = self.clone();
        let held = Arc::clone(&memory);
        let work = async move {
            chunks::get(&context, &executor, (&reads, &held), request, replies).await
        };
        let to_wire = |pieces: chunks::Pieces| pb::GetChunksReply {
            pieces: pieces.into_iter().map(Into::into).collect(),
        };
        answer_with(&self.context, memory, work, pieces, to_wire).await.map(frames::without_frames)
    }

    #[tracing::instrument(name = "join_task", skip_all, fields(task = %Shown(&request.get_ref().task)))]
    async fn join_task(
        &self,
        request: Request<pb::JoinTaskRequest>,
    ) -> Result<Response<pb::JoinTaskReply>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = JoinTask::try_from(request.into_inner()).map_err(invalid)?;
        let record = gate::by_id(&self.context, &admitted, request.dataset).await?;
        let Self { context, snapshots, tasks, board, .. } = self.clone();
        let join = async move {
            let watchers = (&*tasks, &*board);
            tasks::join(&context, &snapshots, watchers, &admitted.caller, &record, request).await
        };
        Ok(Response::new(whole(join).await?.into()))
    }

    #[tracing::instrument(name = "list_leases", skip_all)]
    async fn list_leases(
        &self,
        request: Request<pb::ListLeasesRequest>,
    ) -> Result<Response<pb::ListLeasesReply>, Status> {
        let admitted = Admitted::of(&request)?;
        let id = dataset_id(&request.get_ref().dataset)?;
        let record = gate::by_id(&self.context, &admitted, id).await?;
        let leases = tasks::leases(&self.context, &admitted.caller, &record).await?;
        let leases = leases.into_iter().map(Into::into).collect();
        Ok(Response::new(pb::ListLeasesReply { leases }))
    }

    #[tracing::instrument(name = "end_leases", skip_all)]
    async fn end_leases(
        &self,
        request: Request<pb::EndLeasesRequest>,
    ) -> Result<Response<pb::EndLeasesReply>, Status> {
        let admitted = Admitted::of(&request)?;
        let EndLeases { dataset, task } = request.into_inner().try_into().map_err(invalid)?;
        let record = gate::by_id(&self.context, &admitted, dataset).await?;
        let context = self.context.clone();
        let end = async move { tasks::end_leases(&context, &admitted.caller, &record, task).await };
        Ok(Response::new(pb::EndLeasesReply { ended: whole(end).await? }))
    }

    #[tracing::instrument(name = "status", skip_all)]
    async fn status(
        &self,
        request: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusReply>, Status> {
        let viewer = Viewer::Known(Admitted::of(&request)?.caller);
        Ok(Response::new(self.board.status(&viewer, request.get_ref()).await?))
    }

    #[tracing::instrument(name = "stat", skip_all, fields(paths = request.get_ref().paths.len()))]
    async fn stat(
        &self,
        request: Request<pb::StatRequest>,
    ) -> Result<Response<pb::StatReply>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = StatRequest::try_from(request.into_inner()).map_err(invalid)?;
        gate::by_id(&self.context, &admitted, request.dataset).await?;
        let (paths, bytes) = (request.paths.len(), browse::cost(&request.paths));
        let memory = Reservation::for_items(&self.context, &self.items, paths, bytes).await?;
        let items = browse::stat(&self.context, &request).await?;
        let items = items.into_iter().map(Into::into).collect();
        let mut response = Response::new(pb::StatReply { items });
        response.extensions_mut().insert(memory);
        Ok(response)
    }

    #[tracing::instrument(name = "list", skip_all)]
    async fn list(
        &self,
        request: Request<pb::ListRequest>,
    ) -> Result<Response<Self::ListStream>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = ListRequest::try_from(request.into_inner()).map_err(invalid)?;
        gate::by_id(&self.context, &admitted, request.dataset).await?;
        let (replies, pages) = mpsc::channel(PAGES_AHEAD);
        let Self { context, listings, .. } = self.clone();
        let memory = Arc::<Reservation>::default();
        let held = Arc::clone(&memory);
        let work = async move { browse::list(&context, &listings, &held, request, replies).await };
        let to_wire = |page: Vec<dl_proto::ListEntry>| pb::ListReply {
            entries: page.into_iter().map(Into::into).collect(),
        };
        answer_with(&self.context, memory, work, pages, to_wire).await
    }

    #[tracing::instrument(name = "get_snapshot", skip_all)]
    async fn get_snapshot(
        &self,
        request: Request<pb::GetSnapshotRequest>,
    ) -> Result<Response<Self::GetSnapshotStream>, Status> {
        let admitted = Admitted::of(&request)?;
        let request = GetSnapshotRequest::try_from(request.into_inner()).map_err(invalid)?;
        gate::by_id(&self.context, &admitted, request.dataset).await?;
        let (replies, pieces) = mpsc::channel(REPLIES_AHEAD);
        let Self { context, snapshots, reads, .. } = self.clone();
        let memory = Arc::<Reservation>::default();
        let held = Arc::clone(&memory);
        let work = async move {
            snapshot::get(&context, &snapshots, (&reads, &held), request, replies).await
        };
        answer_with(&self.context, memory, work, pieces, pb::GetSnapshotReply::from).await
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
        let context = self.context.clone();
        let (caller, place) = (admitted.caller, self.turns.recovery()?);
        let work = async move {
            let _place = place;
            recover::recover(&context, request, &caller, &progress).await
        };
        answer(&self.context, work, told, |step| step).await
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
        let Self { context, turns, leftovers, .. } = self.clone();
        let work = async move {
            purge::purge(&context, &turns, &leftovers, request, &caller, &progress).await
        };
        answer(&self.context, work, told, pb::PurgeProgress::from).await
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
        let Self { context, reads, turns, .. } = self.clone();
        let work = async move {
            verify::verify(&context, (&reads, &turns), request, &caller, &progress).await
        };
        answer(&self.context, work, found, |step| step).await
    }
}

/// Runs a change as a task, so that a leaving client does not interrupt the change.
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

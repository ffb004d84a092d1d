//! Snapshots: all metadata of a dataset at a version in a file, built on the first request, stored beside the
//! chunks, and handed out in ranges (paper, 4.1.3).
//!
//! Must hold: a snapshot is a single cut of the log and never changes; concurrent requests share a build, and
//! each snapshot is stored once. A request for the newest snapshot gets a cut made after the request.

mod build;
mod emit;
pub(crate) mod leases;
mod stored;
mod sweep;
mod winners;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dl_format::layout::SNAPSHOT_PIECE_LEN;
use dl_format::snapshot::Manifest;
use dl_format::{DatasetId, Version};
use dl_meta::DatasetRecord;
use dl_proto::{GetSnapshotRequest, Kind, REPLY_BYTES, SnapshotPiece};
use dl_runtime::locked;
use tokio::sync::{Semaphore, mpsc, watch};

use self::build::Built;
use crate::answers::answer::{Reply, hand_over};
use crate::answers::reservation::Reservation;
use crate::datasets::catalog;
use crate::error::{Doing, Error};
use crate::metrics::SnapshotMetrics;
use crate::shared::context::{Budget, ServerContext};

pub(crate) use sweep::{KEPT_AT_MOST, Older, sweep, watch};

/// Parallel builds: each takes its memory.
const BUILDS_AT_ONCE: usize = 1;

/// Interval of the messages to clients that wait for a build.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// Pieces of an answer in memory: a piece being read, and pieces on the way to the client.
const PIECES: u64 = 4;
/// Pieces in memory if the client takes each piece before the next is read.
const PIECES_LEAST: u64 = 2;

/// Time for which known damage fails the snapshots of an unchanged dataset without a new search.
const DAMAGED_FOR: Duration = Duration::from_secs(10);

/// Tries of a snapshot whose objects went away, or whose dataset changed.
const TIMES: u32 = 4;

const ACTION: &str = "get a snapshot of dataset";

/// The result of a build; none until then.
type Ended = Option<Result<Arc<Manifest>, (Kind, String)>>;

/// The builds of snapshots in a server.
#[derive(Debug, Clone)]
pub(crate) struct Snapshots {
    building: Arc<Mutex<HashMap<DatasetId, watch::Receiver<Ended>>>>,
    damaged: Arc<Mutex<HashMap<DatasetId, Damaged>>>,
    turn: Arc<Semaphore>,
    metrics: Arc<SnapshotMetrics>,
}

#[derive(Debug)]
struct Damaged {
    version: Version,
    why: String,
    /// On the monotonic clock.
    until: Duration,
}

/// Answers a request through `replies`.
pub(crate) async fn get(
    context: &ServerContext,
    snapshots: &Snapshots,
    (reads, memory): (&Budget, &Reservation),
    request: GetSnapshotRequest,
    replies: mpsc::Sender<Reply<SnapshotPiece>>,
) -> Result<(), Error> {
    let dataset = request.dataset;
    let mut found = Box::pin(snapshots.find(context, dataset, request.version));
    let manifest = loop {
        tokio::select! {
            biased;
            found = &mut found => break found?,
            () = context.clock.sleep(SIGN_OF_LIFE) => {
                hand_over(context, &replies, Reply::More(SnapshotPiece::Waiting)).await?;
            }
        }
    };
    let Manifest { version, length, .. } = *manifest;
    if request.offset > length {
        let why = format!("it has {length} bytes, and {} were to be skipped", request.offset);
        return Err(Error::new(Kind::Invalid, ACTION, dataset, why));
    }
    let head = SnapshotPiece::Head { version, length };
    if request.head_only || request.offset == length {
        return hand_over(context, &replies, Reply::Last(head)).await;
    }
    hand_over(context, &replies, Reply::More(head)).await?;
    let piece_length = u64::from(SNAPSHOT_PIECE_LEN);
    let (mut number, mut skip) = (request.offset / piece_length, request.offset % piece_length);
    // Only now, as a build may take a while.
    memory.reserve(context, reads, &[PIECES * piece_length, PIECES_LEAST * piece_length]).await?;
    loop {
        let Some(piece) = stored::piece(context, &manifest, number).await? else { return Ok(()) };
        let mut rest = piece.slice(usize::try_from(skip).unwrap_or_default().min(piece.len())..);
        (number, skip) = (number + 1, 0);
        while !rest.is_empty() {
            let some = rest.split_to(rest.len().min(REPLY_BYTES));
            let is_last = rest.is_empty() && manifest.piece(number).is_none();
            let some = SnapshotPiece::Data(some);
            let reply = if is_last { Reply::Last(some) } else { Reply::More(some) };
            hand_over(context, &replies, reply).await?;
            if is_last {
                return Ok(());
            }
        }
    }
}

impl Snapshots {
    pub(crate) fn new(metrics: Arc<SnapshotMetrics>) -> Self {
        let turn = Arc::new(Semaphore::new(BUILDS_AT_ONCE));
        Self { building: Arc::default(), damaged: Arc::default(), turn, metrics }
    }

    /// The stored snapshot of a version, or of the newest version, which is built if missing.
    pub(crate) async fn find(
        &self,
        context: &ServerContext,
        dataset: DatasetId,
        wanted: Option<Version>,
    ) -> Result<Arc<Manifest>, Error> {
        if let Some(version) = wanted
            && let Some(manifest) = stored::find(context, dataset, version).await?
        {
            return Ok(Arc::new(manifest));
        }
        for round in 0..TIMES {
            let outline = context.meta.outline(dataset).await.doing(ACTION, dataset)?;
            let gone = || {
                Error::new(
                    Kind::NotFound,
                    ACTION,
                    dataset,
                    "it was deleted; connect again by its name",
                )
            };
            let newest = outline.ok_or_else(gone)?.version;
            if wanted.is_some_and(|wanted| wanted != newest) {
                break;
            }
            if let Some(manifest) = stored::find(context, dataset, newest).await? {
                return Ok(Arc::new(manifest));
            }
            if let Some(why) = self.known_damage(context, dataset, newest) {
                return Err(Error::new(Kind::Corrupt, ACTION, dataset, why));
            }
            let (mut build, is_own) = self.build(context, dataset);
            let ended = build.wait_for(Option::is_some).await;
            let ended = ended.map_err(|_| {
                Error::new(Kind::Unavailable, ACTION, dataset, "its build was cut off; try again")
            })?;
            match ended.as_ref() {
                // Only the first build may be older than the request, and of an older version.
                Some(Ok(manifest)) if is_own || round > 0 || manifest.version == newest => {
                    if wanted.is_none_or(|wanted| wanted == manifest.version) {
                        return Ok(Arc::clone(manifest));
                    }
                }
                Some(Err((kind, why))) => {
                    return Err(Error::new(*kind, ACTION, dataset, why.clone()));
                }
                Some(Ok(_)) | None => {}
            }
        }
        let why = match wanted {
            Some(version) => format!("there is none of version {version} any more; get the newest"),
            None => "it changes all the time; try again".to_owned(),
        };
        let kind = if wanted.is_some() { Kind::NotFound } else { Kind::Unavailable };
        Err(Error::new(kind, ACTION, dataset, why))
    }

    fn damaged(&self) -> MutexGuard<'_, HashMap<DatasetId, Damaged>> {
        locked(&self.damaged)
    }

    /// The recent damage that fails a build of the version.
    fn known_damage(
        &self,
        context: &ServerContext,
        dataset: DatasetId,
        version: Version,
    ) -> Option<String> {
        let (now, damaged) = (context.clock.monotonic(), self.damaged());
        let known = damaged.get(&dataset)?;
        (known.version == version && now < known.until).then(|| known.why.clone())
    }

    fn remember(
        &self,
        context: &ServerContext,
        dataset: DatasetId,
        version: Version,
        error: &Error,
    ) {
        let now = context.clock.monotonic();
        let mut damaged = self.damaged();
        damaged.retain(|_, known| now < known.until);
        let until = now.saturating_add(DAMAGED_FOR);
        damaged.insert(dataset, Damaged { version, why: error.chain(), until });
    }

    async fn build_newest(
        &self,
        context: &ServerContext,
        record: &DatasetRecord,
    ) -> Result<Built, Error> {
        let (mut times, mut last) = (0, None);
        loop {
            times += 1;
            let before = version_of(context, record.id).await?;
            let error = match build::build(context, record).await {
                Ok(Some(built)) => return Ok(built),
                Ok(None) if times < TIMES => continue,
                Ok(None) => {
                    let why = "the stamps of its objects change all the time; try again";
                    return Err(Error::new(Kind::Unavailable, ACTION, record.id, why));
                }
                Err(error) if error.kind == Kind::Corrupt => error,
                Err(error) => return Err(error),
            };
            // A purge may have removed objects of the log: the newest cut lacks them.
            let why = error.chain();
            let is_damage =
                last.as_ref() == Some(&why) || version_of(context, record.id).await? == before;
            if is_damage {
                if let Some(version) = before {
                    self.remember(context, record.id, version, &error);
                }
                return Err(error);
            }
            last = Some(why);
            if times >= TIMES {
                let why = "objects of it are removed faster than they are read; try again";
                return Err(Error::new(Kind::Unavailable, ACTION, record.id, why));
            }
        }
    }

    /// The build in progress, or a new build, which ends also without waiting callers. True if new.
    fn build(&self, context: &ServerContext, dataset: DatasetId) -> (watch::Receiver<Ended>, bool) {
        let mut building = locked(&self.building);
        // The sender of a panicked build is dropped.
        building.retain(|_, build| build.borrow().is_none() && build.has_changed().is_ok());
        if let Some(build) = building.get(&dataset) {
            return (build.clone(), false);
        }
        let (end, ended) = watch::channel(None);
        building.insert(dataset, ended.clone());
        let (this, context) = (self.clone(), context.clone());
        let work = async move {
            let built = this.build_and_store(&context, dataset).await;
            let built = built.map(Arc::new).map_err(|error| (error.kind, error.chain()));
            let _ = end.send(Some(built));
        };
        dl_runtime::spawn(work);
        (ended, true)
    }

    async fn build_and_store(
        &self,
        context: &ServerContext,
        dataset: DatasetId,
    ) -> Result<Manifest, Error> {
        let _turn = self.turn.acquire().await.expect("the semaphore is never closed");
        // Another server may have stored the snapshot during the wait.
        if let Some(newest) = version_of(context, dataset).await?
            && let Some(manifest) = stored::find(context, dataset, newest).await?
        {
            return Ok(manifest);
        }
        let record = catalog::by_id(context, dataset).await?;
        let began = context.clock.monotonic();
        let building = Box::pin(self.build_newest(context, &record));
        let built = self.metrics.build(&context.clock, building).await?;
        let (version, files, bytes) = (built.version, built.files, built.length);
        let took = context.clock.monotonic().saturating_sub(began);
        let storing = Box::pin(stored::store(context, dataset, built));
        let manifest = self.metrics.store(&context.clock, bytes, storing).await?;
        let stored = context.clock.monotonic().saturating_sub(began + took);
        tracing::info!(%dataset, %version, files, bytes, ?took, ?stored, "built a snapshot");
        if let Err(error) = catalog::by_id(context, dataset).await {
            if error.kind == Kind::NotFound {
                // Deleted meanwhile, and swept before the snapshot was complete.
                stored::discard(context, dataset, version).await?;
            }
            return Err(error);
        }
        if let Err(error) = sweep_now(context, dataset).await {
            tracing::warn!(%dataset, why = error.chain(), "older snapshots are left for later");
        }
        Ok(manifest)
    }
}

/// Sweeps by the present version: the built version may be older.
async fn sweep_now(context: &ServerContext, dataset: DatasetId) -> Result<(), Error> {
    if let Some(newest) = version_of(context, dataset).await? {
        sweep(context, dataset, newest, false).await?;
    }
    Ok(())
}

async fn version_of(context: &ServerContext, dataset: DatasetId) -> Result<Option<Version>, Error> {
    let outline = context.meta.outline(dataset).await.doing(ACTION, dataset)?;
    Ok(outline.map(|outline| outline.version))
}

#[cfg(test)]
mod tests;

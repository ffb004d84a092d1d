//! The recovery of a dataset: headers are read and appended as objects are found.
//!
//! Must hold: headers and appends in flight are bounded; appended objects stay; the contents count as complete
//! only after all objects are appended. Objects of the log missing in the chunk store are reported, and large
//! files without all parts.

use dl_format::{ChunkId, DatasetId, DatasetName, FilePath, Header, ObjectKind};
use dl_meta::{Appended, DatasetRecord, DatasetState, Found};
use dl_proto::{Kind, RecoverProgress};
use futures::FutureExt;
use futures::future::{FusedFuture, ready};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::Reads;
use super::found::{Listed, Lot, Search};
use super::living;
use super::progress::Progress;
use super::shares::Shares;
use crate::answers::listener::Listener;
use crate::datasets::catalog;
use crate::datasets::headers::read_header;
use crate::datasets::identity;
use crate::datasets::names::{self, Named};
use crate::error::{Doing, Error};
use crate::shared::context::{ServerContext, object_key};
use crate::write::commit::is_committed;

/// Parallel reads of headers of a dataset, within the bound for all datasets.
const READS_AT_ONCE: usize = 64;
const LOTS_AHEAD: usize = 2;
const APPENDS_AT_ONCE: usize = 32;
/// The most objects to try again after failures of the store: with more, the store is at fault.
const LATER_MAX: usize = 64;

/// The common part of the recoveries of several datasets.
#[derive(Debug, Clone, Copy)]
pub(super) struct DatasetRecovery<'a> {
    pub(super) context: &'a ServerContext,
    pub(super) reads: Reads,
    /// The seconds of the oldest ids whose logged objects are read again.
    pub(super) since: u64,
    /// The metadata answers no questions about contents before all datasets are recovered.
    pub(super) is_refused: bool,
    pub(super) reports_lost: bool,
    pub(super) progress: &'a Listener<'a, RecoverProgress>,
    pub(super) shares: &'a Shares,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// All objects were read as far as possible.
    Whole,
    /// The store failed for objects; another try may do better.
    Interrupted,
}

/// The results of all objects of a dataset.
#[derive(Debug, Default)]
struct Outcome {
    unread: bool,
    interrupted: bool,
    /// The log had other stamps, which may have hidden versions.
    has_restamped: bool,
    /// Objects to try again after failures of the store.
    later: Vec<(Listed, Error)>,
    lost: Vec<ChunkId>,
    /// Chunks with references to parts of large files.
    large: Vec<ChunkId>,
}

/// A part of a dataset on its way through the steps of a recovery.
enum Step {
    /// A lot without its objects to read, and their number.
    Lot(Lot, u64),
    Found(Listed),
    /// An object with its header, and the place of the header in memory.
    Read(Box<(Listed, Result<Header, Error>)>, OwnedSemaphorePermit),
    /// A finished object; its chunk id, if the chunk refers to parts.
    Done(Done, Option<ChunkId>),
}

enum Done {
    /// The object joined the log, with a number of files.
    New(u64),
    /// The log had the object, or the object is gone.
    Passed,
    /// The log had the object with another stamp.
    Restamped,
    /// The object can't be adopted: its header is damaged, or describes another object.
    Damaged { is_tombstone: bool, problem: String },
    /// The read failed.
    Unread(Listed, Error),
    /// The dataset was deleted meanwhile.
    Ended,
}

impl Outcome {
    /// Takes a step into account; false when the dataset has ended.
    fn add(&mut self, step: Step, state: &mut RecoverProgress) -> bool {
        match step {
            Step::Lot(Lot { listed, problems, lost, .. }, to_read) => {
                self.lost.extend(lost);
                state.listed += listed;
                state.checked += listed.saturating_sub(to_read);
                state.problems.extend(problems);
            }
            Step::Done(done, large) => {
                state.checked += 1;
                self.large.extend(large);
                return self.add_done(done, state);
            }
            Step::Found(..) | Step::Read(..) => {}
        }
        true
    }

    fn add_done(&mut self, done: Done, state: &mut RecoverProgress) -> bool {
        match done {
            Done::New(files) => {
                state.adopted += 1;
                state.files += files;
            }
            Done::Passed => {}
            Done::Restamped => self.has_restamped = true,
            Done::Damaged { is_tombstone, problem } => {
                // Files deleted by the tombstone must not come back.
                self.unread |= is_tombstone;
                state.problems.push(problem);
            }
            Done::Unread(listed, error) if error.kind.is_retryable() => {
                if self.later.len() < LATER_MAX {
                    self.later.push((listed, error));
                } else {
                    self.interrupted = true;
                    self.unread = true;
                    state.problems.push(error.chain());
                }
            }
            Done::Unread(_, error) => {
                self.unread = true;
                state.problems.push(error.chain());
            }
            Done::Ended => return false,
        }
        true
    }
}

impl DatasetRecovery<'_> {
    pub(super) async fn dataset(&self, name: &DatasetName, named: Named) -> Result<Read, Error> {
        let id = named.record.dataset;
        let record = self.context.meta.record(id).await.doing("recover dataset", name)?;
        let is_live = record.is_some_and(|record| record.state == DatasetState::Live);
        let is_whole = is_live && !self.is_cut_short(id).await;
        let state = if is_whole { DatasetState::Live } else { DatasetState::Recovering };
        let is_doubted = self.reads == Reads::Everything
            && (self.is_refused || !self.is_named(name, named).await?);
        if (!is_whole || is_doubted) && !catalog::index(self.context, name, named, state).await? {
            return self.ended(name, named).await;
        }
        let read_from = match self.reads {
            Reads::Everything => Some(if is_whole { self.since } else { 0 }),
            // Objects of the log may lack rows.
            Reads::Unlogged if !is_whole && !self.is_settled(id).await => Some(0),
            Reads::Unlogged => None,
        };
        let (context, shares) = (self.context, self.shares);
        let search = Search { context, name, id, read_from, shares };
        let (mut progress, mut outcome) = (Progress::of(name, self.progress), Outcome::default());
        if !self.read_all(search, named, &mut outcome, &mut progress).await?
            || !self.read_later(named, &mut outcome, &mut progress.state).await?
        {
            return self.ended(name, named).await;
        }
        if outcome.has_restamped {
            // Again: the old stamps may have hidden objects appended before the change.
            return Box::pin(self.dataset(name, named)).await;
        }
        if self.reports_lost {
            self.report_lost(name, named, &mut outcome, &mut progress.state).await;
        }
        let read = self.finish(name, &outcome, &mut progress.state).await;
        if !outcome.unread
            && !is_whole
            && !catalog::index(context, name, named, DatasetState::Live).await?
        {
            return self.ended(name, named).await;
        }
        progress.end().await;
        Ok(read)
    }

    /// Lists, reads and appends the objects of a dataset. False when the dataset has ended.
    async fn read_all(
        &self,
        search: Search<'_>,
        named: Named,
        outcome: &mut Outcome,
        progress: &mut Progress<'_>,
    ) -> Result<bool, Error> {
        let (sender, mut lots) = mpsc::channel(LOTS_AHEAD);
        // Beside the reads, which would wait for each page of a listing otherwise.
        let list = async move {
            let mut found = std::pin::pin!(search.lots());
            while let Some(lot) = found.next().await {
                if sender.send(lot).await.is_err() {
                    break;
                }
            }
        };
        let lots = stream::poll_fn(move |context| lots.poll_recv(context));
        let mut list = list.boxed().fuse();
        // Appends in flight are not cut off: the log would have their objects without all rows.
        let is_awaited = |_: &Result<Step, Error>| ready(!self.progress.is_deserted());
        let found = lots.map_ok(|lot| stream::iter(steps(lot)).map(Ok)).try_flatten();
        let found = found.take_while(is_awaited);
        let steps = found
            .map_ok(|step| self.read(step))
            .try_buffer_unordered(READS_AT_ONCE)
            .map_ok(|step| self.adopt(named, step))
            .try_buffer_unordered(APPENDS_AT_ONCE);
        let mut steps = std::pin::pin!(steps);
        loop {
            let step = tokio::select! {
                biased;
                () = &mut list, if !list.is_terminated() => continue,
                step = steps.try_next() => step,
            };
            let step = match step {
                // Deleted between the steps.
                Err(error) if error.kind == Kind::NotFound && self.is_gone(named).await? => {
                    return Ok(false);
                }
                step => step?,
            };
            let Some(step) = step else { break };
            if !outcome.add(step, &mut progress.state) {
                return Ok(false);
            }
            progress.send_now_and_then().await;
        }
        if self.progress.is_deserted() {
            let why = "nobody waits for it any more; run it again";
            return Err(Error::new(Kind::Unavailable, "recover dataset", search.name, why));
        }
        Ok(true)
    }

    async fn report_lost(
        &self,
        name: &DatasetName,
        named: Named,
        outcome: &mut Outcome,
        state: &mut RecoverProgress,
    ) {
        if let Some(first) = outcome.lost.first() {
            state.problems.push(format!(
                "{} objects that the metadata knows are not in the chunk store, such as {first}; \
                 `dlcmd verify dl://{name}` says what that costs and what to do",
                outcome.lost.len()
            ));
        }
        let large = std::mem::take(&mut outcome.large);
        state.problems.extend(self.lacking(named, large).await);
    }

    /// Reports unreadable objects, and refuses their dataset.
    async fn finish(
        &self,
        name: &DatasetName,
        outcome: &Outcome,
        state: &mut RecoverProgress,
    ) -> Read {
        if !outcome.unread {
            return if outcome.interrupted { Read::Interrupted } else { Read::Whole };
        }
        let problem = match outcome.interrupted {
            true => "some objects could not be read; run recover again",
            false => {
                "some objects can't be read: make them readable, or move them away for good, then run \
                 recover again"
            }
        };
        state.problems.push(problem.to_owned());
        let is_refused = !outcome.interrupted && self.set_aside(name).await;
        if is_refused { Read::Whole } else { Read::Interrupted }
    }

    /// Repeats failed reads after pauses. A failure of a store that answers is final. False when the dataset
    /// has ended.
    async fn read_later(
        &self,
        named: Named,
        outcome: &mut Outcome,
        state: &mut RecoverProgress,
    ) -> Result<bool, Error> {
        for pause in names::PAUSES {
            if outcome.later.is_empty() || outcome.interrupted {
                break;
            }
            self.progress.mention(state.clone());
            self.context.clock.sleep(pause).await;
            if self.progress.is_deserted() || !identity::answers(self.context).await {
                outcome.interrupted = true;
                break;
            }
            let again = std::mem::take(&mut outcome.later).into_iter().map(|(listed, _)| listed);
            let again = stream::iter(again).map(|listed| async move {
                let read = self.read(Step::Found(listed)).await?;
                self.adopt(named, read).await
            });
            let mut again = std::pin::pin!(again.buffer_unordered(READS_AT_ONCE));
            while let Some(step) = again.try_next().await? {
                if let Step::Done(done, large) = step {
                    outcome.large.extend(large);
                    if !outcome.add_done(done, state) {
                        return Ok(false);
                    }
                }
            }
        }
        if !outcome.later.is_empty() {
            outcome.unread = true;
            outcome.interrupted |= !identity::answers(self.context).await;
        }
        let later = std::mem::take(&mut outcome.later);
        state.problems.extend(later.into_iter().map(|(_, error)| error.chain()));
        Ok(true)
    }

    /// Refuses a dataset that may lack objects, to serve all other datasets. False if the refusal is not
    /// recorded.
    pub(super) async fn set_aside(&self, name: &DatasetName) -> bool {
        if !self.is_refused {
            return true;
        }
        let record = match self.context.meta.record_named(name).await {
            Ok(Some(record)) => record,
            Ok(None) => return true,
            Err(_) => return false,
        };
        living::set_aside(self.context, record).await
    }

    /// Whether the log lacks appended objects, and no other sign shows the incomplete contents.
    async fn is_cut_short(&self, id: DatasetId) -> bool {
        let is_asked = self.reads == Reads::Everything && !self.is_refused;
        is_asked
            && self
                .context
                .meta
                .outline(id)
                .await
                .is_err_and(|error| error.kind == dl_meta::Kind::Lost)
    }

    /// Whether all objects of the log have their rows.
    async fn is_settled(&self, id: DatasetId) -> bool {
        let counted = self.context.meta.dataset(id).await;
        counted.is_ok_and(|counted| counted.is_some_and(|counted| counted.is_settled))
    }

    /// Whether the metadata has the dataset under its name: a loss of the name leaves no other sign.
    async fn is_named(&self, name: &DatasetName, named: Named) -> Result<bool, Error> {
        let record = self.context.meta.record_named(name).await.doing("recover dataset", name)?;
        Ok(record.is_some_and(|record| record.id == named.record.dataset))
    }

    async fn is_gone(&self, named: Named) -> Result<bool, Error> {
        let id = named.record.dataset;
        Ok(self.context.meta.record(id).await.doing("recover dataset", id)?.is_none())
    }

    /// Ends the recovery of a deleted dataset. Fails if the metadata lost or renamed a dataset with a live
    /// name.
    async fn ended(&self, name: &DatasetName, named: Named) -> Result<Read, Error> {
        let newest = names::newest(self.context, name).await?;
        let is_live = newest.is_some_and(|newest| newest.generation == named.generation);
        let record = self.context.meta.record_named(name).await.doing("recover dataset", name)?;
        if is_live && record.is_none() {
            let of_id = self
                .context
                .meta
                .record(named.record.dataset)
                .await
                .doing("recover dataset", name)?;
            if of_id.is_some_and(|record| record.name != *name) {
                let why = "the metadata has its dataset under another name, so this one was copied or \
                           moved: remove it from the chunk store, and run `dlcmd recover --all`, which \
                           writes the other name again if it is gone";
                return Err(Error::new(Kind::Conflict, "recover dataset", name, why));
            }
            let why = "the metadata lost it while it was recovered; run `dlcmd recover --all`";
            return Err(Error::new(Kind::Unavailable, "recover dataset", name, why));
        }
        let is_other = |record: &DatasetRecord| {
            record.generation == named.generation && record.id != named.record.dataset
        };
        if is_live && record.is_some_and(|record| is_other(&record)) {
            // A wrong name must not keep other datasets from being served.
            let why = "stands for another dataset than the metadata has; run `dlcmd recover --all`";
            tracing::error!(%name, "the name in the chunk store {why}");
        }
        Progress::of(name, self.progress).end().await;
        Ok(Read::Whole)
    }

    async fn read(&self, step: Step) -> Result<Step, Error> {
        Ok(match step {
            Step::Found(listed) => {
                let place = self.shares.header().await;
                let header = read_header(self.context, &listed.object.key).await;
                Step::Read(Box::new((listed, header)), place)
            }
            step => step,
        })
    }

    /// Reports large files with parts missing in the log, by their chunks.
    async fn lacking(&self, named: Named, large: Vec<ChunkId>) -> Vec<String> {
        let looked_at = stream::iter(large)
            .map(|chunk| async move { (chunk, self.lacked(named, chunk).await) })
            .buffer_unordered(READS_AT_ONCE);
        let mut looked_at = std::pin::pin!(looked_at);
        let (mut lacking, mut unknown) = (Vec::new(), Vec::new());
        while let Some((chunk, lacked)) = looked_at.next().await {
            match lacked {
                Ok(part) => lacking.extend(part.map(|part| (chunk, part))),
                // A failed look-up does not stop the recovery.
                Err(error) => unknown.push((chunk, error)),
            }
        }
        let mut problems = Vec::new();
        if let Some((chunk, part)) = lacking.first() {
            problems.push(format!(
                "{} large files lack parts, such as that of chunk {chunk} the part {part}, which \
                 is not in the chunk store or can't be adopted; `dlcmd verify` names the files",
                lacking.len()
            ));
        }
        if let Some((chunk, error)) = unknown.first() {
            problems.push(format!(
                "whether {} large files have all of their parts is not known, such as that of \
                 chunk {chunk}; `dlcmd verify` looks again: {}",
                unknown.len(),
                error.chain()
            ));
        }
        problems
    }

    /// A missing part of a file in a chunk.
    async fn lacked(&self, named: Named, chunk: ChunkId) -> Result<Option<ChunkId>, Error> {
        let (context, dataset) = (self.context, named.record.dataset);
        let header = read_header(context, &object_key(dataset, chunk, ObjectKind::Chunk)).await?;
        for extent in header.extents() {
            if !is_committed(context, dataset, extent).await? {
                // A purge removes parts before their chunks.
                let is_live = self.is_refused || is_live(context, &header).await?;
                return Ok(is_live.then_some(extent.part));
            }
        }
        Ok(None)
    }

    async fn adopt(&self, named: Named, step: Step) -> Result<Step, Error> {
        let Step::Read(read, _place) = step else { return Ok(step) };
        let (Listed { chunk, is_tombstone, object }, header) = *read;
        let problem = |problem| Ok(Step::Done(Done::Damaged { is_tombstone, problem }, None));
        let header = match header {
            Ok(header) => header,
            // Removed since the listing: with its dataset, or by a purge.
            Err(error) if error.kind == Kind::NotFound => {
                return Ok(Step::Done(Done::Passed, None));
            }
            Err(error) if error.kind == Kind::Corrupt => return problem(error.chain()),
            Err(error) => {
                let listed = Listed { chunk, is_tombstone, object };
                return Ok(Step::Done(Done::Unread(listed, error), None));
            }
        };
        if header.dataset() != named.record.dataset || header.id() != chunk {
            return problem(format!("{} holds another object than its key says", object.key));
        }
        if header.object_length() != object.size {
            return problem(format!(
                "{} has {} bytes and should have {}",
                object.key,
                object.size,
                header.object_length()
            ));
        }
        let files = u64::from(header.entry_count());
        let large = (!header.extents().is_empty()).then_some(chunk);
        let committed = match header.committed() {
            Ok(committed) => committed,
            Err(error) => return problem(format!("{}: {error}", object.key)),
        };
        let _rows = self.shares.rows(committed.header().entry_count()).await;
        let done = match self.context.meta.append(&committed).await {
            Ok(Appended::New) => Done::New(files),
            Ok(Appended::Known) => Done::Passed,
            Ok(Appended::Restamped) => Done::Restamped,
            Err(error) if error.kind == dl_meta::Kind::Missing => Done::Ended,
            Err(error) => return Err(Error::meta("adopt object", chunk, error)),
        };
        Ok(Step::Done(done, large))
    }
}

/// Whether the metadata still has a file in the chunk.
async fn is_live(context: &ServerContext, header: &Header) -> Result<bool, Error> {
    let paths: Vec<FilePath> = header.entries().map(|entry| entry.path).collect();
    let found = context
        .meta
        .lookup(header.dataset(), &paths)
        .await
        .doing("look up files of", header.id())?;
    let is_here =
        |found: &Found| matches!(found, Found::File(file) if file.holder.chunk == header.id());
    Ok(found.iter().any(is_here))
}

fn steps(mut lot: Lot) -> impl Iterator<Item = Step> {
    let objects = std::mem::take(&mut lot.objects);
    let first = Step::Lot(lot, objects.len() as u64);
    std::iter::once(first).chain(objects.into_iter().map(Step::Found))
}

//! The recovery of one dataset: headers are read and appended as its objects are found.
//!
//! Must hold: many headers and appends are in flight, and a bounded number; what was appended stays, but
//! only where metadata is filled from nothing is it not read again after a cut; until all is back, its
//! contents are not taken for all there is. What the log has and the chunk store hasn't is told, and so
//! are large files without all of their parts.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use dl_format::{ChunkId, DatasetId, DatasetName, FilePath, Header, ObjectKind};
use dl_meta::{Appended, DatasetRecord, DatasetState, Found};
use dl_proto::{Kind, RecoverProgress};
use futures::FutureExt;
use futures::future::{FusedFuture, ready};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::Log;
use super::found::{Doubt, Listed, Lot, Search};
use super::living;
use super::shares::Shares;
use crate::catalog;
use crate::commit::is_committed;
use crate::error::Error;
use crate::headers::read_header;
use crate::identity;
use crate::late::Late;
use crate::listener::Listener;
use crate::names::{self, Named};
use crate::parts::{Parts, object_key};

/// Headers of one dataset that are read at once, as far as all of them together leave it any.
const READS_AT_ONCE: usize = 64;
/// Lots that are found ahead of the reads.
const LOTS_AHEAD: usize = 2;
/// Appends in flight.
const APPENDS_AT_ONCE: usize = 32;
/// Objects that the store fails for and that are tried again: of more, the store is at fault.
const LATER_MAX: usize = 64;
/// After so many objects it is told how far it is.
const TELL_EVERY: u64 = 64;

/// What recoveries of datasets have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recovery<'a> {
    pub(super) parts: &'a Parts,
    /// Told of appends of old objects.
    pub(super) late: &'a Late<'a>,
    /// From which seconds of ids on what the log knows is read again, if its word is doubted; all
    /// of it where there is none.
    pub(super) since: Option<u64>,
    /// From which on the metadata lost something.
    pub(super) damaged: Option<u64>,
    /// Whether its word holds where nothing was lost.
    pub(super) log: Log,
    /// Whether what is missing is told, and not left to who looks at everything anyway.
    pub(super) tells_missing: bool,
    pub(super) progress: &'a Listener<'a, RecoverProgress>,
    pub(super) shares: &'a Shares,
}

/// How far the objects of a dataset were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// As far as they can be.
    Whole,
    /// The store failed for some; another try may do better.
    Interrupted,
}

/// Tells how far the recovery of a dataset is.
#[derive(Debug)]
pub(super) struct Progress<'a> {
    state: RecoverProgress,
    to: &'a Listener<'a, RecoverProgress>,
}

/// What came of the objects of a dataset.
#[derive(Debug)]
struct Outcome {
    /// Whether some can't be read.
    unread: bool,
    read: Read,
    /// Whether the log had other stamps, which may have hidden versions from it.
    has_restamped: bool,
    /// Those that the store failed for, to be tried again.
    later: Vec<(Listed, Error)>,
}

/// What was found, on its way through the steps.
enum Step {
    /// How much a lot holds.
    Lot { listed: u64, to_read: u64, problems: Vec<String>, lost: Option<(u64, ChunkId)> },
    /// One of its objects.
    Found(Listed),
    /// One that was read, and the place of its header in memory.
    Read(Box<(Listed, Result<Header, Error>)>, OwnedSemaphorePermit),
    /// One that is done.
    Done(Done),
}

/// What became of an object.
enum Done {
    /// It joined the log, with so many files.
    New(u64),
    /// It was in it, or is gone.
    Passed,
    /// It was in it with another stamp.
    Restamped,
    /// It can't be adopted.
    Problem(String),
    /// It can't be read.
    Unread(Listed, Error),
    /// The dataset was deleted meanwhile.
    Ended,
}

impl Outcome {
    /// Takes one into account; false when the dataset has ended.
    fn add(&mut self, done: Done, state: &mut RecoverProgress) -> bool {
        match done {
            Done::New(files) => {
                state.adopted += 1;
                state.files += files;
            }
            Done::Passed => {}
            Done::Restamped => self.has_restamped = true,
            Done::Problem(problem) => state.problems.push(problem),
            Done::Unread(listed, error) if error.kind.is_retryable() => {
                if self.later.len() < LATER_MAX {
                    self.later.push((listed, error));
                } else {
                    self.read = Read::Interrupted;
                    self.unread = true;
                    state.problems.push(error.chain());
                }
            }
            Done::Unread(_, error) => {
                self.unread |= error.kind != Kind::Corrupt;
                state.problems.push(error.chain());
            }
            Done::Ended => return false,
        }
        true
    }
}

impl<'a> Progress<'a> {
    pub(super) fn of(name: &impl Display, to: &'a Listener<'a, RecoverProgress>) -> Self {
        let state = RecoverProgress {
            dataset: name.to_string(),
            listed: 0,
            checked: 0,
            adopted: 0,
            files: 0,
            problems: Vec::new(),
            done: false,
        };
        Self { state, to }
    }

    /// Nothing can be done for the dataset now.
    pub(super) async fn fail(self, error: &Error) {
        self.tell_problem(error.chain()).await;
    }

    /// The same, for another reason.
    pub(super) async fn tell_problem(mut self, problem: String) {
        self.state.problems.push(problem);
        self.end().await;
    }

    async fn end(mut self) {
        self.state.done = true;
        self.tell().await;
    }

    /// Says how far it is. Problems are told once.
    async fn tell(&mut self) {
        let mut problems = std::mem::take(&mut self.state.problems);
        let state = &self.state;
        let message = |problems, is_last| RecoverProgress {
            problems,
            done: state.done && is_last,
            ..state.clone()
        };
        self.to.tell_found(&mut problems, message).await;
        self.state.problems = problems;
    }

    /// The same, unless there is nothing new but numbers and the last ones are still on their way.
    async fn tell_now_and_then(&mut self) {
        if !self.state.problems.is_empty() {
            self.tell().await;
        } else if self.state.checked.is_multiple_of(TELL_EVERY) {
            self.to.mention(self.state.clone());
        }
    }
}

impl Recovery<'_> {
    pub(super) async fn dataset(&self, name: &DatasetName, named: Named) -> Result<Read, Error> {
        let id = named.record.dataset;
        let record = self.parts.meta.record(id).await;
        let record = record.map_err(|error| Error::meta("recover dataset", name, error))?;
        let is_live = record.is_some_and(|record| record.state == DatasetState::Live);
        let whole = is_live && !self.is_cut_short(id).await;
        let put = async |state| catalog::index(self.parts, name, named, state).await;
        // Until all is back, its contents must not be taken for all there is.
        if !whole && !put(DatasetState::Recovering).await? {
            return self.ended(name, named).await;
        }
        // Nobody may have noticed that what its name stands for is lost.
        let is_unnamed = self.log == Log::Doubted && !self.is_named(name, named).await?;
        if whole && (self.damaged.is_some() || is_unnamed) && !put(DatasetState::Live).await? {
            return self.ended(name, named).await;
        }
        // What is not whole is doubted from its beginning, whatever was asked for.
        let since = self.since.filter(|_| whole).unwrap_or(0);
        let from = match self.log {
            Log::Doubted => Some(self.damaged.map_or(since, |damaged| damaged.min(since))),
            // It was set aside: of what its log knows, rows may be missing that were lost then.
            Log::Trusted if !whole => Some(0),
            // Some of it may be in the log without its rows.
            Log::Sound if !whole && !self.is_settled(id).await => Some(0),
            // A recovery that was cut off goes on.
            Log::Trusted | Log::Sound => self.damaged.map(|damaged| damaged.max(since)),
        };
        let doubt = Doubt { from };
        let search = Search { parts: self.parts, name, id, doubt, shares: self.shares };
        let mut progress = Progress::of(name, self.progress);
        let (read, later) = (Read::Whole, Vec::new());
        let mut outcome = Outcome { unread: false, read, has_restamped: false, later };
        let (mut lost, large) = (None, Mutex::new(Vec::new()));
        let large_ones = &large;
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
        // What is under way is not cut off: it would be in the log without all of its rows.
        let is_awaited = |_: &Result<Step, Error>| ready(!self.progress.is_deserted());
        let found = lots.map_ok(|lot| stream::iter(steps(lot)).map(Ok)).try_flatten();
        let found = found.take_while(is_awaited);
        let steps = found
            .map_ok(|step| self.read(step))
            .try_buffer_unordered(READS_AT_ONCE)
            .map_ok(|step| self.adopt(named, step, large_ones))
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
                    return self.ended(name, named).await;
                }
                step => step?,
            };
            let Some(step) = step else { break };
            let state = &mut progress.state;
            match step {
                Step::Lot { listed, to_read, problems, lost: of_lot } => {
                    lost = match (lost, of_lot) {
                        (Some((count, first)), Some((more, _))) => Some((count + more, first)),
                        (before, of_lot) => before.or(of_lot),
                    };
                    state.listed += listed;
                    state.checked += listed.saturating_sub(to_read);
                    state.problems.extend(problems);
                }
                Step::Done(done) => {
                    state.checked += 1;
                    if !outcome.add(done, state) {
                        return self.ended(name, named).await;
                    }
                }
                Step::Found(..) | Step::Read(..) => {}
            }
            progress.tell_now_and_then().await;
        }
        if self.progress.is_deserted() {
            let why = "nobody waits for it any more; run it again to go on";
            return Err(Error::new(Kind::Unavailable, "recover dataset", name, why));
        }
        if !self.read_later(named, &mut outcome, &mut progress.state, large_ones).await? {
            return self.ended(name, named).await;
        }
        if outcome.has_restamped {
            // Once more: what was appended before the stamps changed may have been hidden by them.
            return Box::pin(self.dataset(name, named)).await;
        }
        let Outcome { unread, mut read, .. } = outcome;
        if self.tells_missing {
            let problem = |(count, first)| {
                format!(
                    "{count} objects that the metadata knows are not in the chunk store, such as \
                     {first}; `dlcmd verify dl://{name}` says what that costs and what to do"
                )
            };
            progress.state.problems.extend(lost.map(problem));
            let large = std::mem::take(&mut *large.lock().unwrap_or_else(PoisonError::into_inner));
            let told = self.lacking(named, large).await;
            progress.state.problems.extend(told.into_iter().flatten());
        }
        if unread {
            let problem = match read {
                Read::Interrupted => "some objects could not be read; run recover again",
                Read::Whole => {
                    "some objects can't be read: make them readable, or move them away for good, then \
                     run recover again"
                }
            };
            progress.state.problems.push(problem.to_owned());
            if read == Read::Whole && !self.set_aside(name).await {
                read = Read::Interrupted;
            }
        } else if !whole && !put(DatasetState::Live).await? {
            return self.ended(name, named).await;
        }
        progress.end().await;
        Ok(read)
    }

    /// Reads those again that the store failed for, after pauses. What it fails for while it answers for
    /// others is taken for unreadable. False when the dataset has ended.
    async fn read_later(
        &self,
        named: Named,
        outcome: &mut Outcome,
        state: &mut RecoverProgress,
        large: &Mutex<Vec<ChunkId>>,
    ) -> Result<bool, Error> {
        for pause in names::PAUSES {
            if outcome.later.is_empty() || outcome.read == Read::Interrupted {
                break;
            }
            self.progress.mention(state.clone());
            self.parts.clock.sleep(pause).await;
            if self.progress.is_deserted() || !identity::answers(self.parts).await {
                outcome.read = Read::Interrupted;
                break;
            }
            let again = std::mem::take(&mut outcome.later).into_iter().map(|(listed, _)| listed);
            let again = stream::iter(again).map(|listed| async move {
                let read = self.read(Step::Found(listed)).await?;
                self.adopt(named, read, large).await
            });
            let mut again = std::pin::pin!(again.buffer_unordered(READS_AT_ONCE));
            while let Some(step) = again.try_next().await? {
                if let Step::Done(done) = step
                    && !outcome.add(done, state)
                {
                    return Ok(false);
                }
            }
        }
        if !outcome.later.is_empty() {
            outcome.unread = true;
            if !identity::answers(self.parts).await {
                outcome.read = Read::Interrupted;
            }
        }
        let later = std::mem::take(&mut outcome.later);
        state.problems.extend(later.into_iter().map(|(_, error)| error.chain()));
        Ok(true)
    }

    /// Has a dataset refused that can't be recovered, if some of it may be missing: it does not keep
    /// the others from being served. False when that can't be written down.
    pub(super) async fn set_aside(&self, name: &DatasetName) -> bool {
        if self.damaged.is_none() {
            return true;
        }
        let record = match self.parts.meta.record_named(name).await {
            Ok(Some(record)) => record,
            Ok(None) => return true,
            Err(_) => return false,
        };
        living::set_aside(self.parts, record).await
    }

    /// Whether the log lacks what was appended, and nothing else tells of it: while that comes back, what
    /// is not back yet is not there to be found.
    async fn is_cut_short(&self, id: DatasetId) -> bool {
        let is_asked = self.log == Log::Doubted && self.damaged.is_none();
        is_asked
            && self
                .parts
                .meta
                .outline(id)
                .await
                .is_err_and(|error| error.kind == dl_meta::Kind::Lost)
    }

    /// Whether all that the log has is in the rows as well.
    async fn is_settled(&self, id: DatasetId) -> bool {
        let counted = self.parts.meta.dataset(id).await;
        counted.is_ok_and(|counted| counted.is_some_and(|counted| counted.is_settled))
    }

    async fn is_named(&self, name: &DatasetName, named: Named) -> Result<bool, Error> {
        let record = self.parts.meta.record_named(name).await;
        let record = record.map_err(|error| Error::meta("recover dataset", name, error))?;
        Ok(record.is_some_and(|record| record.id == named.record.dataset))
    }

    async fn is_gone(&self, named: Named) -> Result<bool, Error> {
        let id = named.record.dataset;
        let record = self.parts.meta.record(id).await;
        Ok(record.map_err(|error| Error::meta("recover dataset", id, error))?.is_none())
    }

    /// The dataset was deleted meanwhile: nothing is left to recover. Fails when its name says otherwise
    /// and the metadata has none: it lost it, or has it under another name, which it does not tell.
    async fn ended(&self, name: &DatasetName, named: Named) -> Result<Read, Error> {
        let newest = names::newest(self.parts, name).await?;
        let is_live = newest.is_some_and(|newest| newest.generation == named.generation);
        let record = self.parts.meta.record_named(name).await;
        let record = record.map_err(|error| Error::meta("recover dataset", name, error))?;
        if is_live && record.is_none() {
            let of_id = self.parts.meta.record(named.record.dataset).await;
            let of_id = of_id.map_err(|error| Error::meta("recover dataset", name, error))?;
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
            // One name keeps no other dataset from being served.
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
                let header = read_header(self.parts, &listed.object.key).await;
                Step::Read(Box::new((listed, header)), place)
            }
            step => step,
        })
    }

    /// What to say of large files, by the chunks that name their parts, of which the log lacks some.
    async fn lacking(&self, named: Named, large: Vec<ChunkId>) -> [Option<String>; 2] {
        let looked_at = stream::iter(large)
            .map(|chunk| async move { (chunk, self.lacked(named, chunk).await) })
            .buffer_unordered(READS_AT_ONCE);
        let mut looked_at = std::pin::pin!(looked_at);
        let (mut lacking, mut unknown) = ((0, None), (0, None));
        while let Some((chunk, lacked)) = looked_at.next().await {
            match lacked {
                Ok(None) => {}
                Ok(Some(part)) => {
                    lacking.0 += 1;
                    lacking.1.get_or_insert((chunk, part));
                }
                // What can't be learnt keeps nothing from being recovered.
                Err(error) => {
                    unknown.0 += 1;
                    unknown.1.get_or_insert((chunk, error));
                }
            }
        }
        let (count, first) = lacking;
        let lacking = first.map(|(chunk, part)| {
            format!(
                "{count} large files lack parts, such as that of chunk {chunk} the part {part}, which \
                 is not in the chunk store or can't be adopted; `dlcmd verify` names the files"
            )
        });
        let (count, first) = unknown;
        let unknown = first.map(|(chunk, error)| {
            format!(
                "whether {count} large files have all of their parts is not known, such as that of \
                 chunk {chunk}; `dlcmd verify` looks again: {}",
                error.chain()
            )
        });
        [lacking, unknown]
    }

    /// A part that a file in a chunk lacks.
    async fn lacked(&self, named: Named, chunk: ChunkId) -> Result<Option<ChunkId>, Error> {
        let (parts, dataset) = (self.parts, named.record.dataset);
        let header = read_header(parts, &object_key(dataset, chunk, ObjectKind::Chunk)).await?;
        for extent in header.extents() {
            if !is_committed(parts, dataset, extent).await? {
                // A purge removes parts before the chunks that name them. Metadata that lost something
                // answers no question about files.
                let is_live = self.damaged.is_some() || is_live(parts, &header).await?;
                return Ok(is_live.then_some(extent.part));
            }
        }
        Ok(None)
    }

    async fn adopt(
        &self,
        named: Named,
        step: Step,
        large: &Mutex<Vec<ChunkId>>,
    ) -> Result<Step, Error> {
        let Step::Read(read, _place) = step else { return Ok(step) };
        let (Listed { chunk, object }, header) = *read;
        let header = match header {
            Ok(header) => header,
            // Removed since it was listed: with its dataset, or by a purge.
            Err(error) if error.kind == Kind::NotFound => return Ok(Step::Done(Done::Passed)),
            Err(error) => {
                return Ok(Step::Done(Done::Unread(Listed { chunk, object }, error)));
            }
        };
        let problem = |problem| Ok(Step::Done(Done::Problem(problem)));
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
        if !header.extents().is_empty() {
            large.lock().unwrap_or_else(PoisonError::into_inner).push(chunk);
        }
        let committed = match header.committed() {
            Ok(committed) => committed,
            Err(error) => return problem(format!("{}: {error}", object.key)),
        };
        let _rows = self.shares.rows(committed.header().entry_count()).await;
        // Also of what the log knows: rows that come back now may be lost right after.
        self.late.append(chunk).await?;
        match self.parts.meta.append(&committed).await {
            Ok(Appended::New) => Ok(Step::Done(Done::New(files))),
            Ok(Appended::Known) => Ok(Step::Done(Done::Passed)),
            Ok(Appended::Restamped) => Ok(Step::Done(Done::Restamped)),
            Err(error) if error.kind == dl_meta::Kind::Missing => Ok(Step::Done(Done::Ended)),
            Err(error) => Err(Error::meta("adopt object", chunk, error)),
        }
    }
}

/// Whether the metadata still names a file of this chunk.
async fn is_live(parts: &Parts, header: &Header) -> Result<bool, Error> {
    let paths: Vec<FilePath> = header.entries().map(|entry| entry.path).collect();
    let found = parts.meta.lookup(header.dataset(), &paths).await;
    let found = found.map_err(|error| Error::meta("look up files of", header.id(), error))?;
    let is_here =
        |found: &Found| matches!(found, Found::File(file) if file.holder.chunk == header.id());
    Ok(found.iter().any(is_here))
}

fn steps(lot: Lot) -> impl Iterator<Item = Step> {
    let to_read = lot.objects.len() as u64;
    let Lot { listed, problems, lost, objects } = lot;
    let first = Step::Lot { listed, to_read, problems, lost };
    let objects = objects.into_iter().map(Step::Found);
    std::iter::once(first).chain(objects)
}

//! Purge: gives back the space of overwritten and deleted files (paper, 5, housekeeping).
//!
//! Must hold: a purge changes no answer about files, and neither does a recovery at any moment of the purge. An
//! object leaves the log before the store, so that the next purge removes leftovers of a crash. A survey may
//! take hours: removed objects were old at its beginning, and moved files were looked up a moment ago
//! (docs/decisions/0008-purge.md). A damaged dataset is refused.

mod damage;
mod estimate;
mod leased;
mod plan;
mod rewrite;

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use dl_format::{ChunkId, ChunkIdMaker, DatasetId, DatasetName, Deletions, Stamp};
use dl_meta::{DatasetRecord, DatasetState};
use dl_proto::{Kind, PurgeProgress, PurgeRequest};
use dl_store::Key;
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use self::damage::Stop;
use self::plan::{Ledger, PurgePlan, Rules};
use self::rewrite::{Moved, Rewriter};
use crate::answers::answer::Reply;
use crate::answers::listener::Listener;
use crate::auth::Caller;
use crate::datasets::catalog::{self, Detail};
use crate::datasets::identity;
use crate::datasets::leftovers::Leftovers;
use crate::datasets::names;
use crate::datasets::survey::{Away, Survey};
use crate::error::{Doing, Error};
use crate::housekeeping::turns::Turns;
use crate::recovery::recover;
use crate::shared::context::ServerContext;
use crate::snapshot::{self, Older};
use crate::write::commit;

/// Part of the clock skew between the look-up of a file and the commit of its copy. Any purge that sees the
/// copy has all deletions since the look-up, as only objects settled before a survey are removed.
const FRESH_PART: u32 = 3;

/// Objects taken off the log in a step, and parallel removals from the store.
const REMOVED_TOGETHER: usize = 512;
const REMOVALS_AT_ONCE: usize = 16;

const ACTION: &str = "purge dataset";

type Progress<'a> = Listener<'a, PurgeProgress>;

/// Purges the datasets of a request; reports the progress through `progress`.
pub(crate) async fn purge(
    context: &ServerContext,
    turns: &Turns,
    leftovers: &Leftovers,
    request: PurgeRequest,
    caller: &Caller,
    progress: &mpsc::Sender<Reply<PurgeProgress>>,
) -> Result<(), Error> {
    let progress = Listener::new(context, progress);
    purge_all(context, turns, leftovers, request, caller, &progress).await?;
    progress.end()
}

async fn purge_all(
    context: &ServerContext,
    turns: &Turns,
    leftovers: &Leftovers,
    request: PurgeRequest,
    caller: &Caller,
    progress: &Progress<'_>,
) -> Result<(), Error> {
    identity::refuse_damaged(context, "purge", "datasets").await?;
    if let Some(name) = &request.dataset {
        let id = catalog::by_name(context, name, caller, Detail::Record).await?.id;
        let mut purge = Purge::new(context, turns, name, &request, progress);
        return purge.dataset(id).await;
    }
    let names = names::all(context).await?;
    let mut kinds = names.unread.iter().map(|(_, error)| error.kind);
    let mut may_pass = kinds.find(|kind| kind.is_retryable());
    for (name, error) in &names.unread {
        let mut purge = Purge::new(context, turns, name, &request, progress);
        purge.end_with(error).await;
    }
    for (name, named) in names.live() {
        context.settings.refuse_read_only(ACTION, name)?;
        let mut purge = Purge::new(context, turns, name, &request, progress);
        // A failure ends the purge of its dataset alone.
        if let Err(error) = purge.dataset(named.record.dataset).await {
            if error.kind == Kind::NotFound {
                // The dataset was deleted meanwhile.
                continue;
            }
            may_pass = may_pass.or(Some(error.kind).filter(|kind| kind.is_retryable()));
            purge.end_with(&error).await;
        }
    }
    if !request.dry_run {
        let swept = leftovers.sweep_deleted(context, names::Past::All).await?;
        tracing::debug!(swept, "removed what deleted datasets had left");
    }
    match may_pass {
        Some(kind) => {
            let why = "not all of them could be worked on; run purge again";
            Err(Error::new(kind, "purge", "datasets", why))
        }
        None => Ok(()),
    }
}

struct Purge<'a> {
    context: &'a ServerContext,
    turns: &'a Turns,
    name: &'a DatasetName,
    grace: Duration,
    is_dry_run: bool,
    /// Whether a purge without a grace time gives up leased versions.
    force: bool,
    progress: &'a Progress<'a>,
    state: PurgeProgress,
    /// Reported problems: each is reported once.
    reported: HashSet<String>,
}

impl<'a> Purge<'a> {
    fn new(
        context: &'a ServerContext,
        turns: &'a Turns,
        name: &'a DatasetName,
        request: &PurgeRequest,
        progress: &'a Progress<'a>,
    ) -> Self {
        let PurgeRequest { grace, dry_run: is_dry_run, force, .. } = *request;
        let state = PurgeProgress { dataset: name.to_string(), ..PurgeProgress::default() };
        let reported = HashSet::new();
        Self { context, turns, name, grace, is_dry_run, force, progress, state, reported }
    }

    /// Purges the dataset. Damage is reported as a problem, and is no error.
    async fn dataset(&mut self, id: DatasetId) -> Result<(), Error> {
        let done = match self.is_dry_run {
            true => self.estimate(id).await,
            false => self.rounds(id).await,
        };
        match done {
            Ok(()) => {}
            Err(Stop::Damaged(problem)) => self.problem(problem),
            Err(Stop::Failed(error)) => {
                return Err(catalog::explained(self.context, id, error).await);
            }
        }
        self.end().await;
        Ok(())
    }

    async fn rounds(&mut self, id: DatasetId) -> Result<(), Stop> {
        let _turn = self.turns.survey(self.context, || self.is_awaited()).await?;
        let record = catalog::by_id(self.context, id).await?;
        self.refuse_leased(id).await?;
        let mut origin = [0; 9];
        self.context.random.fill(&mut origin);
        let mut ids = ChunkIdMaker::new(origin);
        // Only the first round removes tombstones: a recovery may bring back a chunk read before its removal.
        let mut is_first = true;
        while self.round(&record, &mut ids, is_first).await? {
            is_first = false;
        }
        self.sweep_snapshots(id).await?;
        self.name_leases(id).await;
        Ok(())
    }

    /// Removes expired snapshots of older versions, but not in a dry run; gives the snapshots that are left.
    async fn sweep_snapshots(&self, id: DatasetId) -> Result<Vec<Older>, Error> {
        let outline = self.context.meta.outline(id).await.doing("describe dataset", id)?;
        match outline.filter(|now| now.record.state == DatasetState::Live) {
            Some(outline) => {
                snapshot::sweep(self.context, id, outline.version, self.is_dry_run).await
            }
            None => Ok(Vec::new()),
        }
    }

    async fn end_with(&mut self, error: &Error) {
        self.problem(error.chain());
        self.end().await;
    }

    async fn end(&mut self) {
        self.state.done = true;
        self.tell().await;
    }

    /// Surveys the dataset, decides and acts. True when another round has more to do now.
    async fn round(
        &mut self,
        record: &DatasetRecord,
        ids: &mut ChunkIdMaker,
        is_first: bool,
    ) -> Result<bool, Stop> {
        let (began, now) = (self.context.clock.monotonic(), self.context.clock.now());
        let problems = recover::adopt_unlogged(self.context, self.name).await?;
        self.refuse_problems(&problems)?;
        let mut survey = Survey::read(self.context, record.id).await?;
        let older = self.older(record.id).await;
        let (ledger, held) = self.look(&mut survey, record).await?;
        if survey.has_restamped {
            recover::take_stamps(self.context, self.name).await?;
            return Ok(true);
        }
        if self.check_agreement(record.id, &survey, &ledger).await? {
            return Ok(true);
        }
        let (rules, kept) = self.rules(record, &survey, older, now, is_first);
        let plan = ledger.plan(&survey, rules, &held);
        if !plan.rewrite.is_empty() || !plan.remove.is_empty() {
            // Versions hidden by a deleted winner alone get a tombstone before the winner may go.
            self.put_tombstones(record.id, ledger.hidden.clone(), ids).await?;
        }
        if !plan.remove.is_empty() {
            // A job may have joined since the purge began.
            self.refuse_leased(record.id).await?;
        }
        // Removals come first, so that a full disk has room for the rewrites.
        self.remove(record.id, &survey, &plan).await?;
        let written = self.state.written;
        let moved = self.rewrite(record, &survey, &ledger, &plan, ids, began).await?;
        let has_changed = !plan.rewrite.is_empty() || !plan.remove.is_empty();
        // The former newest version is an older version now.
        let kept = match has_changed && !self.grace.is_zero() {
            true => kept.max(snapshot::KEPT_AT_MOST),
            false => kept,
        };
        self.wait_for(&survey, &plan, &moved, kept);
        // Without readers to wait for, the chunks of moved files may go at once.
        Ok(self.state.written > written && self.grace.is_zero())
    }

    /// Decides when objects may go, and for how long a snapshot of an older version is kept.
    fn rules(
        &mut self,
        record: &DatasetRecord,
        survey: &Survey,
        older: Result<Vec<Older>, Error>,
        now: SystemTime,
        with_tombstones: bool,
    ) -> (Rules, Duration) {
        let (read_until, kept) = match older {
            Ok(older) => {
                let kept = older.iter().map(|older| older.kept).max();
                (plan::read_until(&survey.objects, &older), kept.unwrap_or_default())
            }
            Err(error) => {
                self.problem(error.chain());
                (Some(Stamp::default()), snapshot::KEPT_AT_MOST)
            }
        };
        let rules = Rules {
            now,
            grace: self.grace,
            read_until,
            quiet_age: self.context.limits.quiet_age(),
            chunk_size: record.shape.size().into(),
            with_tombstones,
        };
        (rules, kept)
    }

    /// The snapshots of older versions for readers; none without a grace time, as the purge then waits for no
    /// reader. To be called after the log is read: the log then needs all objects of the newest version.
    async fn older(&self, id: DatasetId) -> Result<Vec<Older>, Error> {
        if self.grace.is_zero() { Ok(Vec::new()) } else { self.sweep_snapshots(id).await }
    }

    /// Reads all headers; gives the states of the objects, and the tombstones still needed.
    async fn look(
        &mut self,
        survey: &mut Survey,
        record: &DatasetRecord,
    ) -> Result<(Ledger, HashSet<usize>), Error> {
        let mut ledger = Ledger::new(survey);
        self.state.objects = survey.objects.len() as u64;
        let heard = |checked| {
            self.mention(checked);
            self.refuse_read_only()
        };
        let mut shares = survey.shares(self.context, record.shape, heard).await?;
        self.state.checked = self.state.objects;
        while let Some(rows) = shares.next().await? {
            self.refuse_read_only()?;
            for (path, winner, others) in rows.paths() {
                ledger.add(path.len(), winner, others, &survey.deleted);
            }
            self.tell().await;
        }
        let (mut held, mut away) = (HashSet::new(), Away::default());
        let mut tombstones = std::pin::pin!(survey.headers(self.context, survey.tombstones()));
        while let Some((number, header)) = tombstones.next().await {
            // An unreadable tombstone may name an entry of a chunk.
            if away
                .note(self.context, header)
                .await?
                .map_or(true, |header| ledger.is_held(header.deletions()))
            {
                held.insert(number);
            }
        }
        Ok((ledger, held))
    }

    async fn put_tombstones(
        &self,
        dataset: DatasetId,
        deletions: Deletions,
        ids: &mut ChunkIdMaker,
    ) -> Result<(), Error> {
        for deletions in deletions.split() {
            self.refuse_read_only()?;
            let id = ids.next(self.context.clock.now());
            commit::put_tombstone(self.context, dataset, id, &deletions).await?;
        }
        Ok(())
    }

    /// Moves live files; gives the numbers of the chunks without use then. The survey began at `began`.
    async fn rewrite(
        &mut self,
        record: &DatasetRecord,
        survey: &Survey,
        ledger: &Ledger,
        plan: &PurgePlan,
        ids: &mut ChunkIdMaker,
        began: Duration,
    ) -> Result<Vec<usize>, Stop> {
        let mut moved = Vec::new();
        if plan.rewrite.is_empty() {
            return Ok(moved);
        }
        let bytes = rewrite::memory(record.shape);
        let _room = self.turns.rewrite(self.context, bytes, || self.is_awaited()).await?;
        let mut rewriter = Rewriter::new(self.context, record, ids, self.fresh(), began);
        let written = self.state.written;
        for number in &plan.rewrite {
            let (Some(object), Some(state)) =
                (survey.objects.get(*number), ledger.states.get(*number))
            else {
                continue;
            };
            self.refuse_read_only()?;
            match rewriter.take(object.id, &survey.key(object), &state.kept).await? {
                Moved::All => {
                    moved.push(*number);
                    self.state.rewritten += 1;
                    self.state.merged += u64::from(!state.has_holes());
                }
                Moved::NotHidden => {}
                Moved::Damaged(found) => return Err(self.damaged(&found, "--checksums ")),
            }
            self.state.written = written + rewriter.written;
            self.tell().await;
        }
        rewriter.finish().await?;
        self.state.written = written + rewriter.written;
        self.tell().await;
        Ok(moved)
    }

    /// Removes objects by the plan, first from the log and then from the chunk store.
    async fn remove(
        &mut self,
        dataset: DatasetId,
        survey: &Survey,
        plan: &PurgePlan,
    ) -> Result<(), Stop> {
        for numbers in plan.remove.chunks(REMOVED_TOGETHER) {
            self.refuse_read_only()?;
            let objects = numbers.iter().filter_map(|number| survey.objects.get(*number));
            let objects: Vec<_> = objects.collect();
            let ids: Vec<ChunkId> = objects.iter().map(|object| object.id).collect();
            self.retire(dataset, &ids).await?;
            let keys = objects.into_iter().map(|object| (survey.key(object), object.object_length));
            let keys: Vec<(Key, u64)> = keys.collect();
            let (context, name) = (self.context, self.name);
            let removed = stream::iter(keys).map(|(key, bytes)| async move {
                context.settings.refuse_read_only(ACTION, name)?;
                let removed = context.store.delete(&key).await;
                removed.map(|()| bytes).storing("remove object", key)
            });
            let removed: Vec<u64> =
                removed.buffer_unordered(REMOVALS_AT_ONCE).try_collect().await?;
            self.state.removed += removed.len() as u64;
            self.state.removed_bytes += removed.iter().sum::<u64>();
            self.tell().await;
        }
        Ok(())
    }

    async fn retire(&self, dataset: DatasetId, ids: &[ChunkId]) -> Result<(), Stop> {
        match self.context.meta.retire(dataset, ids).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind == dl_meta::Kind::Conflict => {
                let found =
                    "the metadata names files in objects that no file needs by their headers";
                Err(self.damaged(found, ""))
            }
            Err(error) => Err(Error::meta("take objects off the log of", dataset, error).into()),
        }
    }

    /// Reports the waiting objects, and the longest time; snapshots of older versions stay for `kept`.
    fn wait_for(&mut self, survey: &Survey, plan: &PurgePlan, moved: &[usize], kept: Duration) {
        let waiting = plan.waiting.iter().chain(moved);
        let waiting = waiting.filter_map(|number| survey.objects.get(*number));
        let (mut count, mut bytes) = (0, 0);
        for object in waiting {
            count += 1;
            bytes += object.object_length;
        }
        (self.state.waiting, self.state.waiting_bytes) = (count, bytes);
        let now = self.context.clock.now();
        let mut longest = plan.until.duration_since(now).unwrap_or_default().max(kept);
        if !moved.is_empty() {
            // Copies have later stamps than all objects of the log, and than the clock.
            let last = survey.version().last_stamp().unwrap_or_default().time();
            let ahead = last.duration_since(now).unwrap_or_default();
            longest = longest.max(self.grace.saturating_add(ahead));
        }
        self.state.waiting_for = if count == 0 { Duration::ZERO } else { longest };
    }

    /// Ends the purge as soon as the servers are set to read-only.
    fn refuse_read_only(&self) -> Result<(), Error> {
        self.context.settings.refuse_read_only(ACTION, self.name)
    }

    /// Time for which a look-up is valid.
    fn fresh(&self) -> Duration {
        self.context.limits.clock_skew / FRESH_PART
    }

    /// Reports that the purge waits for its turn; whether the client is still there.
    fn is_awaited(&self) -> bool {
        self.mention(self.state.checked);
        !self.progress.is_deserted()
    }

    /// Reports how many objects were checked, unless the channel is full.
    fn mention(&self, checked: u64) {
        let problems = Vec::new();
        self.progress.mention(PurgeProgress { checked, problems, ..self.state.clone() });
    }

    fn problem(&mut self, problem: String) {
        if self.reported.insert(problem.clone()) {
            self.state.problems.push(problem);
        }
    }

    /// Reports the progress, and the problems since the last report.
    async fn tell(&mut self) {
        let mut problems = std::mem::take(&mut self.state.problems);
        let state = &self.state;
        let message = |problems, is_last| PurgeProgress {
            problems,
            done: state.done && is_last,
            ..state.clone()
        };
        self.progress.tell_found(&mut problems, message).await;
        self.state.problems = problems;
    }
}

#[cfg(test)]
mod tests;

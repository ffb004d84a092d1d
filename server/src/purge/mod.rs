//! Purge: gives back the space of what was overwritten and deleted (paper, 5, housekeeping).
//!
//! Must hold: no answer about files changes by it, and none by a recovery at any moment of it.
//! An object leaves the log before it leaves the store, so that what a crash leaves is found again
//! and removed by the next purge. A survey may take as long as it needs: what goes was old when it
//! began, and what moves was looked up a moment ago (docs/decisions/0008-purge.md).

mod absent;
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

use self::plan::{Ledger, Plan, Rules};
use self::rewrite::{Moved, Rewriter};
use crate::answer::{Reply, TOLD_TOGETHER};
use crate::auth::Caller;
use crate::catalog::{self, Told};
use crate::commit;
use crate::error::Error;
use crate::identity;
use crate::leftovers::Leftovers;
use crate::listener::Listener;
use crate::names;
use crate::parts::Parts;
use crate::recover;
use crate::snapshot::{self, Older};
use crate::survey::{Away, Survey};
use crate::turns::Turns;

/// Of the time that ids may be off a clock: how long what was seen alive is moved. Whatever ends a
/// file after it was seen is then still there when its copy is seen by any purge that might remove
/// it, as what is removed was settled when the survey began.
const FRESH_PART: u32 = 3;

/// Problems that are told one by one.
const PROBLEMS_MAX: usize = 10_000;

/// Objects that are taken off the log in one step, and removed from the store at once.
const REMOVED_TOGETHER: usize = 512;
const REMOVALS_AT_ONCE: usize = 16;

const ACTION: &str = "purge dataset";

/// Whoever is told how far a purge is.
type Progress<'a> = Listener<'a, PurgeProgress>;

/// Purges what a request names; tells how far it is through `progress`.
pub(crate) async fn purge(
    parts: &Parts,
    turns: &Turns,
    leftovers: &Leftovers,
    request: PurgeRequest,
    caller: &Caller,
    progress: &mpsc::Sender<Reply<PurgeProgress>>,
) -> Result<(), Error> {
    let progress = Listener::new(parts, progress);
    purge_all(parts, turns, leftovers, request, caller, &progress).await?;
    progress.end()
}

async fn purge_all(
    parts: &Parts,
    turns: &Turns,
    leftovers: &Leftovers,
    request: PurgeRequest,
    caller: &Caller,
    progress: &Progress<'_>,
) -> Result<(), Error> {
    identity::refuse_damaged(parts, "purge", "datasets").await?;
    if let Some(name) = &request.dataset {
        let id = catalog::by_name(parts, name, caller, Told::Record).await?.id;
        let mut purge = Purge::new(parts, turns, name, &request, progress);
        return purge.dataset(id).await;
    }
    let names = names::all(parts).await?;
    let mut kinds = names.unread.iter().map(|(_, error)| error.kind);
    let mut may_pass = kinds.find(|kind| kind.is_retryable());
    for (name, error) in &names.unread {
        let mut purge = Purge::new(parts, turns, name, &request, progress);
        purge.end_with(error).await;
    }
    for (name, named) in names.live() {
        parts.settings.refuse_read_only(ACTION, name)?;
        let mut purge = Purge::new(parts, turns, name, &request, progress);
        // One dataset that can't be purged doesn't keep the others from it.
        if let Err(error) = purge.dataset(named.record.dataset).await {
            if error.kind == Kind::NotFound {
                // It was deleted meanwhile.
                continue;
            }
            may_pass = may_pass.or(Some(error.kind).filter(|kind| kind.is_retryable()));
            purge.end_with(&error).await;
        }
    }
    if !request.dry_run {
        let swept = leftovers.sweep_deleted(parts, names::Past::All).await?;
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

/// The purge of one dataset.
struct Purge<'a> {
    parts: &'a Parts,
    turns: &'a Turns,
    name: &'a DatasetName,
    grace: Duration,
    is_dry_run: bool,
    /// Whether versions that training jobs lease are given up, where no reader is waited for.
    force: bool,
    progress: &'a Progress<'a>,
    state: PurgeProgress,
    /// Problems are told once.
    told: HashSet<String>,
    /// Whether there are problems beyond [`PROBLEMS_MAX`].
    are_more: bool,
    /// Chunks with damaged files, which can't be moved.
    damaged: HashSet<ChunkId>,
    /// Whether the metadata has files as deleted that no tombstone names, though nothing is lost: somebody
    /// has put a chunk back that had been purged.
    has_doubts: bool,
}

impl<'a> Purge<'a> {
    fn new(
        parts: &'a Parts,
        turns: &'a Turns,
        name: &'a DatasetName,
        request: &PurgeRequest,
        progress: &'a Progress<'a>,
    ) -> Self {
        let PurgeRequest { grace, dry_run: is_dry_run, force, .. } = *request;
        let state = PurgeProgress { dataset: name.to_string(), ..PurgeProgress::default() };
        let (told, damaged) = (HashSet::new(), HashSet::new());
        let (are_more, has_doubts) = (false, false);
        Self {
            parts,
            turns,
            name,
            grace,
            is_dry_run,
            force,
            progress,
            state,
            told,
            are_more,
            damaged,
            has_doubts,
        }
    }

    async fn dataset(&mut self, id: DatasetId) -> Result<(), Error> {
        let done = match self.is_dry_run {
            true => self.estimate(id).await,
            false => self.rounds(id).await,
        };
        match done {
            Err(error) => Err(catalog::explained(self.parts, id, error).await),
            done => done,
        }
    }

    async fn rounds(&mut self, id: DatasetId) -> Result<(), Error> {
        let _turn = self.turns.survey(self.parts, || self.is_awaited()).await?;
        let record = catalog::by_id(self.parts, id).await?;
        self.refuse_leased(id).await?;
        let mut origin = [0; 9];
        self.parts.random.fill(&mut origin);
        let mut ids = ChunkIdMaker::new(origin);
        // Tombstones only go by what was so before this purge: a recovery that is under way may
        // still bring back a chunk that it has read and that is removed meanwhile.
        let mut is_first = true;
        while self.round(&record, &mut ids, is_first).await? {
            is_first = false;
        }
        self.sweep_snapshots(id).await?;
        self.name_leases(id).await;
        self.end().await;
        Ok(())
    }

    /// Removes stored snapshots that nobody asks for any more, but in a dry run; gives those of older
    /// versions that are left.
    async fn sweep_snapshots(&self, id: DatasetId) -> Result<Vec<Older>, Error> {
        let outline = self.parts.meta.outline(id).await;
        let outline = outline.map_err(|error| Error::meta("describe dataset", id, error))?;
        match outline.filter(|now| now.record.state == DatasetState::Live) {
            Some(outline) if self.is_dry_run => {
                snapshot::left_by_sweep(self.parts, id, outline.version).await
            }
            Some(outline) => snapshot::sweep(self.parts, id, outline.version).await,
            None => Ok(Vec::new()),
        }
    }

    async fn end_with(&mut self, error: &Error) {
        self.state.problems.push(error.chain());
        self.end().await;
    }

    async fn end(&mut self) {
        if self.are_more {
            let name = self.name;
            let more =
                format!("there are more; `dlcmd verify --checksums dl://{name}` names all files");
            self.state.problems.push(more);
        }
        self.state.done = true;
        self.tell().await;
    }

    /// Looks, decides, acts; true when there is more to be done now.
    async fn round(
        &mut self,
        record: &DatasetRecord,
        ids: &mut ChunkIdMaker,
        is_first: bool,
    ) -> Result<bool, Error> {
        let (began, now) = (self.parts.clock.monotonic(), self.parts.clock.now());
        for problem in recover::bring_in(self.parts, self.name).await? {
            self.problem(problem).await;
        }
        let mut survey = Survey::read(self.parts, record.id).await?;
        let older = self.older(record.id).await;
        let (ledger, held) = self.look(&mut survey, record).await?;
        if survey.has_restamped {
            recover::take_stamps(self.parts, self.name).await?;
            return Box::pin(self.round(record, ids, is_first)).await;
        }
        if is_first
            && !self.has_doubts
            && !survey.has_losses()
            && self.counted(record.id, &survey).await?.is_some_and(|files| files < ledger.files)
        {
            self.has_doubts = true;
            return Box::pin(self.round(record, ids, is_first)).await;
        }
        if is_first && !ledger.undone.is_empty() {
            self.delete_again(record.id, ledger.undone, ids).await?;
            return Ok(true);
        }
        let (rules, kept) = self.rules(record, &survey, older, now, is_first).await;
        let mut plan = ledger.plan(&survey, rules, &held);
        let is_damaged = |number: &usize| {
            survey.objects.get(*number).is_some_and(|object| self.damaged.contains(&object.id))
        };
        plan.rewrite.retain(|number| !is_damaged(number));
        if !plan.rewrite.is_empty() || !plan.remove.is_empty() {
            self.name_hidden(record.id, ledger.hidden.clone(), ids).await?;
        }
        if !plan.remove.is_empty() {
            // A job may have joined since the purge began.
            self.refuse_leased(record.id).await?;
        }
        // First, so that a full disk has room for what is written next.
        self.remove(record.id, &survey, &plan).await?;
        let written = self.state.written;
        let moved = self.rewrite(record, &survey, &ledger, &plan, ids, began).await?;
        let were_absent = self.retire_absent(record.id, &survey, &ledger).await?;
        let has_changed = were_absent || !plan.rewrite.is_empty() || !plan.remove.is_empty();
        // What was the newest version is an older one now.
        let kept = match has_changed && !self.grace.is_zero() {
            true => kept.max(snapshot::KEPT_AT_MOST),
            false => kept,
        };
        self.wait_for(&survey, &plan, &moved, kept);
        // What was moved may go at once when nobody is to be waited for.
        Ok(were_absent || self.state.written > written && self.grace.is_zero())
    }

    /// Tells what can't be read; gives when something may go, and for how long a snapshot of an
    /// older version is kept.
    async fn rules(
        &mut self,
        record: &DatasetRecord,
        survey: &Survey,
        older: Result<Vec<Older>, Error>,
        now: SystemTime,
        with_tombstones: bool,
    ) -> (Rules, Duration) {
        for error in survey.unread.values() {
            if error.kind != Kind::NotFound {
                self.problem(error.chain()).await;
            }
        }
        let (read_until, kept) = match older {
            Ok(older) => {
                let kept = older.iter().map(|older| older.kept).max();
                (plan::read_until(&survey.objects, &older), kept.unwrap_or_default())
            }
            Err(error) => {
                self.problem(error.chain()).await;
                (Some(Stamp::default()), snapshot::KEPT_AT_MOST)
            }
        };
        let rules = Rules {
            now,
            grace: self.grace,
            read_until,
            settled: self.parts.limits.settled(),
            chunk_size: record.shape.size().into(),
            with_tombstones,
        };
        (rules, kept)
    }

    /// The snapshots of older versions that readers may be using. Once the log is read, the newest
    /// version knows all of it, and needs nothing that is not needed by it. A purge that waits for no
    /// reader waits for none of an older version.
    async fn older(&self, id: DatasetId) -> Result<Vec<Older>, Error> {
        if self.grace.is_zero() { Ok(Vec::new()) } else { self.sweep_snapshots(id).await }
    }

    /// Reads all headers; gives what they say, and the tombstones that are still needed.
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
        let mut shares = survey.shares(self.parts, record.shape, heard).await?;
        self.state.checked = self.state.objects;
        while let Some(rows) = shares.next().await? {
            self.refuse_read_only()?;
            for (path, winner, others) in rows.paths() {
                ledger.add(path.len(), winner, others, &survey.named);
            }
            if survey.has_losses() || self.has_doubts {
                self.find_undone(survey, &rows, &mut ledger.undone).await?;
            }
            self.tell().await;
        }
        let (mut held, mut away) = (HashSet::new(), Away::default());
        let mut tombstones = std::pin::pin!(survey.headers(self.parts, survey.tombstones()));
        while let Some((number, header)) = tombstones.next().await {
            // One that can't be read this time may name what is held.
            if away
                .note(self.parts, header)
                .await?
                .map_or(true, |header| ledger.is_held(header.deletions()))
            {
                held.insert(number);
            }
        }
        Ok((ledger, held))
    }

    /// Deletes what only a deleted winner hides, before that one may go.
    async fn name_hidden(
        &mut self,
        dataset: DatasetId,
        hidden: Deletions,
        ids: &mut ChunkIdMaker,
    ) -> Result<(), Error> {
        self.put_tombstones(dataset, hidden, ids).await
    }

    async fn put_tombstones(
        &self,
        dataset: DatasetId,
        deletions: Deletions,
        ids: &mut ChunkIdMaker,
    ) -> Result<(), Error> {
        for deletions in deletions.split() {
            self.refuse_read_only()?;
            let id = ids.next(self.parts.clock.now());
            commit::put_tombstone(self.parts, dataset, id, &deletions).await?;
        }
        Ok(())
    }

    /// Moves live files; gives the chunks that nothing needs then. The survey began at `began`.
    async fn rewrite(
        &mut self,
        record: &DatasetRecord,
        survey: &Survey,
        ledger: &Ledger,
        plan: &Plan,
        ids: &mut ChunkIdMaker,
        began: Duration,
    ) -> Result<Vec<usize>, Error> {
        let mut moved = Vec::new();
        if plan.rewrite.is_empty() {
            return Ok(moved);
        }
        let bytes = rewrite::memory(record.shape);
        let _room = self.turns.rewrite(self.parts, bytes, || self.is_awaited()).await?;
        let mut rewriter = Rewriter::new(self.parts, record, ids, self.fresh(), began);
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
                }
                Moved::NotHidden => {}
                Moved::NotDamaged(problems) => {
                    self.damaged.insert(object.id);
                    for problem in problems {
                        self.problem(problem).await;
                    }
                }
            }
            self.state.written = written + rewriter.written;
            self.tell().await;
        }
        rewriter.finish().await?;
        self.state.written = written + rewriter.written;
        self.tell().await;
        Ok(moved)
    }

    /// Removes what the plan names.
    async fn remove(
        &mut self,
        dataset: DatasetId,
        survey: &Survey,
        plan: &Plan,
    ) -> Result<(), Error> {
        for numbers in plan.remove.chunks(REMOVED_TOGETHER) {
            self.refuse_read_only()?;
            let objects = numbers.iter().filter_map(|number| survey.objects.get(*number));
            let objects: Vec<_> = objects.collect();
            let ids: Vec<ChunkId> = objects.iter().map(|object| object.id).collect();
            let retired = self.retire(dataset, &ids).await?;
            let gone: Vec<(Key, u64)> = objects
                .into_iter()
                .filter(|object| retired.contains(&object.id))
                .map(|object| (survey.key(object), object.object_length))
                .collect();
            let parts = self.parts;
            let name = self.name;
            let removed = stream::iter(gone).map(|(key, bytes)| async move {
                parts.settings.refuse_read_only(ACTION, name)?;
                let removed = parts.store.delete(&key).await;
                removed.map(|()| bytes).map_err(|error| Error::store("remove object", key, error))
            });
            let removed: Vec<u64> =
                removed.buffer_unordered(REMOVALS_AT_ONCE).try_collect().await?;
            self.state.removed += removed.len() as u64;
            self.state.removed_bytes += removed.iter().sum::<u64>();
            self.tell().await;
        }
        Ok(())
    }

    /// Takes objects off the log; gives those that are off it now.
    async fn retire(
        &mut self,
        dataset: DatasetId,
        ids: &[ChunkId],
    ) -> Result<HashSet<ChunkId>, Error> {
        let failed = |error| Error::meta("take objects off the log of", dataset, error);
        match self.parts.meta.retire(dataset, ids).await {
            Ok(()) => return Ok(ids.iter().copied().collect()),
            Err(error) if error.kind == dl_meta::Kind::Conflict => {}
            Err(error) => return Err(failed(error)),
        }
        let mut retired = HashSet::new();
        for id in ids {
            match self.parts.meta.retire(dataset, &[*id]).await {
                Ok(()) => {
                    retired.insert(*id);
                }
                Err(error) if error.kind == dl_meta::Kind::Conflict => {
                    let name = self.name;
                    let problem = format!(
                        "object {id}: the metadata still names files in it; run `dlcmd verify \
                         dl://{name}`"
                    );
                    self.problem(problem).await;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(retired)
    }

    /// Says what has to wait, and how long at most; snapshots of older versions are `kept` for so long.
    fn wait_for(&mut self, survey: &Survey, plan: &Plan, moved: &[usize], kept: Duration) {
        let waiting = plan.waiting.iter().chain(moved);
        let waiting = waiting.filter_map(|number| survey.objects.get(*number));
        let (mut count, mut bytes) = (0, 0);
        for object in waiting {
            count += 1;
            bytes += object.object_length;
        }
        (self.state.waiting, self.state.waiting_bytes) = (count, bytes);
        let now = self.parts.clock.now();
        let mut longest = plan.until.duration_since(now).unwrap_or_default().max(kept);
        if !moved.is_empty() {
            // Their copies have later stamps than all that is there, or the time.
            let last = survey.version().last_stamp().unwrap_or_default().time();
            let ahead = last.duration_since(now).unwrap_or_default();
            longest = longest.max(self.grace.saturating_add(ahead));
        }
        self.state.waiting_for = if count == 0 { Duration::ZERO } else { longest };
    }

    /// Stops it when an admin says so, at once and not at its end.
    fn refuse_read_only(&self) -> Result<(), Error> {
        self.parts.settings.refuse_read_only(ACTION, self.name)
    }

    /// How long what was seen is taken for true.
    fn fresh(&self) -> Duration {
        self.parts.limits.clock_skew / FRESH_PART
    }

    /// Says that it waits for others; whether anybody hears it.
    fn is_awaited(&self) -> bool {
        self.mention(self.state.checked);
        !self.progress.is_deserted()
    }

    /// Says how many objects were looked at, if that can be said at once.
    fn mention(&self, checked: u64) {
        let problems = Vec::new();
        self.progress.mention(PurgeProgress { checked, problems, ..self.state.clone() });
    }

    async fn problem(&mut self, problem: String) {
        if self.told.len() >= PROBLEMS_MAX && !self.told.contains(&problem) {
            self.are_more = true;
            return;
        }
        if !self.told.insert(problem.clone()) {
            return;
        }
        self.state.problems.push(problem);
        if self.state.problems.len().is_multiple_of(TOLD_TOGETHER) {
            self.tell().await;
        }
    }

    /// Says how far it is, and what was found since.
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

//! The recovery of all datasets of a request, with deleted datasets and unreadable names.
//!
//! Must hold: the metadata counts as whole only after all datasets were recovered, or set aside, since the
//! rebuild began. An unrecoverable dataset keeps no other dataset from being served.

use std::collections::BTreeSet;
use std::time::Duration;

use dl_format::{DatasetId, DatasetName, NameState, Stamp};
use dl_meta::{DatasetRecord, Rebuild};
use dl_proto::{Kind, RecoverProgress, RecoverRequest, Role};
use futures::future::ready;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::dataset::{DatasetRecovery, Read};
use super::progress::Progress;
use super::shares::Shares;
use super::{Reads, living, unnamed};
use crate::answers::listener::Listener;
use crate::auth::Caller;
use crate::datasets::identity;
use crate::datasets::names::{self, Named, Names};
use crate::error::{Doing, Error};
use crate::shared::context::ServerContext;

/// Datasets in parallel: most are small, and cost latency alone.
const DATASETS_AT_ONCE: usize = 8;

/// Margin before the given time: clocks of writers may be off by half of the margin.
const SLACK: Duration = Duration::from_secs(30 * 60);

#[derive(Debug)]
pub(super) struct Recovery<'a> {
    pub(super) context: &'a ServerContext,
    pub(super) request: RecoverRequest,
    pub(super) caller: &'a Caller,
    pub(super) reads: Reads,
    pub(super) progress: &'a Listener<'a, RecoverProgress>,
}

#[derive(Debug, Default)]
struct Summary {
    /// Another try may do better.
    incomplete: bool,
    full: Option<Error>,
    /// New metadata still lacks datasets outside of the request.
    lacks_others: bool,
}

impl Summary {
    fn add(mut self, (incomplete, full): (bool, Option<Error>)) -> Self {
        self.incomplete |= incomplete;
        self.full = full.or(self.full);
        self
    }
}

impl Recovery<'_> {
    /// Recovers by request, after names lost by the chunk store are written again.
    pub(super) async fn command(
        &self,
        found: impl Future<Output = BTreeSet<DatasetId>>,
    ) -> Result<(), Error> {
        let wanted = self.request.dataset.as_ref();
        let mut failed = living::restore_names(self.context, wanted, self.caller).await?;
        if let Some(name) = wanted {
            match failed.pop() {
                Some((_, error)) => return Err(error),
                None => is_there(self.context, name, self.caller).await?,
            }
        }
        for (name, error) in &failed {
            Progress::of(name, self.progress).fail(error).await;
        }
        self.run(found).await
    }

    /// Recovers; `found` gives the datasets with objects in the chunk store.
    pub(super) async fn run(
        &self,
        found: impl Future<Output = BTreeSet<DatasetId>>,
    ) -> Result<(), Error> {
        let (context, progress) = (self.context, self.progress);
        let bound = context.meta.identity().await.doing("look into", &context.meta)?;
        let rebuild =
            context.meta.begin_rebuild().await.doing("begin to rebuild", &context.meta)?;
        let refused = context.meta.damage().await.doing("look for damage in", &context.meta)?;
        let is_damaged = rebuild.damage.is_some();
        let is_new = bound.is_none() && !is_damaged;
        // Metadata with lost writes may still have deleted datasets.
        living::end_deleted(context, is_damaged).await?;
        let shares = Shares::default();
        let recovery = DatasetRecovery {
            context,
            reads: self.reads,
            since: self.request.since.filter(|_| !is_damaged).map_or(0, seconds_of),
            is_refused: refused.is_some(),
            reports_lost: true,
            progress,
            shares: &shares,
        };
        // Before the names: each name is written before the metadata has its dataset.
        let left = match is_damaged {
            true => context.meta.remnants().await.doing("list", "datasets")?,
            false => Vec::new(),
        };
        // After the rebuild began: datasets created from now on lack nothing.
        let (mut names, may_pass) = living::names(context).await?;
        let is_other = |(name, named): &&(DatasetName, Named)| is_live(named) && !self.wants(name);
        let others: Vec<_> = names.read.iter().filter(is_other).cloned().collect();
        names.retain(|name| self.caller.may(Role::Read, name));
        let unread = self.set_aside_unread(&recovery, &names, may_pass, &left).await;
        let mut summary = self.each(&recovery, names).await;
        summary.incomplete |= unread;
        if is_new {
            // Once the metadata is bound, no other sign shows the missing datasets.
            summary.lacks_others = self.leave(others).await?;
        }
        if is_damaged {
            // Before an emptied dataset is taken for whole.
            summary.incomplete |= !unnamed::set_aside(context, found.await).await;
        }
        self.end(&rebuild, is_new, summary).await
    }

    fn wants(&self, name: &DatasetName) -> bool {
        self.request.dataset.as_ref().is_none_or(|wanted| wanted == name)
    }

    /// Reports and refuses datasets without readable names. Whether another try may do better.
    async fn set_aside_unread(
        &self,
        recovery: &DatasetRecovery<'_>,
        names: &Names,
        may_pass: bool,
        left: &[DatasetRecord],
    ) -> bool {
        let mut incomplete = false;
        for (name, error) in names.unread.iter().filter(|(name, _)| self.wants(name)) {
            // While the store answers, an unreadable name stays unreadable.
            let may_pass = error.kind.is_retryable() && may_pass;
            incomplete |= may_pass || !recovery.set_aside(name).await;
            Progress::of(name, self.progress).fail(error).await;
        }
        let is_nameless = |dataset: &&DatasetRecord| {
            let is_asked = self.wants(&dataset.name) && self.caller.may(Role::Read, &dataset.name);
            is_asked && living::is_nameless(names, dataset)
        };
        for DatasetRecord { name, .. } in left.iter().filter(is_nameless) {
            incomplete |= !recovery.set_aside(name).await;
            let why = "the chunk store has lost its name, and nothing of it is brought back before it \
                       has it again; run `dlcmd recover --all` once more";
            Progress::of(name, self.progress).report(why.to_owned()).await;
        }
        incomplete
    }

    /// Recovers the live datasets of the names.
    async fn each(&self, recovery: &DatasetRecovery<'_>, mut names: Names) -> Summary {
        names.read.retain(|(name, named)| is_live(named) && self.wants(name));
        let is_awaited = |_: &(DatasetName, Named)| ready(!self.progress.is_deserted());
        let living = stream::iter(names.read).take_while(is_awaited);
        let recovered = living.map(|(name, named)| async move {
            let error = match recovery.dataset(&name, named).await {
                Ok(read) => return (read == Read::Interrupted, None),
                Err(error) => error,
            };
            let is_refused = match error.kind {
                // The record may be missing as well.
                Kind::Full => living::leave(self.context, &name, named).await.is_ok(),
                kind => !kind.is_retryable(),
            };
            let incomplete = !is_refused || !recovery.set_aside(&name).await;
            let why = format!("{}; make room, and recover again", error.chain());
            let full = (error.kind == Kind::Full)
                .then(|| Error::new(Kind::Full, "recover dataset", &name, why));
            Progress::of(&name, self.progress).fail(&error).await;
            (incomplete, full)
        });
        let recovered = recovered.buffer_unordered(DATASETS_AT_ONCE);
        recovered.fold(Summary::default(), |all, one| ready(all.add(one))).await
    }

    /// Refuses datasets outside of the request that new metadata lacks. True if there are any.
    async fn leave(&self, others: Vec<(DatasetName, Named)>) -> Result<bool, Error> {
        let left = stream::iter(others)
            .map(|(name, named)| async move { living::leave(self.context, &name, named).await });
        let left: Vec<_> = left.buffer_unordered(DATASETS_AT_ONCE).try_collect().await?;
        Ok(left.contains(&true))
    }

    /// Ends the rebuild once all datasets are recovered; otherwise the error names the next step.
    async fn end(&self, rebuild: &Rebuild, is_new: bool, summary: Summary) -> Result<(), Error> {
        let context = self.context;
        let fail = |kind, why| Err(Error::new(kind, "recover", "datasets", why));
        if self.progress.is_deserted() {
            return fail(Kind::Unavailable, "nobody waits for it any more; run it again");
        }
        let Summary { incomplete, full, lacks_others } = summary;
        let is_all = self.request.dataset.is_none() && self.caller.may_all(Role::Read);
        let is_whole = !incomplete && (is_all || is_new);
        if is_whole {
            let store = identity::of_recovered(context).await?;
            context
                .meta
                .end_rebuild(rebuild, store)
                .await
                .doing("end the rebuild of", &context.meta)?;
        }
        if let Some(full) = full {
            return Err(full);
        }
        if incomplete {
            let why = "the chunk store or the metadata store did not answer for all of it; run recover \
                       again";
            return fail(Kind::Unavailable, why);
        }
        if lacks_others {
            let why = "what was asked for is recovered as far as it can be, and the other datasets are \
                       still missing; run `dlcmd recover --all`";
            return fail(Kind::NeedsRecovery, why);
        }
        if rebuild.damage.is_some() && !is_whole {
            let why = "what was asked for is recovered as far as it can be, but all of the metadata may \
                       lack something; run `dlcmd recover --all`";
            return fail(Kind::NeedsRecovery, why);
        }
        if !is_whole {
            // A loss during the recovery of a single dataset shows here.
            identity::refuse_damaged(context, "recover", "datasets").await?;
        }
        Ok(())
    }
}

fn is_live(named: &Named) -> bool {
    named.record.state == NameState::Live
}

/// Fails when the chunk store has no dataset of the name.
async fn is_there(
    context: &ServerContext,
    name: &DatasetName,
    caller: &Caller,
) -> Result<(), Error> {
    let mut names = names::all(context).await?;
    names.retain(|name| caller.may(Role::Read, name));
    let unread = names.unread.iter().map(|(unread, _)| unread);
    if names.live().map(|(live, _)| live).chain(unread).any(|there| there == name) {
        return Ok(());
    }
    let why = match names::nearest(name, names.live().map(|(live, _)| live)) {
        Some(near) => format!("the chunk store has none; did you mean {near}?"),
        None => "the chunk store has none of that name.".to_owned(),
    };
    let why = format!("{why} What has lost its name is found by `dlcmd recover --all`");
    Err(Error::new(Kind::NotFound, "recover dataset", name, why))
}

/// The seconds of the oldest ids to read, [`SLACK`] before a time.
fn seconds_of(since: Stamp) -> u64 {
    let since = since.time().checked_sub(SLACK);
    since.map_or(0, |since| Stamp::at(since).get() / 1_000_000)
}

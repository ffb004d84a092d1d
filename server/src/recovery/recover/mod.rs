//! Recovery: the metadata store learns again of all objects in the chunk store (paper, 4.1.2).
//!
//! Must hold: each complete object of a living dataset joins the log, under its own stamp; nothing is ever
//! removed; unusable objects are reported. Safe on a live server, and safe to cut off and run again.

mod course;
mod dataset;
mod found;
mod living;
mod progress;
mod shares;
#[cfg(test)]
mod tests;
mod unnamed;

use std::collections::BTreeSet;

use dl_format::{DatasetId, DatasetName, NameState};
use dl_meta::DatasetState;
use dl_proto::{Kind, RecoverProgress, RecoverRequest, Role};
use futures::future::{BoxFuture, FutureExt, Shared, try_join};
use tokio::sync::mpsc;

use self::course::Recovery;
use self::dataset::{DatasetRecovery, Read};
use self::shares::Shares;
use crate::answers::answer::Reply;
use crate::answers::listener::Listener;
use crate::auth::Caller;
use crate::datasets::identity;
use crate::datasets::names;
use crate::error::Error;
use crate::metrics::RebuildMetrics;
use crate::shared::context::ServerContext;

/// The objects whose headers are read and appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// Objects missing in the log.
    Unlogged,
    /// All objects: rows of logged objects may be gone.
    Everything,
}

/// Recovers the datasets of a request that the caller may read; reports to `progress`.
pub(crate) async fn recover(
    context: &ServerContext,
    request: RecoverRequest,
    caller: &Caller,
    progress: &mpsc::Sender<Reply<RecoverProgress>>,
) -> Result<(), Error> {
    let progress = &Listener::new(context, progress);
    // The metadata store must not belong to another chunk store.
    identity::Tie::default().check(context).await?;
    let is_all = request.dataset.is_none() && caller.may_all(Role::Read);
    let job = Recovery { context, request, caller, reads: Reads::Everything, progress };
    let found = beside_search(context, is_all, |found| job.command(found)).await?;
    unnamed::report(context, found, progress).await;
    progress.end()
}

/// Runs `work` beside the search for datasets with objects; gives the found datasets.
async fn beside_search<'a, W: Future<Output = Result<(), Error>>>(
    context: &'a ServerContext,
    searches: bool,
    work: impl FnOnce(Shared<BoxFuture<'a, BTreeSet<DatasetId>>>) -> W,
) -> Result<BTreeSet<DatasetId>, Error> {
    let found =
        async move { if searches { unnamed::find(context).await } else { BTreeSet::new() } };
    let found = found.boxed().shared();
    let (found, ()) = try_join(found.clone().map(Ok), work(found)).await?;
    Ok(found)
}

/// Adopts all objects missing in the logs; gives their number.
pub(crate) async fn recover_unlogged(context: &ServerContext) -> Result<u64, Error> {
    match quietly(context, Reads::Unlogged, |_| {}).await {
        // Only the incomplete datasets are refused until their recovery.
        (Err(error), adopted) if error.kind == Kind::Unavailable => {
            tracing::error!(error = error.chain(), "some datasets are not whole");
            Ok(adopted)
        }
        (recovered, adopted) => recovered.map(|()| adopted),
    }
}

/// Rebuilds all datasets from headers, with reports to `metrics`; gives the number of objects missing in the logs.
pub(crate) async fn rebuild_all(
    context: &ServerContext,
    metrics: &RebuildMetrics,
) -> Result<u64, Error> {
    metrics.begin();
    let (recovered, adopted) =
        quietly(context, Reads::Everything, |report| metrics.report(report)).await;
    metrics.end();
    recovered.map(|()| adopted)
}

/// Recovers all datasets; problems go into the log. Gives the number of adopted objects.
async fn quietly(
    context: &ServerContext,
    reads: Reads,
    mut hear: impl FnMut(&RecoverProgress),
) -> (Result<(), Error>, u64) {
    let mut adopted = 0;
    let (progress, reports) = heard(|report| {
        hear(&report);
        for problem in &report.problems {
            tracing::error!(dataset = report.dataset, problem, "not all is recovered");
        }
        adopted += if report.done { report.adopted } else { 0 };
    });
    let recovered = async {
        let listener = Listener::new(context, &progress);
        let (request, caller) = (RecoverRequest { dataset: None, since: None }, &Caller::Everybody);
        let job = Recovery { context, request, caller, reads, progress: &listener };
        let searches = reads == Reads::Everything;
        let recovered = beside_search(context, searches, |found| job.run(found)).await;
        let recovered = recovered.and_then(|_| listener.end());
        drop(progress);
        recovered
    };
    let (recovered, ()) = tokio::join!(recovered, reports);
    (recovered, adopted)
}

/// The channel for the reports of a recovery within the server, and the task that passes them to `hear`.
fn heard(
    mut hear: impl FnMut(RecoverProgress),
) -> (mpsc::Sender<Reply<RecoverProgress>>, impl Future<Output = ()>) {
    let (progress, mut reports) = mpsc::channel::<Reply<RecoverProgress>>(16);
    let heard = async move {
        while let Some(Reply::More(report) | Reply::Last(report)) = reports.recv().await {
            hear(report);
        }
    };
    (progress, heard)
}

/// Adopts all objects missing in the log of a dataset; gives the problems of its objects.
pub(crate) async fn adopt_unlogged(
    context: &ServerContext,
    name: &DatasetName,
) -> Result<Vec<String>, Error> {
    bring(context, name, Reads::Unlogged).await
}

/// Appends all objects of a dataset again: the stamps of their headers replace wrong stamps.
pub(crate) async fn take_stamps(context: &ServerContext, name: &DatasetName) -> Result<(), Error> {
    bring(context, name, Reads::Everything).await.map(drop)
}

async fn bring(
    context: &ServerContext,
    name: &DatasetName,
    reads: Reads,
) -> Result<Vec<String>, Error> {
    let newest = names::newest(context, name).await?;
    let Some(named) = newest.filter(|named| named.record.state == NameState::Live) else {
        return Err(no_name(context, name).await);
    };
    let mut problems = Vec::new();
    let (progress, reports) = heard(|report| problems.extend(report.problems));
    let brought = async {
        let (shares, listener) = (Shares::default(), Listener::new(context, &progress));
        let recovery = DatasetRecovery {
            context,
            reads,
            since: 0,
            is_refused: false,
            reports_lost: false,
            progress: &listener,
            shares: &shares,
        };
        let brought = recovery.dataset(name, named).await;
        drop(progress);
        brought
    };
    let (brought, ()) = tokio::join!(brought, reports);
    match brought? {
        Read::Whole => Ok(problems),
        Read::Interrupted => {
            let why = "the chunk store did not answer for all objects; try again";
            Err(Error::new(Kind::Unavailable, "look at dataset", name, why))
        }
    }
}

/// The error for a dataset without a name in the chunk store.
async fn no_name(context: &ServerContext, name: &DatasetName) -> Error {
    let (kind, why) = match context.meta.record_named(name).await {
        Err(error) => return Error::meta("find dataset", name, error),
        // The name of a deleted dataset goes first.
        Ok(Some(record)) if record.state != DatasetState::Ending => (
            Kind::NeedsRecovery,
            format!(
                "the metadata has it and its name is not in the chunk store, or says that it was \
                 deleted; run `dlcmd recover dl://{name}`"
            ),
        ),
        Ok(_) => (Kind::NotFound, "it was deleted".to_owned()),
    };
    Error::new(kind, "find dataset", name, why)
}

//! Datasets in the chunk store without a name: their names are lost once the metadata is lost too.
//!
//! Must hold: datasets made or deleted meanwhile are not reported; nothing is removed. The search has a time
//! limit, and fails a recovery only where damaged metadata would count as whole with a dataset not set aside.

use std::collections::BTreeSet;
use std::time::Duration;

use dl_format::{DatasetId, parse_object_key};
use dl_proto::RecoverProgress;
use dl_runtime::Deadline;
use dl_store::Prefix;
use futures::TryStreamExt;

use super::living;
use super::progress::Progress;
use crate::answers::listener::Listener;
use crate::datasets::names::{self, Deleted, Names, Past};
use crate::error::{Doing, Error};
use crate::shared::context::ServerContext;

/// The longest time of a search, which lists the whole chunk store.
const AT_MOST: Duration = Duration::from_secs(30);

/// Finds datasets with objects, in bounded time, beside a recovery.
pub(super) async fn find(context: &ServerContext) -> BTreeSet<DatasetId> {
    let mut found = BTreeSet::new();
    let deadline = Deadline::after(&*context.clock, AT_MOST);
    match deadline.bound(&*context.clock, search(context, &mut found)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = error.chain(), "could not look for datasets without names");
        }
        Err(_) => tracing::info!("not all objects were looked at for datasets without names"),
    }
    found
}

/// Refuses datasets without names, which a rebuild passes over. False when another try is needed.
pub(super) async fn set_aside(context: &ServerContext, mut found: BTreeSet<DatasetId>) -> bool {
    let names = match explain(context, &mut found).await {
        Ok(names) => names,
        Err(error) => {
            tracing::warn!(error = error.chain(), "could not look for datasets without names");
            return false;
        }
    };
    let mut is_done = true;
    for dataset in found {
        is_done &= match context.meta.record(dataset).await {
            Ok(Some(record)) if living::is_nameless(&names, &record) => {
                living::set_aside(context, record).await
            }
            Ok(_) => true,
            // A damaged record is refused anyway.
            Err(error) => !error.is_retryable(),
        };
    }
    is_done
}

/// Reports datasets without a name or a deletion, after the recovery of all other datasets.
pub(super) async fn report(
    context: &ServerContext,
    mut found: BTreeSet<DatasetId>,
    progress: &Listener<'_, RecoverProgress>,
) {
    let deadline = Deadline::after(&*context.clock, AT_MOST);
    let explained = deadline.bound(&*context.clock, explain(context, &mut found)).await;
    let names = match explained {
        Ok(Ok(names)) => names,
        unexplained => {
            let error = unexplained.map(|explained| explained.err().map(|error| error.chain()));
            tracing::warn!(?error, "could not look for datasets without names");
            return;
        }
    };
    for dataset in found {
        if deadline.remaining(&*context.clock).is_zero() || progress.is_deserted() {
            tracing::info!("not all datasets without names were reported");
            return;
        }
        let told = Progress::of(&dataset, progress);
        match problem(context, &names, dataset).await {
            Ok(None) => {}
            Ok(Some(problem)) => told.report(problem).await,
            Err(error) => told.fail(&error).await,
        }
    }
}

async fn search(context: &ServerContext, found: &mut BTreeSet<DatasetId>) -> Result<(), Error> {
    let mut all = context.store.list(&Prefix::ROOT);
    while let Some(object) = all.try_next().await.storing("list objects of", "all datasets")? {
        found.extend(parse_object_key(object.key.as_str()).map(|(dataset, _, _)| dataset));
    }
    Ok(())
}

/// Drops datasets with a name or a deletion from `found`; gives the names. Names are read after the objects: a
/// dataset has a name before any object.
async fn explain(context: &ServerContext, found: &mut BTreeSet<DatasetId>) -> Result<Names, Error> {
    if found.is_empty() {
        return Ok(Names::default());
    }
    let names = names::all(context).await?;
    for (_, named) in &names.read {
        found.remove(&named.record.dataset);
    }
    if !found.is_empty() {
        for Deleted { named, .. } in names::deleted(context, Past::All).await?.found {
            found.remove(&named.record.dataset);
        }
    }
    Ok(names)
}

/// The problem of a dataset without a name; none during its deletion.
async fn problem(
    context: &ServerContext,
    names: &Names,
    dataset: DatasetId,
) -> Result<Option<String>, Error> {
    let known = context.meta.record(dataset).await.doing("find dataset", dataset)?;
    let Some(record) = known else {
        if !names::has_objects(context, dataset, dataset).await? {
            return Ok(None);
        }
        let why = "there are objects of it, and neither a name nor a deletion that can be read, and the \
                   metadata does not have it; unless it was deleted, put its name back (names/NAME/ in \
                   the chunk store) from a copy, and run `dlcmd recover --all`; its objects stay as they \
                   are";
        return Ok(Some(why.to_owned()));
    };
    // The dataset has its name, or another server restores the name or deletes the dataset.
    if !living::restore(context, names, &record).await? {
        return Ok(None);
    }
    // A recovery goes by names, so the dataset was not recovered.
    let name = record.name.clone();
    if !living::set_aside(context, record).await {
        return Ok(Some(format!("it has lost its name, {name}; run `dlcmd recover --all` again")));
    }
    Ok(Some(format!(
        "the chunk store had lost its name, {name}, and has it again from the metadata; run \
         `dlcmd recover dl://{name}` to bring back the rest"
    )))
}

//! The living datasets: the names in the chunk store decide, and the metadata follows.
//!
//! Must hold: a deleted dataset never comes back. A dataset in the metadata gets a lost name back. An
//! unreadable name is not taken for a missing name. A name of another dataset is refused.

use dl_format::{DatasetName, NameRecord, NameState, name_key};
use dl_meta::{DatasetRecord, DatasetState};
use dl_proto::{Kind, Role};
use futures::stream::{self, StreamExt};

use crate::auth::Caller;
use crate::datasets::catalog;
use crate::datasets::identity;
use crate::datasets::leftovers;
use crate::datasets::names::{self, Deleted, Named, Names, Past};
use crate::error::{Doing, Error};
use crate::shared::context::{ServerContext, key};

const RESTORE: &str = "restore the name of dataset";

/// Deleted datasets, or unreadable names, looked up in parallel.
const LOOKED_AT_ONCE: usize = 64;

/// Ends the deleted datasets in the metadata, also rows without the record of a dataset.
pub(super) async fn end_deleted(context: &ServerContext, is_damaged: bool) -> Result<(), Error> {
    let names::Deletions { found, used_again } = names::deleted(context, Past::All).await?;
    let by_id = stream::iter(found).map(|Deleted { name, named, .. }| async move {
        let id = named.record.dataset;
        let record = match context.meta.record(id).await {
            Ok(None) if is_damaged => leftovers::forget(context, &name, id).await.map(|()| None),
            record => record.doing("find deleted dataset", &name),
        };
        (name, record)
    });
    // Ids of older generations are not kept, or may not be readable.
    let by_name = stream::iter(used_again).map(|(name, newest)| async move {
        let record = context.meta.record_named(&name).await;
        let record = record.map(|record| record.filter(|record| record.generation < newest));
        let record = record.doing("find deleted dataset", &name);
        (name, record)
    });
    let by_id = by_id.buffer_unordered(LOOKED_AT_ONCE);
    let mut found = std::pin::pin!(by_id.chain(by_name.buffer_unordered(LOOKED_AT_ONCE)));
    while let Some((name, record)) = found.next().await {
        let ended = match record {
            Ok(None) => continue,
            Ok(Some(record)) => {
                tracing::warn!(%name, id = %record.id, "metadata had a dataset that was deleted");
                leftovers::forget(context, &record.name, record.id).await
            }
            Err(error) => Err(error),
        };
        let Err(error) = ended else { continue };
        tracing::error!(%name, error = error.chain(), "a deleted dataset can't be ended");
        // A damaged dataset keeps no other dataset from its recovery.
        if error.kind.is_retryable() {
            let why = "the metadata store did not answer for one of them; run recover again";
            return Err(Error::new(error.kind, "end", "deleted datasets", why));
        }
    }
    Ok(())
}

/// Writes lost names again from the metadata; gives the names that can't be written.
pub(super) async fn restore_names(
    context: &ServerContext,
    wanted: Option<&DatasetName>,
    caller: &Caller,
) -> Result<Vec<(DatasetName, Error)>, Error> {
    let records = match context.meta.records().await {
        Ok(records) => records,
        Err(error) => {
            let is_damaged = context.meta.damage().await.is_ok_and(|damage| damage.is_some());
            if error.is_retryable() && !is_damaged {
                return Err(Error::meta("list", "datasets", error));
            }
            // A damaged row costs its own dataset, and damaged metadata proves nothing.
            tracing::error!(%error, "names of datasets can't be looked after");
            return Ok(Vec::new());
        }
    };
    let is_wanted = |record: &DatasetRecord| {
        wanted.is_none_or(|wanted| *wanted == record.name) && caller.may(Role::Read, &record.name)
    };
    let names = names::all(context).await?;
    let mut failed = Vec::new();
    for record in records.into_iter().filter(is_wanted) {
        // A failure keeps no other dataset from its recovery.
        if let Err(error) = restore(context, &names, &record).await {
            failed.push((record.name, error));
        }
    }
    Ok(failed)
}

/// Writes the lost name of a dataset again. True if the name was written.
///
/// # Errors
/// [`Kind::Conflict`] where the name stands for another dataset: somebody has changed its object.
pub(super) async fn restore(
    context: &ServerContext,
    names: &Names,
    dataset: &DatasetRecord,
) -> Result<bool, Error> {
    let DatasetRecord { name, id, shape, created, generation, state } = dataset;
    let is_changed = |named: &&Named| {
        (named.generation, named.record.state) == (*generation, NameState::Live)
            && named.record.dataset != *id
            && *state == DatasetState::Live
    };
    if names.of(name).filter(is_changed).is_some() {
        return Err(Error::new(Kind::Conflict, RESTORE, name, names::changed(name, *generation)));
    }
    if !is_nameless(names, dataset) {
        return Ok(false);
    }
    context.settings.refuse_read_only(RESTORE, name)?;
    let record =
        NameRecord { state: NameState::Live, dataset: *id, shape: *shape, created: *created };
    // False: another server was faster, which is as good.
    if !names::create(context, name, *generation, &record).await? {
        return Ok(false);
    }
    // A concurrent deletion looks at the name after the record is gone, so that either side sees the other.
    let is_restored = context.meta.record(*id).await.doing(RESTORE, name)?.is_some();
    if is_restored {
        tracing::warn!(%name, "wrote the name of a dataset again");
    } else {
        context.store.delete(&key(name_key(name, *generation))).await.storing(RESTORE, name)?;
    }
    Ok(is_restored)
}

/// Whether the name of a dataset is lost. A name is written before the record; a deletion adds a generation.
pub(super) fn is_nameless(names: &Names, dataset: &DatasetRecord) -> bool {
    let is_unread = names.unread.iter().any(|(unread, _)| *unread == dataset.name);
    let named = names.of(&dataset.name).filter(|named| named.generation >= dataset.generation);
    !is_unread && named.is_none()
}

/// The names of all datasets, and whether unreadable names may come back with the store. Unreadable names
/// are tried again, as their datasets are no longer served.
pub(super) async fn names(context: &ServerContext) -> Result<(Names, bool), Error> {
    let mut names = names::all(context).await?;
    read_again(context, &mut names).await;
    if !names.unread.iter().any(|(_, error)| error.kind.is_retryable()) {
        return Ok((names, false));
    }
    let answers = identity::answers(context).await;
    if answers {
        // The store may have come back a moment ago.
        read_again(context, &mut names).await;
    }
    Ok((names, !answers || !identity::answers(context).await))
}

/// Refuses a dataset that the metadata lacks. True if the dataset waits for its recovery now.
pub(super) async fn leave(
    context: &ServerContext,
    name: &DatasetName,
    named: Named,
) -> Result<bool, Error> {
    let known = context.meta.record(named.record.dataset).await.doing("find dataset", name)?;
    match known.map(|record| record.state) {
        None => catalog::index(context, name, named, DatasetState::Recovering).await,
        Some(state) => Ok(state == DatasetState::Recovering),
    }
}

async fn read_again(context: &ServerContext, names: &mut Names) {
    let unread = stream::iter(std::mem::take(&mut names.unread)).map(|(name, error)| async move {
        if !error.kind.is_retryable() {
            return (name, Err(error));
        }
        let named = match names::newest_generation(context, &name).await {
            Ok(Some(newest)) => names::read_patiently(context, &name, newest).await,
            Ok(None) => Err(error),
            Err(error) => Err(error),
        };
        (name, named)
    });
    let mut read = std::pin::pin!(unread.buffer_unordered(LOOKED_AT_ONCE));
    while let Some((name, named)) = read.next().await {
        match named {
            Ok(named) => names.read.push((name, named)),
            Err(error) => names.unread.push((name, error)),
        }
    }
    names.read.sort_by(|(name, _), (other, _)| name.cmp(other));
}

/// Refuses a dataset until its recovery. False when the metadata store does not record the refusal.
pub(super) async fn set_aside(context: &ServerContext, record: DatasetRecord) -> bool {
    let aside = DatasetRecord { state: DatasetState::Recovering, ..record };
    match context.meta.put_dataset(&aside).await {
        Ok(()) => {}
        // The name stands for another dataset by now.
        Err(error) if error.kind == dl_meta::Kind::Conflict => return true,
        Err(_) => return false,
    }
    // A deletion changes the name before the metadata, so that either side sees the other. The next generation
    // of a live name is its deletion, readable or not.
    match names::newest_generation(context, &aside.name).await {
        Ok(Some(newest)) if newest > aside.generation => {
            leftovers::forget(context, &aside.name, aside.id).await.is_ok()
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

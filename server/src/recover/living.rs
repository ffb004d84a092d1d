//! Which datasets live: the chunk store's names say so, and metadata that says something else is put
//! right.
//!
//! Must hold: a dataset whose name says that it was deleted never comes back; one whose name is gone,
//! or stands for one without objects, gets it back as long as the metadata has it. A name that can't
//! be read is not taken for one that is not there.

use dl_format::{DatasetId, DatasetName, NameRecord, NameState, name_key};
use dl_meta::{DatasetRecord, DatasetState};
use dl_proto::{Kind, Role};
use futures::stream::{self, StreamExt};

use crate::auth::Caller;
use crate::catalog;
use crate::error::Error;
use crate::identity;
use crate::leftovers;
use crate::names::{self, Deleted, Named, Names, Past};
use crate::parts::{Parts, key};

/// Deleted datasets that are looked for in the metadata at once.
const LOOKED_AT_ONCE: usize = 64;

/// Ends the datasets in the metadata that were deleted. Damaged metadata may have rows of deleted datasets
/// without their records: these go as well.
pub(super) async fn end_deleted(parts: &Parts, is_damaged: bool) -> Result<(), Error> {
    let names::Deletions { found, used_again } = names::deleted(parts, Past::All).await?;
    let by_id = stream::iter(found).map(|Deleted { name, named, .. }| async move {
        let id = named.record.dataset;
        let record = match parts.meta.record(id).await {
            Ok(None) if is_damaged => leftovers::forget(parts, &name, id).await.map(|()| None),
            record => record.map_err(|error| Error::meta("find deleted dataset", &name, error)),
        };
        (name, record)
    });
    // Ids of what was deleted before are not kept, and those that are may not be readable.
    let by_name = stream::iter(used_again).map(|(name, newest)| async move {
        let record = parts.meta.record_named(&name).await;
        let record = record.map(|record| record.filter(|record| record.generation < newest));
        let record = record.map_err(|error| Error::meta("find deleted dataset", &name, error));
        (name, record)
    });
    let by_id = by_id.buffer_unordered(LOOKED_AT_ONCE);
    let mut found = std::pin::pin!(by_id.chain(by_name.buffer_unordered(LOOKED_AT_ONCE)));
    while let Some((name, record)) = found.next().await {
        let ended = match record {
            Ok(None) => continue,
            Ok(Some(record)) => {
                tracing::warn!(%name, id = %record.id, "metadata had a dataset that was deleted");
                leftovers::forget(parts, &record.name, record.id).await
            }
            Err(error) => Err(error),
        };
        let Err(error) = ended else { continue };
        tracing::error!(%name, error = error.chain(), "a deleted dataset can't be ended");
        // One that is damaged keeps none of the others from being recovered.
        if error.kind.is_retryable() {
            let why = "the metadata store did not answer for one of them; run recover again";
            return Err(Error::new(error.kind, "end", "deleted datasets", why));
        }
    }
    Ok(())
}

/// Writes the names again that the chunk store lost and the metadata has; gives those that it can't
/// write.
pub(super) async fn restore_names(
    parts: &Parts,
    wanted: Option<&DatasetName>,
    caller: &Caller,
) -> Result<Vec<(DatasetName, Error)>, Error> {
    let records = match parts.meta.records().await {
        Ok(records) => records,
        // Metadata that lost something is no witness.
        Err(error) if parts.meta.damage().await.is_ok_and(|damage| damage.is_some()) => {
            tracing::warn!(%error, "names of datasets are not looked after");
            return Ok(Vec::new());
        }
        Err(error) if error.is_retryable() => return Err(Error::meta("list", "datasets", error)),
        // A damaged row costs its own dataset.
        Err(error) => {
            tracing::error!(%error, "names of datasets can't be looked after");
            return Ok(Vec::new());
        }
    };
    let is_wanted = |record: &DatasetRecord| {
        wanted.is_none_or(|wanted| *wanted == record.name) && caller.may(Role::Read, &record.name)
    };
    let names = names::all(parts).await?;
    let mut failed = Vec::new();
    for record in records.into_iter().filter(is_wanted) {
        // It keeps none of the others from being recovered.
        if let Err(error) = restore(parts, &names, &record).await {
            failed.push((record.name, error));
        }
    }
    Ok(failed)
}

/// Writes the name of a dataset again where it is gone, or stands for one without objects. Whether it
/// did.
pub(super) async fn restore(
    parts: &Parts,
    names: &Names,
    dataset: &DatasetRecord,
) -> Result<bool, Error> {
    let DatasetRecord { name, id, shape, created, generation, state } = dataset;
    let is_other = |named: &&Named| {
        (named.generation, named.record.state) == (*generation, NameState::Live)
            && named.record.dataset != *id
            && *state == DatasetState::Live
    };
    let other = names.of(name).filter(is_other).map(|named| named.record.dataset);
    if other.is_none() && !is_nameless(names, dataset) {
        return Ok(false);
    }
    let record =
        NameRecord { state: NameState::Live, dataset: *id, shape: *shape, created: *created };
    let is_restored = restore_name(parts, name, *generation, &record, other).await?;
    if is_restored {
        tracing::warn!(%name, "wrote the name of a dataset again");
    }
    Ok(is_restored)
}

/// Whether a dataset of the metadata has lost its name. It is written before the record, and deleted by
/// a generation above.
pub(super) fn is_nameless(names: &Names, dataset: &DatasetRecord) -> bool {
    let is_unread = names.unread.iter().any(|(unread, _)| *unread == dataset.name);
    let named = names.of(&dataset.name).filter(|named| named.generation >= dataset.generation);
    !is_unread && named.is_none()
}

/// The datasets that are left in damaged metadata. A dataset without a name is not recovered before it has
/// one again.
pub(super) async fn remnants(parts: &Parts, is_damaged: bool) -> Result<Vec<DatasetRecord>, Error> {
    if !is_damaged {
        return Ok(Vec::new());
    }
    let left = parts.meta.remnants().await;
    left.map_err(|error| Error::meta("list", "datasets", error))
}

/// Writes a name again, also in the place of one that stands for an `other` dataset without objects:
/// of two that were created at once, that one is not the one that has files. Whether it did.
async fn restore_name(
    parts: &Parts,
    name: &DatasetName,
    generation: u32,
    record: &NameRecord,
    other: Option<DatasetId>,
) -> Result<bool, Error> {
    const ACTION: &str = "restore the name of dataset";
    if let Some(other) = other {
        if !names::has_objects(parts, name, record.dataset).await? {
            return Ok(false);
        }
        if names::has_objects(parts, name, other).await? {
            let why = "it stands for another dataset, and both have files: restore that object from a \
                       copy, or read those that are to be kept, put them elsewhere, and delete it";
            return Err(Error::new(Kind::Conflict, ACTION, name, why));
        }
    }
    parts.settings.refuse_read_only(ACTION, name)?;
    let remove = async || {
        let removed = parts.store.delete(&key(name_key(name, generation))).await;
        removed.map_err(|error| Error::store(ACTION, name, error))
    };
    if other.is_some() {
        // Cut off here, it is a name that was lost.
        remove().await?;
    }
    // False: somebody else was faster, which is as good.
    if !names::create(parts, name, generation, record).await? {
        return Ok(false);
    }
    // Whoever deletes it meanwhile looks at the name once the metadata has forgotten it, so that one of
    // us sees it.
    let known = parts.meta.record(record.dataset).await;
    let known = known.map_err(|error| Error::meta(ACTION, name, error))?;
    if known.is_none() {
        remove().await?;
    }
    Ok(known.is_some())
}

/// The names of all datasets, and whether those that can't be read may only be away with the store. They
/// are tried for a while, as what they stand for is served no more then.
pub(super) async fn names(parts: &Parts) -> Result<(Names, bool), Error> {
    let mut names = names::all(parts).await?;
    read_again(parts, &mut names).await;
    if !names.unread.iter().any(|(_, error)| error.kind.is_retryable()) {
        return Ok((names, false));
    }
    let answers = identity::answers(parts).await;
    if answers {
        // It may have come back a moment ago.
        read_again(parts, &mut names).await;
    }
    Ok((names, !answers || !identity::answers(parts).await))
}

/// Has a dataset refused that the metadata does not have. False where it does, or the dataset has ended.
pub(super) async fn leave(parts: &Parts, name: &DatasetName, named: Named) -> Result<bool, Error> {
    let known = parts.meta.record(named.record.dataset).await;
    let known = known.map_err(|error| Error::meta("find dataset", name, error))?;
    match known.map(|record| record.state) {
        None => catalog::index(parts, name, named, DatasetState::Recovering).await,
        Some(state) => Ok(state == DatasetState::Recovering),
    }
}

/// Tries again to read those that the store failed for.
async fn read_again(parts: &Parts, names: &mut Names) {
    let unread = stream::iter(std::mem::take(&mut names.unread)).map(|(name, error)| async move {
        if !error.kind.is_retryable() {
            return (name, Err(error));
        }
        let named = match names::newest_generation(parts, &name).await {
            Ok(Some(newest)) => names::read_patiently(parts, &name, newest).await,
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

/// Has a dataset refused until it is recovered. False when that can't be written down.
pub(super) async fn set_aside(parts: &Parts, record: DatasetRecord) -> bool {
    let aside = DatasetRecord { state: DatasetState::Recovering, ..record };
    match parts.meta.put_dataset(&aside).await {
        Ok(()) => {}
        // The name stands for another dataset by now.
        Err(error) if error.kind == dl_meta::Kind::Conflict => return true,
        Err(_) => return false,
    }
    // Whoever deletes first changes the name and then the metadata, so that one of us sees it: the next
    // generation of a name that stood for a dataset is its deletion, also one that can't be read.
    match names::newest_generation(parts, &aside.name).await {
        Ok(Some(newest)) if newest > aside.generation => {
            leftovers::forget(parts, &aside.name, aside.id).await.is_ok()
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

//! Which datasets live: the chunk store's names say so, and metadata that says something else is put
//! right.
//!
//! Must hold: a dataset whose name says that it was deleted never comes back; one whose name is gone
//! gets it back as long as the metadata has it; nothing is decided by a store that does not answer.

use dl_format::{DatasetName, NameRecord, NameState};
use dl_meta::DatasetRecord;
use dl_proto::Role;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::auth::Caller;
use crate::catalog;
use crate::error::Error;
use crate::names::{self, Deleted, Past};
use crate::parts::Parts;

/// Deleted datasets that are looked for in the metadata at once.
const LOOKED_AT_ONCE: usize = 64;

/// Ends the datasets in the metadata that were deleted.
pub(super) async fn end_deleted(parts: &Parts) -> Result<(), Error> {
    let deleted = stream::iter(names::deleted(parts, Past::All).await?);
    let ended = deleted.map(|deleted| async move {
        match end(parts, &deleted).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind.is_retryable() => Err(error),
            // It keeps none of the others from being recovered.
            Err(error) => {
                tracing::error!(error = error.chain(), "a deleted dataset can't be looked for");
                Ok(())
            }
        }
    });
    ended.buffer_unordered(LOOKED_AT_ONCE).try_collect().await
}

/// By its id; and whatever the metadata has under its name that is older than the deletion, as ids of
/// what was deleted before are not kept.
async fn end(parts: &Parts, deleted: &Deleted) -> Result<(), Error> {
    let Deleted { name, named, .. } = deleted;
    let failed = |error| Error::meta("find deleted dataset", name, error);
    let by_id = parts.meta.record(named.record.dataset).await.map_err(failed)?;
    let by_name = parts.meta.record_named(name).await.map_err(failed)?;
    let by_name = by_name.filter(|record| record.generation < named.generation);
    for record in by_id.into_iter().chain(by_name) {
        tracing::warn!(%name, id = %record.id, "metadata had a dataset that was deleted");
        catalog::forget(parts, record.id).await?;
    }
    Ok(())
}

/// Writes the names again that the chunk store lost and the metadata has.
pub(super) async fn restore_names(
    parts: &Parts,
    wanted: Option<&DatasetName>,
    caller: &Caller,
) -> Result<(), Error> {
    let records = match parts.meta.records().await {
        Ok(records) => records,
        // Metadata that lost something is no witness.
        Err(error) => {
            tracing::warn!(%error, "names of datasets are not looked after");
            return Ok(());
        }
    };
    let is_wanted = |record: &DatasetRecord| {
        wanted.is_none_or(|wanted| *wanted == record.name) && caller.may(Role::Read, &record.name)
    };
    let names = names::all(parts).await?;
    for record in records.into_iter().filter(is_wanted) {
        let DatasetRecord { name, id, shape, created, generation, .. } = record;
        // A name is written before its record, and deleted by a generation above.
        let is_there = names.of(&name).is_some_and(|named| named.generation >= generation)
            || names.unread.iter().any(|(unread, _)| *unread == name);
        if is_there {
            continue;
        }
        let named = NameRecord { state: NameState::Live, dataset: id, shape, created };
        let written = match parts.settings.refuse_read_only("name", &name) {
            // False: somebody else was faster, which is as good.
            Ok(()) => names::create(parts, &name, generation, &named).await.map(drop),
            Err(refused) => Err(refused),
        };
        match written {
            Ok(()) => tracing::warn!(%name, "the chunk store had lost the name of a dataset"),
            // It keeps none of the others from being recovered.
            Err(error) => {
                tracing::error!(%name, error = error.chain(), "a lost name can't be written again");
            }
        }
    }
    Ok(())
}

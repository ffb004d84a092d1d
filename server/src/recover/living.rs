//! Which datasets live: the chunk store's names say so, and metadata that says something else is put
//! right.
//!
//! Must hold: a dataset whose name says that it was deleted never comes back; one whose name is gone
//! while its objects are there gets it back; nothing is decided by a store that does not answer.

use dl_format::{DatasetName, NameRecord, NameState};
use dl_meta::DatasetRecord;
use dl_proto::Role;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::auth::Caller;
use crate::catalog;
use crate::error::Error;
use crate::names::{self, Past};
use crate::parts::Parts;

/// Deleted datasets that are looked for in the metadata at once.
const LOOKED_AT_ONCE: usize = 64;

/// Ends the datasets in the metadata that were deleted.
pub(super) async fn end_deleted(parts: &Parts) -> Result<(), Error> {
    let deleted = stream::iter(names::deleted(parts, Past::All).await?);
    let ended = deleted.map(|deleted| async move {
        let id = deleted.named.record.dataset;
        let record = parts.meta.record(id).await;
        let record = record.map_err(|error| Error::meta("find deleted dataset", id, error))?;
        if record.is_some() {
            tracing::warn!(name = %deleted.name, "metadata had a dataset that was deleted");
            catalog::forget(parts, id).await?;
        }
        Ok(())
    });
    ended.buffer_unordered(LOOKED_AT_ONCE).try_collect().await
}

/// Writes the names again that the chunk store lost and the metadata has. A dataset of which the chunk
/// store has neither a name nor an object is none.
pub(super) async fn restore_names(
    parts: &Parts,
    wanted: Option<&DatasetName>,
    caller: &Caller,
) -> Result<(), Error> {
    // Metadata that lost something is no witness.
    let Ok(records) = parts.meta.records().await else { return Ok(()) };
    let is_wanted = |record: &DatasetRecord| {
        wanted.is_none_or(|wanted| *wanted == record.name) && caller.may(Role::Read, &record.name)
    };
    for record in records.into_iter().filter(is_wanted) {
        if names::newest_generation(parts, &record.name).await?.is_some() {
            continue;
        }
        let DatasetRecord { name, id, shape, created, generation, .. } = record;
        if catalog::has_objects(parts, &name, id).await? {
            tracing::warn!(%name, "the chunk store had lost the name of a dataset");
            let named = NameRecord { state: NameState::Live, dataset: id, shape, created };
            // False: somebody else was faster, which is as good.
            names::create(parts, &name, generation, &named).await?;
        } else {
            tracing::warn!(%name, "the chunk store has nothing of a dataset in the metadata");
            catalog::forget(parts, id).await?;
        }
    }
    Ok(())
}

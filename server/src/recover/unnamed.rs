//! What lies in the chunk store under no name: nobody knows what it is called, once the metadata is
//! gone too.
//!
//! Must hold: nothing is told of that was made, or deleted, meanwhile; and nothing is removed.

use std::collections::BTreeMap;

use dl_format::{DatasetId, parse_object_key};
use dl_proto::RecoverProgress;
use dl_store::Prefix;
use futures::TryStreamExt;

use super::dataset::Progress;
use crate::error::Error;
use crate::listener::Listener;
use crate::names::{self, Deleted, Past};
use crate::parts::Parts;

/// Tells of each dataset of which there are objects, and neither a name nor a deletion.
pub(super) async fn tell(
    parts: &Parts,
    progress: &Listener<'_, RecoverProgress>,
) -> Result<(), Error> {
    let mut found: BTreeMap<DatasetId, u64> = BTreeMap::new();
    let mut all = parts.store.list(&Prefix::ROOT);
    let listed = |error| Error::store("list objects of", "all datasets", error);
    while let Some(object) = all.try_next().await.map_err(listed)? {
        if let Some((dataset, _, _)) = parse_object_key(object.key.as_str()) {
            *found.entry(dataset).or_default() += 1;
        }
    }
    // Behind the objects: a dataset has a name before it has any.
    let names = names::all(parts).await?;
    for (_, named) in &names.read {
        found.remove(&named.record.dataset);
    }
    if found.is_empty() {
        return Ok(());
    }
    for Deleted { named, .. } in names::deleted(parts, Past::All).await?.found {
        found.remove(&named.record.dataset);
    }
    for (dataset, objects) in found {
        let record = parts.meta.record(dataset).await;
        if record.map_err(|error| Error::meta("find dataset", dataset, error))?.is_some() {
            continue;
        }
        let problem = format!(
            "no name that can be read stands for it, and the metadata does not have it: put its \
             name back (names/NAME/ in the chunk store) from a copy, then run `dlcmd recover --all`; \
             its {objects} objects stay as they are"
        );
        Progress::of(&dataset, progress).tell_problem(objects, problem).await;
    }
    Ok(())
}

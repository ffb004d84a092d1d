//! Datasets: creating, finding, listing and deleting them.
//!
//! Must hold: the names in the chunk store decide which datasets live; a record in the metadata never outlives
//! its name. A dataset without its metadata is noticed and refused.

use std::collections::HashSet;
use std::time::Duration;

use dl_format::{ChunkShape, DatasetId, DatasetName, NameRecord, NameState, Stamp, Version};
use dl_meta::{DatasetInfo, DatasetRecord, DatasetState, Outline, Refusal};
use dl_proto::{Counts, Dataset, DeletedDataset, Kind, Listed, Role, SmallChunks, UnreadName};
use dl_runtime::Deadline;
use futures::{StreamExt, TryStreamExt, stream};

use crate::auth::Caller;
use crate::datasets::identity::{refuse_damaged, refuse_lost};
use crate::datasets::leftovers::{self, Leftovers, forget};
use crate::datasets::names::{self, Named};
use crate::datasets::small;
use crate::error::{Doing, Error};
use crate::shared::context::ServerContext;

/// Time within which a recovery ends after meeting a new dataset.
const REBUILT_WITHIN: Duration = Duration::from_secs(2);

/// Time after which a creation gives up where the name keeps changing.
const CREATED_WITHIN: Duration = Duration::from_secs(10);

const CREATE: &str = "create dataset";
const DELETE: &str = "delete dataset";

/// Datasets counted in parallel by a request.
const COUNTED_AT_ONCE: usize = 4;

/// Datasets without metadata whose objects are looked for in parallel.
const LOOKED_AT_ONCE: usize = 16;

/// The record of a dataset id, if the metadata of the dataset is complete.
pub(crate) async fn by_id(context: &ServerContext, id: DatasetId) -> Result<DatasetRecord, Error> {
    match context.meta.record(id).await.doing("find dataset", id)? {
        Some(record) => whole(context, record).await,
        None => Err(not_known(context, id, &Caller::Everybody).await),
    }
}

/// The error for a dataset missing in the metadata, or hidden from the caller.
pub(crate) async fn not_known(context: &ServerContext, id: DatasetId, caller: &Caller) -> Error {
    let names = match refuse_lost(context, id).await {
        Ok(()) => names::shared(context).await,
        Err(error) => return error,
    };
    let names = match names {
        Ok(names) => names,
        Err(error) => return error,
    };
    let is_seen = |name: &DatasetName| caller.may(Role::Read, name);
    let is_it = |(name, named): &&(DatasetName, Named)| named.record.dataset == id && is_seen(name);
    if let Some((name, _)) = names.live().find(is_it) {
        // The dataset may have been created since the look-up.
        return match context.meta.record(id).await {
            Ok(None) => lost(name),
            Ok(Some(_)) => {
                let why = "it was made just now; try again";
                Error::new(Kind::Unavailable, "find dataset", name, why)
            }
            Err(error) => Error::meta("find dataset", name, error),
        };
    }
    let is_ended = |(_, named): &(DatasetName, Named)| {
        named.record.dataset == id && named.record.state == NameState::Deleted
    };
    if !names.read.iter().any(is_ended)
        && let Some((_, error)) = names.unread.iter().find(|(name, _)| is_seen(name))
    {
        // The unreadable name may stand for this dataset. The error does not name it: a caller with access to
        // a deleted dataset may not know the other one.
        let why = "a name in the chunk store can't be read, and may be that of this id; `dlcmd \
                   datasets` says which, to who may read it";
        return Error::new(error.kind, "find dataset", id, why);
    }
    let why = "it was deleted; connect again by its name";
    Error::new(Kind::NotFound, "find dataset", id, why)
}

/// The error for a dataset that disappeared during a call, by a deletion or a loss of metadata.
pub(crate) async fn explained(context: &ServerContext, id: DatasetId, error: Error) -> Error {
    if error.kind != Kind::NotFound {
        return error;
    }
    match by_id(context, id).await {
        Err(explained) => explained,
        Ok(_) => {
            let why = format!("it was gone for a moment; try again: {}", error.chain());
            Error::new(Kind::Unavailable, "find dataset", id, why)
        }
    }
}

/// The details of a dataset in an answer, in the order of their costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The record alone.
    Record,
    /// The record and the log.
    Outline,
    /// Also the number of files: perhaps a walk over all of them.
    Counts,
}

/// The dataset of a name. For a caller without the right to read, the dataset is not there. Counts of a dataset
/// with incomplete metadata are refused; other details are given, so that the dataset can be deleted.
pub(crate) async fn by_name(
    context: &ServerContext,
    name: &DatasetName,
    caller: &Caller,
    detail: Detail,
) -> Result<Dataset, Error> {
    // Without the right to read there is no look-up: its duration would tell whether the dataset exists.
    if caller.may(Role::Read, name)
        && let Some(dataset) = known_by_name(context, name, detail).await?
    {
        return Ok(dataset);
    }
    refuse_lost(context, name).await?;
    if caller.may(Role::Read, name)
        && let Some(named) = names::newest(context, name).await?
        && named.record.state == NameState::Live
        && names::has_objects(context, name, named.record.dataset).await?
    {
        // The dataset may have been created since the look-up.
        return known_by_name(context, name, detail).await?.ok_or_else(|| lost(name));
    }
    let names = names::recent(context).await?;
    let is_other = |other: &&DatasetName| *other != name && caller.may(Role::Read, other);
    let others = names.live().map(|(live, _)| live).filter(is_other);
    let why = match names::nearest(name, others) {
        Some(near) => format!("there is none of that name; did you mean {near}?"),
        None => "there is none of that name".to_owned(),
    };
    Err(Error::new(Kind::NotFound, "find dataset", name, why))
}

/// The dataset of a name in the metadata.
async fn known_by_name(
    context: &ServerContext,
    name: &DatasetName,
    detail: Detail,
) -> Result<Option<Dataset>, Error> {
    let Some(record) = context.meta.record_named(name).await.doing("find dataset", name)? else {
        return Ok(None);
    };
    if detail != Detail::Counts {
        return describe(context, record, detail).await;
    }
    let record = whole(context, record).await?;
    let Some(dataset) = describe(context, record, detail).await? else { return Ok(None) };
    match small::count(context, &dataset).await {
        Ok(small) => Ok(Some(Dataset { small, ..dataset })),
        // The dataset was dropped meanwhile.
        Err(error) if error.kind == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// All datasets visible to the caller, by name. Other datasets are not looked at: the duration or a
/// failure would reveal them. An unreadable name costs its dataset alone.
pub(crate) async fn list(
    context: &ServerContext,
    caller: &Caller,
    detail: Detail,
) -> Result<Listed<Dataset>, Error> {
    refuse_lost(context, "all datasets").await?;
    let mut found = context.meta.records().await.doing("list", "datasets")?;
    found.retain(|record| caller.may(Role::Read, &record.name));
    let names = names::shared(context).await?;
    let is_seen = |name: &DatasetName| caller.may(Role::Read, name);
    let known: HashSet<DatasetId> = found.iter().map(|record| record.id).collect();
    let mut unknown = Vec::new();
    for (name, named) in names.live().filter(|(name, _)| is_seen(name)) {
        if !known.contains(&named.record.dataset) {
            unknown.push((name.clone(), named.record.dataset));
        }
    }
    let looked_at = stream::iter(unknown).map(|(name, id)| async move {
        if !names::has_objects(context, &name, id).await? {
            return Ok(None);
        }
        // The dataset may have been created since the look-up.
        let found = context.meta.record_named(&name).await.doing("find dataset", &name)?;
        found.map(Some).ok_or_else(|| lost(&name))
    });
    let looked_at: Vec<Option<DatasetRecord>> =
        looked_at.buffered(LOOKED_AT_ONCE).try_collect().await?;
    found.extend(looked_at.into_iter().flatten());
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let known: HashSet<&DatasetName> = found.iter().map(|record| &record.name).collect();
    let mut unread = Vec::new();
    for (name, error) in &names.unread {
        if !is_seen(name) || known.contains(name) {
            continue;
        }
        if error.kind.is_retryable() {
            return Err(Error::new(error.kind, "list dataset", name, error.chain()));
        }
        unread.push(UnreadName { name: name.clone(), problem: error.chain() });
    }
    let rows = stream::iter(found).map(|record| row(context, record, detail));
    let rows = rows.buffered(COUNTED_AT_ONCE);
    Ok(Listed { found: rows.try_filter_map(async |row| Ok(row)).try_collect().await?, unread })
}

/// A dataset of a listing; none when it was dropped meanwhile. Damaged metadata costs the details of its
/// dataset alone.
async fn row(
    context: &ServerContext,
    record: DatasetRecord,
    detail: Detail,
) -> Result<Option<Dataset>, Error> {
    let damaged = match describe(context, record.clone(), detail).await {
        Err(error) if error.kind == Kind::NeedsRecovery => error.chain(),
        described => return described,
    };
    tracing::error!(name = %record.name, error = damaged, "a dataset can't be counted");
    Ok(Some(Dataset { counts: Counts::Unknown(damaged), ..bare(record) }))
}

/// The dataset of a name, made when there is none.
pub(crate) async fn create(
    context: &ServerContext,
    name: &DatasetName,
    shape: ChunkShape,
) -> Result<Dataset, Error> {
    let rebuilt = Deadline::after(&*context.clock, REBUILT_WITHIN);
    let created = Deadline::after(&*context.clock, CREATED_WITHIN);
    loop {
        if let Some(record) = context.meta.record_named(name).await.doing(CREATE, name)? {
            match existing(context, record, rebuilt).await? {
                Some(dataset) => return Ok(dataset),
                None => continue,
            }
        }
        refuse_lost(context, name).await?;
        let newest = names::newest(context, name).await?;
        let live = newest.filter(|named| named.record.state == NameState::Live);
        if let Some(named) = live
            && !is_unfinished(context, name, named).await?
        {
            continue;
        }
        let refused = |kind, why| Err(Error::new(kind, CREATE, name, why));
        if let Ok(Some(refusal)) = context.meta.refusal().await {
            return refused(Error::kind_of(&refusal), refusal.to_string());
        }
        let generation = match live {
            Some(named) => named.generation,
            None => {
                let generation = newest.map_or(1, |named| named.generation.saturating_add(1));
                if !write_name(context, name, generation, shape).await? {
                    continue;
                }
                generation
            }
        };
        let named = names::held(context, name, generation).await?;
        if named.record.state != NameState::Live {
            continue;
        }
        // The record is there now, or the name has another generation.
        let is_there = index(context, name, named, DatasetState::Live).await?;
        if !is_there && created.remaining(&*context.clock).is_zero() {
            let why = "the metadata has another dataset of that name than the chunk store; run `dlcmd \
                       recover --all`";
            return refused(Kind::NeedsRecovery, why.to_owned());
        }
        if !is_there {
            context.clock.sleep(REBUILT_WITHIN / 20).await;
        }
    }
}

/// The dataset of a record. None when the record is to be read again: the dataset was dropped, or a
/// recovery has come upon it a moment ago.
async fn existing(
    context: &ServerContext,
    record: DatasetRecord,
    rebuilt: Deadline,
) -> Result<Option<Dataset>, Error> {
    let is_rebuilt = record.state == DatasetState::Recovering;
    if is_rebuilt && !rebuilt.remaining(&*context.clock).is_zero() {
        context.clock.sleep(REBUILT_WITHIN / 20).await;
        return Ok(None);
    }
    describe(context, whole(context, record).await?, Detail::Outline).await
}

/// Whether the creation of a dataset was cut short behind its name. False when the metadata has a record by now.
async fn is_unfinished(
    context: &ServerContext,
    name: &DatasetName,
    named: Named,
) -> Result<bool, Error> {
    // A creation that was cut short has no objects. Lost metadata has some.
    if names::has_objects(context, name, named.record.dataset).await? {
        // The record may have been written since the metadata was asked.
        return match known_by_name(context, name, Detail::Record).await? {
            Some(_) => Ok(false),
            None => Err(lost(name)),
        };
    }
    // Objects under the id of a dataset that was deleted would be removed with it.
    let names = names::all(context).await?;
    let unread = names.unread.into_iter().find(|(unread, _)| unread == name);
    unread.map_or(Ok(true), |(_, error)| Err(error))
}

/// Makes a new dataset id for a name. False when another server was faster.
async fn write_name(
    context: &ServerContext,
    name: &DatasetName,
    generation: u32,
    shape: ChunkShape,
) -> Result<bool, Error> {
    let taken = context.reserve.reserve(0, CREATE, name).await?;
    taken.map_err(|full| Error::new(Kind::Full, CREATE, name, full))?;
    let mut id = [0; 16];
    context.random.fill(&mut id);
    let record = NameRecord {
        state: NameState::Live,
        dataset: DatasetId::from_bytes(id),
        shape,
        created: Stamp::at(context.clock.now()),
    };
    names::create(context, name, generation, &record).await
}

/// Puts the record of a named dataset into the metadata. False when the name got another generation
/// meanwhile: the record is removed again then.
pub(crate) async fn index(
    context: &ServerContext,
    name: &DatasetName,
    named: Named,
    state: DatasetState,
) -> Result<bool, Error> {
    let record = DatasetRecord {
        name: name.clone(),
        generation: named.generation,
        id: named.record.dataset,
        shape: named.record.shape,
        created: named.record.created,
        state,
    };
    names::make_durable(context, name, named.generation).await?;
    match context.meta.put_dataset(&record).await {
        Ok(()) => {}
        Err(error) if error.kind == dl_meta::Kind::Conflict => return Ok(false),
        Err(error) => return Err(Error::meta("write the record of dataset", name, error)),
    }
    // A deletion changes the name and then the metadata, so that either the deletion or this call sees the
    // other.
    let holds = names::newest(context, name).await?;
    let is_same = |holds: &Named| {
        (holds.generation, holds.record.dataset) == (named.generation, named.record.dataset)
    };
    if holds.as_ref().is_some_and(is_same) {
        return Ok(true);
    }
    forget(context, name, named.record.dataset).await?;
    Ok(false)
}

/// Ends a dataset for all clients, then removes its objects, or leaves them to the job; gives how many were
/// removed. `id` is the dataset meant by the caller: a newer dataset of the same name is left alone.
pub(crate) async fn delete(
    context: &ServerContext,
    leftovers: &Leftovers,
    (name, id): (&DatasetName, DatasetId),
) -> Result<DeletedDataset, Error> {
    let ended = loop {
        let Some(named) = names::newest(context, name).await? else {
            let why = "there is none of that name";
            return Err(Error::new(Kind::NotFound, DELETE, name, why));
        };
        if named.record.dataset != id {
            refuse_changed(context, name, named, id).await?;
            return Ok(DeletedDataset::default());
        }
        if named.record.state == NameState::Deleted {
            break named.generation;
        }
        if let Some(generation) = end(context, name, named).await? {
            break generation;
        }
    };
    // Or a power cut could bring a dataset back whose objects are gone.
    names::make_durable(context, name, ended).await?;
    forget(context, name, id).await.map_err(|error| match error.kind {
        Kind::Full => {
            let why = "it is deleted, but there is no space to remove what is left of it; free some, \
                       and the servers or `dlcmd purge --all` remove it";
            Error::new(Kind::Full, DELETE, name, why)
        }
        _ => error,
    })?;
    Ok(leftovers.remove(context, name, id).await)
}

/// Writes the deletion of a dataset as the next generation of its name; gives the generation. None when another
/// server was faster.
async fn end(
    context: &ServerContext,
    name: &DatasetName,
    named: Named,
) -> Result<Option<u32>, Error> {
    let record = context.meta.record(named.record.dataset).await.doing("find dataset", name)?;
    // A dataset that the metadata lacks needs a recovery, before and after.
    let before = record.map_or(DatasetState::Recovering, |record| record.state);
    // Metadata that is full takes this.
    if let Ok(Some(Refusal::All(why))) = context.meta.refusal().await {
        return Err(Error::new(Kind::Unavailable, DELETE, name, why));
    }
    // From now on nobody begins to write into the dataset.
    if let Err(error) = index(context, name, named, DatasetState::Ending).await {
        if error.kind == Kind::Full {
            // The state may have been written all the same. Where this write fails as well, errors of the
            // dataset say that it is being deleted.
            let _ = index(context, name, named, before).await;
        }
        return Err(error);
    }
    let generation = named.generation.saturating_add(1);
    let created = Stamp::at(context.clock.now());
    let record = NameRecord { state: NameState::Deleted, created, ..named.record };
    match names::create(context, name, generation, &record).await {
        Ok(is_written) => Ok(is_written.then_some(generation)),
        Err(full) if full.kind == Kind::Full => {
            // Nothing is deleted yet. Until there is space the dataset is what it was before.
            index(context, name, named, before).await?;
            Err(full)
        }
        Err(error) => Err(error),
    }
}

/// Fails where the metadata has the dataset under this name, and the name object stands for another dataset: the
/// object was changed by hand. After a later generation of the name, the dataset counts as deleted.
async fn refuse_changed(
    context: &ServerContext,
    name: &DatasetName,
    named: Named,
    id: DatasetId,
) -> Result<(), Error> {
    let record = context.meta.record(id).await.doing("find dataset", name)?;
    if record.is_none_or(|record| record.name != *name || record.generation < named.generation) {
        return Ok(());
    }
    Err(Error::new(Kind::Conflict, DELETE, name, names::changed(name, named.generation)))
}

/// Completes deletions cut off by a crash: a dataset with a deleted name leaves the metadata.
/// A dataset whose deletion had not reached the name stays. Objects are removed later.
pub(crate) async fn finish_deletions(context: &ServerContext) -> Result<(), Error> {
    match leftovers::finish_all(context).await {
        Err(error) if context.settings.is_read_only() => {
            let why = error.chain();
            tracing::warn!(why, "deletions that were cut off are left for later");
        }
        finished => finished?,
    }
    let known = match context.meta.records().await {
        Ok(known) => known,
        // Metadata that was lost while no server ran can only be rebuilt by a running server.
        Err(error) if context.meta.damage().await.is_ok_and(|damage| damage.is_some()) => {
            let why = Error::meta("list", "datasets", error).chain();
            tracing::warn!(why, "deletions that were about to begin are left for a later start");
            return Ok(());
        }
        Err(error) => return Err(Error::meta("list", "datasets", error)),
    };
    for DatasetRecord { name, id, state, .. } in known {
        if state != DatasetState::Ending {
            continue;
        }
        match names::newest(context, &name).await {
            Ok(Some(named))
                if named.record.dataset == id && named.record.state == NameState::Live =>
            {
                index(context, &name, named, DatasetState::Live).await?;
            }
            Ok(_) => {}
            // The dataset stays refused until a later start ends or keeps it.
            Err(error) => tracing::error!(error = error.chain(), "a name can't be read"),
        }
    }
    Ok(())
}

fn lost(name: &DatasetName) -> Error {
    let why = format!(
        "the chunk store has it and the metadata store doesn't; run `dlcmd recover dl://{name}`"
    );
    Error::new(Kind::NeedsRecovery, "find dataset", name, why)
}

/// The record, if the metadata of its dataset is complete. While the servers rebuild all metadata, a dataset that is
/// being rebuilt is refused like every other: the client tries again.
pub(crate) async fn whole(
    context: &ServerContext,
    record: DatasetRecord,
) -> Result<DatasetRecord, Error> {
    let (id, name) = (record.id, record.name.clone());
    match trusted(record) {
        Err(error) if error.kind == Kind::NeedsRecovery => {
            refuse_damaged(context, "find dataset", &name).await?;
            // The rebuild may have ended since.
            match context.meta.record(id).await.doing("find dataset", &name)? {
                Some(record) => trusted(record),
                None => Err(error),
            }
        }
        trusted => trusted,
    }
}

/// The record, by its state alone.
pub(crate) fn trusted(record: DatasetRecord) -> Result<DatasetRecord, Error> {
    let name = &record.name;
    match record.state {
        DatasetState::Live => Ok(record),
        DatasetState::Recovering => {
            let why = format!(
                "its metadata is being rebuilt; wait for that, or run `dlcmd recover dl://{name}` \
                 if it was interrupted"
            );
            Err(Error::new(Kind::NeedsRecovery, "find dataset", name, why))
        }
        DatasetState::Ending => {
            let why = format!(
                "it is being deleted; if that was interrupted, run `dlcmd delete-dataset \
                 dl://{name}` again, or `dlcmd recover dl://{name}` to keep it"
            );
            Err(Error::new(Kind::NotFound, "find dataset", name, why))
        }
    }
}

/// A dataset with its details; none when it was dropped meanwhile. Where the metadata is incomplete, the reason
/// replaces the counts.
async fn describe(
    context: &ServerContext,
    record: DatasetRecord,
    detail: Detail,
) -> Result<Option<Dataset>, Error> {
    if detail == Detail::Record {
        return Ok(Some(bare(record)));
    }
    if let Some(dataset) = untold(&record) {
        return Ok(Some(dataset));
    }
    let id = record.id;
    let (record, objects, version, counts) = if detail == Detail::Outline {
        let outline = context.meta.outline(id).await.doing("describe dataset", id)?;
        let Some(Outline { record, objects, version }) = outline else { return Ok(None) };
        (record, objects, version, Counts::Unasked)
    } else {
        let info = context.meta.dataset(id).await.doing("describe dataset", id)?;
        let Some(DatasetInfo { record, objects, version, files, bytes, .. }) = info else {
            return Ok(None);
        };
        (record, objects, version, Counts::Known { files, bytes })
    };
    // The state may have changed since.
    let dataset = untold(&record);
    Ok(Some(dataset.unwrap_or_else(|| Dataset { objects, version, counts, ..bare(record) })))
}

/// The answer for a dataset with incomplete metadata, with the reason; none where the metadata is complete.
fn untold(record: &DatasetRecord) -> Option<Dataset> {
    let why = trusted(record.clone()).err()?.chain();
    Some(Dataset { counts: Counts::Unknown(why), ..bare(record.clone()) })
}

fn bare(record: DatasetRecord) -> Dataset {
    Dataset {
        name: record.name,
        id: record.id,
        shape: record.shape,
        created: record.created,
        objects: 0,
        version: Version::default(),
        counts: Counts::Unasked,
        small: SmallChunks::default(),
    }
}

#[cfg(test)]
mod tests;

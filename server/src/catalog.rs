//! Datasets: creating, finding, listing and deleting them.
//!
//! Must hold: the chunk store says which datasets live; a record in the metadata never outlives
//! the name it was made for. A dataset whose metadata was lost is noticed and refused.

use std::collections::HashSet;
use std::time::Duration;

use dl_format::{ChunkShape, DatasetId, DatasetName, NameRecord, NameState, Stamp, Version};
use dl_meta::{DatasetInfo, DatasetRecord, DatasetState, Outline, Refusal};
use dl_proto::{Counts, Dataset, DeletedDataset, Kind, Listed, Role, UnreadName};
use dl_runtime::{Deadline, blocking};
use futures::{StreamExt, TryStreamExt, stream};

use crate::auth::Caller;
use crate::error::Error;
use crate::identity::refuse_lost;
use crate::leftovers::{self, Leftovers, forget};
use crate::names::{self, Named};
use crate::parts::Parts;

/// A recovery that comes upon a dataset which was just made is through with it in a moment.
const REBUILT_WITHIN: Duration = Duration::from_secs(2);

/// A name that moves on while its dataset is created does not do so for longer.
const CREATED_WITHIN: Duration = Duration::from_secs(10);

/// Datasets that are counted at once for one who asks.
const COUNTED_AT_ONCE: usize = 4;

/// Datasets without metadata whose objects are looked for at once.
const LOOKED_AT_ONCE: usize = 16;

/// The record of a dataset that requests name by id, if its contents can be trusted.
pub(crate) async fn by_id(parts: &Parts, id: DatasetId) -> Result<DatasetRecord, Error> {
    let record = parts.meta.record(id).await;
    match record.map_err(|error| Error::meta("find dataset", id, error))? {
        Some(record) => trusted(record),
        None => Err(not_known(parts, id, &Caller::Everybody).await),
    }
}

/// What there is to say to a caller about a dataset that the metadata doesn't know, or that the
/// caller may not know of.
pub(crate) async fn not_known(parts: &Parts, id: DatasetId, caller: &Caller) -> Error {
    let names = match refuse_lost(parts, id).await {
        Ok(()) => names::shared(parts).await,
        Err(error) => return error,
    };
    let names = match names {
        Ok(names) => names,
        Err(error) => return error,
    };
    let is_seen = |name: &DatasetName| caller.may(Role::Read, name);
    let is_it = |(name, named): &&(DatasetName, Named)| named.record.dataset == id && is_seen(name);
    if let Some((name, _)) = names.live().find(is_it) {
        // It may have been made since the metadata was asked.
        return match parts.meta.record(id).await {
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
        // That name may stand for it: nobody can tell that it was deleted. Which one it is is not said
        // here: who was let in for a dataset of before may not know of it.
        let why = "a name in the chunk store can't be read, and may be that of this id; `dlcmd \
                   datasets` says which, to who may read it";
        return Error::new(error.kind, "find dataset", id, why);
    }
    let why = "it was deleted; connect again by its name";
    Error::new(Kind::NotFound, "find dataset", id, why)
}

/// What there is to say when a dataset that was there is not: it ended; or the metadata lost it, which is
/// another answer.
pub(crate) async fn explained(parts: &Parts, id: DatasetId, error: Error) -> Error {
    if error.kind != Kind::NotFound {
        return error;
    }
    match by_id(parts, id).await {
        Err(explained) => explained,
        Ok(_) => {
            let why = format!("it was gone for a moment; try again: {}", error.chain());
            Error::new(Kind::Unavailable, "find dataset", id, why)
        }
    }
}

/// What is told of a dataset beside its record, in the order of what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Nothing.
    Record,
    /// Which objects there are.
    Outline,
    /// How many files they add up to: perhaps a walk over all of them.
    Counts,
}

/// The dataset of a name. One that the caller may not read is not there. The counts of one whose
/// contents can't be trusted are refused; anything else is told of it, so that it can be deleted.
pub(crate) async fn by_name(
    parts: &Parts,
    name: &DatasetName,
    caller: &Caller,
    told: Told,
) -> Result<Dataset, Error> {
    // Otherwise not even looked up: how long that takes tells whether it is there.
    if caller.may(Role::Read, name)
        && let Some(dataset) = known_by_name(parts, name, told).await?
    {
        return Ok(dataset);
    }
    refuse_lost(parts, name).await?;
    if caller.may(Role::Read, name)
        && let Some(named) = names::newest(parts, name).await?
        && named.record.state == NameState::Live
        && names::has_objects(parts, name, named.record.dataset).await?
    {
        // It may have been made since the metadata was asked.
        return known_by_name(parts, name, told).await?.ok_or_else(|| lost(name));
    }
    let names = names::recent(parts).await?;
    let is_other = |other: &&DatasetName| *other != name && caller.may(Role::Read, other);
    let others = names.live().map(|(live, _)| live).filter(is_other);
    let why = match names::nearest(name, others) {
        Some(near) => format!("there is none of that name; did you mean {near}?"),
        None => "there is none of that name".to_owned(),
    };
    Err(Error::new(Kind::NotFound, "find dataset", name, why))
}

/// What the metadata knows of a name.
async fn known_by_name(
    parts: &Parts,
    name: &DatasetName,
    told: Told,
) -> Result<Option<Dataset>, Error> {
    let found = parts.meta.record_named(name).await;
    let Some(record) = found.map_err(|error| Error::meta("find dataset", name, error))? else {
        return Ok(None);
    };
    let record = if told == Told::Counts { trusted(record)? } else { record };
    describe(parts, record, told).await
}

/// All datasets that the caller may read, by name. The others are neither counted nor looked at:
/// how long that takes, and that it fails, would tell of them. A name that can't be read costs
/// nothing else.
pub(crate) async fn list(
    parts: &Parts,
    caller: &Caller,
    told: Told,
) -> Result<Listed<Dataset>, Error> {
    refuse_lost(parts, "all datasets").await?;
    let found = parts.meta.records().await;
    let mut found = found.map_err(|error| Error::meta("list", "datasets", error))?;
    found.retain(|record| caller.may(Role::Read, &record.name));
    let names = names::shared(parts).await?;
    let is_seen = |name: &DatasetName| caller.may(Role::Read, name);
    let known: HashSet<DatasetId> = found.iter().map(|record| record.id).collect();
    let mut unknown = Vec::new();
    for (name, named) in names.live().filter(|(name, _)| is_seen(name)) {
        if !known.contains(&named.record.dataset) {
            unknown.push((name.clone(), named.record.dataset));
        }
    }
    let looked_at = stream::iter(unknown).map(|(name, id)| async move {
        if !names::has_objects(parts, &name, id).await? {
            return Ok(None);
        }
        // It may have been made since the metadata was asked.
        let found = parts.meta.record_named(&name).await;
        let found = found.map_err(|error| Error::meta("find dataset", &name, error))?;
        found.map(Some).ok_or_else(|| lost(&name))
    });
    let mut looked_at = std::pin::pin!(looked_at.buffered(LOOKED_AT_ONCE));
    let mut made_since: Vec<DatasetRecord> = Vec::new();
    while let Some(made) = looked_at.try_next().await? {
        made_since.extend(made);
    }
    if !made_since.is_empty() {
        found.append(&mut made_since);
        found.sort_by(|a, b| a.name.cmp(&b.name));
    }
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
    let rows = stream::iter(found).map(|record| row(parts, record, told));
    let rows = rows.buffered(COUNTED_AT_ONCE);
    Ok(Listed { found: rows.try_filter_map(async |row| Ok(row)).try_collect().await?, unread })
}

/// A dataset among others; none when it was dropped meanwhile. Damaged metadata of one costs what
/// there is to tell of that one.
async fn row(parts: &Parts, record: DatasetRecord, told: Told) -> Result<Option<Dataset>, Error> {
    let damaged = match describe(parts, record.clone(), told).await {
        Err(error) if error.kind == Kind::NeedsRecovery => error.chain(),
        described => return described,
    };
    tracing::error!(name = %record.name, error = damaged, "a dataset can't be counted");
    let outline = match told {
        Told::Counts => describe(parts, record.clone(), Told::Outline).await.ok().flatten(),
        Told::Record | Told::Outline => None,
    };
    let dataset = outline.unwrap_or_else(|| bare(record));
    Ok(Some(Dataset { counts: Counts::Unknown(damaged), ..dataset }))
}

/// The dataset of a name, made when there is none.
pub(crate) async fn create(
    parts: &Parts,
    name: &DatasetName,
    shape: ChunkShape,
) -> Result<Dataset, Error> {
    let deadline = Deadline::after(&*parts.clock, REBUILT_WITHIN);
    let created = Deadline::after(&*parts.clock, CREATED_WITHIN);
    loop {
        let known = parts.meta.record_named(name).await;
        if let Some(record) = known.map_err(|error| Error::meta("create dataset", name, error))? {
            let is_rebuilt = record.state == DatasetState::Recovering;
            if is_rebuilt && !deadline.remaining(&*parts.clock).is_zero() {
                parts.clock.sleep(REBUILT_WITHIN / 20).await;
                continue;
            }
            let record = trusted(record)?;
            match describe(parts, record, Told::Outline).await? {
                Some(dataset) => return Ok(dataset),
                None => continue,
            }
        }
        refuse_lost(parts, name).await?;
        let newest = names::newest(parts, name).await?;
        let live = newest.as_ref().filter(|named| named.record.state == NameState::Live);
        // A creation that was cut short has no objects; lost metadata has.
        if let Some(named) = live
            && names::has_objects(parts, name, named.record.dataset).await?
        {
            // It may have been made since the metadata was asked.
            match known_by_name(parts, name, Told::Record).await? {
                Some(_) => continue,
                None => return Err(lost(name)),
            }
        }
        if live.is_some() {
            // It may be a copy, and what it stands for deleted.
            let names = names::all(parts).await?;
            if let Some((_, error)) = names.unread.into_iter().find(|(unread, _)| unread == name) {
                return Err(error);
            }
        }
        let refused = |kind, why| Err(Error::new(kind, "create dataset", name, why));
        if let Ok(Some(refusal)) = parts.meta.refusal().await {
            return refused(Error::kind_of(&refusal), refusal.to_string());
        }
        let generation = match live {
            Some(named) => named.generation,
            None => {
                let room = parts.room.clone();
                let taken = blocking::run(move || room.take(0)).await;
                taken
                    .map_err(|error| Error::new(Kind::Unavailable, "create dataset", name, error))?
                    .map_err(|full| Error::new(Kind::Full, "create dataset", name, full))?;
                let generation = newest.map_or(1, |named| named.generation.saturating_add(1));
                let mut id = [0; 16];
                parts.random.fill(&mut id);
                let record = NameRecord {
                    state: NameState::Live,
                    dataset: DatasetId::from_bytes(id),
                    shape,
                    created: Stamp::at(parts.clock.now()),
                };
                if !names::create(parts, name, generation, &record).await? {
                    continue;
                }
                generation
            }
        };
        let named = names::held(parts, name, generation).await?;
        if named.record.state != NameState::Live {
            continue;
        }
        // Its record is there now, or the name moved on: look again.
        let is_there = index(parts, name, named, DatasetState::Live).await?;
        if !is_there && created.remaining(&*parts.clock).is_zero() {
            let why = "the metadata has another dataset of that name than the chunk store; run `dlcmd \
                       recover --all`";
            return refused(Kind::NeedsRecovery, why.to_owned());
        }
        if !is_there {
            parts.clock.sleep(REBUILT_WITHIN / 20).await;
        }
    }
}

/// Puts the record of a named dataset into the metadata. False when the name moved on meanwhile,
/// in this store or by another server's hand: the record is gone again then.
pub(crate) async fn index(
    parts: &Parts,
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
    names::settle(parts, name, named.generation).await?;
    match parts.meta.put_dataset(&record).await {
        Ok(()) => {}
        Err(error) if error.kind == dl_meta::Kind::Conflict => return Ok(false),
        Err(error) => return Err(Error::meta("write the record of dataset", name, error)),
    }
    // Whoever deletes first changes the name and then the metadata, so that one of us sees it.
    let holds = names::newest(parts, name).await?;
    let is_same = |holds: &Named| {
        (holds.generation, holds.record.dataset) == (named.generation, named.record.dataset)
    };
    if holds.as_ref().is_some_and(is_same) {
        return Ok(true);
    }
    forget(parts, name, named.record.dataset).await?;
    Ok(false)
}

/// Ends a dataset for everybody, then removes its objects, or leaves them to the job; gives how many
/// those were. `id` is the dataset that the caller means: one that was created since under the same name
/// is left alone, and so is one that nothing says ever had this name, but for who may delete any.
pub(crate) async fn delete(
    parts: &Parts,
    leftovers: &Leftovers,
    (name, id): (&DatasetName, DatasetId),
    caller: &Caller,
) -> Result<DeletedDataset, Error> {
    let ended = loop {
        let Some(named) = names::newest(parts, name).await? else {
            let why = "there is none of that name";
            return Err(Error::new(Kind::NotFound, "delete dataset", name, why));
        };
        if named.record.dataset != id {
            let record = parts.meta.record(id).await;
            let record = record.map_err(|error| Error::meta("find dataset", name, error))?;
            let is_ours = match record {
                Some(record) => record.name == *name,
                None => caller.may_all(Role::Admin) || names::stood_for(parts, name, id).await?,
            };
            if !is_ours || is_of_other_name(parts, name, id).await? {
                // As of an id that stands for nothing any more.
                return Ok(DeletedDataset::default());
            }
            forget(parts, name, id).await?;
            // A recovery may give the name back meanwhile.
            let newest = names::newest(parts, name).await?;
            if newest.is_some_and(|newest| newest.record.dataset == id) {
                continue;
            }
            // The name says nothing of it, so that nobody could go on with the rest.
            names::settle(parts, name, named.generation).await?;
            forget_deleted(parts, name, id).await?;
            return leftovers.remove_all(parts, id).await;
        }
        if named.record.state == NameState::Deleted {
            break named.generation;
        }
        let record = parts.meta.record(id).await;
        let record = record.map_err(|error| Error::meta("find dataset", name, error))?;
        // Metadata that lacks it is to be recovered, before and after.
        let before = record.map_or(DatasetState::Recovering, |record| record.state);
        // A full one takes this.
        if let Ok(Some(Refusal::All(why))) = parts.meta.refusal().await {
            return Err(Error::new(Kind::Unavailable, "delete dataset", name, why));
        }
        // First nobody may begin to write into it any more.
        if let Err(error) = index(parts, name, named, DatasetState::Ending).await {
            if error.kind == Kind::Full {
                // It may have been written all the same. Where this fails as well, the dataset says
                // itself that it is being deleted.
                let _ = index(parts, name, named, before).await;
            }
            return Err(error);
        }
        let generation = named.generation.saturating_add(1);
        let created = Stamp::at(parts.clock.now());
        let record = NameRecord { state: NameState::Deleted, created, ..named.record };
        match names::create(parts, name, generation, &record).await {
            Ok(true) => break generation,
            Ok(false) => {}
            Err(full) if full.kind == Kind::Full => {
                // Nothing is deleted yet, and until there is space it is what it was before.
                index(parts, name, named, before).await?;
                return Err(full);
            }
            Err(error) => return Err(error),
        }
    };
    // Or a power cut could bring a dataset back whose objects are gone.
    names::settle(parts, name, ended).await?;
    forget_deleted(parts, name, id).await?;
    Ok(leftovers.remove(parts, name, id).await)
}

async fn forget_deleted(parts: &Parts, name: &DatasetName, id: DatasetId) -> Result<(), Error> {
    forget(parts, name, id).await.map_err(|error| match error.kind {
        Kind::Full => {
            let why = "it is deleted, but there is no space to remove what is left of it; free some, \
                       and the servers or `dlcmd purge --all` remove it";
            Error::new(Kind::Full, "delete dataset", name, why)
        }
        _ => error,
    })
}

/// Whether a dataset lives under another name than the one it is to be deleted by, which alone says
/// who may do that.
async fn is_of_other_name(parts: &Parts, name: &DatasetName, id: DatasetId) -> Result<bool, Error> {
    let names = names::all(parts).await?;
    match names.unread.first() {
        // It may be the one: nobody can tell that it was deleted.
        Some((_, error)) => {
            let why = "a name in the chunk store can't be read, and may be that of this id; `dlcmd \
                       datasets` says which, to who may read it";
            let kind = if error.kind == Kind::Corrupt { Kind::Conflict } else { error.kind };
            Err(Error::new(kind, "delete dataset", name, why))
        }
        None => Ok(names.live().any(|(_, named)| named.record.dataset == id)),
    }
}

/// Makes certain what a crash left half done: datasets whose names say that they are deleted are gone
/// for everybody, those that were about to be deleted stay. Objects are removed later.
pub(crate) async fn settle_deletions(parts: &Parts) -> Result<(), Error> {
    match leftovers::settle_all(parts).await {
        Err(error) if parts.settings.is_read_only() => {
            let why = error.chain();
            tracing::warn!(why, "deletions that were cut off are left for later");
        }
        settled => settled?,
    }
    let known = match parts.meta.records().await {
        Ok(known) => known,
        // What was lost while no server ran can only be brought back through one that runs.
        Err(error) if parts.meta.damage().await.is_ok_and(|damage| damage.is_some()) => {
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
        match names::newest(parts, &name).await {
            Ok(Some(named))
                if named.record.dataset == id && named.record.state == NameState::Live =>
            {
                index(parts, &name, named, DatasetState::Live).await?;
            }
            Ok(_) => {}
            // It stays refused, and a later start ends or keeps it.
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

/// The record, if the contents of its dataset can be trusted.
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

/// A dataset with what is to be told of it; none when it was dropped meanwhile. What the contents are
/// is not told of one that can't be trusted, but why.
async fn describe(
    parts: &Parts,
    record: DatasetRecord,
    told: Told,
) -> Result<Option<Dataset>, Error> {
    if told == Told::Record {
        return Ok(Some(bare(record)));
    }
    if let Some(dataset) = untold(&record) {
        return Ok(Some(dataset));
    }
    let id = record.id;
    let failed = |error| Error::meta("describe dataset", id, error);
    let (record, objects, version, counts) = if told == Told::Outline {
        let outline = parts.meta.outline(id).await.map_err(failed)?;
        let Some(Outline { record, objects, version }) = outline else { return Ok(None) };
        (record, objects, version, Counts::Unasked)
    } else {
        let info = parts.meta.dataset(id).await.map_err(failed)?;
        let Some(DatasetInfo { record, objects, version, files, bytes, .. }) = info else {
            return Ok(None);
        };
        (record, objects, version, Counts::Known { files, bytes })
    };
    // It may have become another one since.
    let dataset = untold(&record);
    Ok(Some(dataset.unwrap_or_else(|| Dataset { objects, version, counts, ..bare(record) })))
}

/// Of a dataset whose contents can't be trusted, why; none of any other one.
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
    }
}

#[cfg(test)]
mod tests;

//! Datasets: creating, finding, listing and deleting them, and the identity that ties a metadata
//! store to its chunk store.
//!
//! Must hold: the chunk store says which datasets live. Metadata that was lost, or belongs to
//! another store, is noticed and refused, never taken for an empty dataset.

use dl_format::{
    ChunkShape, DatasetId, DatasetName, IDENTITY_KEY, IdentityRecord, NameRecord, NameState, Stamp,
    StoreId, dataset_prefix,
};
use dl_meta::{DatasetInfo, DatasetRecord, DatasetState};
use dl_proto::{Dataset, Kind};
use dl_store::StoreExt;
use futures::TryStreamExt;

use crate::error::Error;
use crate::names::{self, Named};
use crate::parts::{Parts, key, prefix};

/// Deletions of objects that are in flight at once while a dataset is swept.
const SWEEPS_AT_ONCE: usize = 16;

/// What was found when the stores were put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    /// The metadata is this store's.
    Known,
    /// The metadata is empty and the store is not: recover first.
    Lost,
}

/// Ties metadata and chunk store together; makes the identity of a fresh store.
pub(crate) async fn bind(parts: &Parts) -> Result<Bound, Error> {
    let identity = meta_identity(parts).await?;
    let (store, fresh) = match store_identity(parts).await? {
        Some(store) => (store, false),
        None => {
            if let Some(other) = identity {
                let why = format!(
                    "the metadata indexes the chunk store {other}, and this one is empty; \
                     check --store and --meta"
                );
                return Err(Error::new(Kind::Conflict, "open chunk store", &parts.store, why));
            }
            (create_identity(parts).await?, true)
        }
    };
    match identity {
        Some(known) if known == store => Ok(Bound::Known),
        Some(other) => {
            let why = format!(
                "the metadata indexes the chunk store {other}, and this one is {store}; \
                 check --store and --meta"
            );
            Err(Error::new(Kind::Conflict, "open chunk store", &parts.store, why))
        }
        None if fresh || names::all(parts).await?.is_empty() => {
            bind_meta(parts, store).await?;
            Ok(Bound::Known)
        }
        None => Ok(Bound::Lost),
    }
}

/// Binds the metadata to the chunk store it was recovered from.
pub(crate) async fn bind_recovered(parts: &Parts) -> Result<(), Error> {
    match store_identity(parts).await? {
        Some(store) => bind_meta(parts, store).await,
        None => bind_meta(parts, create_identity(parts).await?).await,
    }
}

async fn bind_meta(parts: &Parts, store: StoreId) -> Result<(), Error> {
    let bound = parts.meta.bind(store).await;
    bound.map_err(|error| Error::meta("bind metadata to chunk store", store, error))
}

async fn meta_identity(parts: &Parts) -> Result<Option<StoreId>, Error> {
    let identity = parts.meta.identity().await;
    identity.map_err(|error| Error::meta("open metadata", &parts.meta, error))
}

async fn store_identity(parts: &Parts) -> Result<Option<StoreId>, Error> {
    match parts.store.read_all(&key(IDENTITY_KEY.to_owned())).await {
        Ok(bytes) => match IdentityRecord::decode(&bytes) {
            Ok(identity) => Ok(Some(identity.store)),
            Err(error) => Err(Error::new(Kind::Corrupt, "open chunk store", &parts.store, error)),
        },
        Err(error) if error.kind == dl_store::Kind::Missing => Ok(None),
        Err(error) => Err(Error::store("open chunk store", &parts.store, error)),
    }
}

async fn create_identity(parts: &Parts) -> Result<StoreId, Error> {
    let mut id = [0; 16];
    parts.random.fill(&mut id);
    let record = IdentityRecord { store: StoreId::from_bytes(id) };
    match parts.store.create(&key(IDENTITY_KEY.to_owned()), record.encode().into()).await {
        Ok(()) => Ok(record.store),
        // Another server was faster: its identity holds.
        Err(error) if error.kind == dl_store::Kind::Exists => store_identity(parts)
            .await?
            .ok_or_else(|| Error::store("open chunk store", &parts.store, error)),
        Err(error) => Err(Error::store("open chunk store", &parts.store, error)),
    }
}

/// The record of a dataset that requests name by id, if its contents can be trusted.
pub(crate) async fn by_id(parts: &Parts, id: DatasetId) -> Result<DatasetRecord, Error> {
    let record = parts.meta.record(id).await;
    match record.map_err(|error| Error::meta("find dataset", id, error))? {
        Some(record) => trusted(record),
        None => {
            refuse_lost(parts, id).await?;
            let named = names::all(parts).await?;
            match named.iter().find(|(_, named)| named.record.dataset == id) {
                Some((name, named)) if named.record.state == NameState::Live => Err(lost(name)),
                _ => {
                    let why = "it was deleted; connect again by its name";
                    Err(Error::new(Kind::NotFound, "find dataset", id, why))
                }
            }
        }
    }
}

/// The dataset of a name.
pub(crate) async fn by_name(parts: &Parts, name: &DatasetName) -> Result<Dataset, Error> {
    let found = parts.meta.dataset_named(name).await;
    if let Some(info) = found.map_err(|error| Error::meta("find dataset", name, error))? {
        trusted(info.record.clone())?;
        return Ok(describe(info));
    }
    refuse_lost(parts, name).await?;
    let named = names::all(parts).await?;
    let is_live = |(_, named): &&(DatasetName, Named)| named.record.state == NameState::Live;
    if named.iter().filter(is_live).any(|(live, _)| live == name) {
        return Err(lost(name));
    }
    let why = match names::nearest(name, named.iter().filter(is_live).map(|(live, _)| live)) {
        Some(near) => format!("there is none of that name; did you mean {near}?"),
        None => "there is none of that name".to_owned(),
    };
    Err(Error::new(Kind::NotFound, "find dataset", name, why))
}

/// All datasets, by name.
pub(crate) async fn list(parts: &Parts) -> Result<Vec<Dataset>, Error> {
    refuse_lost(parts, "all datasets").await?;
    let found = parts.meta.datasets().await;
    let found = found.map_err(|error| Error::meta("list", "datasets", error))?;
    Ok(found.into_iter().map(describe).collect())
}

/// The dataset of a name, made when there is none.
pub(crate) async fn create(
    parts: &Parts,
    name: &DatasetName,
    shape: ChunkShape,
) -> Result<Dataset, Error> {
    loop {
        let known = parts.meta.dataset_named(name).await;
        if let Some(info) = known.map_err(|error| Error::meta("create dataset", name, error))? {
            trusted(info.record.clone())?;
            return Ok(describe(info));
        }
        refuse_lost(parts, name).await?;
        let newest = names::newest(parts, name).await?;
        let named = match newest {
            Some(named) if named.record.state == NameState::Live => {
                // A creation that was cut short has no objects; lost metadata has.
                let objects = prefix(dataset_prefix(named.record.dataset));
                let mut objects = parts.store.list(&objects);
                let first = objects.try_next().await;
                if first.map_err(|error| Error::store("create dataset", name, error))?.is_some() {
                    return Err(lost(name));
                }
                named
            }
            newest => {
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
                Named { generation, record }
            }
        };
        if index(parts, name, named, DatasetState::Live).await? {
            continue;
        }
        // Somebody may have deleted the dataset between its name and its record.
        let holds = names::newest(parts, name).await?;
        if holds.is_none_or(|holds| holds.generation != named.generation) {
            forget(parts, named.record.dataset).await?;
        }
    }
}

/// Puts the record of a named dataset into the metadata. True when a newer one is there.
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
    match parts.meta.put_dataset(&record).await {
        Ok(()) => Ok(false),
        Err(error) if error.kind == dl_meta::Kind::Conflict => Ok(true),
        Err(error) => Err(Error::meta("write the record of dataset", name, error)),
    }
}

/// Ends a dataset for everybody, then removes its objects; gives how many those were. `id` is the
/// dataset that the caller means: one that was created since under the same name is left alone.
pub(crate) async fn delete(parts: &Parts, name: &DatasetName, id: DatasetId) -> Result<u64, Error> {
    loop {
        let Some(named) = names::newest(parts, name).await? else {
            let why = "there is none of that name";
            return Err(Error::new(Kind::NotFound, "delete dataset", name, why));
        };
        if named.record.dataset != id {
            break;
        }
        if named.record.state == NameState::Deleted {
            break;
        }
        let generation = named.generation.saturating_add(1);
        let created = Stamp::at(parts.clock.now());
        let record = NameRecord { state: NameState::Deleted, created, ..named.record };
        if names::create(parts, name, generation, &record).await? {
            break;
        }
    }
    forget(parts, id).await?;
    sweep(parts, id).await
}

async fn forget(parts: &Parts, id: DatasetId) -> Result<(), Error> {
    let dropped = parts.meta.drop_dataset(id).await;
    dropped.map_err(|error| Error::meta("forget dataset", id, error))
}

/// Removes the objects of a dataset that no name points to.
async fn sweep(parts: &Parts, id: DatasetId) -> Result<u64, Error> {
    let objects = prefix(dataset_prefix(id));
    let removed = parts
        .store
        .list(&objects)
        .map_ok(|object| async move { parts.store.delete(&object.key).await.map(|()| 1u64) });
    let removed = removed.try_buffer_unordered(SWEEPS_AT_ONCE);
    let removed = removed.try_fold(0u64, |sum, one| async move { Ok(sum + one) }).await;
    removed.map_err(|error| Error::store("remove the objects of dataset", id, error))
}

/// Ends what a crash left half done: datasets whose names say that they are deleted.
pub(crate) async fn finish_deletions(parts: &Parts) -> Result<(), Error> {
    for (name, named) in names::all(parts).await? {
        if named.record.state == NameState::Deleted {
            forget(parts, named.record.dataset).await?;
            let removed = sweep(parts, named.record.dataset).await?;
            if removed > 0 {
                tracing::info!(%name, removed, "finished deleting a dataset");
            }
        }
    }
    Ok(())
}

/// Fails when the metadata was emptied.
pub(crate) async fn refuse_lost(parts: &Parts, what: impl std::fmt::Display) -> Result<(), Error> {
    if meta_identity(parts).await?.is_some() {
        return Ok(());
    }
    let why = "the metadata store is empty but the chunk store is not; \
               run `dlcmd recover --all` to rebuild it from the chunks";
    Err(Error::new(Kind::NeedsRecovery, "find", what, why))
}

fn lost(name: &DatasetName) -> Error {
    let why = format!(
        "the chunk store has it and the metadata store doesn't; run `dlcmd recover dl://{name}`"
    );
    Error::new(Kind::NeedsRecovery, "find dataset", name, why)
}

fn trusted(record: DatasetRecord) -> Result<DatasetRecord, Error> {
    match record.state {
        DatasetState::Live => Ok(record),
        DatasetState::Recovering => {
            let name = &record.name;
            let why = format!(
                "its metadata is being rebuilt; wait for that, or run `dlcmd recover dl://{name}` \
                 if it was interrupted"
            );
            Err(Error::new(Kind::NeedsRecovery, "find dataset", name, why))
        }
    }
}

fn describe(info: DatasetInfo) -> Dataset {
    Dataset {
        name: info.record.name,
        id: info.record.id,
        shape: info.record.shape,
        created: info.record.created,
        objects: info.objects,
        last_stamp: info.last_stamp,
    }
}

//! The identity that ties a metadata store to its chunk store.
//!
//! Must hold: metadata that was emptied, or that belongs to another chunk store, is noticed and refused with a
//! remedy; it never passes for an empty dataset.

use std::collections::HashSet;
use std::time::Duration;

use dl_format::{DatasetId, DatasetName, IDENTITY_KEY, IdentityRecord, StoreId};
use dl_meta::{Damage, DatasetRecord};
use dl_proto::Kind;
use dl_runtime::Deadline;
use dl_store::StoreExt;

use crate::datasets::names;
use crate::error::{Doing, Error, is_created};
use crate::shared::context::{ServerContext, key};

/// Time for which the identity of the chunk store is not read again.
const STORE_HOLDS: Duration = Duration::from_secs(60);

/// Time for a search of the metadata's datasets in a chunk store without identity.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The relation of a metadata store and a chunk store at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    /// The metadata belongs to the chunk store.
    Known,
    /// The metadata is empty and the chunk store is not: a recovery is needed.
    Lost,
}

/// Ties metadata and chunk store together; makes the identity of a fresh store.
pub(crate) async fn bind(context: &ServerContext) -> Result<Bound, Error> {
    let (meta, store) = (of_meta(context).await?, of_store(context).await?);
    match (meta, store) {
        (Some(meta), Some(store)) if meta == store => Ok(Bound::Known),
        (Some(meta), Some(store)) => Err(of_another(context, meta, store)),
        (Some(meta), None) => match restored(context, meta).await? {
            store if store == meta => Ok(Bound::Known),
            store => Err(of_another(context, meta, store)),
        },
        (None, store) => {
            let store = match store {
                Some(store) => store,
                None => create(context, drawn(context)).await?,
            };
            if !names::all(context).await?.is_empty() {
                return Ok(Bound::Lost);
            }
            bind_meta(context, store).await?;
            Ok(Bound::Known)
        }
    }
}

/// The identity of the chunk store from which metadata is recovered. A missing identity is written from the
/// metadata, or drawn where the metadata has none either.
pub(crate) async fn of_recovered(context: &ServerContext) -> Result<StoreId, Error> {
    match (of_store(context).await?, of_meta(context).await?) {
        (Some(store), _) => Ok(store),
        (None, Some(meta)) => restored(context, meta).await,
        (None, None) => create(context, drawn(context)).await,
    }
}

/// Writes the lost identity of a chunk store again, by the metadata, if that indexes this store. Gives the
/// stored identity.
async fn restored(context: &ServerContext, meta: StoreId) -> Result<StoreId, Error> {
    if !is_indexed(context).await? {
        let why = format!(
            "indexes the chunk store {meta}, and this one has no identity and not its datasets"
        );
        return Err(foreign(context, why));
    }
    let store = create(context, meta).await?;
    tracing::warn!(%store, "the chunk store had lost its identity object: written again");
    Ok(store)
}

/// Whether the chunk store can be read at all.
pub(crate) async fn answers(context: &ServerContext) -> bool {
    !of_store(context).await.is_err_and(|error| error.kind.is_retryable())
}

/// Fails when the metadata was emptied or is incomplete: a dataset that it lacks may be lost.
pub(crate) async fn refuse_lost(
    context: &ServerContext,
    what: impl std::fmt::Display,
) -> Result<(), Error> {
    if of_meta(context).await?.is_none() {
        let why = "no part of the metadata store has its identity: the store was emptied, or is another one; \
                   check --meta, or run `dlcmd recover --all` to rebuild all metadata from the chunks";
        return Err(Error::new(Kind::NeedsRecovery, "find", what, why));
    }
    refuse_damaged(context, "find", what).await
}

/// Fails while the metadata is incomplete.
pub(crate) async fn refuse_damaged(
    context: &ServerContext,
    action: &'static str,
    what: impl std::fmt::Display,
) -> Result<(), Error> {
    let damage = context.meta.damage().await.doing("look for damage in", &context.meta)?;
    let (kind, why) = match damage {
        None => return Ok(()),
        Some(Damage::Shards) => (
            Kind::Unavailable,
            "the metadata may lack writes, and the servers are rebuilding them from the chunk store; try \
             again",
        ),
        Some(Damage::Everything) => (
            Kind::NeedsRecovery,
            "the metadata has lost its identity, or is being recovered; run `dlcmd recover --all`",
        ),
    };
    Err(Error::new(kind, action, what, why))
}

/// Whether the metadata has datasets, and the chunk store has all of them: by name, or by objects where a name
/// is lost or damaged. No two datasets have the same id.
async fn is_indexed(context: &ServerContext) -> Result<bool, Error> {
    let names = names::all(context).await?;
    let stored: HashSet<DatasetId> = names.live().map(|(_, named)| named.record.dataset).collect();
    // During a recovery the records are incomplete.
    let known = context.meta.remnants().await.doing("list", "datasets")?;
    let mut is_known = false;
    for DatasetRecord { id, name, .. } in &known {
        if stored.contains(id) || names::has_objects(context, name, *id).await? {
            is_known = true;
            continue;
        }
        let outline = context.meta.outline(*id).await;
        if outline.is_ok_and(|outline| outline.is_none_or(|outline| outline.objects == 0)) {
            // An empty dataset has no objects.
            continue;
        }
        // The dataset may be that of an unreadable name.
        let unread = names.unread.into_iter().find(|(unread, _)| unread == name);
        return unread.map_or(Ok(false), |(_, error)| Err(error));
    }
    let is_one = |unread: &DatasetName| known.iter().any(|record| record.name == *unread);
    match names.unread.into_iter().find(|(unread, _)| !is_known && is_one(unread)) {
        Some((_, error)) => Err(error),
        None => Ok(is_known),
    }
}

/// The repeated comparison of the two identities, which other servers may change.
#[derive(Debug, Default)]
pub(crate) struct Tie {
    /// The identity of the chunk store, and the time of its reading.
    store: Option<(StoreId, Duration)>,
    /// The time at which a lost identity could not be written again.
    lost: Option<Duration>,
}

impl Tie {
    /// Fails once the metadata is known to belong to another chunk store: later requests would act on the
    /// datasets of that store.
    pub(crate) async fn check(&mut self, context: &ServerContext) -> Result<(), Error> {
        // An identity that can't be read now is read the next time.
        let Ok(Some(meta)) = of_meta(context).await else { return Ok(()) };
        let now = context.clock.monotonic();
        let is_known = |(store, at): (StoreId, Duration)| store == meta && now < at + STORE_HOLDS;
        if self.store.is_some_and(is_known) || self.lost.is_some_and(|at| now < at + STORE_HOLDS) {
            return Ok(());
        }
        let Ok(store) = of_store(context).await else { return Ok(()) };
        let store = match store {
            Some(store) => store,
            None => {
                let clock = &*context.clock;
                let restored =
                    Deadline::after(clock, TIMEOUT).bound(clock, restored(context, meta)).await;
                let why = match restored {
                    Ok(Ok(store)) => return compare(context, meta, store),
                    Ok(Err(error)) => error.chain(),
                    Err(_) => format!("its datasets were not found within {TIMEOUT:?}"),
                };
                // The chunk store may be mounted again later.
                tracing::error!(why, "the chunk store has no identity");
                self.lost = Some(now);
                return Ok(());
            }
        };
        self.store = Some((store, now));
        compare(context, meta, store)
    }
}

/// Fails when metadata bound to `meta` does not belong to the chunk store `store`.
pub(crate) fn compare(context: &ServerContext, meta: StoreId, store: StoreId) -> Result<(), Error> {
    if meta == store { Ok(()) } else { Err(of_another(context, meta, store)) }
}

fn of_another(context: &ServerContext, meta: StoreId, store: StoreId) -> Error {
    foreign(context, format!("indexes the chunk store {meta}, and this one is {store}"))
}

fn foreign(context: &ServerContext, why: String) -> Error {
    let why = format!("the metadata {why}; check --store and --meta");
    Error::new(Kind::Conflict, "open chunk store", &context.store, why)
}

async fn bind_meta(context: &ServerContext, store: StoreId) -> Result<(), Error> {
    let Err(error) = context.meta.bind(store).await else { return Ok(()) };
    match of_meta(context).await? {
        // A server on another chunk store was faster.
        Some(meta) if meta != store => Err(of_another(context, meta, store)),
        _ => Err(Error::meta("bind metadata to chunk store", store, error)),
    }
}

async fn of_meta(context: &ServerContext) -> Result<Option<StoreId>, Error> {
    context.meta.identity().await.doing("open metadata", &context.meta)
}

async fn of_store(context: &ServerContext) -> Result<Option<StoreId>, Error> {
    match context.store.read_all(&key(IDENTITY_KEY.to_owned())).await {
        Ok(bytes) => match IdentityRecord::decode(&bytes) {
            Ok(identity) => Ok(Some(identity.store)),
            Err(error) => {
                let why = format!("{error}; its object `{IDENTITY_KEY}` is damaged: remove it");
                Err(Error::new(Kind::Corrupt, "open chunk store", &context.store, why))
            }
        },
        Err(error) if error.kind == dl_store::Kind::Missing => Ok(None),
        Err(error) => {
            let error = Error::store("read its object", IDENTITY_KEY, error);
            let why = format!("{}; make that object readable, then start again", error.chain());
            Err(Error::new(error.kind, "open chunk store", &context.store, why))
        }
    }
}

fn drawn(context: &ServerContext) -> StoreId {
    let mut id = [0; 16];
    context.random.fill(&mut id);
    StoreId::from_bytes(id)
}

/// Writes the identity object; gives the stored identity, which another server may have written.
async fn create(context: &ServerContext, store: StoreId) -> Result<StoreId, Error> {
    let record = IdentityRecord { store };
    let identity = key(IDENTITY_KEY.to_owned());
    let created = context.store.create(&identity, record.encode().into()).await;
    if is_created(created, "open chunk store", &context.store)? {
        // A store with two-step creates may take the object from two servers; the last write holds.
        context.clock.sleep(context.limits.read_back_delay).await;
    }
    of_store(context).await?.ok_or_else(|| {
        let why = format!("its object `{IDENTITY_KEY}` was written, and is not there");
        Error::new(Kind::Unavailable, "open chunk store", &context.store, why)
    })
}

#[cfg(test)]
mod tests;

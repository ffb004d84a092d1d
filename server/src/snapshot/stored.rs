//! Snapshots in the chunk store: beside the chunks of their dataset.
//!
//! Must hold: the manifest is stored after all parts; damaged snapshots are never served, but built again.

use std::collections::BTreeMap;
use std::io::Read;

use bytes::Bytes;
use dl_format::layout::{SNAPSHOT_PART_LEN, SNAPSHOT_PIECE_LEN};
use dl_format::snapshot::Manifest;
use dl_format::{
    Crc32c, DatasetId, SnapshotObject, Stamp, Version, parse_snapshot_key, snapshot_key,
    snapshots_prefix,
};
use dl_proto::Kind;
use dl_store::{ByteRange, Key, ObjectRange, StoreExt};
use futures::TryStreamExt;
use tokio::task::{JoinError, JoinSet};

use super::build::Built;
use crate::datasets::spill::thread;
use crate::error::{Doing, Error, if_found, is_created};
use crate::shared::context::{ServerContext, key, prefix};

/// Parts of a snapshot in memory, stored in parallel.
const PARTS_AT_ONCE: usize = 2;

const ACTION: &str = "store a snapshot of dataset";

pub(crate) fn key_of(dataset: DatasetId, version: Version, object: SnapshotObject) -> Key {
    key(snapshot_key(dataset, version, object))
}

/// The manifest of a stored version; none without a good manifest, as a damaged snapshot is removed.
pub(crate) async fn find(
    context: &ServerContext,
    dataset: DatasetId,
    version: Version,
) -> Result<Option<Manifest>, Error> {
    let key = key_of(dataset, version, SnapshotObject::Manifest);
    let bytes = if_found(context.store.read_all(&key).await, "read the manifest", &key)?;
    let Some(bytes) = bytes else { return Ok(None) };
    match Manifest::decode(&bytes) {
        Ok(manifest) if (manifest.dataset, manifest.version) == (dataset, version) => {
            Ok(Some(manifest))
        }
        other => {
            let why =
                other.err().map_or_else(|| "it is another one's".to_owned(), |e| e.to_string());
            tracing::error!(%key, why, "a snapshot's manifest is damaged");
            discard(context, dataset, version).await?;
            Ok(None)
        }
    }
}

/// Reads a piece with the checksum of the manifest; none after the last piece.
///
/// # Errors
/// [`Kind::Unavailable`] when the piece is missing or damaged; the snapshot is removed then.
pub(crate) async fn piece(
    context: &ServerContext,
    manifest: &Manifest,
    number: u64,
) -> Result<Option<Bytes>, Error> {
    let Manifest { dataset, version, .. } = *manifest;
    let Some((range, crc)) = manifest.piece(number) else { return Ok(None) };
    let part_length = u64::from(SNAPSHOT_PART_LEN);
    let part = u32::try_from(range.start / part_length).unwrap_or(u32::MAX);
    let key = key_of(dataset, version, SnapshotObject::Part(part));
    let base = u64::from(part) * part_length;
    let wanted = ByteRange::exact(range.start - base, range.end - base);
    let wanted = wanted.map_err(|error| Error::new(Kind::Internal, "read", &key, error))?;
    let mut is_copy = true;
    let why = loop {
        let read = context.store.read(&[ObjectRange { key: key.clone(), range: wanted }]).await;
        let why = match read.into_iter().next() {
            Some(Ok(bytes)) if Crc32c::of(&bytes) == crc => return Ok(Some(bytes)),
            Some(Ok(_)) => "its checksum does not match its bytes".to_owned(),
            Some(Err(error)) => match error.kind {
                dl_store::Kind::Missing | dl_store::Kind::Corrupt => error.to_string(),
                _ => return Err(Error::store("read", &key, error)),
            },
            None => "the store gave no answer".to_owned(),
        };
        // A damaged copy in a fast store says nothing of the part.
        if !std::mem::take(&mut is_copy) {
            break why;
        }
        context.store.invalidate(&key);
    };
    if find(context, dataset, version).await?.is_none() {
        let why = "it was removed, as there are newer versions; ask again";
        return Err(Error::new(Kind::Unavailable, "read", &key, why));
    }
    tracing::error!(%key, why, "a part of a snapshot is damaged; it will be built again");
    discard(context, dataset, version).await?;
    let why = format!("{why}; ask again, for it to be built again");
    Err(Error::new(Kind::Unavailable, "read", &key, why))
}

/// Stores a built snapshot, with any parts that another server stored before.
pub(crate) async fn store(
    context: &ServerContext,
    dataset: DatasetId,
    built: Built,
) -> Result<Manifest, Error> {
    let Built { version, length, bytes, .. } = built;
    let taken = context.reserve.reserve(length, ACTION, dataset).await?;
    let _room = taken.map_err(|full| Error::new(Kind::Full, ACTION, dataset, full))?;
    let (mut bytes, mut checksums) = (bytes, Vec::new());
    let mut under_way = JoinSet::new();
    let count = length.div_ceil(SNAPSHOT_PART_LEN.into());
    for number in 0..count {
        let left = length - number * u64::from(SNAPSHOT_PART_LEN);
        let wanted = left.min(SNAPSHOT_PART_LEN.into()) as usize;
        let read = move || {
            let mut part = vec![0; wanted];
            bytes.read_exact(&mut part)?;
            let crcs = part.chunks(SNAPSHOT_PIECE_LEN as usize).map(Crc32c::of);
            let crcs: Vec<Crc32c> = crcs.collect();
            Ok((bytes, Bytes::from(part), crcs))
        };
        let part;
        let crcs: Vec<Crc32c>;
        (bytes, part, crcs) = thread(ACTION, dataset, read).await?;
        checksums.extend(crcs);
        let key = key_of(dataset, version, SnapshotObject::Part(number as u32));
        if under_way.len() >= PARTS_AT_ONCE {
            ended(dataset, under_way.join_next().await)?;
        }
        let context = context.clone();
        under_way.spawn(async move { create(&context, &key, part).await });
    }
    while let Some(stored) = under_way.join_next().await {
        ended(dataset, Some(stored))?;
    }
    let stamp = Stamp::at(context.clock.now());
    let manifest = Manifest { dataset, version, length, built: stamp, checksums };
    let key = key_of(dataset, version, SnapshotObject::Manifest);
    let created = context.store.create(&key, manifest.encode().into()).await;
    if is_created(created, "store the manifest", &key)? {
        return Ok(manifest);
    }
    // Another server was faster: its manifest holds.
    Ok(find(context, dataset, version).await?.unwrap_or(manifest))
}

fn ended(
    dataset: DatasetId,
    stored: Option<Result<Result<(), Error>, JoinError>>,
) -> Result<(), Error> {
    match stored {
        Some(Ok(stored)) => stored,
        Some(Err(error)) => Err(Error::new(Kind::Internal, ACTION, dataset, error)),
        None => Ok(()),
    }
}

/// Stores a part, in place of a part with other bytes: no manifest has the checksums of such a part.
async fn create(context: &ServerContext, key: &Key, part: Bytes) -> Result<(), Error> {
    const ACTION: &str = "store a part of a snapshot";
    if is_created(context.store.create(key, part.clone()).await, ACTION, key)?
        || if_found(context.store.read_all(key).await, ACTION, key)?.is_some_and(|it| it == part)
    {
        return Ok(());
    }
    context.store.delete(key).await.storing(ACTION, key)?;
    is_created(context.store.create(key, part).await, ACTION, key).map(drop)
}

/// Removes the stored snapshot of a version, except its leases: the snapshot may be built again.
pub(crate) async fn discard(
    context: &ServerContext,
    dataset: DatasetId,
    version: Version,
) -> Result<(), Error> {
    let mut objects = list(context, dataset).await?.remove(&version).unwrap_or_default();
    objects.retain(|object| !matches!(object, SnapshotObject::Lease { .. }));
    remove(context, dataset, version, objects).await
}

/// The time at which a snapshot was stored; none for an incomplete snapshot.
pub(crate) async fn built(
    context: &ServerContext,
    dataset: DatasetId,
    version: Version,
) -> Result<Option<Stamp>, Error> {
    let key = key_of(dataset, version, SnapshotObject::Manifest);
    let bytes = if_found(context.store.read_all(&key).await, "read the manifest", &key)?;
    Ok(bytes.and_then(|bytes| Some(Manifest::decode(&bytes).ok()?.built)))
}

/// Removes objects of a version, the manifest first: parts alone don't count as a snapshot.
pub(crate) async fn remove(
    context: &ServerContext,
    dataset: DatasetId,
    version: Version,
    mut objects: Vec<SnapshotObject>,
) -> Result<(), Error> {
    objects.sort_unstable();
    for object in objects {
        let key = key_of(dataset, version, object);
        context.store.delete(&key).await.storing("remove", &key)?;
    }
    Ok(())
}

/// The objects of a dataset's snapshots, and the leases on them, by version.
pub(crate) async fn list(
    context: &ServerContext,
    dataset: DatasetId,
) -> Result<BTreeMap<Version, Vec<SnapshotObject>>, Error> {
    let mut stored: BTreeMap<Version, Vec<SnapshotObject>> = BTreeMap::new();
    let below = prefix(snapshots_prefix(dataset));
    let mut objects = context.store.list(&below);
    loop {
        let object = objects.try_next().await.storing("list the snapshots of dataset", dataset)?;
        let Some(object) = object else { return Ok(stored) };
        if let Some((_, version, what)) = parse_snapshot_key(object.key.as_str()) {
            stored.entry(version).or_default().push(what);
        }
    }
}

//! Commits: a sealed object becomes part of its dataset (paper, 4.1, Figure 3).
//!
//! Must hold: an object is verified, stamped, put create-only and durable, and appended to the log before the
//! acknowledgement. The same id again, through any server, ends in the same state and the same answer.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dl_format::{
    ChunkId, Committed, DatasetId, Deletions, Digest, Extent, Header, ObjectKind, Stamp, Verified,
    encode_tombstone,
};
use dl_meta::{DatasetRecord, Refusal};
use dl_proto::Kind;
use dl_runtime::{Buffers, blocking};
use dl_store::Key;

use crate::datasets::catalog;
use crate::datasets::headers::read_header;
use crate::datasets::identity;
use crate::datasets::survey::logged_from;
use crate::error::{Doing, Error};
use crate::shared::context::{ServerContext, object_key};
use crate::shared::disk_reserve::Taken;

const ACTION: &str = "commit object";

const TOO_LARGE: &str = "it is larger than the chunks of this dataset";

/// The longest standstill in the upload of a large file: later, a purge removes its parts.
pub(crate) const STANDSTILL_MAX: Duration = Duration::from_secs(22 * 60 * 60);

/// Refuses an object that is too large for the dataset, before its receipt.
pub(crate) fn admit(record: &DatasetRecord, length: u64) -> Result<(), Error> {
    if length > u64::from(record.shape.size()) {
        return Err(Error::new(Kind::Invalid, "receive", "a chunk", TOO_LARGE));
    }
    Ok(())
}

/// Commits a sealed object that began to come at `arrived`; gives its stamp, and its memory back to `buffers`.
pub(crate) async fn put_chunk(
    context: &ServerContext,
    buffers: &Arc<Buffers>,
    record: &DatasetRecord,
    object: Vec<u8>,
    arrived: SystemTime,
) -> Result<Stamp, Error> {
    let dataset = record.id;
    let verified = blocking::run(move || Verified::check(object)).await;
    let verified = verified
        .map_err(|error| Error::new(Kind::Unavailable, ACTION, dataset, error))?
        .map_err(|error| Error::new(Kind::Invalid, ACTION, dataset, error))?;
    let header = verified.header();
    let refuse = |why: &str| Err(Error::new(Kind::Invalid, ACTION, header.id(), why));
    if header.dataset() != dataset {
        return refuse("it was sealed for another dataset");
    }
    if header.stamp().is_some() {
        return refuse("it carries a stamp; only servers give stamps");
    }
    if header.kind() == ObjectKind::Tombstone {
        return refuse("tombstones are made by Delete");
    }
    if header.is_rewrite() {
        return refuse("it claims versions of other chunks; only servers rewrite chunks");
    }
    if header.object_length() > u64::from(record.shape.size()) {
        return refuse(TOO_LARGE);
    }
    if let Some(why) = standstill(header) {
        refuse_new(context, header, Kind::Invalid, why).await?;
    }
    check_parts(context, header).await?;
    let _taken = take_room(context, header).await?;
    refuse_unlogged(context, header, |_| true).await?;
    commit(context, verified, arrived, |object| buffers.lend(object, 0)).await
}

/// Refuses an object before its storage, where the metadata store would refuse to log the object.
async fn refuse_unlogged(
    context: &ServerContext,
    header: &Header,
    is_refused: impl FnOnce(&Refusal) -> bool,
) -> Result<(), Error> {
    // The append reports a store that does not answer.
    let refusal = context.meta.refusal().await.ok().flatten();
    let Some(refusal) = refusal.filter(is_refused) else { return Ok(()) };
    let kind = Error::kind_of(&refusal);
    refuse_new(context, header, kind, refusal.to_string()).await
}

/// Refuses an object, unless already stored.
async fn refuse_new(
    context: &ServerContext,
    header: &Header,
    kind: Kind,
    why: String,
) -> Result<(), Error> {
    let key = object_key(header.dataset(), header.id(), header.kind());
    if is_stored(context, &key).await? {
        return Ok(());
    }
    Err(Error::new(kind, ACTION, header.id(), why))
}

/// Takes room for an object; none where the object is stored already.
async fn take_room(context: &ServerContext, header: &Header) -> Result<Option<Taken>, Error> {
    match context.reserve.reserve(header.object_length(), ACTION, header.id()).await? {
        Ok(taken) => Ok(Some(taken)),
        Err(full) => {
            refuse_new(context, header, Kind::Full, full.to_string()).await?;
            Ok(None)
        }
    }
}

/// Commits a tombstone. A metadata store with full memory takes tombstones, as deletes give memory back.
pub(crate) async fn put_tombstone(
    context: &ServerContext,
    dataset: DatasetId,
    id: ChunkId,
    deletions: &Deletions,
) -> Result<Stamp, Error> {
    let object = encode_tombstone(dataset, id, deletions)
        .map_err(|error| Error::new(Kind::Invalid, "delete by", id, error))?;
    let verified = Verified::check(object)
        .map_err(|error| Error::new(Kind::Internal, "delete by", id, error))?;
    let takes_none = |refusal: &Refusal| matches!(refusal, Refusal::All(_));
    refuse_unlogged(context, verified.header(), takes_none).await?;
    commit(context, verified, context.clock.now(), Bytes::from).await
}

/// Commits a chunk of moved files.
pub(crate) async fn put_rewritten(
    context: &ServerContext,
    object: Vec<u8>,
) -> Result<Stamp, Error> {
    let action = "commit rewritten";
    let verified = blocking::run(move || Verified::check(object)).await;
    let verified = verified
        .map_err(|error| Error::new(Kind::Unavailable, action, "chunk", error))?
        .map_err(|error| Error::new(Kind::Internal, action, "chunk", error))?;
    let _taken = take_room(context, verified.header()).await?;
    commit(context, verified, context.clock.now(), Bytes::from).await
}

async fn commit(
    context: &ServerContext,
    verified: Verified,
    arrived: SystemTime,
    share: impl FnOnce(Vec<u8>) -> Bytes,
) -> Result<Stamp, Error> {
    let (id, kind) = (verified.header().id(), verified.header().kind());
    let (dataset, digest) = (verified.header().dataset(), verified.header().digest());
    let now = context.clock.now();
    // Also for a late retry: a readable object may not be durable yet, and the create makes it durable.
    if let Some(why) = untimely(context, id, arrived, now)
        && !is_stored(context, &object_key(dataset, id, kind)).await?
    {
        return Err(Error::new(Kind::Denied, ACTION, id, why));
    }
    let stamp = match context.meta.stamp(dataset, Stamp::at(now)).await {
        Ok(stamp) => stamp,
        Err(error) => {
            let error = Error::meta("stamp object", id, error);
            return Err(catalog::explained(context, dataset, error).await);
        }
    };
    let (committed, object) =
        verified.commit(stamp).map_err(|error| Error::new(Kind::Internal, ACTION, id, error))?;
    let key = object_key(dataset, id, kind);
    match context.store.create(&key, share(object)).await {
        Ok(()) => append(context, &committed).await,
        Err(error) if error.kind == dl_store::Kind::Exists => {
            committed_before(context, dataset, id, kind, digest).await
        }
        // A stored object needs no room.
        Err(error) if error.kind == dl_store::Kind::Full && is_stored(context, &key).await? => {
            context.store.make_durable(std::slice::from_ref(&key)).await.storing(ACTION, id)?;
            committed_before(context, dataset, id, kind, digest).await
        }
        Err(error) => Err(Error::store(ACTION, id, error)),
    }
}

async fn is_stored(context: &ServerContext, object: &Key) -> Result<bool, Error> {
    match read_header(context, object).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind == Kind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Answers a put of an id already stored, and durable now.
async fn committed_before(
    context: &ServerContext,
    dataset: DatasetId,
    id: ChunkId,
    kind: ObjectKind,
    digest: Digest,
) -> Result<Stamp, Error> {
    let header = read_header(context, &object_key(dataset, id, kind)).await?;
    if header.digest() != digest {
        let why = "another object has this id; seal it again under a fresh one";
        return Err(Error::new(Kind::Conflict, ACTION, id, why));
    }
    let committed = header.committed();
    let committed = committed.map_err(|error| Error::new(Kind::Corrupt, ACTION, id, error))?;
    // Also of a logged object: its server may have died before its rows were written.
    append(context, &committed).await
}

/// The commit point.
async fn append(context: &ServerContext, object: &Committed) -> Result<Stamp, Error> {
    let header = object.header();
    match context.meta.append(object).await {
        Ok(_) => Ok(object.stamp()),
        Err(error) if error.kind == dl_meta::Kind::Missing => {
            // The dataset ended meanwhile; its sweep may have missed the object.
            let key = object_key(header.dataset(), header.id(), header.kind());
            let ended = catalog::by_id(context, header.dataset()).await;
            if matches!(&ended, Err(error) if error.kind == Kind::NotFound) {
                context.store.delete(&key).await.storing("remove object", header.id())?;
            }
            ended?;
            Err(Error::meta(ACTION, header.id(), error))
        }
        Err(error) => Err(Error::meta(ACTION, header.id(), error)),
    }
}

/// The reason to refuse the parts of a large file: its upload stood still, and a purge may be removing them.
fn standstill(header: &Header) -> Option<String> {
    let mut sealed: Vec<SystemTime> =
        header.extents().iter().map(|extent| extent.part.sealed_at()).collect();
    sealed.push(header.id().sealed_at());
    sealed.sort_unstable();
    let pauses = sealed.iter().zip(sealed.iter().skip(1));
    let pauses = pauses.map(|(one, next)| next.duration_since(*one).unwrap_or_default());
    let longest = pauses.max().filter(|pause| *pause > STANDSTILL_MAX)?;
    let hours = |time: Duration| time.as_secs().div_ceil(3_600);
    Some(format!(
        "the upload of its file stood still for {} hours, and may for {}; put the file again",
        hours(longest),
        hours(STANDSTILL_MAX)
    ))
}

/// A large file is published only when each of its parts was committed.
async fn check_parts(context: &ServerContext, header: &Header) -> Result<(), Error> {
    for extent in header.extents() {
        let dataset = header.dataset();
        if is_committed(context, dataset, extent).await? {
            continue;
        }
        identity::refuse_damaged(context, "find part", extent.part).await?;
        // The metadata lacks nothing now.
        if !is_committed(context, dataset, extent).await? {
            let why = format!("its part {} was never committed", extent.part);
            return Err(Error::new(Kind::Invalid, ACTION, header.id(), why));
        }
    }
    Ok(())
}

/// Whether the log has a part of a large file.
pub(crate) async fn is_committed(
    context: &ServerContext,
    dataset: DatasetId,
    extent: &Extent,
) -> Result<bool, Error> {
    let found = logged_from(context, dataset, extent.part).await?;
    Ok(found.is_some_and(|object| {
        object.id == extent.part
            && object.kind == ObjectKind::Part
            && object.file_bytes == u64::from(extent.length)
    }))
}

/// The reason to refuse an object by the time of its first piece, which came at `arrived`.
fn untimely(
    context: &ServerContext,
    id: ChunkId,
    arrived: SystemTime,
    now: SystemTime,
) -> Option<String> {
    let (sealed, limits) = (id.sealed_at(), &context.limits);
    let off = arrived.duration_since(sealed).or_else(|_| sealed.duration_since(arrived));
    let off = off.unwrap_or_default();
    let took = now.duration_since(arrived).unwrap_or_default();
    if off > limits.clock_skew {
        let seconds = off.as_secs();
        Some(format!(
            "its id is {seconds} s off this server's clock; set the clocks of client and server, or put it \
             again if it was on its way for that long"
        ))
    } else if took > limits.clock_skew {
        let (took, most) = (took.as_secs(), limits.clock_skew.as_secs());
        Some(format!("it took {took} s to come, and may take {most}; send fewer at a time"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests;

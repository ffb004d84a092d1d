//! The objects of a dataset for a recovery: a listing of the chunk store beside the log.
//!
//! Must hold: memory is bounded by the ids of the log and a few lots. Objects only in the log, or only in the
//! chunk store, are found.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dl_format::{
    ChunkId, DatasetId, DatasetName, dataset_prefix, hash_byte, hash_prefix, parse_object_key,
    parse_snapshot_key,
};
use dl_store::{Key, ObjectInfo, Prefix};
use futures::future::FutureExt;
use futures::stream::{self, Stream, StreamExt, TryStreamExt};

use super::shares::{FOLDERS_AT_ONCE, Shares};
use crate::datasets::survey::is_logged;
use crate::error::{Doing, Error};
use crate::shared::context::{ServerContext, prefix};

const LOG_PAGE: usize = 10_000;
/// Objects of a lot, as many as a bucket lists at once.
const LOT: usize = 1_000;
/// Parallel look-ups of unlisted objects in the log.
const LOOKED_AT_ONCE: usize = 64;
const FOLDERS: usize = 256;
/// The length of a log from which on folders are listed at once: about a listing for each folder.
pub(super) const MANY: usize = FOLDERS / FOLDERS_AT_ONCE * LOT;

#[derive(Debug)]
pub(super) struct Listed {
    pub(super) chunk: ChunkId,
    pub(super) is_tombstone: bool,
    pub(super) object: ObjectInfo,
}

/// A batch of objects of a dataset.
#[derive(Debug)]
pub(super) struct Lot {
    pub(super) listed: u64,
    /// The objects to read, by id: by the time of writing.
    pub(super) objects: Vec<Listed>,
    /// Reports on keys of no object.
    pub(super) problems: Vec<String>,
    /// Objects of the log missing in the chunk store.
    pub(super) lost: Vec<ChunkId>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) context: &'a ServerContext,
    pub(super) name: &'a DatasetName,
    pub(super) id: DatasetId,
    /// The seconds of the oldest ids of logged objects to read; none to read no logged object.
    pub(super) read_from: Option<u64>,
    pub(super) shares: &'a Shares,
}

/// The logged objects by hash byte, each in order; and whether the object was listed.
#[derive(Debug)]
struct Known(Vec<Vec<(ChunkId, AtomicBool)>>);

impl Known {
    /// Marks an object as listed; whether the log has the object.
    fn meet(&self, id: ChunkId) -> bool {
        let Some(logged) = self.0.get(usize::from(hash_byte(id))) else { return false };
        let place = logged.binary_search_by_key(&id, |(id, _)| *id).ok();
        let found = place.and_then(|place| logged.get(place));
        found.inspect(|(_, met)| met.store(true, Ordering::Relaxed)).is_some()
    }

    fn unmet(&self, folders: Range<usize>) -> impl Iterator<Item = ChunkId> {
        let logged = self.0.get(folders).unwrap_or_default().iter().flatten();
        logged.filter(|(_, met)| !met.load(Ordering::Relaxed)).map(|(id, _)| *id)
    }
}

impl<'a> Search<'a> {
    /// All objects to read, in lots. A long log is listed by folders alone: `verify` names keys elsewhere.
    pub(super) fn lots(self) -> impl Stream<Item = Result<Lot, Error>> + Send + 'a {
        // By the log alone: unlogged objects are read, which takes longer than any listing.
        let lots = stream::once(self.known()).map_ok(move |known| {
            let (count, known) = (known.0.iter().map(Vec::len).sum::<usize>(), Arc::new(known));
            if count < MANY {
                return self.below(prefix(dataset_prefix(self.id)), 0..FOLDERS, known).boxed();
            }
            let lots = (0..=u8::MAX).map(move |hash| self.folder(hash, Arc::clone(&known)).boxed());
            stream::iter(lots).flatten_unordered(FOLDERS_AT_ONCE).boxed()
        });
        lots.try_flatten()
    }

    fn folder(
        self,
        hash: u8,
        known: Arc<Known>,
    ) -> impl Stream<Item = Result<Lot, Error>> + Send + 'a {
        let lots = async move {
            let turn = self.shares.folder().await;
            let folder = usize::from(hash);
            let lots = self.below(prefix(hash_prefix(self.id, hash)), folder..folder + 1, known);
            lots.inspect(move |_| {
                let _until_it_ends = &turn;
            })
        };
        lots.flatten_stream()
    }

    /// The lots below a prefix with exactly `folders`.
    fn below(
        self,
        prefix: Prefix,
        folders: Range<usize>,
        known: Arc<Known>,
    ) -> impl Stream<Item = Result<Lot, Error>> + Send + 'a {
        let objects = self.list(prefix).try_chunks(LOT).map_err(|cut| cut.1);
        let listed = Arc::clone(&known);
        let lots = objects.and_then(move |objects| {
            let known = Arc::clone(&listed);
            async move { self.lot(objects, &known).await }
        });
        lots.chain(stream::once(async move {
            let lost = self.lost(&known, folders).await?;
            Ok(Lot { listed: 0, objects: Vec::new(), problems: Vec::new(), lost })
        }))
    }

    fn list(self, below: Prefix) -> impl Stream<Item = Result<ObjectInfo, Error>> + Send + 'a {
        let listed = self.context.store.list(&below);
        listed.map_err(move |error| Error::store("list the objects of dataset", self.name, error))
    }

    async fn known(self) -> Result<Known, Error> {
        let mut known: Vec<Vec<_>> = std::iter::repeat_with(Vec::new).take(FOLDERS).collect();
        let mut after = None;
        loop {
            let page = self
                .context
                .meta
                .objects(self.id, after, LOG_PAGE)
                .await
                .doing("read the log of dataset", self.name)?;
            after = page.last().map(|object| object.id);
            for object in &page {
                if let Some(logged) = known.get_mut(usize::from(hash_byte(object.id))) {
                    logged.push((object.id, AtomicBool::new(false)));
                }
            }
            if page.len() < LOG_PAGE {
                return Ok(Known(known));
            }
        }
    }

    /// Unlisted objects in `folders` that the log had before the listing, and has after.
    async fn lost(self, known: &Known, folders: Range<usize>) -> Result<Vec<ChunkId>, Error> {
        let looked_at = stream::iter(known.unmet(folders)).map(|id| async move {
            Ok::<_, Error>(is_logged(self.context, self.id, id).await?.then_some(id))
        });
        let lost = looked_at.buffered(LOOKED_AT_ONCE).try_filter_map(async |id| Ok(id));
        lost.try_collect().await
    }

    /// The lot of listed objects; the objects to read are durable from now on.
    async fn lot(self, listed: Vec<ObjectInfo>, known: &Known) -> Result<Lot, Error> {
        let mut lot = Lot {
            listed: listed.len() as u64,
            objects: Vec::new(),
            problems: Vec::new(),
            lost: Vec::new(),
        };
        for object in listed {
            match parse_object_key(object.key.as_str()) {
                Some((dataset, chunk, is_tombstone)) if dataset == self.id => {
                    let from = self.read_from;
                    let is_read = from.is_some_and(|from| u64::from(chunk.seconds()) >= from);
                    let is_known = known.meet(chunk);
                    if is_read || !is_known {
                        lot.objects.push(Listed { chunk, is_tombstone, object });
                    }
                }
                _ if parse_snapshot_key(object.key.as_str()).is_some() => lot.listed -= 1,
                _ => lot.problems.push(format!("{} is no object of a dataset", object.key)),
            }
        }
        lot.objects.sort_unstable_by_key(|listed| listed.chunk);
        // The metadata will name the objects.
        let keys: Vec<Key> = lot.objects.iter().map(|listed| listed.object.key.clone()).collect();
        self.context
            .store
            .make_durable(&keys)
            .await
            .storing("make durable the objects of dataset", self.name)?;
        Ok(lot)
    }
}

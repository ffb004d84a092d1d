//! The objects of a dataset that a recovery reads: a listing of the chunk store beside the log.
//!
//! Must hold: memory is bounded by the share of the dataset and by some lots, however many objects there
//! are. No object is overlooked that only the log, or only the chunk store, has.

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

use super::shares::{FOLDERS_AT_ONCE, Room, Shares};
use crate::error::Error;
use crate::parts::{Parts, prefix};
use crate::survey::is_logged;

/// Objects asked of the log at once.
const LOG_PAGE: usize = 10_000;
/// Objects of a lot, as many as a bucket lists at once.
const LOT: usize = 1_000;
/// Objects that were not listed and are looked for in the log at once.
const LOOKED_AT_ONCE: usize = 64;
const FOLDERS: usize = 256;
/// The length of a log from which on folders are listed at once: about the objects of one listing while all
/// folders take their turns.
pub(super) const MANY: usize = FOLDERS / FOLDERS_AT_ONCE * LOT;

/// An object that has to be read.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) chunk: ChunkId,
    pub(super) object: ObjectInfo,
}

/// Some objects of a dataset.
#[derive(Debug)]
pub(super) struct Lot {
    /// The number of its objects.
    pub(super) listed: u64,
    /// The objects to read, by id: by the time of writing.
    pub(super) objects: Vec<Listed>,
    /// Reports on keys that are no objects.
    pub(super) problems: Vec<String>,
    /// The number of objects that the log has and the chunk store lacks, and the first of them.
    pub(super) lost: Option<(u64, ChunkId)>,
}

/// The search for the objects of a dataset.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) parts: &'a Parts,
    pub(super) name: &'a DatasetName,
    pub(super) id: DatasetId,
    /// The seconds of the oldest ids of logged objects that are read; none to read no logged object.
    pub(super) read_from: Option<u64>,
    pub(super) shares: &'a Shares,
}

/// The logged objects with some hash bytes.
#[derive(Debug)]
struct Known {
    /// By hash byte, each in order.
    ids: Vec<Vec<ChunkId>>,
    /// The number of ids.
    count: usize,
    /// Whether each id was listed.
    met: Vec<Vec<AtomicBool>>,
    /// The first hash byte whose ids are not here.
    until: usize,
    room: Room,
}

impl Known {
    /// Notes that an object was listed; whether the log has it.
    fn meet(&self, id: ChunkId) -> bool {
        let hash = usize::from(hash_byte(id));
        let (Some(ids), Some(met)) = (self.ids.get(hash), self.met.get(hash)) else { return false };
        let place = ids.binary_search(&id).ok().and_then(|place| met.get(place));
        place.inspect(|met| met.store(true, Ordering::Relaxed)).is_some()
    }

    /// The logged objects in these folders that were not listed.
    fn unmet(&self, folders: Range<usize>) -> impl Iterator<Item = ChunkId> {
        let folders = self.ids.iter().zip(&self.met).take(folders.end).skip(folders.start);
        let unmet =
            |(id, met): (&ChunkId, &AtomicBool)| (!met.load(Ordering::Relaxed)).then_some(*id);
        folders.flat_map(move |(ids, met)| ids.iter().zip(met).filter_map(unmet))
    }
}

impl<'a> Search<'a> {
    /// All objects to read, a lot at a time. With a long log, folders are listed one by one, and keys beside
    /// the folders are not seen: `verify` names them.
    pub(super) fn lots(self) -> impl Stream<Item = Result<Lot, Error>> + Send + 'a {
        // By the log alone: objects that it lacks are read, which takes longer than any listing.
        let lots = stream::once(self.known(0)).map_ok(move |known| match known.until {
            FOLDERS if known.count < MANY => {
                self.below(prefix(dataset_prefix(self.id)), 0..FOLDERS, Arc::new(known)).boxed()
            }
            FOLDERS => self.pass(0..FOLDERS, known).boxed(),
            _ => self.passes().boxed(),
        });
        lots.try_flatten()
    }

    /// The lots below a prefix, which holds exactly these folders.
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

    /// The lots of a dataset with a long log, as many folders in one pass as its ids fit into memory.
    fn passes(self) -> impl Stream<Item = Result<Lot, Error>> + Send + 'a {
        let passes = stream::try_unfold((0, None), move |(first, turn)| async move {
            if first >= FOLDERS {
                return Ok(None);
            }
            let turn = match turn {
                Some(turn) => turn,
                None => self.shares.passes().await,
            };
            let known = self.known(first).await?;
            let until = known.until;
            Ok::<_, Error>(Some(((first..until, known), (until, Some(turn)))))
        });
        passes.map_ok(move |(folders, known)| self.pass(folders, known)).try_flatten()
    }

    /// The lots of these folders, of which many are listed at once.
    fn pass(
        self,
        folders: Range<usize>,
        known: Known,
    ) -> impl Stream<Item = Result<Lot, Error>> + Send + 'a {
        let known = Arc::new(known);
        let lots = stream::iter(folders).map(move |folder| {
            let known = Arc::clone(&known);
            let lots = async move {
                let turn = self.shares.folder().await;
                let hash = u8::try_from(folder).unwrap_or(u8::MAX);
                let below = prefix(hash_prefix(self.id, hash));
                let lots = self.below(below, folder..folder + 1, known);
                lots.inspect(move |_| {
                    let _until_it_ends = &turn;
                })
            };
            lots.flatten_stream().boxed()
        });
        lots.flatten_unordered(FOLDERS_AT_ONCE)
    }

    fn list(self, below: Prefix) -> impl Stream<Item = Result<ObjectInfo, Error>> + Send + 'a {
        let listed = self.parts.store.list(&below);
        listed.map_err(move |error| Error::store("list the objects of dataset", self.name, error))
    }

    /// The logged objects from a hash byte on, as far as there is room.
    async fn known(self, first: usize) -> Result<Known, Error> {
        let room = self.shares.room();
        let (ids, met) = (vec![Vec::new(); FOLDERS], Vec::new());
        let mut known = Known { ids, count: 0, met, until: FOLDERS, room };
        let mut after = None;
        loop {
            let page = self.parts.meta.objects(self.id, after, LOG_PAGE).await;
            let page =
                page.map_err(|error| Error::meta("read the log of dataset", self.name, error))?;
            after = page.last().map(|object| object.id);
            for object in &page {
                let hash = usize::from(hash_byte(object.id));
                if (first..known.until).contains(&hash)
                    && let Some(ids) = known.ids.get_mut(hash)
                {
                    ids.push(object.id);
                    known.count += 1;
                }
            }
            while known.until > first + 1 && !known.room.holds(known.count) {
                known.until -= 1;
                let dropped = known.ids.get_mut(known.until).map(std::mem::take);
                known.count -= dropped.map_or(0, |ids| ids.len());
            }
            if page.len() < LOG_PAGE {
                let unmet =
                    |ids: &Vec<ChunkId>| ids.iter().map(|_| AtomicBool::new(false)).collect();
                known.met = known.ids.iter().map(unmet).collect();
                return Ok(known);
            }
        }
    }

    /// Objects in these folders that the log had before the listing, and still has: a purge takes objects
    /// off the log first.
    async fn lost(
        self,
        known: &Known,
        folders: Range<usize>,
    ) -> Result<Option<(u64, ChunkId)>, Error> {
        let looked_at = stream::iter(known.unmet(folders)).map(|id| async move {
            Ok::<_, Error>(is_logged(self.parts, self.id, id).await?.then_some(id))
        });
        let lost = looked_at.buffered(LOOKED_AT_ONCE).try_fold(None, async |lost, id| {
            let one = |id| lost.map_or((1, id), |(count, first)| (count + 1, first));
            Ok(id.map(one).or(lost))
        });
        lost.await
    }

    /// The lot of listed objects; objects to read outlast a power cut from now on.
    async fn lot(self, listed: Vec<ObjectInfo>, known: &Known) -> Result<Lot, Error> {
        let mut lot = Lot {
            listed: listed.len() as u64,
            objects: Vec::new(),
            problems: Vec::new(),
            lost: None,
        };
        for object in listed {
            match parse_object_key(object.key.as_str()) {
                Some((dataset, chunk, _)) if dataset == self.id => {
                    let from = self.read_from;
                    let is_read = from.is_some_and(|from| u64::from(chunk.seconds()) >= from);
                    let is_known = known.meet(chunk);
                    if is_read || !is_known {
                        lot.objects.push(Listed { chunk, object });
                    }
                }
                _ if parse_snapshot_key(object.key.as_str()).is_some() => lot.listed -= 1,
                _ => lot.problems.push(format!("{} is no object of a dataset", object.key)),
            }
        }
        lot.objects.sort_unstable_by_key(|listed| listed.chunk);
        // The metadata will name these objects.
        let keys: Vec<Key> = lot.objects.iter().map(|listed| listed.object.key.clone()).collect();
        let settled = self.parts.store.settle(&keys).await;
        settled.map_err(|error| Error::store("settle the objects of dataset", self.name, error))?;
        Ok(lot)
    }
}

//! The survey of a dataset for purge and verify: its log, its objects in the chunk store, and their headers.
//!
//! Must hold: the same rows as `dl_format::Fold`; a chunk header is read once. Memory is bounded by [`SIZES`]
//! and about 100 bytes for each object. The store is listed before the log is read, so that no finished put
//! counts as unlogged. An unreadable object does not end the survey; a store without any answer does.

mod rows;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dl_format::{
    ChunkId, ChunkShape, Committed, DatasetId, EntrySet, EntryVersion, Extent, FileRecord, Header,
    ObjectKind, Stamp, Version, dataset_prefix, parse_object_key, parse_snapshot_key,
};
use dl_meta::ObjectRecord;
use dl_proto::Kind;
use dl_store::{ByteRange, Key, ObjectRange};
use futures::TryStreamExt;
use futures::stream::{self, Stream, StreamExt};

use crate::datasets::catalog;
use crate::datasets::identity;
use crate::datasets::spill::{Scratch, Sizes};
use crate::error::Error;
use crate::shared::context::{ServerContext, object_key, prefix};

pub(crate) use rows::{Row, Rows, Shares};

/// Bytes of the rows of a share before they are sorted; sorted rows take two and a half times as much.
const SIZES: Sizes = Sizes { memory: 8 << 20, partition: 8 << 20 };

/// Interval of the progress reports.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// The most headers in a call to the store, and the calls in flight.
const BATCH: usize = 64;
const BATCH_BYTES: u64 = 1 << 20;
const BATCHES_AT_ONCE: usize = 4;

/// Consecutive failed reads that hint at an absent store: all other reads, with their tries, would take hours.
const AWAY_AFTER: usize = 64;

const LOG_PAGE: usize = 10_000;

/// The header of an object, with its number in the log.
type NumberedHeader = (usize, Result<Header, Error>);

/// The objects of a dataset.
#[derive(Debug)]
pub(crate) struct Survey {
    dataset: DatasetId,
    /// The log, by id.
    pub(crate) objects: Arc<[ObjectRecord]>,
    /// The objects in the chunk store, and their bytes.
    pub(crate) stored: Stored,
    /// Keys of no object among the objects.
    pub(crate) strays: Vec<Key>,
    /// Errors of unreadable headers, by the number of the object in the log.
    pub(crate) unread: BTreeMap<usize, Error>,
    /// Deleted entries of the chunks in the log; after [`Survey::shares`], of all chunks that rows come from.
    pub(crate) deleted: DeletedEntries,
    /// The parts of large files, each with the number of its chunk.
    pub(crate) extents: Vec<(usize, Extent)>,
    /// Whether headers of chunks have other stamps than the metadata. The header holds.
    pub(crate) has_restamped: bool,
    sizes: Sizes,
}

/// Objects in the chunk store and their sizes, with 24 bytes of memory for each.
#[derive(Debug, Default)]
pub(crate) struct Stored(Vec<(ChunkId, u64)>);

impl Stored {
    fn of(mut objects: Vec<(ChunkId, u64)>) -> Self {
        objects.sort_unstable();
        objects.dedup_by_key(|(id, _)| *id);
        objects.shrink_to_fit();
        Self(objects)
    }

    pub(crate) fn get(&self, id: &ChunkId) -> Option<&u64> {
        let found = self.0.binary_search_by_key(id, |(id, _)| *id).ok()?;
        self.0.get(found).map(|(_, size)| size)
    }

    pub(crate) fn contains_key(&self, id: &ChunkId) -> bool {
        self.get(id).is_some()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &ChunkId> {
        self.0.iter().map(|(id, _)| id)
    }
}

/// The difference between the present and the original length of an object.
pub(crate) fn cut(size: u64, wanted: u64) -> Option<String> {
    let cut = if size < wanted { "cut short" } else { "too long" };
    (size != wanted).then(|| format!("it is {cut}: {size} bytes, written with {wanted}"))
}

/// The entries of tombstones, and the stamp of the last tombstone about a chunk.
#[derive(Debug, Default)]
pub(crate) struct DeletedEntries(HashMap<ChunkId, (EntrySet, Stamp)>);

impl DeletedEntries {
    pub(crate) fn contains(&self, version: &EntryVersion) -> bool {
        self.0.get(&version.chunk).is_some_and(|(entries, _)| entries.contains(version.entry))
    }

    /// The stamp of the last tombstone about a chunk.
    pub(crate) fn since(&self, chunk: ChunkId) -> Stamp {
        self.0.get(&chunk).map_or(Stamp::default(), |(_, since)| *since)
    }

    /// Adds the entries of a tombstone in known chunks alone: the number of other chunks has no bound.
    fn add(&mut self, tombstone: &Header, is_known: impl Fn(&ChunkId) -> bool) {
        let stamp = tombstone.stamp().unwrap_or_default();
        for (chunk, entries) in tombstone.deletions().iter().filter(|(id, _)| is_known(id)) {
            let (known, since) = self.0.entry(chunk).or_default();
            known.union(entries);
            *since = stamp.max(*since);
        }
    }
}

/// Detects an absent store by consecutive reads without an answer.
#[derive(Debug, Default)]
pub(crate) struct Away(usize);

impl Away {
    /// Counts the result of the next read, and gives the result back.
    ///
    /// # Errors
    /// The error of the read, where many reads failed and the store does not answer for its identity either.
    pub(crate) async fn note<T>(
        &mut self,
        context: &ServerContext,
        read: Result<T, Error>,
    ) -> Result<Result<T, Error>, Error> {
        let is_away = match &read {
            Err(error) if error.kind.is_retryable() => {
                self.0 += 1;
                self.0.is_multiple_of(AWAY_AFTER) && !identity::answers(context).await
            }
            Ok(_) | Err(_) => {
                self.0 = 0;
                false
            }
        };
        match read {
            Err(error) if is_away => Err(error),
            read => Ok(read),
        }
    }
}

impl Survey {
    /// Lists the store, reads the log and the tombstones.
    pub(crate) async fn read(context: &ServerContext, dataset: DatasetId) -> Result<Self, Error> {
        let (stored, strays) = stored(context, dataset).await?;
        let objects = log(context, dataset).await?.into();
        let mut survey = Self {
            dataset,
            objects,
            stored,
            strays,
            unread: BTreeMap::new(),
            deleted: DeletedEntries::default(),
            extents: Vec::new(),
            has_restamped: false,
            sizes: SIZES,
        };
        let mut deleted = DeletedEntries::default();
        let unread = survey.name(context, &mut deleted, |id| survey.is_logged(id)).await?;
        survey.deleted = deleted;
        survey.unread.extend(unread);
        Ok(survey)
    }

    /// Whether the headers of all objects in the log and the store are known.
    pub(crate) fn is_whole(&self) -> bool {
        self.unread.is_empty() && self.unlogged() == 0
    }

    /// The number of stored objects missing in the log.
    pub(crate) fn unlogged(&self) -> usize {
        self.stored.keys().filter(|id| !self.is_logged(id)).count()
    }

    /// Whether the log had an object.
    pub(crate) fn is_logged(&self, id: &ChunkId) -> bool {
        self.objects.binary_search_by_key(id, |object| object.id).is_ok()
    }

    /// The version of the log.
    pub(crate) fn version(&self) -> Version {
        let mut version = Version::default();
        self.objects.iter().for_each(|object| version.add(object.id, object.stamp));
        version
    }

    /// The tombstones, by number.
    pub(crate) fn tombstones(&self) -> Vec<usize> {
        self.of_kind(ObjectKind::Tombstone)
    }

    pub(crate) fn of_kind(&self, kind: ObjectKind) -> Vec<usize> {
        let numbered = self.objects.iter().enumerate();
        numbered.filter(|(_, object)| object.kind == kind).map(|(number, _)| number).collect()
    }

    /// The key of an object of the log.
    pub(crate) fn key(&self, object: &ObjectRecord) -> Key {
        object_key(self.dataset, object.id, object.kind)
    }

    /// Headers of objects by their numbers in the log, in the order of the numbers.
    pub(crate) fn headers<'a>(
        &'a self,
        context: &'a ServerContext,
        numbers: Vec<usize>,
    ) -> impl Stream<Item = NumberedHeader> + 'a {
        self.batches(context, numbers).flat_map(stream::iter)
    }

    fn batches<'a>(
        &'a self,
        context: &'a ServerContext,
        numbers: Vec<usize>,
    ) -> impl Stream<Item = Vec<NumberedHeader>> + 'a {
        let mut numbers = numbers.into_iter().peekable();
        let batches = std::iter::from_fn(move || {
            let length =
                |number: usize| self.objects.get(number).map_or(0, |o| u64::from(o.header_length));
            let first = numbers.next()?;
            let (mut batch, mut bytes) = (vec![first], length(first));
            while let Some(number) = numbers.next_if(|number| {
                batch.len() < BATCH && bytes.saturating_add(length(*number)) <= BATCH_BYTES
            }) {
                bytes = bytes.saturating_add(length(number));
                batch.push(number);
            }
            Some(batch)
        });
        let read = move |batch| self.read_batch(context, batch);
        stream::iter(batches).map(read).buffered(BATCHES_AT_ONCE)
    }

    async fn read_batch(
        &self,
        context: &ServerContext,
        numbers: Vec<usize>,
    ) -> Vec<NumberedHeader> {
        let objects: Vec<(usize, &ObjectRecord)> = numbers
            .into_iter()
            .filter_map(|number| Some((number, self.objects.get(number)?)))
            .collect();
        let wanted: Vec<ObjectRange> = objects
            .iter()
            .map(|(_, object)| {
                let end = u64::from(object.header_length).max(1);
                // From the object itself: an exact range may come from a copy.
                let range = ByteRange::up_to(end).expect("more than nothing");
                ObjectRange { key: self.key(object), range }
            })
            .collect();
        let heads = context.store.read(&wanted).await;
        objects
            .into_iter()
            .zip(heads)
            .map(|((number, object), head)| {
                let (action, key) = ("read header", self.key(object));
                let header = head.map_err(|error| Error::store(action, &key, error));
                let header = header.and_then(|head| {
                    let header = Header::decode(&head);
                    header.map_err(|error| Error::new(Kind::Corrupt, action, &key, error))
                });
                let header = header.and_then(|header| match self.differs(object, &header) {
                    None => Ok(header),
                    Some(why) => Err(Error::new(Kind::Corrupt, action, &key, why)),
                });
                (number, header)
            })
            .collect()
    }

    /// The difference between an object in the store and its record in the log. The stamps may differ.
    fn differs(&self, object: &ObjectRecord, header: &Header) -> Option<String> {
        if header.dataset() != self.dataset || !is_object(object, header) {
            return Some("it is another object than the metadata says".to_owned());
        }
        self.cut(object)
    }

    /// The difference between the length of an object in the store and in the log.
    pub(crate) fn cut(&self, object: &ObjectRecord) -> Option<String> {
        cut(*self.stored.get(&object.id)?, object.object_length)
    }

    /// Whether the damage is only more bytes after the whole object.
    pub(crate) fn is_grown(&self, object: &ObjectRecord, damage: &str) -> bool {
        let size = self.stored.get(&object.id);
        size.is_some_and(|size| *size > object.object_length)
            && self.cut(object).is_some_and(|cut| damage.ends_with(&cut))
    }

    /// Reads all chunk headers once: gives their rows, and keeps unreadable headers and the parts of large
    /// files. `heard` gets the number of checked objects; its error ends the call.
    pub(crate) async fn shares(
        &mut self,
        context: &ServerContext,
        shape: ChunkShape,
        heard: impl Fn(u64) -> Result<(), Error>,
    ) -> Result<Shares, Error> {
        let scratch = Scratch::new(context.reserve.scratch());
        let mut shares = Shares::new(self.dataset, &self.objects, shape, scratch, self.sizes);
        let (mut unread, mut extents, mut away) = (Vec::new(), Vec::new(), Away::default());
        let (mut origins, mut restamped) = (HashSet::new(), Vec::new());
        let numbers = self.of_kind(ObjectKind::Chunk);
        let (mut looked_at, mut told) = (self.objects.len() - numbers.len(), Duration::ZERO);
        {
            let mut batches = std::pin::pin!(self.batches(context, numbers));
            while let Some(batch) = batches.next().await {
                looked_at += batch.len();
                let mut chunks = Vec::with_capacity(batch.len());
                for (number, header) in batch {
                    let chunk = away.note(context, header).await?.and_then(|header| {
                        let committed = header.committed();
                        committed.map_err(|error| {
                            Error::new(Kind::Corrupt, "read header of object", number, error)
                        })
                    });
                    match chunk {
                        Ok(chunk) => {
                            let known = self.objects.get(number).map(|object| object.stamp);
                            if known != Some(chunk.stamp()) {
                                restamped.push((number, chunk.stamp()));
                            }
                            let of_file = chunk.header().extents().iter();
                            extents.extend(of_file.map(|extent| (number, *extent)));
                            origins.extend(self.origins(&chunk));
                            chunks.push((number, chunk));
                        }
                        Err(error) => unread.push((number, error)),
                    }
                }
                shares = shares.add(chunks).await?;
                let now = context.clock.monotonic();
                if now.saturating_sub(told) >= SIGN_OF_LIFE {
                    told = now;
                    heard(looked_at as u64)?;
                }
            }
        }
        self.unread.extend(unread);
        self.extents = extents;
        self.take_stamps(restamped);
        self.name_origins(context, origins).await?;
        Ok(shares.with_log(&self.objects))
    }

    fn take_stamps(&mut self, restamped: Vec<(usize, Stamp)>) {
        if restamped.is_empty() {
            return;
        }
        let mut objects = self.objects.to_vec();
        for (number, stamp) in restamped {
            objects.get_mut(number).into_iter().for_each(|object| object.stamp = stamp);
        }
        self.objects = objects.into();
        self.has_restamped = true;
    }

    /// The original chunks of the versions in a chunk, where missing in the log.
    fn origins<'a>(&'a self, chunk: &'a Committed) -> impl Iterator<Item = ChunkId> + 'a {
        let entries = chunk.header().is_rewrite().then(|| chunk.header().entries());
        let origins = entries.into_iter().flatten().map(|entry| FileRecord::of(chunk, &entry));
        origins.map(|record| record.version.chunk).filter(|id| !self.is_logged(id))
    }

    /// Reads the deleted entries of known chunks; gives the unreadable tombstones.
    async fn name(
        &self,
        context: &ServerContext,
        deleted: &mut DeletedEntries,
        is_known: impl Fn(&ChunkId) -> bool,
    ) -> Result<Vec<(usize, Error)>, Error> {
        let (mut unread, mut away) = (Vec::new(), Away::default());
        let mut headers = std::pin::pin!(self.headers(context, self.tombstones()));
        while let Some((number, header)) = headers.next().await {
            match away.note(context, header).await? {
                Ok(header) => deleted.add(&header, &is_known),
                Err(error) => unread.push((number, error)),
            }
        }
        Ok(unread)
    }

    async fn name_origins(
        &mut self,
        context: &ServerContext,
        origins: HashSet<ChunkId>,
    ) -> Result<(), Error> {
        if origins.is_empty() {
            return Ok(());
        }
        let mut deleted = std::mem::take(&mut self.deleted);
        let unread = self.name(context, &mut deleted, |id| origins.contains(id)).await?;
        self.deleted = deleted;
        self.unread.extend(unread);
        Ok(())
    }

    /// Whether existing chunks can't be read: they may hold files deleted by lost tombstones.
    pub(crate) fn has_unread_chunks(&self) -> bool {
        self.unread.iter().any(|(number, error)| {
            let object = self.objects.get(*number);
            let is_chunk = object.is_some_and(|object| object.kind == ObjectKind::Chunk);
            is_chunk && error.kind != Kind::NotFound
        })
    }
}

/// Whether a header belongs to an object of the log. The stamps may differ: of two tries to store the object, a
/// store with two-step creates may have kept the unlogged try.
pub(crate) fn is_object(object: &ObjectRecord, header: &Header) -> bool {
    let known = (object.id, object.kind, object.object_length, object.entry_count);
    known == (header.id(), header.kind(), header.object_length(), header.entry_count())
}

/// The machine and process of an id.
pub(crate) type Writer = [u8; 9];

/// The writer of an object.
pub(crate) fn writer(id: ChunkId) -> Writer {
    let [_, _, _, _, writer @ .., _, _, _] = *id.as_bytes();
    writer
}

async fn stored(context: &ServerContext, dataset: DatasetId) -> Result<(Stored, Vec<Key>), Error> {
    let (mut stored, mut strays) = (Vec::new(), Vec::new());
    let all = prefix(dataset_prefix(dataset));
    let mut objects = context.store.list(&all);
    loop {
        let object = objects.try_next().await;
        let object =
            object.map_err(|error| Error::store("list the objects of dataset", dataset, error))?;
        let Some(object) = object else { return Ok((Stored::of(stored), strays)) };
        match parse_object_key(object.key.as_str()) {
            Some((of, id, _)) if of == dataset => {
                stored.push((id, object.size));
            }
            // Snapshots can be built again.
            _ if parse_snapshot_key(object.key.as_str()).is_some() => {}
            _ => strays.push(object.key),
        }
    }
}

/// Whether the log has an object.
pub(crate) async fn is_logged(
    context: &ServerContext,
    dataset: DatasetId,
    id: ChunkId,
) -> Result<bool, Error> {
    Ok(logged_from(context, dataset, id).await?.is_some_and(|object| object.id == id))
}

/// The first object of the log from an id on.
pub(crate) async fn logged_from(
    context: &ServerContext,
    dataset: DatasetId,
    id: ChunkId,
) -> Result<Option<ObjectRecord>, Error> {
    match context.meta.objects(dataset, id.before(), 1).await {
        Ok(found) => Ok(found.into_iter().next()),
        Err(error) => {
            let error = Error::meta("find object", id, error);
            Err(catalog::explained(context, dataset, error).await)
        }
    }
}

/// The whole log of a dataset, by id, from complete metadata.
async fn log(context: &ServerContext, dataset: DatasetId) -> Result<Vec<ObjectRecord>, Error> {
    let mut objects: Vec<ObjectRecord> = Vec::new();
    loop {
        let after = objects.last().map(|object| object.id);
        let page = context.meta.objects(dataset, after, LOG_PAGE).await;
        let page = page.map_err(|error| Error::meta("read the log of dataset", dataset, error))?;
        let is_last = page.len() < LOG_PAGE;
        objects.extend(page);
        if is_last {
            break;
        }
    }
    // Incomplete metadata gives pages, too.
    identity::refuse_damaged(context, "read the log of dataset", dataset).await?;
    objects.shrink_to_fit();
    Ok(objects)
}

#[cfg(test)]
mod tests;

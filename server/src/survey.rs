//! What a dataset is made of, read from its log, the chunk store and the headers of its objects:
//! what purge and verify judge by.
//!
//! Must hold: the same rows as `dl_format::Fold`; the header of a chunk is read once. Memory is
//! bounded by [`SIZES`] and about a hundred bytes for each object. The store is listed before the
//! log is read: what is in the log then is not missed. An object that can't be read ends nothing, a
//! store that is away everything.

mod rows;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dl_format::{
    ChunkId, ChunkShape, Committed, DatasetId, EntrySet, EntryVersion, Extent, FilePath,
    FileRecord, Header, ObjectKind, Stamp, Version, dataset_prefix, parse_object_key,
    parse_snapshot_key,
};
use dl_meta::ObjectRecord;
use dl_proto::Kind;
use dl_store::{ByteRange, Key, ObjectRange};
use futures::TryStreamExt;
use futures::stream::{self, Stream, StreamExt};

use crate::catalog;
use crate::error::Error;
use crate::identity;
use crate::parts::{Parts, object_key, prefix};
use crate::spill::{Scratch, Sizes};

pub(crate) use rows::{Row, Rows, Shares};

/// Rows of one share before they are sorted; sorted, they take two and a half times as much.
const SIZES: Sizes = Sizes { memory: 8 << 20, partition: 8 << 20 };

/// How often whoever waits for the headers is told how many were read.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// Headers read with one call to the store, at most, and such calls in flight.
const BATCH: usize = 64;
const BATCH_BYTES: u64 = 1 << 20;
const BATCHES_AT_ONCE: usize = 4;

/// After so many headers one after the other that the store could not give now, it is away: the others
/// would take hours, each with its own tries.
const AWAY_AFTER: usize = 64;

/// Chunks whose deleted entries are held at once: up to 8 KiB each.
const BITMAPS: usize = 1_024;

/// Paths asked of the metadata at once.
const ASKED: usize = 4_096;

/// Objects asked of the log at once.
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
    /// What lies among them and is no object.
    pub(crate) strays: Vec<Key>,
    /// Why headers can't be read, by the number of the object in the log.
    pub(crate) unread: BTreeMap<usize, Error>,
    /// What the tombstones say of chunks in the log, and once the shares were read of all that rows
    /// come from.
    pub(crate) named: Named,
    /// The parts of large files, and the number of the chunk that names each.
    pub(crate) extents: Vec<(usize, Extent)>,
    /// Whether chunks have another stamp in their header than in the metadata. The header holds.
    pub(crate) has_restamped: bool,
    sizes: Sizes,
}

/// Objects in the chunk store and their bytes, 24 bytes of memory for each.
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

/// In what a length is not the one that an object was written with.
pub(crate) fn cut(size: u64, wanted: u64) -> Option<String> {
    let cut = if size < wanted { "cut short" } else { "too long" };
    (size != wanted).then(|| format!("it is {cut}: {size} bytes, written with {wanted}"))
}

/// The entries that tombstones name, and the stamp of the last tombstone about a chunk.
#[derive(Debug, Default)]
pub(crate) struct Named(HashMap<ChunkId, (EntrySet, Stamp)>);

impl Named {
    pub(crate) fn contains(&self, version: &EntryVersion) -> bool {
        self.0.get(&version.chunk).is_some_and(|(entries, _)| entries.contains(version.entry))
    }

    /// Since when all of a chunk that is named is named, at the latest.
    pub(crate) fn since(&self, chunk: ChunkId) -> Stamp {
        self.0.get(&chunk).map_or(Stamp::default(), |(_, since)| *since)
    }

    /// Takes what a tombstone names of chunks that rows may come from; it may name others, however many.
    fn add(&mut self, tombstone: &Header, is_known: impl Fn(&ChunkId) -> bool) {
        let stamp = tombstone.stamp().unwrap_or_default();
        for (chunk, entries) in tombstone.deletions().iter().filter(|(id, _)| is_known(id)) {
            let (known, since) = self.0.entry(chunk).or_default();
            known.union(entries);
            *since = stamp.max(*since);
        }
    }
}

/// Whether the store is away, by how many reads one after the other it could not answer.
#[derive(Debug, Default)]
pub(crate) struct Away(usize);

impl Away {
    /// Takes note of what the next read gave, and gives it back.
    ///
    /// # Errors
    /// Why that one failed, when so many did that the store was asked for something else and did not
    /// answer either.
    pub(crate) async fn note<T>(
        &mut self,
        parts: &Parts,
        read: Result<T, Error>,
    ) -> Result<Result<T, Error>, Error> {
        let is_away = match &read {
            Err(error) if error.kind.is_retryable() => {
                self.0 += 1;
                self.0.is_multiple_of(AWAY_AFTER) && !identity::answers(parts).await
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
    /// Lists the store, reads the log, and what the tombstones say.
    pub(crate) async fn read(parts: &Parts, dataset: DatasetId) -> Result<Self, Error> {
        let (stored, strays) = stored(parts, dataset).await?;
        let objects = log(parts, dataset).await?.into();
        let mut survey = Self {
            dataset,
            objects,
            stored,
            strays,
            unread: BTreeMap::new(),
            named: Named::default(),
            extents: Vec::new(),
            has_restamped: false,
            sizes: SIZES,
        };
        let mut named = Named::default();
        let unread = survey.name(parts, &mut named, |id| survey.is_logged(id)).await?;
        survey.named = named;
        survey.unread.extend(unread);
        Ok(survey)
    }

    /// Whether the contents of everything in the log and the store are known.
    pub(crate) fn is_whole(&self) -> bool {
        self.unread.is_empty() && self.unlogged() == 0
    }

    /// How many objects of the store the log lacks.
    pub(crate) fn unlogged(&self) -> usize {
        self.stored.keys().filter(|id| !self.is_logged(id)).count()
    }

    /// Whether the log had it.
    pub(crate) fn is_logged(&self, id: &ChunkId) -> bool {
        self.objects.binary_search_by_key(id, |object| object.id).is_ok()
    }

    /// Which objects the log has.
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

    /// Headers of objects by their numbers in the log, in that order.
    pub(crate) fn headers<'a>(
        &'a self,
        parts: &'a Parts,
        numbers: Vec<usize>,
    ) -> impl Stream<Item = NumberedHeader> + 'a {
        self.batches(parts, numbers).flat_map(stream::iter)
    }

    fn batches<'a>(
        &'a self,
        parts: &'a Parts,
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
        let read = move |batch| self.read_batch(parts, batch);
        stream::iter(batches).map(read).buffered(BATCHES_AT_ONCE)
    }

    async fn read_batch(&self, parts: &Parts, numbers: Vec<usize>) -> Vec<NumberedHeader> {
        let objects: Vec<(usize, &ObjectRecord)> = numbers
            .into_iter()
            .filter_map(|number| Some((number, self.objects.get(number)?)))
            .collect();
        let wanted: Vec<ObjectRange> = objects
            .iter()
            .map(|(_, object)| {
                let end = u64::from(object.header_length).max(1);
                // Of the object itself: an exact range may come from a copy.
                let range = ByteRange::up_to(end).expect("more than nothing");
                ObjectRange { key: self.key(object), range }
            })
            .collect();
        let heads = parts.store.read(&wanted).await;
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

    /// In what an object in the store is not the one of the log. Its stamp may be another.
    fn differs(&self, object: &ObjectRecord, header: &Header) -> Option<String> {
        if header.dataset() != self.dataset || !is_object(object, header) {
            return Some("it is another object than the metadata says".to_owned());
        }
        self.cut(object)
    }

    /// In what the length of an object in the store is not that of the log.
    pub(crate) fn cut(&self, object: &ObjectRecord) -> Option<String> {
        cut(*self.stored.get(&object.id)?, object.object_length)
    }

    /// Whether this is said of an object that is whole, and has more bytes behind its own.
    pub(crate) fn is_grown(&self, object: &ObjectRecord, damage: &str) -> bool {
        let size = self.stored.get(&object.id);
        size.is_some_and(|size| *size > object.object_length)
            && self.cut(object).is_some_and(|cut| damage.ends_with(&cut))
    }

    /// Reads the headers of all chunks, once: gives the rows of their entries, and keeps what can't
    /// be read and the parts of large files. `heard` is told how many objects were looked at, and
    /// ends it with an error.
    pub(crate) async fn shares(
        &mut self,
        parts: &Parts,
        shape: ChunkShape,
        heard: impl Fn(u64) -> Result<(), Error>,
    ) -> Result<Shares, Error> {
        let scratch = Scratch::new(parts.room.scratch());
        let mut shares = Shares::new(self.dataset, &self.objects, shape, scratch, self.sizes);
        let (mut unread, mut extents, mut away) = (Vec::new(), Vec::new(), Away::default());
        let (mut origins, mut restamped) = (HashSet::new(), Vec::new());
        let numbers = self.of_kind(ObjectKind::Chunk);
        let (mut looked_at, mut told) = (self.objects.len() - numbers.len(), Duration::ZERO);
        {
            let mut batches = std::pin::pin!(self.batches(parts, numbers));
            while let Some(batch) = batches.next().await {
                looked_at += batch.len();
                let mut chunks = Vec::with_capacity(batch.len());
                for (number, header) in batch {
                    let chunk = away.note(parts, header).await?.and_then(|header| {
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
                let now = parts.clock.monotonic();
                if now.saturating_sub(told) >= SIGN_OF_LIFE {
                    told = now;
                    heard(looked_at as u64)?;
                }
            }
        }
        self.unread.extend(unread);
        self.extents = extents;
        self.take_stamps(restamped);
        self.name_origins(parts, origins).await?;
        Ok(shares.with_log(&self.objects))
    }

    /// Judges by the stamps of the headers from now on.
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

    /// The chunks that versions in this one were first committed in, and that are gone.
    fn origins<'a>(&'a self, chunk: &'a Committed) -> impl Iterator<Item = ChunkId> + 'a {
        let entries = chunk.header().is_rewrite().then(|| chunk.header().entries());
        let origins = entries.into_iter().flatten().map(|entry| FileRecord::of(chunk, &entry));
        origins.map(|record| record.version.chunk).filter(|id| !self.is_logged(id))
    }

    /// Takes what the tombstones say of known chunks; gives those that can't be read.
    async fn name(
        &self,
        parts: &Parts,
        named: &mut Named,
        is_known: impl Fn(&ChunkId) -> bool,
    ) -> Result<Vec<(usize, Error)>, Error> {
        let (mut unread, mut away) = (Vec::new(), Away::default());
        let mut headers = std::pin::pin!(self.headers(parts, self.tombstones()));
        while let Some((number, header)) = headers.next().await {
            match away.note(parts, header).await? {
                Ok(header) => named.add(&header, &is_known),
                Err(error) => unread.push((number, error)),
            }
        }
        Ok(unread)
    }

    /// Takes what the tombstones say of these chunks.
    async fn name_origins(
        &mut self,
        parts: &Parts,
        origins: HashSet<ChunkId>,
    ) -> Result<(), Error> {
        if origins.is_empty() {
            return Ok(());
        }
        let mut named = std::mem::take(&mut self.named);
        let unread = self.name(parts, &mut named, |id| origins.contains(id)).await?;
        self.named = named;
        self.unread.extend(unread);
        Ok(())
    }

    /// Whether objects are lost or damaged, so that of what they deleted, or hid, only the metadata knows.
    pub(crate) fn has_losses(&self) -> bool {
        let is_lost = |error: &Error| matches!(error.kind, Kind::NotFound | Kind::Corrupt);
        self.unread.values().any(is_lost)
    }

    /// Whether chunks can't be read that are there: they may hold what lost tombstones deleted. What is gone
    /// holds nothing.
    pub(crate) fn has_unread_chunks(&self) -> bool {
        self.unread.iter().any(|(number, error)| {
            let object = self.objects.get(*number);
            let is_chunk = object.is_some_and(|object| object.kind == ObjectKind::Chunk);
            is_chunk && error.kind != Kind::NotFound
        })
    }

    /// Which of these files are deleted by what the metadata says, in the order asked: themselves, or a
    /// newer version of theirs that lies in an object which can't be read.
    pub(crate) async fn are_ended(
        &self,
        parts: &Parts,
        files: &[(FilePath, EntryVersion)],
    ) -> Result<Vec<bool>, Error> {
        let versions: Vec<EntryVersion> = files.iter().map(|(_, version)| *version).collect();
        let mut are_ended = self.are_deleted(parts, &versions).await?;
        for (files, are_ended) in files.chunks(ASKED).zip(are_ended.chunks_mut(ASKED)) {
            let paths: Vec<FilePath> = files.iter().map(|(path, _)| path.clone()).collect();
            let newest = parts.meta.ended(self.dataset, &paths).await.map_err(|error| {
                Error::meta("look up what stood in dataset", self.dataset, error)
            })?;
            for (((_, version), newest), is_ended) in files.iter().zip(newest).zip(are_ended) {
                *is_ended |= newest.is_some_and(|newest| newest.version > *version);
            }
        }
        Ok(are_ended)
    }

    /// Which of these versions the metadata has as deleted, in the order asked.
    async fn are_deleted(
        &self,
        parts: &Parts,
        versions: &[EntryVersion],
    ) -> Result<Vec<bool>, Error> {
        let chunks: BTreeSet<ChunkId> = versions.iter().map(|version| version.chunk).collect();
        let chunks: Vec<ChunkId> = chunks.into_iter().collect();
        let mut are_deleted = vec![false; versions.len()];
        for chunks in chunks.chunks(BITMAPS) {
            let deleted = parts.meta.deleted(self.dataset, chunks).await.map_err(|error| {
                Error::meta("look up what is deleted of dataset", self.dataset, error)
            })?;
            let of_chunk: HashMap<&ChunkId, EntrySet> = chunks.iter().zip(deleted).collect();
            for (version, is_deleted) in versions.iter().zip(&mut are_deleted) {
                let entries = of_chunk.get(&version.chunk);
                *is_deleted |= entries.is_some_and(|entries| entries.contains(version.entry));
            }
        }
        Ok(are_deleted)
    }
}

/// Whether a header is that of an object of the log: also where two tries to store it had two stamps,
/// and a store that checks and writes in two steps kept the stamp that was not logged.
pub(crate) fn is_object(object: &ObjectRecord, header: &Header) -> bool {
    let known = (object.id, object.kind, object.object_length, object.entry_count);
    known == (header.id(), header.kind(), header.object_length(), header.entry_count())
}

/// The machine and process of an id.
pub(crate) type Writer = [u8; 9];

/// Whose id it is.
pub(crate) fn writer(id: ChunkId) -> Writer {
    let [_, _, _, _, writer @ .., _, _, _] = *id.as_bytes();
    writer
}

/// The objects of a dataset in the chunk store, and what lies among them.
async fn stored(parts: &Parts, dataset: DatasetId) -> Result<(Stored, Vec<Key>), Error> {
    let (mut stored, mut strays) = (Vec::new(), Vec::new());
    let all = prefix(dataset_prefix(dataset));
    let mut objects = parts.store.list(&all);
    loop {
        let object = objects.try_next().await;
        let object =
            object.map_err(|error| Error::store("list the objects of dataset", dataset, error))?;
        let Some(object) = object else { return Ok((Stored::of(stored), strays)) };
        match parse_object_key(object.key.as_str()) {
            Some((of, id, _)) if of == dataset => {
                stored.push((id, object.size));
            }
            // Whoever needs a snapshot builds it again.
            _ if parse_snapshot_key(object.key.as_str()).is_some() => {}
            _ => strays.push(object.key),
        }
    }
}

/// Whether the log has an object.
pub(crate) async fn is_logged(
    parts: &Parts,
    dataset: DatasetId,
    id: ChunkId,
) -> Result<bool, Error> {
    Ok(logged_from(parts, dataset, id).await?.is_some_and(|object| object.id == id))
}

/// The first object of the log from an id on.
pub(crate) async fn logged_from(
    parts: &Parts,
    dataset: DatasetId,
    id: ChunkId,
) -> Result<Option<ObjectRecord>, Error> {
    match parts.meta.objects(dataset, id.before(), 1).await {
        Ok(found) => Ok(found.into_iter().next()),
        Err(error) => {
            let error = Error::meta("find object", id, error);
            Err(catalog::explained(parts, dataset, error).await)
        }
    }
}

/// The whole log of a dataset, by id, from metadata that lacks nothing.
async fn log(parts: &Parts, dataset: DatasetId) -> Result<Vec<ObjectRecord>, Error> {
    let mut objects: Vec<ObjectRecord> = Vec::new();
    loop {
        let after = objects.last().map(|object| object.id);
        let page = parts.meta.objects(dataset, after, LOG_PAGE).await;
        let page = page.map_err(|error| Error::meta("read the log of dataset", dataset, error))?;
        let is_last = page.len() < LOG_PAGE;
        objects.extend(page);
        if is_last {
            break;
        }
    }
    // Pages are read of whatever there is.
    identity::refuse_damaged(parts, "read the log of dataset", dataset).await?;
    objects.shrink_to_fit();
    Ok(objects)
}

#[cfg(test)]
mod tests;

//! Builds a snapshot: the fold of a cut of the log, from the headers of its objects.
//!
//! Must hold: the cut is read at a single moment, and always gives the same bytes. Memory is bounded but for a
//! word or two for each object and directory and a bit for each file.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dl_format::snapshot::{LiveFile, Observed, SnapshotChunk, SnapshotOf};
use dl_format::{
    ChunkId, Committed, DatasetId, DatasetName, DecodeError, EntrySet, FileRecord, Header,
    ObjectKind, Version,
};
use dl_meta::{DatasetRecord, ObjectRecord};
use dl_proto::Kind;
use dl_runtime::blocking;
use dl_store::{ByteRange, Key, ObjectRange};
use futures::stream::{self, StreamExt};

use super::emit::{Chunks, Emitter};
use super::winners::{Folders, Found, Hasher, Live, Scan, Scanned, observe, of_kind};
use crate::datasets::spill::{Scratch, Sizes, thread};
use crate::datasets::survey::is_object;
use crate::error::{Doing, Error};
use crate::recovery::recover;
use crate::shared::context::{ServerContext, object_key};

/// The most headers, and bytes, read with a call to the store and processed by a thread.
const BATCH: usize = 256;
const BATCH_BYTES: u64 = 1 << 20;
const BATCHES_AT_ONCE: usize = 4;

const ACTION: &str = "build a snapshot of dataset";

/// A snapshot before its storage.
pub(crate) struct Built {
    pub(crate) version: Version,
    pub(crate) files: u64,
    pub(crate) length: u64,
    pub(crate) bytes: Box<dyn Read + Send>,
}

#[derive(Debug, Clone)]
struct Cut {
    context: ServerContext,
    dataset: DatasetId,
    name: DatasetName,
    log: Arc<[ObjectRecord]>,
    /// Whether objects have another stamp in their header than in the log.
    has_restamped: Arc<AtomicBool>,
}

/// Objects with their numbers in the log.
type Numbered = Vec<(u32, Committed)>;

/// Builds a snapshot of the present contents. None where stamps in the log differed from the headers: the log
/// has the stamps of the headers now, and its next cut can be built.
///
/// # Errors
/// [`Kind::Corrupt`] when an object of the log is lost or damaged: the versions of its paths are unknown then.
pub(crate) async fn build(
    context: &ServerContext,
    record: &DatasetRecord,
) -> Result<Option<Built>, Error> {
    let (dataset, shape) = (record.id, record.shape);
    let log = context.meta.log(dataset).await.doing("read the log of dataset", dataset)?;
    let name = record.name.clone();
    let cut = Cut {
        context: context.clone(),
        dataset,
        name,
        log: log.into(),
        has_restamped: Arc::default(),
    };
    let mut version = Version::default();
    cut.log.iter().for_each(|object| version.add(object.id, object.stamp));
    let scratch = Scratch::new(context.reserve.scratch());
    let chunks = || of_kind(&cut.log, ObjectKind::Chunk);
    let hasher = Hasher::default();
    let scan = Scan::new(&cut.log, scratch.clone());
    let work = {
        let hasher = hasher.clone();
        move |chunks: Numbered| Scanned::of(&hasher, numbered(&chunks))
    };
    let scan = cut.pass(chunks(), work, scan, Scan::add).await?;
    let deleted = cut.deleted(scan.others()).await?;
    if cut.has_restamped.load(Ordering::Relaxed) {
        recover::take_stamps(context, &record.name).await?;
        return Ok(None);
    }
    let found = thread(ACTION, dataset, move || scan.find(&deleted)).await?;
    let Found { mut live, observed, doubted } = found;
    if !doubted.is_empty() {
        let files = Arc::new(live);
        let seen = Arc::clone(&files);
        let work = move |chunks: Numbered| Folders::of(&hasher, &seen, numbered(&chunks));
        let merge = |all: &mut Folders, some| {
            all.merge(some);
            Ok(())
        };
        let folders = cut.pass(chunks(), work, Folders::default(), merge).await?;
        live = Arc::into_inner(files).ok_or_else(|| {
            Error::new(Kind::Internal, ACTION, dataset, "a thread is still looking at files")
        })?;
        live.hide(&doubted, &folders);
    }
    let live = Arc::new(live);
    let observed = match observed {
        Some(observed) => observed,
        None => cut.observe(chunks(), Arc::clone(&live)).await?,
    };
    let files = observed.files();
    let of = SnapshotOf { dataset, version, shape };
    let emitter = Emitter::new(of, observed, scratch, Sizes::USUAL);
    let emitter = emitter.ok_or_else(|| {
        let why = format!("it has {files} files, and a snapshot holds at most {}", u32::MAX - 1);
        Error::new(Kind::Invalid, ACTION, dataset, why)
    })?;
    let work = move |chunks: Numbered| live_files(&live, &chunks);
    let emitter = cut.pass(chunks(), work, emitter, Emitter::add).await?;
    let (bytes, length) = thread(ACTION, dataset, move || emitter.finish()).await?;
    Ok(Some(Built { version, files, length, bytes }))
}

fn numbered(chunks: &Numbered) -> impl Iterator<Item = (u32, &Committed)> {
    chunks.iter().map(|(number, chunk)| (*number, chunk))
}

/// The chunks with live files, and the files.
fn live_files(live: &Live, chunks: &Numbered) -> Chunks {
    let files_of = |(number, chunk): &(u32, Committed)| {
        let header = chunk.header();
        let entries = header.entries().filter(|entry| live.contains((*number, entry.number)));
        let files: Vec<LiveFile> = entries
            .map(|entry| LiveFile {
                record: FileRecord::of(chunk, &entry),
                extents: if entry.has_extents { header.extents().to_vec() } else { Vec::new() },
                path: entry.path,
            })
            .collect();
        let object_length = u32::try_from(header.object_length()).unwrap_or(u32::MAX);
        let chunk = SnapshotChunk { id: header.id(), stamp: chunk.stamp(), object_length };
        (!files.is_empty()).then_some((chunk, files))
    };
    chunks.iter().filter_map(files_of).collect()
}

impl Cut {
    /// The deletions by tombstones in chunks of the log, and in `others`.
    async fn deleted(&self, others: HashSet<ChunkId>) -> Result<HashMap<ChunkId, EntrySet>, Error> {
        let (log, others) = (Arc::clone(&self.log), Arc::new(others));
        let work = move |tombstones: Numbered| {
            let is_known = |id: &ChunkId| {
                others.contains(id) || log.binary_search_by_key(id, |object| object.id).is_ok()
            };
            let mut named: Vec<(ChunkId, EntrySet)> = Vec::new();
            for (_, tombstone) in &tombstones {
                let known = tombstone.header().deletions().iter().filter(|(id, _)| is_known(id));
                named.extend(known.map(|(id, entries)| (id, entries.clone())));
            }
            named
        };
        let add = |deleted: &mut HashMap<ChunkId, EntrySet>, named: Vec<(ChunkId, EntrySet)>| {
            for (chunk, entries) in named {
                deleted.entry(chunk).or_default().union(&entries);
            }
            Ok(())
        };
        let tombstones = of_kind(&self.log, ObjectKind::Tombstone);
        self.pass(tombstones, work, HashMap::new(), add).await
    }

    async fn observe(&self, chunks: Vec<u32>, live: Arc<Live>) -> Result<Observed, Error> {
        let work = move |chunks: Numbered| observe(&live, numbered(&chunks));
        let merge = |all: &mut Observed, some| {
            all.merge(some);
            Ok(())
        };
        self.pass(chunks, work, Observed::default(), merge).await
    }

    /// Runs `work` on batches of headers in parallel; `take` gets the results in the order of the log.
    async fn pass<T: Send + 'static, S: Send + 'static>(
        &self,
        numbers: Vec<u32>,
        work: impl Fn(Numbered) -> T + Clone + Send + 'static,
        mut state: S,
        take: impl Fn(&mut S, T) -> io::Result<()> + Copy + Send + 'static,
    ) -> Result<S, Error> {
        let done = stream::iter(self.batches(&numbers)).map(|batch| {
            let (cut, work) = (self.clone(), work.clone());
            dl_runtime::spawn(async move { cut.load(batch, work).await })
        });
        let mut done = done.buffered(BATCHES_AT_ONCE);
        while let Some(one) = done.next().await {
            let one = one.unwrap_or_else(|error| {
                Err(Error::new(Kind::Internal, ACTION, self.dataset, error))
            });
            let one = one?;
            state =
                thread(ACTION, self.dataset, move || take(&mut state, one).map(|()| state)).await?;
        }
        Ok(state)
    }

    fn batches(&self, numbers: &[u32]) -> Vec<Vec<u32>> {
        let mut batches: Vec<Vec<u32>> = Vec::new();
        let mut bytes = 0;
        for number in numbers {
            let object = self.log.get(*number as usize);
            let length = object.map_or(0, |object| u64::from(object.header_length));
            match batches.last_mut() {
                Some(batch) if batch.len() < BATCH && bytes + length <= BATCH_BYTES => {
                    batch.push(*number);
                    bytes += length;
                }
                _ => {
                    batches.push(vec![*number]);
                    bytes = length;
                }
            }
        }
        batches
    }

    async fn load<T: Send + 'static>(
        &self,
        batch: Vec<u32>,
        work: impl Fn(Numbered) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let objects = batch.into_iter();
        let objects: Vec<(u32, ObjectRecord, Key)> = objects
            .filter_map(|number| {
                let object = *self.log.get(number as usize)?;
                Some((number, object, object_key(self.dataset, object.id, object.kind)))
            })
            .collect();
        let wanted = objects.iter().map(|(_, object, key)| {
            let end = u64::from(object.header_length).max(1);
            // Of the object itself: an exact range may come from a copy.
            let range = ByteRange::up_to(end).expect("more than nothing");
            ObjectRange { key: key.clone(), range }
        });
        let wanted: Vec<ObjectRange> = wanted.collect();
        let heads = self.context.store.read(&wanted).await;
        let (dataset, name) = (self.dataset, self.name.clone());
        let has_restamped = Arc::clone(&self.has_restamped);
        let decoded = blocking::run(move || {
            let mut chunks = Vec::with_capacity(objects.len());
            for ((number, object, key), head) in objects.into_iter().zip(heads) {
                let unusable = |problem: &dyn Display| unusable(&name, &key, problem);
                let head = head.map_err(|error| match error.kind {
                    dl_store::Kind::Missing => unusable(&"is not in the chunk store"),
                    dl_store::Kind::Corrupt => unusable(&format!("can't be read ({error})")),
                    _ => Error::store("read header", &key, error),
                })?;
                let damaged = |error: DecodeError| match error.is_unsupported() {
                    true => Error::new(Kind::Corrupt, "read header", &key, error),
                    false => unusable(&format!("is damaged ({error})")),
                };
                let header = Header::decode(&head).map_err(damaged)?;
                if header.dataset() != dataset || !is_object(&object, &header) {
                    return Err(unusable(&"is another object than the metadata says"));
                }
                let committed = header.committed().map_err(damaged)?;
                has_restamped.fetch_or(committed.stamp() != object.stamp, Ordering::Relaxed);
                chunks.push((number, committed));
            }
            Ok(work(chunks))
        });
        decoded.await.map_err(|stopped| Error::new(Kind::Unavailable, ACTION, dataset, stopped))?
    }
}

/// The error for an unusable object of the log, with the remedy.
fn unusable(name: &DatasetName, key: &Key, problem: &dyn Display) -> Error {
    let address = format!("dl://{name}");
    let why = format!(
        "{key} {problem}, so that none can be built; write the files again that `dlcmd verify \
         {address}` names (`dlcmd put --checksum SRC {address}`), restore or remove the object if \
         it is damaged, and run `dlcmd purge {address}`"
    );
    Error::new(Kind::Corrupt, ACTION, name, why)
}

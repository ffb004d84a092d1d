//! What goes into a metadata store and what comes out of it.
//!
//! Must hold: the generation of a name never goes back, and an id keeps its name. Listings are sorted
//! by key, a folder's with its slash; a page with room left is the last one.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dl_format::{
    ChunkId, ChunkShape, Committed, DatasetId, DatasetName, DirPath, EntrySet, FilePath,
    FileRecord, ObjectKind, Stamp, StoreId, Version,
};

use crate::{Error, Kind};

/// What a metadata store keeps of a dataset beside its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRecord {
    /// What users call it.
    pub name: DatasetName,
    /// Which generation of the name object says so.
    pub generation: u32,
    /// What its objects lie under.
    pub id: DatasetId,
    /// The shape of its chunks.
    pub shape: ChunkShape,
    /// When it was created.
    pub created: Stamp,
    /// Whether its index can be asked.
    pub state: DatasetState,
}

impl DatasetRecord {
    /// Whether it may be put where `named` is what its name stands for now and `known` what its id
    /// stands for; gives the dataset that it drives out.
    pub(crate) fn check_put(
        &self,
        named: Option<&Self>,
        known: Option<&Self>,
    ) -> Result<Option<DatasetId>, Error> {
        let conflict = |why| Error::because(Kind::Conflict, "put dataset", &self.name, why);
        if known.is_some_and(|known| known.name != self.name) {
            return Err(conflict("its id has another name"));
        }
        match named {
            Some(named) if named.generation > self.generation => {
                Err(conflict("the name has a higher generation"))
            }
            Some(named) if named.id == self.id => Ok(None),
            Some(named) if named.generation == self.generation => {
                Err(conflict("the name stands for another dataset in this generation"))
            }
            named => Ok(named.map(|named| named.id)),
        }
    }
}

/// What there is to say when a store is bound to another chunk store than asked.
pub(crate) fn bound_elsewhere(asked: StoreId, bound: StoreId) -> Error {
    let why = format!("the metadata is that of chunk store {bound}");
    Error::because(Kind::Conflict, "bind metadata to chunk store", asked, why)
}

/// What there is to say when an object is to be retired in which a file lies.
pub(crate) fn still_in_use(dataset: DatasetId) -> Error {
    let why = "a file that is not deleted lies in one of the objects";
    Error::because(Kind::Conflict, "retire objects of dataset", dataset, why)
}

/// How many of a chunk's entries are in `deleted`; a tombstone may name more than there are.
pub(crate) fn deleted_entries(deleted: Option<&EntrySet>, entry_count: u32) -> u32 {
    let named = deleted.into_iter().flat_map(EntrySet::iter);
    u32::try_from(named.take_while(|entry| *entry < entry_count).count()).unwrap_or(u32::MAX)
}

/// Whether the log of a dataset is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DatasetState {
    /// It is.
    Live,
    /// Its objects are still being appended from the chunk store: no answer is final.
    Recovering,
    /// It is about to be deleted: nothing may be written into it any more.
    Ending,
}

/// A dataset and which objects its log holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// What was put.
    pub record: DatasetRecord,
    /// Objects in the log, tombstones and parts included.
    pub objects: u64,
    /// Which objects the log holds.
    pub version: Version,
}

/// A dataset and what its log adds up to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetInfo {
    /// What was put.
    pub record: DatasetRecord,
    /// Paths whose newest version is not deleted, those hidden by a folder included.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Objects in the log, tombstones and parts included.
    pub objects: u64,
    /// Which objects the log holds.
    pub version: Version,
    /// Whether all of these can be found by their paths. Not while an append has not returned, nor
    /// soon after one that never will.
    pub is_settled: bool,
}

/// Whether an append changed the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Appended {
    /// The object joined it.
    New,
    /// The object was in it.
    Known,
    /// The object was in it with another stamp. Versions that the other stamp hid come back when
    /// their own objects are appended again.
    Restamped,
}

/// The parts of its contents that a metadata store may have lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Some shards may lack writes. The servers rebuild all datasets from the chunk store.
    Shards,
    /// The identity is gone, or was not set yet by the first rebuild: an administrator has to recover.
    Everything,
}

/// The reason why a metadata store takes no new objects at the moment, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The memory is full. Deletes go on.
    Full(String),
    /// The store takes no writes at all, which may pass by itself.
    All(String),
}

impl Refusal {
    /// The kind of error with which an object is refused.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Full(_) => Kind::Full,
            Self::All(_) => Kind::Unavailable,
        }
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Full(why) | Self::All(why)) = self;
        f.write_str(why)
    }
}

/// A rebuild of the metadata from the chunk store, from its begin to its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rebuild {
    /// The damage when the rebuild began.
    pub damage: Option<Damage>,
    /// For each shard, the run of the process that held it, and its life.
    pub(crate) shards: Vec<(String, String)>,
}

/// What the log says of an object (paper, 4.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectRecord {
    /// Its name.
    pub id: ChunkId,
    /// What it holds.
    pub kind: ObjectKind,
    /// When it was committed.
    pub stamp: Stamp,
    /// Bytes of all of it.
    pub object_length: u64,
    /// Bytes of its header.
    pub header_length: u32,
    /// How many entries it has.
    pub entry_count: u32,
    /// Bytes of files in its payload.
    pub file_bytes: u64,
    /// How many of its entries tombstones name; entries that a rewrite brought in are counted
    /// for the chunk they come from.
    pub deleted_entries: u32,
}

impl ObjectRecord {
    /// What an object's header says, as long as nothing in it is deleted.
    pub(crate) fn of(object: &Committed) -> Self {
        let header = object.header();
        Self {
            id: header.id(),
            kind: header.kind(),
            stamp: object.stamp(),
            object_length: header.object_length(),
            header_length: u32::try_from(header.header_length()).unwrap_or(u32::MAX),
            entry_count: header.entry_count(),
            file_bytes: header.file_bytes(),
            deleted_entries: 0,
        }
    }
}

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A live file.
    File(FileRecord),
    /// A folder: some live file lies below it. It hides a file of the same path.
    Folder,
    /// Neither.
    Missing,
}

/// Counts what is looked at for an answer: whoever waits for it can tell that it gets on. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Steps(Arc<AtomicU64>);

impl Steps {
    /// Counts one.
    pub fn step(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Which part of a dataset to list.
#[derive(Debug, Clone)]
pub struct ListQuery {
    /// The folder.
    pub dir: DirPath,
    /// Whether to give all files below it instead of what lies directly in it.
    pub recursive: bool,
    /// Only what sorts after this: the key of the last entry of the page before.
    pub after: Option<Bytes>,
    /// Most entries to give.
    pub limit: usize,
    /// Bytes of paths after which no more entries are given. One is given all the same.
    pub bytes: usize,
    /// Where what is looked at is counted, such as deleted files, of which a page may pass over many.
    pub steps: Steps,
}

impl ListQuery {
    /// A folder from its beginning, in pages of so many entries, however long their paths.
    pub fn of(dir: DirPath, recursive: bool, limit: usize) -> Self {
        Self { dir, recursive, after: None, limit, bytes: usize::MAX, steps: Steps::default() }
    }

    /// Whether a page of so many entries, with so many bytes of paths, takes no more.
    pub(crate) fn is_full(&self, entries: usize, bytes: usize) -> bool {
        entries >= self.limit || bytes >= self.bytes
    }

    /// Whether no other page follows this one: it has room left.
    pub fn is_last(&self, page: &[ListEntry]) -> bool {
        let bytes = page.iter().map(|entry| entry.path().as_bytes().len()).sum();
        !self.is_full(page.len(), bytes)
    }
}

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListEntry {
    /// A live file.
    File(FilePath, FileRecord),
    /// A folder that holds live files; its path, without a slash at its end.
    Folder(FilePath),
}

impl ListEntry {
    /// Its path in the dataset.
    pub fn path(&self) -> &FilePath {
        match self {
            Self::File(path, _) | Self::Folder(path) => path,
        }
    }

    /// What listings are sorted by, and what [`ListQuery::after`] goes on from: the path, with a
    /// slash at the end of a folder's.
    pub fn key(&self) -> Bytes {
        match self {
            Self::File(path, _) => path.clone().into_bytes(),
            Self::Folder(path) => [path.as_bytes(), b"/"].concat().into(),
        }
    }
}

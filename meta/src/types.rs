//! The arguments and answers of a metadata store.
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

/// The record of a dataset, beside its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRecord {
    /// The name for users.
    pub name: DatasetName,
    /// The generation of the name object.
    pub generation: u32,
    /// The id in the keys of its objects.
    pub id: DatasetId,
    /// The shape of its chunks.
    pub shape: ChunkShape,
    /// The time of its creation.
    pub created: Stamp,
    /// Whether its index is complete.
    pub state: DatasetState,
}

impl DatasetRecord {
    /// Checks a put beside the present records of its name and of its id; gives the dataset to drop.
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

/// The error for metadata of another chunk store.
pub(crate) fn bound_elsewhere(asked: StoreId, bound: StoreId) -> Error {
    let why = format!("the metadata is that of chunk store {bound}");
    Error::because(Kind::Conflict, "bind metadata to chunk store", asked, why)
}

/// The error for a retired object with a live file.
pub(crate) fn still_in_use(dataset: DatasetId) -> Error {
    let why = "a file that is not deleted lies in one of the objects";
    Error::because(Kind::Conflict, "retire objects of dataset", dataset, why)
}

/// The number of a chunk's entries in `deleted`; a tombstone may name more entries than a chunk has.
pub(crate) fn deleted_entries(deleted: Option<&EntrySet>, entry_count: u32) -> u32 {
    let named = deleted.into_iter().flat_map(EntrySet::iter);
    u32::try_from(named.take_while(|entry| *entry < entry_count).count()).unwrap_or(u32::MAX)
}

/// Whether the log of a dataset is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DatasetState {
    /// Complete.
    Live,
    /// Objects are being appended from the chunk store: no answer is final.
    Recovering,
    /// The dataset is being deleted, and takes no writes.
    Ending,
}

/// A dataset and the size of its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// The record.
    pub record: DatasetRecord,
    /// Objects in the log, tombstones and parts included.
    pub objects: u64,
    /// The hash over the objects of the log.
    pub version: Version,
}

/// A dataset and the sums over its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetInfo {
    /// The record.
    pub record: DatasetRecord,
    /// Paths with a live newest version, also paths hidden by a folder.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Objects in the log, tombstones and parts included.
    pub objects: u64,
    /// The hash over the objects of the log.
    pub version: Version,
    /// Whether all files can be found by their paths: not during an append, nor soon after an append that
    /// was cut off.
    pub is_settled: bool,
}

/// Whether an append changed the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Appended {
    /// The object joined the log.
    New,
    /// The log had the object.
    Known,
    /// The log had the object with another stamp. Versions hidden by the other stamp come back when
    /// their own objects are appended again.
    Restamped,
}

/// A loss of metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Shards may lack writes. The servers rebuild all datasets from the chunk store.
    Shards,
    /// No shard has the identity, as the metadata was emptied or no rebuild has ended yet: an administrator has
    /// to recover.
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
    /// The run of the process of each shard, and the life of the shard.
    pub(crate) shards: Vec<(String, String)>,
}

/// An object of a log (paper, 4.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectRecord {
    /// Its name.
    pub id: ChunkId,
    /// Chunk, part or tombstone.
    pub kind: ObjectKind,
    /// The stamp of its commit.
    pub stamp: Stamp,
    /// Bytes of the object.
    pub object_length: u64,
    /// Bytes of its header.
    pub header_length: u32,
    /// The number of its entries.
    pub entry_count: u32,
    /// Bytes of files in its payload.
    pub file_bytes: u64,
    /// The number of its entries that tombstones name. Entries of a rewrite count for their first chunk.
    pub deleted_entries: u32,
}

impl ObjectRecord {
    /// The record of an object without deleted entries.
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

/// The file or folder at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A live file.
    File(FileRecord),
    /// A folder, with a live file below; a folder hides a file of the same path.
    Folder,
    /// Neither file nor folder.
    Missing,
}

/// The progress of an answer, for its waiting caller. Clones share a count.
#[derive(Debug, Clone, Default)]
pub struct Steps(Arc<AtomicU64>);

impl Steps {
    /// Counts a step.
    pub fn step(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of steps.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The part of a dataset to list.
#[derive(Debug, Clone)]
pub struct ListQuery {
    /// The folder.
    pub dir: DirPath,
    /// All files below the folder, in place of its direct entries.
    pub recursive: bool,
    /// The key of the last entry of the page before: the page begins behind the key.
    pub after: Option<Bytes>,
    /// Most entries to give.
    pub limit: usize,
    /// Bytes of paths after which the page ends. A page has an entry in any case.
    pub bytes: usize,
    /// The progress: a page may pass over many deleted files.
    pub steps: Steps,
}

impl ListQuery {
    /// A folder from its beginning, in pages of so many entries, however long their paths.
    pub fn of(dir: DirPath, recursive: bool, limit: usize) -> Self {
        Self { dir, recursive, after: None, limit, bytes: usize::MAX, steps: Steps::default() }
    }

    /// Whether a page of so many entries and bytes of paths is full.
    pub(crate) fn is_full(&self, entries: usize, bytes: usize) -> bool {
        entries >= self.limit || bytes >= self.bytes
    }

    /// Whether the page is the last page: the page has room left.
    pub fn is_last(&self, page: &[ListEntry]) -> bool {
        let bytes = page.iter().map(|entry| entry.path().as_bytes().len()).sum();
        !self.is_full(page.len(), bytes)
    }
}

/// A line of a listing.
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

    /// The sort key, for [`ListQuery::after`]: the path, with a slash behind the path of a folder.
    pub fn key(&self) -> Bytes {
        match self {
            Self::File(path, _) => path.clone().into_bytes(),
            Self::Folder(path) => [path.as_bytes(), b"/"].concat().into(),
        }
    }
}

//! The fold: from the headers of a dataset's objects to its live files. The only definition of a
//! dataset's contents, followed by every index, snapshot, rebuild and check.
//!
//! Must hold: the result depends only on the set of headers, not on their order or repetition. The
//! result stays the same after live entries moved into rewritten chunks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

use crate::checksum::Crc32c;
use crate::entry::{Attributes, Entry, EntryVersion};
use crate::header::Committed;
use crate::id::ChunkId;
use crate::path::FilePath;
use crate::tombstone::EntrySet;

/// The winning version of a path, and the place of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRecord {
    /// The version of the file, used by deletes.
    pub version: EntryVersion,
    /// The chunk with its bytes: equal to `version` unless rewritten.
    pub holder: EntryVersion,
    /// The owner's attributes.
    pub attributes: Attributes,
    /// Bytes of the file.
    pub length: u64,
    /// Checksum of all its bytes.
    pub crc: Crc32c,
    /// Offset of its bytes in the holder.
    pub offset: u32,
    /// Bytes of the file in the holder.
    pub stored: u32,
    /// Whether earlier parts precede the bytes in the holder.
    pub has_extents: bool,
}

impl FileRecord {
    /// The record of an entry of a committed chunk.
    pub fn of(chunk: &Committed, entry: &Entry) -> Self {
        let holder =
            EntryVersion { stamp: chunk.stamp(), chunk: chunk.header().id(), entry: entry.number };
        Self {
            version: entry.origin.unwrap_or(holder),
            holder,
            attributes: entry.attributes,
            length: entry.length,
            crc: entry.crc,
            offset: entry.offset,
            stored: entry.stored,
            has_extents: entry.has_extents,
        }
    }

    /// Whether this record wins against `other` for the same path: the greater version, and of two
    /// copies of a version the later copy.
    pub fn supersedes(&self, other: &Self) -> bool {
        (self.version, self.holder) > (other.version, other.holder)
    }

    /// True if an index replaces its record `other` of the same path by this record. A record of
    /// the same entry of the same object always replaces the older record. The object's stamp may
    /// differ from the stamp indexed first.
    pub fn replaces(&self, other: &Self) -> bool {
        let (holder, known) = (self.holder, other.holder);
        (holder.chunk, holder.entry) == (known.chunk, known.entry) || self.supersedes(other)
    }
}

/// Folds headers one after the other. Uses memory for every path: meant for tests, the in-memory
/// store and checks. Indexes on disk follow the same rules with [`FileRecord::supersedes`].
#[derive(Debug, Clone, Default)]
pub struct Fold {
    winners: BTreeMap<FilePath, FileRecord>,
    deleted: HashMap<ChunkId, EntrySet>,
}

impl Fold {
    /// Adds one object of the dataset.
    pub fn add(&mut self, object: &Committed) {
        for (chunk, entries) in object.header().deletions().iter() {
            self.deleted.entry(chunk).or_default().union(entries);
        }
        for entry in object.header().entries() {
            let record = FileRecord::of(object, &entry);
            match self.winners.get_mut(&entry.path) {
                Some(winner) if !record.replaces(winner) => {}
                Some(winner) => *winner = record,
                None => {
                    self.winners.insert(entry.path, record);
                }
            }
        }
    }

    /// Removes the winners in chunks that left the dataset. If any of them is not deleted, nothing
    /// is removed and the result is false. No older version takes their place, so the caller
    /// ensures that older versions are absent or deleted too.
    pub fn retire(&mut self, chunks: &HashSet<ChunkId>) -> bool {
        let lies_there = |record: &FileRecord| chunks.contains(&record.holder.chunk);
        let is_lost = |record: &FileRecord| lies_there(record) && !self.is_deleted(&record.version);
        if self.winners.values().any(is_lost) {
            return false;
        }
        self.winners.retain(|_, record| !lies_there(record));
        true
    }

    /// The live file at `path`: its winner. A deleted winner still shadows older versions, and a
    /// folder at `path` wins over a file.
    pub fn get(&self, path: &FilePath) -> Option<&FileRecord> {
        let record = self.undeleted(path)?;
        (!self.is_folder(path)).then_some(record)
    }

    /// The live files, by path.
    pub fn live(&self) -> impl Iterator<Item = (&FilePath, &FileRecord)> {
        self.winners.keys().filter_map(|path| Some((path, self.get(path)?)))
    }

    /// Paths that are both a file and a folder; the folder wins.
    pub fn conflicts(&self) -> impl Iterator<Item = &FilePath> {
        self.winners.keys().filter(|path| self.undeleted(path).is_some() && self.is_folder(path))
    }

    /// Every path ever written, with its winner and whether the winner is deleted.
    pub fn winners(&self) -> impl Iterator<Item = (&FilePath, &FileRecord, bool)> {
        self.winners.iter().map(|(path, record)| (path, record, self.is_deleted(&record.version)))
    }

    /// [`Fold::winners`] with paths behind `start`.
    pub fn winners_from(
        &self,
        start: Bound<&[u8]>,
    ) -> impl Iterator<Item = (&FilePath, &FileRecord, bool)> {
        self.winners
            .range::<[u8], _>((start, Bound::Unbounded))
            .map(|(path, record)| (path, record, self.is_deleted(&record.version)))
    }

    /// The deleted entries of a chunk.
    pub fn deleted_of(&self, chunk: ChunkId) -> Option<&EntrySet> {
        self.deleted.get(&chunk)
    }

    fn is_deleted(&self, version: &EntryVersion) -> bool {
        self.deleted.get(&version.chunk).is_some_and(|entries| entries.contains(version.entry))
    }

    fn undeleted(&self, path: &FilePath) -> Option<&FileRecord> {
        self.winners.get(path).filter(|record| !self.is_deleted(&record.version))
    }

    fn is_folder(&self, path: &FilePath) -> bool {
        let mut prefix = path.as_bytes().to_vec();
        prefix.push(b'/');
        self.winners
            .range::<[u8], _>((Bound::Excluded(prefix.as_slice()), Bound::Unbounded))
            .take_while(|(inside, _)| inside.as_bytes().starts_with(&prefix))
            .any(|(_, record)| !self.is_deleted(&record.version))
    }
}

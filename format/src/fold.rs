//! The fold: from the headers of a dataset's objects to its live files. The one definition of what
//! a dataset holds; every index, snapshot, rebuild and check follows it.
//!
//! Must hold: the result depends on the set of headers only, not on the order in which they come,
//! nor on how often; it is the same after live entries moved into rewritten chunks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

use crate::checksum::Crc32c;
use crate::entry::{Attributes, Entry, EntryVersion};
use crate::header::Committed;
use crate::id::ChunkId;
use crate::path::FilePath;
use crate::tombstone::EntrySet;

/// The version of a path that holds, and where its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRecord {
    /// Which version it is; what a delete names.
    pub version: EntryVersion,
    /// The chunk that holds its bytes now: the same as `version` unless it was rewritten.
    pub holder: EntryVersion,
    /// What its owner set.
    pub attributes: Attributes,
    /// Bytes of the file.
    pub length: u64,
    /// Checksum of all its bytes.
    pub crc: Crc32c,
    /// Where its bytes begin in the holder.
    pub offset: u32,
    /// Bytes of it in the holder.
    pub stored: u32,
    /// Whether earlier parts precede the bytes in the holder.
    pub has_extents: bool,
}

impl FileRecord {
    /// What a committed chunk says of one of its entries.
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

    /// Whether this one holds against `other`, of the same path: the greater version; of two
    /// copies of one version, the one that was written last.
    pub fn supersedes(&self, other: &Self) -> bool {
        (self.version, self.holder) > (other.version, other.holder)
    }

    /// Whether an index that has `other` for the same path takes this record instead. A record of
    /// the same entry of the same object always replaces the older record: the object's stamp may
    /// differ from the stamp that was indexed first.
    pub fn replaces(&self, other: &Self) -> bool {
        let (holder, known) = (self.holder, other.holder);
        (holder.chunk, holder.entry) == (known.chunk, known.entry) || self.supersedes(other)
    }
}

/// Folds headers one by one. Costs memory for every path: for the tests, the in-memory store and
/// checks; indexes on disk follow the same rules by [`FileRecord::supersedes`].
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

    /// Forgets the winners that lie in chunks which left the dataset. False when one of them is not
    /// deleted: nothing is forgotten then. No older version comes back in their place, so the
    /// caller makes sure that there is none, or that it is deleted too.
    pub fn retire(&mut self, chunks: &HashSet<ChunkId>) -> bool {
        let lies_there = |record: &FileRecord| chunks.contains(&record.holder.chunk);
        let is_lost = |record: &FileRecord| lies_there(record) && !self.is_deleted(&record.version);
        if self.winners.values().any(is_lost) {
            return false;
        }
        self.winners.retain(|_, record| !lies_there(record));
        true
    }

    /// The live file at `path`: its winner, unless that is deleted (then it still shadows older
    /// versions) or the path is also a folder (then the folder holds).
    pub fn get(&self, path: &FilePath) -> Option<&FileRecord> {
        let record = self.undeleted(path)?;
        (!self.is_folder(path)).then_some(record)
    }

    /// The live files, by path.
    pub fn live(&self) -> impl Iterator<Item = (&FilePath, &FileRecord)> {
        self.winners.keys().filter_map(|path| Some((path, self.get(path)?)))
    }

    /// Paths that were written as a file and are a folder too; the folder holds.
    pub fn conflicts(&self) -> impl Iterator<Item = &FilePath> {
        self.winners.keys().filter(|path| self.undeleted(path).is_some() && self.is_folder(path))
    }

    /// Every path ever written, with its winner and whether that is deleted.
    pub fn winners(&self) -> impl Iterator<Item = (&FilePath, &FileRecord, bool)> {
        self.winners.iter().map(|(path, record)| (path, record, self.is_deleted(&record.version)))
    }

    /// [`Fold::winners`] whose paths lie behind `start`.
    pub fn winners_from(
        &self,
        start: Bound<&[u8]>,
    ) -> impl Iterator<Item = (&FilePath, &FileRecord, bool)> {
        self.winners
            .range::<[u8], _>((start, Bound::Unbounded))
            .map(|(path, record)| (path, record, self.is_deleted(&record.version)))
    }

    /// The entries of a chunk that tombstones name.
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

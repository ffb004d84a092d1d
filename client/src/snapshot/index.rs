//! Answers from a snapshot: stat, lists, and records for reads.
//!
//! Must hold: the answers equal the servers' answers for the version, without a request. Damage
//! leads to an error, never to an answer.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dl_format::snapshot::{Entries, FileNumber, Snapshot as Format, SnapshotEntry, SnapshotOf};
use dl_format::{
    Attributes, ChunkId, Crc32c, DatasetId, DecodeError, DirPath, EntryVersion, FilePath,
    FileRecord, Stamp, Version,
};
use dl_node::{Mapped, Mapping, fetch};
use dl_proto::{ListEntry, StatItem};

use crate::error::{Error, Kind};
use crate::order::Selection;
use crate::snapshot::marker::Marker;

/// Paths looked up as a group, so the records of the group are still in the processor's cache.
const BATCH_SIZE: usize = 64;

/// The location of the bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePlace {
    /// The number of the chunk in the snapshot.
    pub chunk: u32,
    /// The offset of the bytes in the chunk's object; for a file cut into parts, the offset of the
    /// last part.
    pub offset: u32,
    /// Bytes of the whole file.
    pub length: u64,
    /// The checksum of the file.
    pub crc: Crc32c,
}

impl FilePlace {
    pub(crate) const NOWHERE: Self =
        Self { chunk: u32::MAX, offset: 0, length: 0, crc: Crc32c::from_value(0) };
}

/// All metadata of a dataset at a single version, in a mapped file. The cost of opening does not
/// depend on the number of files. Processes of a machine share the memory.
#[derive(Debug)]
pub struct Snapshot {
    format: Format<Mapped>,
    /// For errors.
    name: String,
    is_shared: bool,
    /// The marker of the file; none outside the cache.
    marker: Option<Marker>,
}

impl Snapshot {
    /// Maps an open file of the cache, which no process may change while the mapping lives. Only
    /// the beginning is checked. Damage found later removes `marker`, so the next opening checks
    /// the whole file.
    pub(crate) fn map(file: &File, name: &Path, marker: Marker) -> Result<Self, Error> {
        let mapped = file.metadata().and_then(|there| match there.len() {
            0 => Ok(Mapped::Memory(Bytes::new())),
            _ => Ok(Mapped::File(Mapping::of(file)?)),
        });
        let mapped = mapped.map_err(|why| local("open the snapshot", name, why))?;
        Ok(Self { marker: Some(marker), is_shared: true, ..Self::of(mapped, name)? })
    }

    /// Maps the file of an agent: a file of the cache, or a sealed file in memory. Only the beginning
    /// is checked.
    pub(crate) fn map_shared(file: &File, name: &Path) -> Result<Self, Error> {
        let mapped = Mapping::of(file).map_err(|why| local("open the snapshot", name, why))?;
        Ok(Self { is_shared: true, ..Self::of(Mapped::File(mapped), name)? })
    }

    /// A snapshot in memory of the process alone. Only the beginning is checked.
    pub(crate) fn in_memory(bytes: Vec<u8>, name: &Path) -> Result<Self, Error> {
        Self::of(Mapped::Memory(bytes.into()), name)
    }

    fn of(mapped: Mapped, name: &Path) -> Result<Self, Error> {
        let name = name.display().to_string();
        let format = Format::open(mapped).map_err(|why| damaged(&name, why))?;
        Ok(Self { format, name, is_shared: false, marker: None })
    }

    /// Whether the snapshot lies in a file shared with other processes. Otherwise the process holds
    /// all [`length`](Self::length) bytes in its own memory.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub(super) fn format(&self) -> &Format<Mapped> {
        &self.format
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.format.bytes()
    }

    /// Checks every byte, as needed for a file of unknown origin.
    pub(crate) fn verify(&self) -> Result<(), Error> {
        self.format.verify().map_err(|why| damaged(&self.name, why))
    }

    pub(crate) fn verify_checksums(&self) -> Result<(), Error> {
        self.format.verify_checksums().map_err(|why| damaged(&self.name, why))
    }

    pub(crate) fn check_is(&self, dataset: DatasetId, version: Version) -> Result<(), Error> {
        if (self.dataset(), self.version()) == (dataset, version) {
            return Ok(());
        }
        let why =
            format!("the file holds version {} of dataset {}", self.version(), self.dataset());
        Err(Error::new(Kind::Corrupt, "check the snapshot", &self.name, why))
    }

    /// Whether another snapshot has the same bytes, by length and by the checksums of all sections.
    pub fn is_same(&self, other: &Self) -> bool {
        let head =
            |snapshot: &Self| snapshot.bytes().get(..SnapshotOf::HEAD_LENGTH).map(<[u8]>::to_vec);
        self.length() == other.length() && head(self) == head(other)
    }

    /// The dataset.
    pub fn dataset(&self) -> DatasetId {
        self.format.of().dataset
    }

    /// The version of the dataset.
    pub fn version(&self) -> Version {
        self.format.of().version
    }

    /// The shape of its chunks.
    pub fn shape(&self) -> dl_format::ChunkShape {
        self.format.of().shape
    }

    /// The number of files, without deleted and hidden files.
    pub fn files(&self) -> u32 {
        self.format.files()
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.format.file_bytes()
    }

    /// The number of chunks with files.
    pub fn chunks(&self) -> u32 {
        self.format.chunks()
    }

    /// Bytes of the snapshot itself.
    pub fn length(&self) -> u64 {
        self.format.length()
    }

    pub(super) fn lacks(&self, missing: &str) -> Error {
        self.doubt();
        let why = format!("{missing} is missing");
        Error::new(Kind::Corrupt, "read the snapshot", &self.name, why)
    }

    pub(super) fn damaged(&self) -> impl Fn(DecodeError) -> Error + '_ {
        |why| {
            self.doubt();
            damaged(&self.name, why)
        }
    }

    /// Removes the marker, so the next opening checks the whole file.
    fn doubt(&self) {
        if let Some(marker) = &self.marker {
            marker.remove();
        }
    }

    /// The number of a file by the bytes of its path, none for a path without a file; as
    /// [`number`](Self::number), without a check of the path.
    ///
    /// # Errors
    /// As for [`number`](Self::number).
    pub fn number_at(&self, path: &[u8]) -> Result<Option<u32>, Error> {
        let file = self.format.lookup(path).map_err(self.damaged())?;
        Ok(file.map(|FileNumber(number)| number))
    }

    /// The number of the file at a path; none without a file.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] for a damaged snapshot, here and below.
    pub fn number(&self, path: &FilePath) -> Result<Option<u32>, Error> {
        let number = self.format.lookup(path.as_bytes()).map_err(self.damaged())?;
        Ok(number.map(|FileNumber(number)| number))
    }

    /// The record of a file, by its number: files count from 0, chunk by chunk. The version in the
    /// record has only a stamp ([`EntryVersion::UNKNOWN_ENTRY`]): good enough to read the file, not
    /// to delete the version.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] also for a number without a file.
    pub fn record(&self, number: u32) -> Result<FileRecord, Error> {
        let number = FileNumber(number);
        let file = self.format.file(number).map_err(self.damaged())?;
        let nothing = || self.lacks("a chunk");
        let extents = self.format.extents(number).map_err(self.damaged())?;
        let earlier: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
        let entry = EntryVersion::UNKNOWN_ENTRY;
        let version = |stamp: Stamp| EntryVersion { stamp, chunk: file.holder.id, entry };
        let stored = file.length.checked_sub(earlier).and_then(|left| u32::try_from(left).ok());
        Ok(FileRecord {
            version: version(file.stamp),
            holder: version(file.holder.stamp),
            attributes: file.attributes,
            length: file.length,
            crc: file.crc,
            offset: file.offset,
            stored: stored.ok_or_else(nothing)?,
            has_extents: !extents.is_empty(),
        })
    }

    /// Makes the processor prefetch the records of files.
    #[inline]
    pub(crate) fn bring(&self, numbers: &[u32]) {
        numbers.iter().for_each(|number| self.format.touch(*number));
    }

    /// The place of a file, by its number: less than its record, and faster.
    ///
    /// # Errors
    /// As for [`Snapshot::record`].
    #[inline]
    pub fn place(&self, number: u32) -> Result<FilePlace, Error> {
        let place = self.format.place(FileNumber(number)).map_err(self.damaged())?;
        let (chunk, offset, length, crc) = place;
        Ok(FilePlace { chunk, offset, length, crc })
    }

    /// The length of a file in bytes, and the owner's attributes: less than its record, and faster.
    ///
    /// # Errors
    /// As for [`Snapshot::record`].
    pub fn attributes(&self, number: u32) -> Result<(u64, Attributes), Error> {
        self.format.attributes(FileNumber(number)).map_err(self.damaged())
    }

    /// A chunk by its number: its id, the length of its object in bytes, and the numbers of its files.
    ///
    /// # Errors
    /// As for [`Snapshot::record`].
    pub fn chunk(&self, number: u32) -> Result<(ChunkId, u32, Range<u32>), Error> {
        let nothing = || self.lacks("a chunk");
        let (chunk, FileNumber(first)) = self.format.chunk(number).ok_or_else(nothing)?;
        let next = self.format.chunk(number.saturating_add(1));
        let end = next.map_or(self.files(), |(_, FileNumber(first))| first);
        Ok((chunk.id, chunk.object_length, first..end))
    }

    /// The path of a file, by its number.
    ///
    /// # Errors
    /// As for [`Snapshot::record`].
    pub fn path(&self, number: u32) -> Result<FilePath, Error> {
        let mut path = Vec::new();
        self.format.path(FileNumber(number), &mut path).map_err(self.damaged())?;
        self.typed(path)
    }

    fn typed(&self, path: Vec<u8>) -> Result<FilePath, Error> {
        FilePath::new(path).map_err(|why| {
            self.doubt();
            Error::new(Kind::Corrupt, "read", &self.name, why)
        })
    }

    /// The entry at a path.
    ///
    /// # Errors
    /// As for [`Snapshot::number`].
    pub fn stat(&self, path: &FilePath) -> Result<StatItem, Error> {
        if let Some(number) = self.number(path)? {
            return Ok(StatItem::File(self.record(number)?));
        }
        self.stat_folder(path)
    }

    /// [`Snapshot::stat`] for many paths, faster than separate calls.
    ///
    /// # Errors
    /// As for [`Snapshot::number`].
    pub fn stat_many(&self, paths: &[FilePath]) -> Result<Vec<StatItem>, Error> {
        let mut items = Vec::with_capacity(paths.len());
        let mut found = Vec::with_capacity(BATCH_SIZE);
        for paths in paths.chunks(BATCH_SIZE) {
            found.clear();
            let asked = paths.iter().map(FilePath::as_bytes);
            self.format.lookup_many(asked, &mut found, fetch).map_err(self.damaged())?;
            for (path, file) in paths.iter().zip(&found) {
                items.push(match file {
                    Some(FileNumber(number)) => StatItem::File(self.record(*number)?),
                    None => self.stat_folder(path)?,
                });
            }
        }
        Ok(items)
    }

    /// [`Snapshot::number`] for many paths, faster than separate calls.
    ///
    /// # Errors
    /// As for [`Snapshot::number`].
    pub fn numbers<'a>(
        &self,
        paths: impl Iterator<Item = &'a FilePath>,
    ) -> Result<Vec<Option<u32>>, Error> {
        let mut found = Vec::new();
        let asked = paths.map(FilePath::as_bytes);
        self.format.lookup_many(asked, &mut found, fetch).map_err(self.damaged())?;
        Ok(found.into_iter().map(|file| file.map(|FileNumber(number)| number)).collect())
    }

    fn stat_folder(&self, path: &FilePath) -> Result<StatItem, Error> {
        let folder = self.format.directory(path.as_bytes()).map_err(self.damaged())?;
        Ok(if folder.is_some() { StatItem::Folder } else { StatItem::Missing })
    }

    /// For each chunk the number of its first file and, at the end, the number of files: the input
    /// of an [`Order`](crate::order::Order).
    ///
    /// # Errors
    /// As for [`Snapshot::number`].
    pub fn first_files(&self) -> Result<Arc<[u32]>, Error> {
        let first = |number| {
            let nothing = || self.lacks("a chunk");
            self.format.chunk(number).map(|(_, FileNumber(first))| first).ok_or_else(nothing)
        };
        let chunks = (0..self.chunks()).map(first);
        chunks.chain([Ok(self.files())]).collect()
    }

    /// The numbers of all files below a folder; none if there is no such folder.
    ///
    /// # Errors
    /// As for [`Snapshot::number`].
    pub fn below(&self, folder: &DirPath) -> Result<Option<Vec<Range<u32>>>, Error> {
        let Some(top) = self.format.directory(folder.as_bytes()).map_err(self.damaged())? else {
            return Ok(None);
        };
        let (mut files, mut folders) = (Vec::new(), vec![top]);
        let mut seen = 0;
        while let Some(number) = folders.pop() {
            for run in self.files_in(number)? {
                seen += run.len() as u64;
                files.push(run);
            }
            self.check_seen(seen)?;
            folders.extend(self.folders_in(number)?);
        }
        Ok(Some(files))
    }

    /// Refuses a walk over more files than the snapshot has. In a damaged snapshot the same files
    /// may return again and again.
    fn check_seen(&self, files: u64) -> Result<(), Error> {
        if files <= self.files().into() {
            return Ok(());
        }
        Err(self.lacks("the end of its folders"))
    }

    /// The files at and below the given paths of folders and files, as input of an
    /// [`Order`](crate::order::Order). Each file counts once, also below several of the paths.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for a path without an entry; otherwise as for [`Snapshot::number`].
    pub fn select(&self, paths: &[DirPath]) -> Result<Selection, Error> {
        let mut files = Vec::new();
        for path in paths {
            if let Some(below) = self.below(path)? {
                files.extend(below);
                continue;
            }
            let file = self.format.lookup(path.as_bytes()).map_err(self.damaged())?;
            let nothing =
                || Error::new(Kind::NotFound, "select", path, "there is no such file or folder");
            let FileNumber(number) = file.ok_or_else(nothing)?;
            files.push(number..number + 1);
        }
        let selected = Selection::of(self.files(), files.into_iter().flatten());
        selected.map_err(|why| Error::new(Kind::Corrupt, "read the snapshot", &self.name, why))
    }

    /// The files of a selection, by number, as a lazy list.
    pub fn selected<'a>(
        &'a self,
        selection: &'a Selection,
    ) -> impl Iterator<Item = Result<(FilePath, FileRecord), Error>> + 'a {
        let numbers = selection.numbers(0..self.files());
        numbers.map(|number| Ok((self.path(number)?, self.record(number)?)))
    }

    pub(crate) fn files_in(&self, folder: u32) -> Result<Vec<Range<u32>>, Error> {
        self.format.runs_of(folder).map_err(self.damaged())
    }

    /// Bytes of a whole chunk; if the chunk ends a file cut into parts, the bytes of the file.
    pub(crate) fn chunk_bytes(&self, chunk: u32, files: Range<u32>) -> Result<u64, Error> {
        let found = self.format.chunk(chunk).ok_or_else(|| self.lacks("a chunk"))?;
        let object = u64::from(found.0.object_length);
        // A chunk with the end of a large file holds no other file.
        match files.len() {
            1 => Ok(object.max(self.record(files.start)?.length)),
            _ => Ok(object),
        }
    }

    /// The entries of a folder, as in [`Dataset::list`](crate::Dataset::list).
    ///
    /// # Errors
    /// [`Kind::NotFound`] if there is no such folder, [`Kind::Invalid`] for a file.
    pub(crate) fn list(
        self: &Arc<Self>,
        folder: &DirPath,
        recursive: bool,
        names_only: bool,
    ) -> Result<Walk, Error> {
        let path = folder.as_bytes();
        let Some(number) = self.format.directory(path).map_err(self.damaged())? else {
            let is_file = self.format.lookup(path).map_err(self.damaged())?.is_some();
            let (kind, why) = match is_file {
                true => (Kind::Invalid, "the path is a file"),
                false => (Kind::NotFound, "there is no such folder"),
            };
            return Err(Error::new(kind, "list", folder, why));
        };
        let entries = self.format.entries(number, path).map_err(self.damaged())?;
        let levels = vec![entries];
        Ok(Walk { snapshot: Arc::clone(self), levels, recursive, names_only, files: 0 })
    }

    fn entry(
        &self,
        FileNumber(number): FileNumber,
        path: &[u8],
        name_only: bool,
    ) -> Result<ListEntry, Error> {
        let record = match name_only {
            true => None,
            false => Some(self.record(number)?),
        };
        Ok(ListEntry::File(self.typed(path.to_vec())?, record))
    }
}

/// A listing in progress. Memory holds the next names only, not the names of all files.
#[derive(Debug)]
pub(crate) struct Walk {
    snapshot: Arc<Snapshot>,
    levels: Vec<Entries>,
    recursive: bool,
    names_only: bool,
    /// The number of files so far.
    files: u64,
}

impl Iterator for Walk {
    type Item = Result<ListEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let snapshot = &self.snapshot;
        loop {
            let found = match self.levels.last_mut()?.next(&snapshot.format) {
                Ok(Some(SnapshotEntry::File(number, path))) => {
                    self.files += 1;
                    let checked = snapshot.check_seen(self.files);
                    checked.and_then(|()| snapshot.entry(number, path, self.names_only))
                }
                Ok(Some(SnapshotEntry::Directory(number, path))) if self.recursive => {
                    match snapshot.format.entries(number, path) {
                        Ok(entries) => {
                            self.levels.push(entries);
                            continue;
                        }
                        Err(why) => Err(snapshot.damaged()(why)),
                    }
                }
                Ok(Some(SnapshotEntry::Directory(_, path))) => {
                    snapshot.typed(path.to_vec()).map(ListEntry::Folder)
                }
                Ok(None) => {
                    self.levels.pop();
                    continue;
                }
                Err(why) => Err(snapshot.damaged()(why)),
            };
            if found.is_err() {
                self.levels.clear();
            }
            return Some(found);
        }
    }
}

pub(crate) fn damaged(name: &str, why: DecodeError) -> Error {
    Error::new(Kind::Corrupt, "read the snapshot", name, why)
}

pub(crate) fn local(action: &'static str, path: &Path, why: io::Error) -> Error {
    Error::new(Kind::Local, action, path.display(), why)
}

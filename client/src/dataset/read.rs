//! Reads of files by path: from the chunks of an epoch, if the handle has an epoch, else from the
//! servers. A snapshot spares the servers the lookup.
//!
//! Must hold: no request asks for a file of the current epoch's chunks. Each file of a batch has a
//! result of its own.

use std::io::Write;

use bytes::Bytes;
use dl_format::{FilePath, FileRecord};
use dl_proto::StatItem;

use super::Dataset;
use crate::epoch::FileRead;
use crate::error::{Error, Kind};
use crate::path::AsPath;
use crate::remote::{FileSink, ReadItem};

/// A file of a batch.
pub(super) enum Begun {
    /// No request is needed.
    Done(Result<Bytes, Error>),
    Asked(ReadItem),
}

impl Dataset {
    /// Reads a file into memory (paper, DL_get).
    ///
    /// # Errors
    /// [`Kind::NotFound`] if there is no such file,
    /// [`Kind::Conflict`] for a folder,
    /// [`Kind::Corrupt`] for damaged stored bytes,
    /// [`Kind::Invalid`] for an invalid path.
    pub fn get(&self, path: impl AsPath<FilePath>) -> Result<Bytes, Error> {
        let path = path.as_path("read")?;
        if let Some((worker, snapshot)) = self.worker()
            && let Some(number) = snapshot.number(&path)?
        {
            return match worker.read(number) {
                Some(bytes) => Ok(bytes),
                None => worker.uncached(number, || self.get_uncached(&path)),
            };
        }
        self.get_uncached(&path)
    }

    /// Reads a file without the cache of the node.
    pub(super) fn get_uncached(&self, path: &FilePath) -> Result<Bytes, Error> {
        self.finish(self.begin(path)?)
    }

    /// Reads a file from the servers unless it is there.
    pub(super) fn finish(&self, begun: Begun) -> Result<Bytes, Error> {
        match begun {
            Begun::Done(file) => file,
            Begun::Asked(item) => self.0.remote.get(&item),
        }
    }

    /// Reads many files into memory, in as few requests as useful. Each file, or its error, in the
    /// order of `paths`.
    ///
    /// # Errors
    /// Errors of the servers and of the connection, for a request that fails as a whole.
    pub fn get_many<P: AsPath<FilePath>>(
        &self,
        paths: &[P],
    ) -> Result<Vec<Result<Bytes, Error>>, Error> {
        let begun = paths.iter().map(|path| self.begin_anywhere(path));
        self.finish_many(begun.collect::<Result<_, _>>()?)
    }

    /// The same for many files, in as few requests as useful.
    pub(super) fn finish_many(
        &self,
        begun: Vec<Begun>,
    ) -> Result<Vec<Result<Bytes, Error>>, Error> {
        let asked = begun.iter().filter_map(|file| match file {
            Begun::Asked(item) => Some(item.clone()),
            Begun::Done(_) => None,
        });
        let asked: Vec<ReadItem> = asked.collect();
        let mut read = self.0.remote.get_many(&asked)?.into_iter();
        let files = begun.into_iter().filter_map(|file| match file {
            Begun::Done(file) => Some(file),
            Begun::Asked(_) => read.next(),
        });
        Ok(files.collect())
    }

    /// A file of the cache of the node, else as [`begin`](Self::begin).
    fn begin_anywhere(&self, path: &impl AsPath<FilePath>) -> Result<Begun, Error> {
        if let Some((worker, snapshot)) = self.worker()
            && let Ok(path) = path.as_path("read")
            && let Some(number) = snapshot.number(&path)?
            && let Some(bytes) = worker.read(number)
        {
            return Ok(Begun::Done(Ok(bytes)));
        }
        self.begin(path)
    }

    /// A file of the epoch, an error for an unreadable file, or else the item to request. The call
    /// fails if the epoch's source fails.
    pub(super) fn begin(&self, path: &impl AsPath<FilePath>) -> Result<Begun, Error> {
        let path = match path.as_path("read") {
            Ok(path) => path,
            Err(error) => return Ok(Begun::Done(Err(error))),
        };
        if let Some(file) = self.read_out_of_order(&path) {
            return Ok(Begun::Done(file?));
        }
        Ok(match self.known_item((&*path).into()) {
            Ok(item) => Begun::Asked(item),
            Err(error) => Begun::Done(Err(error)),
        })
    }

    /// A file of the epoch: in memory, or fetched with its chunk.
    fn read_out_of_order(&self, path: &FilePath) -> Option<FileRead> {
        let (epoch, snapshot) = self.epoch()?;
        // The usual read reports a bad path.
        let number = snapshot.number(path).ok()??;
        epoch.read_out_of_order(number)
    }

    /// Reads many files, and hands over each file on arrival, with its index in `items`. For items
    /// with records, requests have a bounded size, and so has memory. Neighbours in a chunk are
    /// read as one range, so items in the order of chunks and offsets come fastest.
    /// [`read_to`](Self::read_to) is for files larger than a chunk.
    pub fn read_files(&self, items: Vec<ReadItem>, sink: &mut FileSink<'_>) {
        let cached = self.cached_numbers(&items);
        let (mut numbers, mut readable) = (Vec::with_capacity(items.len()), Vec::new());
        for (number, item) in items.into_iter().enumerate() {
            if self.lend(&cached, number, &mut |bytes| sink(number, Ok(bytes))) {
                continue;
            }
            match self.known_item(item) {
                Ok(item) => {
                    numbers.push(number);
                    readable.push(item);
                }
                Err(error) => sink(number, Err(error)),
            }
        }
        let number_of = |item: usize| numbers.get(item).copied().unwrap_or(item);
        let mut read = || {
            self.0.remote.read_files(&readable, &mut |item, file| sink(number_of(item), file));
        };
        match numbers.first().and_then(|first| cached.get(*first).copied().flatten()) {
            Some(first) => self.uncached(first, read),
            None => read(),
        }
    }

    /// Reads a file of any size with bounded memory; gives its length in bytes. After a failure
    /// `writer` has the beginning of the file.
    ///
    /// # Errors
    /// As for [`get`](Self::get), and [`Kind::Local`] if `writer` fails.
    pub fn read_to(&self, item: impl Into<ReadItem>, writer: &mut dyn Write) -> Result<u64, Error> {
        let item = item.into();
        let cached = self.cached_numbers(std::slice::from_ref(&item));
        let mut written = Ok(0);
        let mut write = |bytes: &[u8]| {
            written = writer.write_all(bytes).map(|()| bytes.len() as u64);
        };
        if self.lend(&cached, 0, &mut write) {
            let failed = |why| Error::new(Kind::Local, "write", self.address_of(&item.path), why);
            return written.map_err(failed);
        }
        let record = match item.record {
            Some(record) => record,
            None => self.find(&item.path)?,
        };
        let item = ReadItem { record: Some(record), ..item };
        let mut read = || self.0.remote.read_to(&item, record, writer);
        match cached.first().copied().flatten() {
            Some(number) => self.uncached(number, read),
            None => read(),
        }
    }

    /// Reads a file from the servers, by its number in the snapshot, and reports the read to the
    /// agent.
    fn uncached<T>(&self, number: u32, read: impl FnOnce() -> T) -> T {
        match self.worker() {
            Some((worker, _)) => worker.uncached(number, read),
            None => read(),
        }
    }

    /// The numbers of files with equal content in the snapshot, which the cache of the node may
    /// hold; none for the rest.
    fn cached_numbers(&self, items: &[ReadItem]) -> Vec<Option<u32>> {
        let Some((_, snapshot)) = self.worker() else { return Vec::new() };
        let number = |item: &ReadItem| {
            let number = snapshot.number(&item.path).ok()??;
            let place = snapshot.place(number).ok()?;
            let is_same =
                |record: &FileRecord| (record.length, record.crc) == (place.length, place.crc);
            item.record.as_ref().is_none_or(is_same).then_some(number)
        };
        items.iter().map(number).collect()
    }

    /// Lends a file of the node's cache, by its index in a batch read in order. Gives false if the
    /// file is absent.
    fn lend(&self, numbers: &[Option<u32>], index: usize, take: &mut dyn FnMut(&[u8])) -> bool {
        /// Chunks for the agent to fetch during the read.
        const AHEAD: usize = 8;
        let Some((worker, snapshot)) = self.worker() else { return false };
        let Some(Some(number)) = numbers.get(index).copied() else { return false };
        let hints = || {
            let later = numbers.iter().skip(index + 1).flatten();
            let mut chunks: Vec<u32> = Vec::new();
            for place in later.filter_map(|number| snapshot.place(*number).ok()) {
                if chunks.last() != Some(&place.chunk) {
                    chunks.push(place.chunk);
                }
                if chunks.len() > AHEAD {
                    break;
                }
            }
            chunks
        };
        worker.lend(number, hints, take).is_some()
    }

    pub(super) fn find(&self, path: &FilePath) -> Result<FileRecord, Error> {
        let (kind, why) = match self.stat(path)? {
            StatItem::File(record) => return Ok(record),
            StatItem::Folder => (Kind::Conflict, "it is a folder"),
            StatItem::Missing => (Kind::NotFound, "no such file"),
        };
        Err(Error::new(kind, "read", self.address_of(path), why))
    }

    /// The item with its record from the snapshot, if there is a snapshot; an error if there is no
    /// such file.
    fn known_item(&self, item: ReadItem) -> Result<ReadItem, Error> {
        let Some(snapshot) = self.snapshot().filter(|_| item.record.is_none()) else {
            return Ok(item);
        };
        let (kind, why) = match snapshot.stat(&item.path)? {
            StatItem::File(record) => {
                return Ok(ReadItem { record: Some(record), ..item });
            }
            StatItem::Folder => (Kind::Conflict, format!("{} is a folder", item.path)),
            StatItem::Missing => (Kind::NotFound, format!("there is no file {}", item.path)),
        };
        Err(Error::new(kind, "read", self.address_of(&item.path), why))
    }

    fn address_of(&self, path: &FilePath) -> String {
        format!("{}/{path}", self.0.remote.address())
    }
}

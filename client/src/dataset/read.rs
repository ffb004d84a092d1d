//! Reads of files by path: along the order of an epoch where one is read, else from the servers, by
//! records where a snapshot has them.
//!
//! Must hold: a file that an epoch has is not asked for; of many files each is answered for itself.

use std::io::Write;

use bytes::Bytes;
use dl_format::{FilePath, FileRecord};
use dl_proto::StatItem;

use super::Dataset;
use crate::epoch::FileRead;
use crate::error::{Error, Kind};
use crate::path::AsPath;
use crate::remote::{FileSink, ReadItem};

/// A file of many that are to be read.
enum Begun {
    /// No request is needed.
    Done(Result<Bytes, Error>),
    Asked(ReadItem),
}

impl Dataset {
    /// Reads a file into memory (paper, DL_get).
    ///
    /// # Errors
    /// [`Kind::NotFound`] when there is none,
    /// [`Kind::Conflict`] when it is a folder,
    /// [`Kind::Corrupt`] when the stored bytes are damaged,
    /// [`Kind::Invalid`] when it can't be a path.
    pub fn get(&self, path: impl AsPath<FilePath>) -> Result<Bytes, Error> {
        let path = path.as_path("read")?;
        if let Some((worker, snapshot)) = self.worker()
            && let Some(number) = snapshot.number(&path)?
        {
            return match worker.read(number) {
                Some(bytes) => Ok(bytes),
                None => worker.elsewhere(number, || self.get_elsewhere(&path)),
            };
        }
        self.get_elsewhere(&path)
    }

    /// The same past the node's cache.
    pub(super) fn get_elsewhere(&self, path: &FilePath) -> Result<Bytes, Error> {
        match self.begin(path)? {
            Begun::Done(file) => file,
            Begun::Asked(item) => self.0.remote.get(&item),
        }
    }

    /// Reads many files into memory, in as few requests as is useful: each file, or why it could
    /// not be read, in the order of `paths`.
    ///
    /// # Errors
    /// When a request fails as a whole: those of the servers and of the way to them.
    pub fn get_many<P: AsPath<FilePath>>(
        &self,
        paths: &[P],
    ) -> Result<Vec<Result<Bytes, Error>>, Error> {
        let begun = paths.iter().map(|path| self.begin_anywhere(path));
        let begun: Vec<Begun> = begun.collect::<Result<_, _>>()?;
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

    /// A file of the node's cache, else as [`begin`](Self::begin).
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

    /// A file of an epoch or one that can't be read, else what to ask for. The error is that of the
    /// way to the servers.
    fn begin(&self, path: &impl AsPath<FilePath>) -> Result<Begun, Error> {
        let path = match path.as_path("read") {
            Ok(path) => path,
            Err(error) => return Ok(Begun::Done(Err(error))),
        };
        if let Some(file) = self.read_ahead(&path) {
            return Ok(Begun::Done(file?));
        }
        Ok(match self.known_item((&*path).into()) {
            Ok(item) => Begun::Asked(item),
            Err(error) => Begun::Done(Err(error)),
        })
    }

    /// A file that is there already, or is fetched with its chunk.
    fn read_ahead(&self, path: &FilePath) -> Option<FileRead> {
        let (epoch, snapshot) = self.epoch()?;
        // What is wrong with the path is told where it is read as usual.
        let number = snapshot.number(path).ok()??;
        epoch.read_ahead(number)
    }

    /// Reads many files, and hands each over as soon as it is there, with its number among
    /// `items`: with records, in requests of a bounded size, so that memory is bounded. Files with
    /// records that lie next to each other in a chunk are read as one, so items in the order of
    /// their chunks and offsets come fastest. Files of more than a chunk are for
    /// [`read_to`](Self::read_to).
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
            Some(first) => self.elsewhere(first, read),
            None => read(),
        }
    }

    /// Reads a file of any size with bounded memory; gives its length in bytes. When it fails,
    /// what was written is the beginning of the file.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`Kind::Local`] when `writer` fails.
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
            Some(number) => self.elsewhere(number, read),
            None => read(),
        }
    }

    /// Reads a file from the servers, by its number in the snapshot, and tells the node's agent.
    fn elsewhere<T>(&self, number: u32, read: impl FnOnce() -> T) -> T {
        match self.worker() {
            Some((worker, _)) => worker.elsewhere(number, read),
            None => read(),
        }
    }

    /// The numbers of files that the node's cache may have, as the snapshot has them; none for the others.
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

    /// Hands over a file of the node's cache, by its index among many that are read in this order; false
    /// where it has to be read elsewhere.
    fn lend(&self, numbers: &[Option<u32>], index: usize, take: &mut dyn FnMut(&[u8])) -> bool {
        /// Chunks that the agent may fetch while this one is read.
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

    fn find(&self, path: &FilePath) -> Result<FileRecord, Error> {
        let (kind, why) = match self.stat(path)? {
            StatItem::File(record) => return Ok(record),
            StatItem::Folder => (Kind::Conflict, "it is a folder"),
            StatItem::Missing => (Kind::NotFound, "no such file"),
        };
        Err(Error::new(kind, "read", self.address_of(path), why))
    }

    /// The item with its record where a snapshot answers, or why there is nothing to read.
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

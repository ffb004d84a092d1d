//! Reads by number or path into memory of the caller, or borrowed from the cache of the node.
//!
//! Must hold: a read asks the cache of the node first, and the servers for anything missing there.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use dl_format::FilePath;

use super::Dataset;
use super::read::Begun;
use crate::error::{Error, Kind};
use crate::order::Selection;
use crate::path::AsPath;
use crate::remote::ReadItem;
use crate::snapshot::Snapshot;
use crate::worker::{AgentReader, Presence, View};

/// A file: a path ([`AsPath`]), or a number in the snapshot (`u32`). Only the library implements
/// the trait.
pub trait AsFile: sealed::Sealed {
    /// The path or the number.
    #[doc(hidden)]
    fn as_file(&self) -> Result<FileKey<'_>, Error>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    #[deny(clippy::missing_trait_methods)]
    impl<P: super::AsPath<super::FilePath>> Sealed for P {}
}

/// The file named by an [`AsFile`].
#[doc(hidden)]
#[derive(Debug)]
pub enum FileKey<'a> {
    /// The number in the snapshot.
    Number(u32),
    /// The path.
    Path(Cow<'a, FilePath>),
}

impl AsFile for u32 {
    fn as_file(&self) -> Result<FileKey<'_>, Error> {
        Ok(FileKey::Number(*self))
    }
}

#[deny(clippy::missing_trait_methods)]
impl<P: AsPath<FilePath>> AsFile for P {
    fn as_file(&self) -> Result<FileKey<'_>, Error> {
        self.as_path("read").map(FileKey::Path)
    }
}

/// Files of a request past the cache, at most.
const FILES_PAST_CACHE: usize = 1_024;

/// The file at an index, if it is the first.
fn pop_at(past: &mut VecDeque<(usize, Bytes)>, at: usize) -> Option<Bytes> {
    past.pop_front_if(|(index, _)| *index == at).map(|(_, bytes)| bytes)
}

impl Dataset {
    /// Reads a file to the beginning of `buffer`; gives its length in bytes.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a short buffer; otherwise as for [`get`](Self::get).
    pub fn get_into(&self, file: impl AsFile, buffer: &mut [u8]) -> Result<usize, Error> {
        let file = file.as_file()?;
        if let Some((worker, number)) = self.cached(&file)?
            && let Some(length) = worker.read_into(number, buffer)
        {
            return Ok(length);
        }
        let bytes = self.get_past_cache(&file)?;
        let into = buffer.get_mut(..bytes.len()).ok_or_else(|| self.too_short(bytes.len()))?;
        into.copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    /// Reads files one behind the other into `buffer`; gives their ranges in the buffer, in the
    /// order of `files`.
    ///
    /// # Errors
    /// For the first file that fails: [`Kind::Invalid`] for a short buffer; otherwise as for
    /// [`get`](Self::get).
    pub fn get_many_into<F: AsFile>(
        &self,
        files: &[F],
        buffer: &mut [u8],
    ) -> Result<Vec<Range<usize>>, Error> {
        let files = files.iter().map(AsFile::as_file).collect::<Result<Vec<_>, _>>()?;
        let mut places = Vec::with_capacity(files.len());
        let known = match self.worker() {
            Some((worker, snapshot)) => Some((worker, self.numbers(snapshot, &files)?)),
            None => None,
        };
        let mut past = VecDeque::new();
        while places.len() < files.len() {
            let end = places.last().map_or(0, |place: &Range<usize>| place.end);
            let at = places.len();
            if let Some(bytes) = pop_at(&mut past, at) {
                let to = end.saturating_add(bytes.len());
                let into = buffer.get_mut(end..to).ok_or_else(|| self.too_short(to))?;
                into.copy_from_slice(&bytes);
                places.push(end..to);
                continue;
            }
            if let Some((worker, numbers)) = &known {
                let until = past.front().map_or(files.len(), |(index, _)| *index);
                let left = numbers.get(at..until).unwrap_or_default();
                let room = buffer.get_mut(end..).unwrap_or_default();
                let took = |_, place: Range<usize>| {
                    places.push(place.start + end..place.end + end);
                };
                if worker.read_many_into(left, room, took) > 0 {
                    continue;
                }
            }
            self.get_many_past_cache(&files, known.as_ref(), at, &mut past)?;
        }
        Ok(places)
    }

    /// Borrows the bytes of a file from the cache of the node. The chunk of the file stays in the
    /// cache while the view lives: drop the view soon, or copy.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn view(&self, file: impl AsFile) -> Result<View, Error> {
        let file = file.as_file()?;
        if let Some((worker, number)) = self.cached(&file)?
            && let Some(view) = worker.view(number)
        {
            return Ok(view);
        }
        Ok(View::from(self.get_past_cache(&file)?))
    }

    /// Borrows many files, in their order.
    ///
    /// # Errors
    /// As for [`get`](Self::get), for the first file that fails.
    pub fn view_many<F: AsFile>(&self, files: &[F]) -> Result<Vec<View>, Error> {
        let files = files.iter().map(AsFile::as_file).collect::<Result<Vec<_>, _>>()?;
        let mut views = Vec::with_capacity(files.len());
        let known = match self.worker() {
            Some((worker, snapshot)) => Some((worker, self.numbers(snapshot, &files)?)),
            None => None,
        };
        let mut past = VecDeque::new();
        while views.len() < files.len() {
            let at = views.len();
            if let Some(bytes) = pop_at(&mut past, at) {
                views.push(View::from(bytes));
                continue;
            }
            if let Some((worker, numbers)) = &known {
                let until = past.front().map_or(files.len(), |(index, _)| *index);
                worker.view_many(numbers.get(at..until).unwrap_or_default(), &mut views);
            }
            if views.len() == at {
                self.get_many_past_cache(&files, known.as_ref(), at, &mut past)?;
            }
        }
        Ok(views)
    }

    /// Lends the bytes of files by number, without waiting, up to the first file absent from the
    /// memory of the node. Gives the number of files lent: 0 for a handle without an agent.
    pub fn lend_present(&self, numbers: &[u32], take: impl FnMut(&[u8])) -> usize {
        self.worker().map_or(0, |(worker, _)| worker.lend_present(numbers, take))
    }

    /// Appends views of files by number, without waiting, up to the first file absent from the
    /// memory of the node.
    pub fn view_present(&self, numbers: &[u32], views: &mut Vec<View>) {
        if let Some((worker, _)) = self.worker() {
            worker.view_present(numbers, views);
        }
    }

    /// Asks the agent of the node to load the chunks of a selection, in the order of their numbers,
    /// as far as memory goes. The call does not wait; [`presence`](Self::presence) shows the
    /// progress.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a handle without a snapshot of a task, and for the selection of
    /// another snapshot. [`Kind::Local`] without an agent, and while the agent has too many
    /// prefetches.
    pub fn prefetch(&self, selection: &Selection) -> Result<(), Error> {
        let worker = self.worker_for(selection, "prefetch")?;
        let failed = |why| Error::new(Kind::Local, "prefetch", self.0.remote.address(), why);
        worker.prefetch(selection)?.map_err(failed)
    }

    /// The number of chunks of a selection in the memory of the node.
    ///
    /// # Errors
    /// [`Kind::Invalid`] as for [`prefetch`](Self::prefetch), [`Kind::Local`] without an agent.
    pub fn presence(&self, selection: &Selection) -> Result<Presence, Error> {
        const ACTION: &str = "count cached chunks of";
        let worker = self.worker_for(selection, ACTION)?;
        let none = || {
            Error::new(
                Kind::Local,
                ACTION,
                self.0.remote.address(),
                "no agent runs on this machine",
            )
        };
        worker.presence(selection)?.ok_or_else(none)
    }

    fn worker_for(
        &self,
        selection: &Selection,
        action: &'static str,
    ) -> Result<&AgentReader, Error> {
        let invalid = |why| Error::new(Kind::Invalid, action, self.0.remote.address(), why);
        let (worker, snapshot) = self
            .worker()
            .ok_or_else(|| invalid("the handle reads without an agent; name a task"))?;
        if selection.files() != snapshot.files() {
            return Err(invalid("the selection is of another snapshot"));
        }
        Ok(worker)
    }

    /// The worker and the snapshot for reads; none for a handle without a task, or after a write
    /// through the handle.
    #[inline]
    pub(super) fn worker(&self) -> Option<(&Arc<AgentReader>, &Arc<Snapshot>)> {
        Some((self.0.worker.as_ref()?, self.snapshot()?))
    }

    /// The worker and the number of a file, if the cache may hold the file.
    #[inline]
    pub(super) fn cached(
        &self,
        file: &FileKey<'_>,
    ) -> Result<Option<(&Arc<AgentReader>, u32)>, Error> {
        let Some((worker, snapshot)) = self.worker() else { return Ok(None) };
        Ok(match file {
            FileKey::Number(number) => Some((worker, *number)),
            FileKey::Path(path) => snapshot.number(path)?.map(|number| (worker, number)),
        })
    }

    /// The numbers of files; an invalid number for a path without a file.
    fn numbers(&self, snapshot: &Snapshot, files: &[FileKey<'_>]) -> Result<Vec<u32>, Error> {
        let paths = files.iter().filter_map(|file| match file {
            FileKey::Number(_) => None,
            FileKey::Path(path) => Some(path.as_ref()),
        });
        let mut of_paths = snapshot.numbers(paths)?.into_iter();
        let number = |file: &FileKey<'_>| match file {
            FileKey::Number(number) => *number,
            FileKey::Path(_) => of_paths.next().flatten().unwrap_or(u32::MAX),
        };
        Ok(files.iter().map(number).collect())
    }

    /// Reads the file at an index from the servers. The same request brings later files that the
    /// cache lacks, if the agent gives no absent chunk; otherwise only later files of the same chunk.
    /// Adds each file to `past`, with its index.
    fn get_many_past_cache(
        &self,
        files: &[FileKey<'_>],
        known: Option<&(&Arc<AgentReader>, Vec<u32>)>,
        at: usize,
        past: &mut VecDeque<(usize, Bytes)>,
    ) -> Result<(), Error> {
        let end = past.front().map_or(files.len(), |(index, _)| *index);
        let indexes: Vec<usize> = match (known, self.snapshot()) {
            (Some((worker, numbers)), Some(snapshot)) => {
                let chunk = |index: usize| Some(snapshot.place(*numbers.get(index)?).ok()?.chunk);
                let is_stuck = worker.obstacle().is_some() || worker.reads_files_alone();
                let first = chunk(at);
                let is_past = |index: &usize| {
                    let of = chunk(*index);
                    (is_stuck || of == first) && of.is_none_or(|chunk| !worker.has(chunk))
                };
                let later = (at + 1..end).filter(is_past);
                std::iter::once(at).chain(later).take(FILES_PAST_CACHE).collect()
            }
            _ => (at..end).collect(),
        };
        let asked = indexes.iter().filter_map(|index| files.get(*index));
        let read = match known.and_then(|(worker, numbers)| Some((worker, *numbers.get(at)?))) {
            Some((worker, number)) => {
                worker.uncached(number, || self.get_many_of_servers(asked))?
            }
            None => self.get_many_of_servers(asked)?,
        };
        indexes.into_iter().zip(read).rev().for_each(|file| past.push_front(file));
        Ok(())
    }

    fn get_past_cache(&self, file: &FileKey<'_>) -> Result<Bytes, Error> {
        match self.cached(file)? {
            Some((worker, number)) => worker.uncached(number, || self.get_of_servers(file)),
            None => self.get_of_servers(file),
        }
    }

    pub(super) fn get_of_servers(&self, file: &FileKey<'_>) -> Result<Bytes, Error> {
        match file {
            FileKey::Path(path) => self.get_uncached(path),
            FileKey::Number(number) => self.finish(self.begin_number(*number)?),
        }
    }

    /// The same as [`begin`](Self::begin), for a number in the snapshot.
    fn begin_number(&self, number: u32) -> Result<Begun, Error> {
        let snapshot = self.numbering()?;
        if let Some((epoch, _)) = self.epoch()
            && let Some(file) = epoch.read_out_of_order(number)
        {
            return Ok(Begun::Done(file?));
        }
        Ok(Begun::Asked(ReadItem::from((snapshot.path(number)?, snapshot.record(number)?))))
    }

    /// Many files in few requests; the error of the first file that fails.
    fn get_many_of_servers<'a>(
        &self,
        files: impl Iterator<Item = &'a FileKey<'a>>,
    ) -> Result<Vec<Bytes>, Error> {
        let begun = files.map(|file| match file {
            FileKey::Path(path) => self.begin(&**path),
            FileKey::Number(number) => self.begin_number(*number),
        });
        self.finish_many(begun.collect::<Result<_, _>>()?)?.into_iter().collect()
    }

    /// The snapshot with the numbers of the files.
    pub(super) fn numbering(&self) -> Result<&Arc<Snapshot>, Error> {
        let none = || {
            let why = "the handle has no snapshot, so files have no numbers";
            Error::new(Kind::Invalid, "read", self.0.remote.address(), why)
        };
        self.snapshot().ok_or_else(none)
    }

    fn too_short(&self, length: usize) -> Error {
        let why = format!("the buffer is too short: {length} bytes are needed");
        Error::new(Kind::Invalid, "read", self.0.remote.address(), why)
    }
}

//! Epochs: the files of a rank, or of a worker of its loader, in their order.
//!
//! Must hold: an unreadable file is reported and the next file follows; a failed or interrupted
//! call skips no file.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libdiesel::order::InvalidToken;
use libdiesel::{Dataset, Error, ResumeToken, View as SharedView};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::errors::{Raise, invalid, raised};
use crate::files::python_name;
use crate::output::bytes_object;
use crate::view::View;
use crate::wait::wait;

/// Files read together by an iteration.
const TOGETHER: usize = 64;

/// The files of one rank, or of one of its loader's workers, in one epoch. Created by
/// :meth:`Dataset.shuffle`; iterating gives ``(path, bytes)``.
#[pyclass(frozen, module = "libdiesel")]
pub(crate) struct Epoch {
    epoch: libdiesel::Epoch,
    dataset: Dataset,
    /// Whether files are read from the memory of the node.
    is_cached: bool,
    ahead: Arc<Mutex<Ahead>>,
}

type FileRead = Result<SharedView, Error>;

/// Files taken from the order and not yet returned: a failed or interrupted call leaves them to the
/// next call.
#[derive(Default)]
struct Ahead {
    /// Before the files of `taken`.
    read: VecDeque<(u32, FileRead)>,
    taken: Vec<u32>,
    /// Whether the order is exhausted.
    is_over: bool,
}

impl Epoch {
    pub(crate) fn new(epoch: libdiesel::Epoch, dataset: Dataset, is_cached: bool) -> Self {
        Self { epoch, dataset, is_cached, ahead: Arc::default() }
    }

    /// The next files, at most `files`.
    fn next_files(&self, py: Python<'_>, files: usize) -> PyResult<Vec<(u32, FileRead)>> {
        loop {
            // An interrupted call may still be reading.
            if let Ok(mut ahead) = self.ahead.try_lock() {
                if self.is_cached {
                    ahead.look(&self.epoch, &self.dataset, files).or_raise(py)?;
                }
                if ahead.is_over || ahead.read.len() >= files {
                    return Ok(ahead.give(files));
                }
            }
            let (epoch, dataset) = (self.epoch.clone(), self.dataset.clone());
            let (ahead, is_cached) = (Arc::clone(&self.ahead), self.is_cached);
            let fill = move || lock(&ahead).fill(&epoch, &dataset, files, is_cached);
            wait(py, fill)?.or_raise(py)?;
        }
    }
}

fn lock(ahead: &Mutex<Ahead>) -> MutexGuard<'_, Ahead> {
    ahead.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ahead {
    /// Takes up to `files` files, and reads the files present in the memory of the node.
    fn look(
        &mut self,
        epoch: &libdiesel::Epoch,
        dataset: &Dataset,
        files: usize,
    ) -> Result<(), Error> {
        if self.taken.is_empty() && self.read.len() < files {
            self.taken = epoch.take(files - self.read.len())?;
            self.is_over = self.taken.is_empty();
        }
        let mut views = Vec::with_capacity(self.taken.len());
        dataset.view_present(&self.taken, &mut views);
        let numbers = self.taken.drain(..views.len());
        self.read.extend(numbers.zip(views.into_iter().map(Ok)));
        Ok(())
    }

    /// Reads until `files` files, or all remaining files, are present.
    fn fill(
        &mut self,
        epoch: &libdiesel::Epoch,
        dataset: &Dataset,
        files: usize,
        is_cached: bool,
    ) -> Result<(), Error> {
        while self.read.len() < files {
            if !is_cached {
                let Some(file) = epoch.next()? else {
                    self.is_over = true;
                    return Ok(());
                };
                self.read.push_back((file.number, file.bytes.map(SharedView::from)));
                continue;
            }
            if self.taken.is_empty() {
                self.taken = epoch.take(files - self.read.len())?;
            }
            if self.taken.is_empty() {
                self.is_over = true;
                return Ok(());
            }
            let read = view_each(dataset, &self.taken)?;
            self.read.extend(self.taken.drain(..).zip(read));
        }
        Ok(())
    }

    fn give(&mut self, files: usize) -> Vec<(u32, FileRead)> {
        self.read.drain(..files.min(self.read.len())).collect()
    }
}

/// Views of files, read one by one if any of them fails.
fn view_each(dataset: &Dataset, numbers: &[u32]) -> Result<Vec<FileRead>, Error> {
    match dataset.view_many(numbers) {
        Ok(views) => Ok(views.into_iter().map(Ok).collect()),
        Err(error) if error.kind().is_retryable() => Err(error),
        Err(_) => numbers
            .iter()
            .map(|number| match dataset.view(*number) {
                Err(error) if error.kind().is_retryable() => Err(error),
                read => Ok(read),
            })
            .collect(),
    }
}

#[pymethods]
impl Epoch {
    /// Reads the next files, at most ``files``. Returns a list of their numbers, and a list with a
    /// :class:`View` of each, or with the exception for an unreadable file. Both lists are empty at
    /// the end.
    fn read<'py>(
        &self,
        py: Python<'py>,
        files: usize,
    ) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
        let (numbers, read): (Vec<u32>, Vec<FileRead>) =
            self.next_files(py, files)?.into_iter().unzip();
        let object = |read: FileRead| match read {
            Ok(view) => Ok(Bound::new(py, View(view))?.into_any()),
            Err(error) => {
                Ok::<_, PyErr>(raised(py, &error).into_value(py).into_bound(py).into_any())
            }
        };
        let read = read.into_iter().map(object).collect::<PyResult<Vec<_>>>()?;
        Ok((PyList::new(py, numbers)?, PyList::new(py, read)?))
    }

    /// Returns the numbers of the next files, at most ``files``, to be read by
    /// :meth:`Dataset.get_many`; the agent fetches ahead of them.
    fn take(&self, py: Python<'_>, files: usize) -> PyResult<Vec<u32>> {
        let mut ahead = lock(&self.ahead);
        let read: Vec<u32> = ahead.give(files).into_iter().map(|(number, _)| number).collect();
        let taken = ahead.taken.len().min(files - read.len());
        let mut numbers = read;
        numbers.extend(ahead.taken.drain(..taken));
        numbers.extend(self.epoch.take(files - numbers.len()).or_raise(py)?);
        Ok(numbers)
    }

    /// A token to continue after each rank has read the given number of files since the start of
    /// this epoch object. The token is a line of text, for any number of ranks and workers.
    fn token(&self, read: u64) -> String {
        self.epoch.token(read).to_string()
    }

    /// Number of files returned by the epoch, in its order.
    #[getter]
    fn position(&self) -> u64 {
        let ahead = self.ahead.try_lock().map_or(0, |ahead| ahead.read.len() + ahead.taken.len());
        self.epoch.position().saturating_sub(ahead as u64)
    }

    /// Number of files of the epoch object, from its start or resume point.
    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.epoch.length())?)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<(std::ffi::OsString, Bound<'py, PyBytes>)>> {
        let next = self.ahead.try_lock().ok().and_then(|mut ahead| ahead.read.pop_front());
        let (number, read) = match next {
            Some(next) => next,
            None => {
                let mut read = self.next_files(py, TOGETHER)?;
                if read.is_empty() {
                    return Ok(None);
                }
                let next = read.remove(0);
                let mut ahead = lock(&self.ahead);
                read.into_iter().rev().for_each(|file| ahead.read.push_front(file));
                next
            }
        };
        let path = self.epoch.snapshot().path(number).or_raise(py)?;
        let bytes = bytes_object(py, &read.or_raise(py)?);
        Ok(Some((python_name(path.as_bytes()), bytes)))
    }

    fn __repr__(&self) -> String {
        let (position, length) = (self.position(), self.epoch.length());
        format!("<libdiesel.Epoch, {position} of {length} files>")
    }
}

/// The token of a task that started at a token, after each rank has read the given number of
/// further files. The task has ``world`` ranks on ``nodes`` machines.
#[pyfunction]
pub(crate) fn token_after(
    py: Python<'_>,
    token: &str,
    read: u64,
    world: u32,
    nodes: u32,
) -> PyResult<String> {
    let token: ResumeToken =
        token.parse().map_err(|why: InvalidToken| invalid(py, why.to_string()))?;
    let after = token.after(read, world, nodes).map_err(|why| invalid(py, why.to_string()))?;
    Ok(after.to_string())
}

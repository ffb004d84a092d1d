//! Epochs: the files of a rank, or of a worker of its loader, in their order.
//!
//! Must hold: an unreadable file is reported and the next file follows; a failed or interrupted
//! call skips no file.

use libdiesel::order::InvalidToken;
use libdiesel::{BatchFile, Batches, Dataset, Error, ResumeToken, View as SharedView};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::errors::{Raise, invalid, raised};
use crate::files::python_name;
use crate::output::bytes_object;
use crate::view::View;
use crate::wait::wait;

/// Files read together by an iteration.
const BATCH_SIZE: usize = 64;

/// The files of one rank, or of one of its loader's workers, in one epoch. Created by
/// :meth:`Dataset.shuffle`; iterating gives ``(path, bytes)``.
#[pyclass(frozen, module = "libdiesel")]
pub(crate) struct Epoch(Batches);

impl Epoch {
    pub(crate) fn new(epoch: libdiesel::Epoch, dataset: Dataset) -> Self {
        Self(Batches::new(epoch, dataset))
    }

    /// The next files, at most `files`.
    fn next_files(&self, py: Python<'_>, files: usize) -> PyResult<Vec<BatchFile>> {
        loop {
            // An interrupted call may still be reading.
            if let Some(read) = self.0.present(files).or_raise(py)? {
                return Ok(read);
            }
            let batches = self.0.clone();
            wait(py, move || batches.fill(files))?.or_raise(py)?;
        }
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
        let (numbers, read): (Vec<u32>, Vec<_>) = self.next_files(py, files)?.into_iter().unzip();
        let object = |read: Result<SharedView, Error>| match read {
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
        self.0.take(files).or_raise(py)
    }

    /// A token to continue after each rank has read the given number of files since the start of
    /// this epoch object. The token is a line of text, for any number of ranks and workers.
    fn token(&self, read: u64) -> String {
        self.0.epoch().token(read).to_string()
    }

    /// Number of files returned by the epoch, in its order.
    #[getter]
    fn position(&self) -> u64 {
        self.0.position()
    }

    /// Number of files of the epoch object, from its start or resume point.
    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.0.epoch().length())?)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<(std::ffi::OsString, Bound<'py, PyBytes>)>> {
        let (number, read) = match self.0.next_read() {
            Some(next) => next,
            None => {
                let mut read = self.next_files(py, BATCH_SIZE)?;
                if read.is_empty() {
                    return Ok(None);
                }
                let next = read.remove(0);
                self.0.put_back(read);
                next
            }
        };
        let path = self.0.epoch().snapshot().path(number).or_raise(py)?;
        let bytes = bytes_object(py, &read.or_raise(py)?);
        Ok(Some((python_name(path.as_bytes()), bytes)))
    }

    fn __repr__(&self) -> String {
        let (position, length) = (self.position(), self.0.epoch().length());
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

//! Epochs: the files of a rank, or of a worker of its loader, in their order.
//!
//! Must hold: a file that can't be had is named and the next one follows; while no server answers, the
//! call fails.

use libdiesel::order::InvalidToken;
use libdiesel::{Dataset, Error, ResumeToken, View as SharedView};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::errors::{Raise, invalid, raised};
use crate::files::python_name;
use crate::view::View;
use crate::wait::wait;

/// Files that are looked up together by an iteration.
const TOGETHER: usize = 64;

/// The files of one rank, or of one of its loader's workers, in one epoch. :meth:`Dataset.shuffle` makes
/// one; iterating gives ``(path, bytes)``.
#[pyclass(frozen, module = "libdiesel")]
pub(crate) struct Epoch {
    epoch: libdiesel::Epoch,
    dataset: Dataset,
    /// Whether files are read from the memory of the node.
    is_cached: bool,
    /// Of the iteration: read and not given yet, last first.
    ahead: std::sync::Mutex<Vec<(u32, FileRead)>>,
}

type FileRead = Result<SharedView, Error>;

impl Epoch {
    pub(crate) fn new(epoch: libdiesel::Epoch, dataset: Dataset, is_cached: bool) -> Self {
        Self { epoch, dataset, is_cached, ahead: std::sync::Mutex::default() }
    }

    fn next_files(&self, py: Python<'_>, files: usize) -> PyResult<Vec<(u32, FileRead)>> {
        let (epoch, dataset) = (self.epoch.clone(), self.dataset.clone());
        if !self.is_cached {
            return wait(py, move || next_of(&epoch, files))?.or_raise(py);
        }
        let numbers = epoch.take(files).or_raise(py)?;
        let mut views = Vec::with_capacity(numbers.len());
        dataset.view_present(&numbers, &mut views);
        let mut read: Vec<FileRead> = views.into_iter().map(Ok).collect();
        let rest = numbers.get(read.len()..).unwrap_or_default().to_vec();
        if !rest.is_empty() {
            read.extend(wait(py, move || view_each(&dataset, &rest))?.or_raise(py)?);
        }
        Ok(numbers.into_iter().zip(read).collect())
    }
}

/// The next files, in whole chunks from the servers.
fn next_of(epoch: &libdiesel::Epoch, files: usize) -> Result<Vec<(u32, FileRead)>, Error> {
    let mut read = Vec::new();
    while read.len() < files
        && let Some(file) = epoch.next()?
    {
        read.push((file.number, file.bytes.map(SharedView::from)));
    }
    Ok(read)
}

/// Views of files, each for itself where one of them fails.
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
    /// Reads the next files, at most so many: a list of their numbers, and one of a :class:`View` of each,
    /// or of the exception that says why it can't be had. Both are empty at the end.
    fn read<'py>(
        &self,
        py: Python<'py>,
        files: usize,
    ) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
        let (numbers, read): (Vec<u32>, Vec<FileRead>) =
            self.next_files(py, files)?.into_iter().unzip();
        let object = |read: FileRead| match read {
            Ok(view) => Ok(Bound::new(py, View::of(view))?.into_any()),
            Err(error) => Ok::<_, PyErr>(raised(py, &error).into_value(py).into_bound(py).into_any()),
        };
        let read = read.into_iter().map(object).collect::<PyResult<Vec<_>>>()?;
        Ok((PyList::new(py, numbers)?, PyList::new(py, read)?))
    }

    /// The numbers of the next files, at most so many, for a caller who reads them by
    /// :meth:`Dataset.get_many`; the agent fetches ahead of them.
    fn take(&self, py: Python<'_>, files: usize) -> PyResult<Vec<u32>> {
        self.epoch.take(files).or_raise(py)
    }

    /// A token to go on with when each rank has read so many files since this epoch began or went on: a
    /// line of text, for any number of ranks and workers.
    fn token(&self, read: u64) -> String {
        self.epoch.token(read).to_string()
    }

    /// Files that the epoch has handed out, in its order.
    #[getter]
    fn position(&self) -> u64 {
        self.epoch.position()
    }

    /// Files that the epoch hands out, from where it begins or goes on.
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
        let ahead = || self.ahead.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let next = ahead().pop();
        let (number, read) = match next {
            Some(next) => next,
            None => {
                let mut read = self.next_files(py, TOGETHER)?;
                read.reverse();
                let Some(next) = read.pop() else { return Ok(None) };
                ahead().extend(read);
                next
            }
        };
        let path = self.epoch.snapshot().path(number).or_raise(py)?;
        let bytes = PyBytes::new(py, &read.or_raise(py)?);
        Ok(Some((python_name(path.as_bytes()), bytes)))
    }

    fn __repr__(&self) -> String {
        let (position, length) = (self.epoch.position(), self.epoch.length());
        format!("<libdiesel.Epoch, {position} of {length} files>")
    }
}

/// The token of a task of ``world`` ranks on ``nodes`` machines that began at a token, when each rank has
/// read so many files more.
#[pyfunction]
pub(crate) fn token_after(
    py: Python<'_>,
    token: &str,
    read: u64,
    world: u32,
    nodes: u32,
) -> PyResult<String> {
    let token: ResumeToken = token.parse().map_err(|why: InvalidToken| invalid(py, why.to_string()))?;
    let after = token.after(read, world, nodes).map_err(|why| invalid(py, why.to_string()))?;
    Ok(after.to_string())
}

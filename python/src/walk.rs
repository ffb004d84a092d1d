//! Walks through folders.
//!
//! Must hold: a walk has one page of paths in memory, however many files there are.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use libdiesel::{Error, ListEntry, Listing};
use pyo3::prelude::*;

use crate::errors::Raise;
use crate::files::python_name;
use crate::wait::wait;

/// Paths of a page.
const PAGE: usize = 1_000;

/// Paths of files, one after the other.
#[pyclass(frozen, module = "libdiesel")]
pub(crate) struct Walk(Mutex<Left>);

struct Left {
    page: VecDeque<Vec<u8>>,
    /// None at the end, and while a thread asks for the next page.
    listing: Option<Listing>,
}

impl Walk {
    pub(crate) fn new(listing: Listing) -> Self {
        Self(Mutex::new(Left { page: VecDeque::new(), listing: Some(listing) }))
    }
}

#[pymethods]
impl Walk {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<OsString>> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let listing = {
            let mut left = lock();
            match left.page.pop_front() {
                Some(path) => return Ok(Some(python_name(&path))),
                None => left.listing.take(),
            }
        };
        let Some(listing) = listing else { return Ok(None) };
        let (listing, page) = wait(py, move || page_of(listing, PAGE))?;
        let page = page.or_raise(py)?;
        let is_end = page.len() < PAGE;
        let mut left = lock();
        left.page.extend(page);
        left.listing = (!is_end).then_some(listing);
        Ok(left.page.pop_front().map(|path| python_name(&path)))
    }
}

/// The next paths of a listing, those of folders with a slash behind them.
pub(crate) fn page_of(
    mut listing: Listing,
    most: usize,
) -> (Listing, Result<Vec<Vec<u8>>, Error>) {
    let path = |entry| match entry {
        ListEntry::File(path, _) => path.as_bytes().to_vec(),
        ListEntry::Folder(path) => [path.as_bytes(), b"/"].concat(),
    };
    let page = listing.by_ref().take(most).map(|entry| entry.map(path)).collect();
    (listing, page)
}

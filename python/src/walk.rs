//! Recursive listings of folders.
//!
//! Must hold: only one page of paths is in memory, for any number of files. A failed or interrupted
//! page loses no paths.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};

use libdiesel::{Error, ListEntry, Listing};
use pyo3::prelude::*;

use crate::errors::Raise;
use crate::files::python_name;
use crate::wait::wait;

/// Paths of a page.
const PAGE: usize = 1_000;

/// Iterator over the paths of files.
#[pyclass(frozen, module = "libdiesel")]
pub(crate) struct Walk(Arc<Mutex<Left>>);

struct Left {
    page: VecDeque<Vec<u8>>,
    listing: Listing,
    is_over: bool,
}

impl Walk {
    pub(crate) fn new(listing: Listing) -> Self {
        Self(Arc::new(Mutex::new(Left { page: VecDeque::new(), listing, is_over: false })))
    }
}

impl Left {
    /// Reads a page if none is present.
    fn fill(&mut self) -> Result<(), Error> {
        while self.page.len() < PAGE {
            let Some(entry) = self.listing.next() else {
                self.is_over = true;
                return Ok(());
            };
            self.page.push_back(path_of(entry?));
        }
        Ok(())
    }
}

#[pymethods]
impl Walk {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<OsString>> {
        loop {
            // An interrupted call may still be reading.
            if let Ok(mut left) = self.0.try_lock() {
                let path = left.page.pop_front();
                if path.is_some() || left.is_over {
                    return Ok(path.map(|path| python_name(&path)));
                }
            }
            let left = Arc::clone(&self.0);
            let fill = move || left.lock().unwrap_or_else(PoisonError::into_inner).fill();
            wait(py, fill)?.or_raise(py)?;
        }
    }
}

/// All entries of a listing.
pub(crate) fn all_of(py: Python<'_>, listing: Listing) -> PyResult<Vec<Vec<u8>>> {
    wait(py, move || listing.map(|entry| entry.map(path_of)).collect::<Result<_, _>>())?
        .or_raise(py)
}

/// The path of an entry; a folder's path ends in a slash.
fn path_of(entry: ListEntry) -> Vec<u8> {
    match entry {
        ListEntry::File(path, _) => path.as_bytes().to_vec(),
        ListEntry::Folder(path) => [path.as_bytes(), b"/"].concat(),
    }
}

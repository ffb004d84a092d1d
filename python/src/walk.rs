//! Recursive listings of folders.
//!
//! Must hold: only one page of paths is in memory, for any number of files. A failed or interrupted
//! page loses no paths.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use dl_runtime::locked;
use libdiesel::{Error, ListEntry, Listing};
use pyo3::prelude::*;

use crate::entry::Entry;
use crate::errors::Raise;
use crate::files::python_name;
use crate::wait::wait;

/// Paths of a page.
const PAGE: usize = 1_000;

/// Iterator over the paths of files, or over their entries.
#[pyclass(frozen, module = "libdiesel")]
pub(crate) struct Walk {
    left: Arc<Mutex<Left>>,
    has_details: bool,
}

struct Left {
    page: VecDeque<ListEntry>,
    listing: Listing,
    is_over: bool,
}

impl Walk {
    pub(crate) fn new(listing: Listing, has_details: bool) -> Self {
        let left = Left { page: VecDeque::new(), listing, is_over: false };
        Self { left: Arc::new(Mutex::new(left)), has_details }
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
            self.page.push_back(entry?);
        }
        Ok(())
    }
}

#[pymethods]
impl Walk {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        loop {
            // An interrupted call may still be reading.
            if let Ok(mut left) = self.left.try_lock() {
                let entry = left.page.pop_front();
                if entry.is_some() || left.is_over {
                    return entry.map(|entry| self.shown(py, entry)).transpose();
                }
            }
            let left = Arc::clone(&self.left);
            let fill = move || locked(&left).fill();
            wait(py, fill)?.or_raise(py)?;
        }
    }
}

impl Walk {
    fn shown<'py>(&self, py: Python<'py>, entry: ListEntry) -> PyResult<Bound<'py, PyAny>> {
        if self.has_details {
            return Ok(Bound::new(py, Entry::of(entry))?.into_any());
        }
        Ok(python_name(&path_of(entry)).into_pyobject(py)?.into_any())
    }
}

/// All entries of a listing.
pub(crate) fn all_of(py: Python<'_>, listing: Listing) -> PyResult<Vec<ListEntry>> {
    wait(py, move || listing.collect::<Result<_, _>>())?.or_raise(py)
}

/// The path of an entry; a folder's path ends in a slash.
pub(crate) fn path_of(entry: ListEntry) -> Vec<u8> {
    match entry {
        ListEntry::File(path, _) => path.as_bytes().to_vec(),
        ListEntry::Folder(path) => [path.as_bytes(), b"/"].concat(),
    }
}

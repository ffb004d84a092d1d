//! Entries of folders: files and folders with their attributes.
//!
//! Must hold: an entry is a value, which needs no open handle.

use std::ffi::OsString;

use libdiesel::{FileRecord, ListEntry};
use pyo3::prelude::*;

use crate::files::python_name;

/// A file or folder, of :meth:`Dataset.stat`, :meth:`Dataset.ls` and :meth:`Dataset.walk`.
#[pyclass(frozen, eq, module = "libdiesel")]
#[derive(Clone, PartialEq)]
pub(crate) struct Entry {
    path: Vec<u8>,
    file: Option<FileRecord>,
    number: Option<u32>,
}

impl Entry {
    pub(crate) fn file(path: Vec<u8>, record: FileRecord, number: Option<u32>) -> Self {
        Self { path, file: Some(record), number }
    }

    pub(crate) fn folder(path: Vec<u8>) -> Self {
        Self { path, file: None, number: None }
    }

    pub(crate) fn of(entry: ListEntry) -> Self {
        match entry {
            ListEntry::File(path, record) => {
                Self { path: path.as_bytes().to_vec(), file: record, number: None }
            }
            ListEntry::Folder(path) => Self::folder(path.as_bytes().to_vec()),
        }
    }
}

#[pymethods]
impl Entry {
    /// The path in the dataset, without a slash at its end.
    #[getter]
    fn path(&self) -> OsString {
        python_name(&self.path)
    }

    /// The last part of the path.
    #[getter]
    fn name(&self) -> OsString {
        python_name(self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default())
    }

    /// Whether it is a folder, which has no attributes.
    #[getter]
    fn is_folder(&self) -> bool {
        self.file.is_none()
    }

    /// Bytes of the file; 0 for a folder.
    #[getter]
    fn size(&self) -> u64 {
        self.file.map_or(0, |file| file.length)
    }

    /// The time of its last change, as put, in seconds since 1970.
    #[getter]
    fn mtime(&self) -> Option<f64> {
        let seconds = |nanos: i64| {
            nanos.div_euclid(1_000_000_000) as f64 + nanos.rem_euclid(1_000_000_000) as f64 / 1e9
        };
        self.file.map(|file| seconds(file.attributes.mtime))
    }

    /// The time at which this version was uploaded, in seconds since 1970.
    #[getter]
    fn uploaded(&self) -> Option<f64> {
        self.file.map(|file| file.version.stamp.get() as f64 / 1e6)
    }

    /// Permission bits.
    #[getter]
    fn mode(&self) -> Option<u16> {
        self.file.map(|file| file.attributes.mode)
    }

    /// CRC-32C of the contents.
    #[getter]
    fn crc32c(&self) -> Option<u32> {
        self.file.map(|file| file.crc.value())
    }

    /// The number of the file, of :meth:`Dataset.stat` on a handle with a snapshot.
    #[getter]
    fn number(&self) -> Option<u32> {
        self.number
    }

    fn __repr__(&self) -> String {
        let path = String::from_utf8_lossy(&self.path);
        match &self.file {
            Some(file) => format!("Entry({path:?}, size={})", file.length),
            None => format!("Entry({path:?}, is_folder=True)"),
        }
    }
}

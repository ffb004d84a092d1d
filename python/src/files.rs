//! Names of files given by callers: paths (text, bytes, ``os.PathLike``) or numbers in the
//! snapshot.
//!
//! Must hold: names that are not UTF-8 pass both ways, like with `os.fsencode` and `os.fsdecode`.

use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::OsStringExt;

use libdiesel::{Dataset, DirPath, FilePath};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString};

use crate::errors::{Raise, invalid};

/// Files of a call.
pub(crate) enum Files {
    /// By their numbers in the snapshot.
    Numbers(Vec<u32>),
    /// By paths, at least one of them missing in the snapshot, or without a snapshot.
    Paths(Vec<FilePath>),
}

/// The name of a file.
enum Name {
    Number(u32),
    Path(FilePath),
}

impl Files {
    /// A single file.
    pub(crate) fn one(dataset: &Dataset, file: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(file.py(), dataset, vec![name(file)?])
    }

    /// A sequence of files, or an array of numbers.
    pub(crate) fn many(dataset: &Dataset, files: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Some(numbers) = numbers_of_array(files)? {
            return Self::checked(files.py(), dataset, numbers);
        }
        // A tensor in host memory shares its memory with an array.
        if let Ok(array) = files.call_method0("numpy")
            && let Some(numbers) = numbers_of_array(&array)?
        {
            return Self::checked(files.py(), dataset, numbers);
        }
        if files.is_instance_of::<PyString>() || files.is_instance_of::<PyBytes>() {
            let text = "a list of files is wanted here, and this is one name: put it into a list";
            return Err(PyTypeError::new_err(text));
        }
        // The usual list of numbers needs no names.
        if let Ok(list) = files.cast::<PyList>()
            && let Some(numbers) = list.iter().map(|file| plain_number(&file)).collect()
        {
            return Self::checked(files.py(), dataset, numbers);
        }
        let names = match files.cast::<PyList>() {
            Ok(list) => list.iter().map(|file| name(&file)).collect::<PyResult<Vec<_>>>()?,
            Err(_) => files.try_iter()?.map(|file| name(&file?)).collect::<PyResult<_>>()?,
        };
        Self::of(files.py(), dataset, names)
    }

    fn checked(py: Python<'_>, dataset: &Dataset, numbers: Vec<u32>) -> PyResult<Self> {
        let Some(snapshot) = dataset.snapshot() else {
            let text = "files have numbers in a snapshot, and this handle has none: name their paths, or \
                        open the dataset again after its last write";
            return Err(invalid(py, text));
        };
        let files = snapshot.files();
        match numbers.iter().find(|number| **number >= files) {
            None => Ok(Self::Numbers(numbers)),
            Some(number) => Err(no_file(*number, files)),
        }
    }

    fn of(py: Python<'_>, dataset: &Dataset, names: Vec<Name>) -> PyResult<Self> {
        let numbers: Option<Vec<u32>> = names
            .iter()
            .map(|name| match name {
                Name::Number(number) => Some(*number),
                Name::Path(_) => None,
            })
            .collect();
        let snapshot = dataset.snapshot();
        if let Some(numbers) = numbers {
            return Self::checked(py, dataset, numbers);
        }
        let path = |name| match (name, snapshot) {
            (Name::Path(path), _) => Ok(path),
            (Name::Number(number), Some(snapshot)) => snapshot.path(number).or_raise(py),
            (Name::Number(_), None) => Err(invalid(py, "this handle has no snapshot: name paths")),
        };
        let paths = names.into_iter().map(path).collect::<PyResult<Vec<_>>>()?;
        let Some(snapshot) = snapshot else { return Ok(Self::Paths(paths)) };
        let numbers = snapshot.numbers(paths.iter()).or_raise(py)?;
        let all: Option<Vec<u32>> = numbers.into_iter().collect();
        Ok(all.map_or(Self::Paths(paths), Self::Numbers))
    }
}

/// The error for a number without a file.
pub(crate) fn no_file(number: u32, files: u32) -> PyErr {
    let text = format!("there is no file {number}: the snapshot has {files}, counted from 0");
    PyIndexError::new_err(text)
}

fn name(file: &Bound<'_, PyAny>) -> PyResult<Name> {
    if let Ok(number) = file.cast::<PyInt>() {
        return number_of(number).map(Name::Number);
    }
    if let Ok(path) = bytes_of(file) {
        return file_path(file.py(), path).map(Name::Path);
    }
    match file.call_method0("__index__") {
        Ok(number) => number_of(number.cast::<PyInt>()?).map(Name::Number),
        Err(_) => Err(PyTypeError::new_err(format!(
            "a file is named by its path (str, bytes, os.PathLike) or its number (int), not by {}",
            file.get_type().name()?
        ))),
    }
}

/// The number of a file, if the object is a valid `int`.
#[inline]
pub(crate) fn plain_number(file: &Bound<'_, PyAny>) -> Option<u32> {
    file.cast_exact::<PyInt>().ok()?.extract().ok()
}

fn number_of(number: &Bound<'_, PyInt>) -> PyResult<u32> {
    number.extract().map_err(|_| not_a_number(number))
}

fn not_a_number(number: impl Display) -> PyErr {
    PyIndexError::new_err(format!("there is no file {number}: files count from 0"))
}

/// The numbers of a one-dimensional array of integers (NumPy's, `array.array`); none for other
/// objects.
fn numbers_of_array(files: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u32>>> {
    let py = files.py();
    let whole = |numbers: Vec<i64>| numbers.into_iter().map(narrow).collect::<PyResult<_>>();
    if let Ok(buffer) = PyBuffer::<i64>::get(files) {
        return whole(buffer.to_vec(py)?).map(Some);
    }
    if let Ok(buffer) = PyBuffer::<i32>::get(files) {
        return whole(buffer.to_vec(py)?.into_iter().map(i64::from).collect()).map(Some);
    }
    PyBuffer::<u32>::get(files).ok().map(|buffer| buffer.to_vec(py)).transpose()
}

fn narrow(number: i64) -> PyResult<u32> {
    u32::try_from(number).map_err(|_| not_a_number(number))
}

/// The bytes of a name: text, bytes, or an `os.PathLike` object.
pub(crate) fn bytes_of(name: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(text) = name.cast::<PyString>()
        && let Ok(text) = text.to_str()
    {
        return Ok(text.as_bytes().to_vec());
    }
    if let Ok(bytes) = name.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    let path: OsString = match name.call_method0("__fspath__") {
        Ok(path) if path.is_instance_of::<PyBytes>() => return path.extract(),
        Ok(path) => path.extract()?,
        Err(_) => name.extract()?,
    };
    Ok(path.into_vec())
}

/// The path of a file.
pub(crate) fn file_path(py: Python<'_>, bytes: Vec<u8>) -> PyResult<FilePath> {
    FilePath::new(bytes.clone()).map_err(|why| {
        let shown = String::from_utf8_lossy(&bytes);
        invalid(py, format!("{shown:?} is no path: {why}"))
    })
}

/// The path of a folder; the empty path is the root.
pub(crate) fn folder_path(folder: &Bound<'_, PyAny>) -> PyResult<DirPath> {
    let bytes = bytes_of(folder)?;
    let shown = String::from_utf8_lossy(&bytes);
    let trimmed = bytes.strip_suffix(b"/").unwrap_or(&bytes).to_vec();
    DirPath::new(trimmed)
        .map_err(|why| invalid(folder.py(), format!("{shown:?} is no folder: {why}")))
}

/// A name in Python's form.
pub(crate) fn python_name(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

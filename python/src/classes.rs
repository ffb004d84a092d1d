//! A folder whose sub-folders are classes, as in image datasets.
//!
//! Must hold: memory is proportional to the runs of consecutive files. For a dataset put folder by
//! folder, memory does not grow with the number of files.

use std::ffi::OsString;
use std::ops::Range;

use libdiesel::order::OrderError;
use libdiesel::{Dataset, DirPath, Error, FilePath, ListEntry, Selection};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::files::python_name;

/// Bytes of a run in a pickle.
const RUN: usize = 16;

/// The classes and the runs in a pickle.
type Parts<'py> = (Vec<Bound<'py, PyBytes>>, Bound<'py, PyBytes>);

/// Files of one class with consecutive numbers.
#[derive(Clone, Copy)]
struct Run {
    /// Index of its first sample.
    start: u32,
    /// Number of its first file.
    first: u32,
    files: u32,
    class: u32,
}

/// The samples of a folder: an index for each sample, class after class, and the number of its
/// file.
#[pyclass(frozen, module = "libdiesel._native")]
pub(crate) struct Classes {
    classes: Vec<Vec<u8>>,
    /// In the order of their samples.
    runs: Vec<Run>,
    /// Indexes of the runs, in the order of the numbers of their files.
    by_number: Vec<u32>,
}

impl Classes {
    /// Finds the classes below a folder and their files, of the given extensions (in lower case),
    /// or all files.
    pub(crate) fn find(
        dataset: &Dataset,
        folder: &DirPath,
        extensions: Option<&[String]>,
    ) -> Result<Self, Error> {
        let mut classes = Vec::new();
        for entry in dataset.list(folder, false, true)? {
            if let ListEntry::Folder(path) = entry? {
                classes.push(path);
            }
        }
        classes.sort();
        let mut runs: Vec<Run> = Vec::new();
        let mut start = 0;
        for (class, path) in (0..).zip(&classes) {
            let Some(snapshot) = dataset.snapshot() else { break };
            let below = DirPath::from(path.clone());
            let mut ranges = snapshot.below(&below)?.unwrap_or_default();
            ranges.sort_unstable_by_key(|range| range.start);
            for range in ranges {
                for range in wanted(snapshot, range, extensions)? {
                    let files = range.end - range.start;
                    runs.push(Run { start, first: range.start, files, class });
                    start += files;
                }
            }
        }
        let classes = classes.iter().map(|path| path.name().to_vec()).collect();
        Ok(Self::new(classes, runs))
    }

    fn new(classes: Vec<Vec<u8>>, runs: Vec<Run>) -> Self {
        let mut by_number: Vec<u32> = (0..).take(runs.len()).collect();
        by_number.sort_unstable_by_key(|run| runs.get(*run as usize).map(|run| run.first));
        Self { classes, runs, by_number }
    }

    /// The files, as the selection of an order.
    pub(crate) fn selection(&self, files: u32) -> Result<Selection, OrderError> {
        let numbers = |run: &Run| run.first..run.first.saturating_add(run.files);
        Selection::of(files, self.runs.iter().flat_map(numbers))
    }

    fn samples(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.start.saturating_add(run.files))
    }

    fn run_of(&self, index: u32) -> Option<&Run> {
        let next = self.runs.partition_point(|run| run.start <= index);
        self.runs.get(next.checked_sub(1)?).filter(|run| index - run.start < run.files)
    }

    fn run_of_number(&self, number: u32) -> Option<&Run> {
        let run = |index: &u32| self.runs.get(*index as usize);
        let next = self
            .by_number
            .partition_point(|index| run(index).is_some_and(|run| run.first <= number));
        let found = run(self.by_number.get(next.checked_sub(1)?)?)?;
        (number - found.first < found.files).then_some(found)
    }
}

/// The parts of a range of files with one of the extensions.
fn wanted(
    snapshot: &libdiesel::Snapshot,
    range: Range<u32>,
    extensions: Option<&[String]>,
) -> Result<Vec<Range<u32>>, Error> {
    let Some(extensions) = extensions else { return Ok(vec![range]) };
    let mut parts: Vec<Range<u32>> = Vec::new();
    for number in range {
        if !has_extension(&snapshot.path(number)?, extensions) {
            continue;
        }
        match parts.last_mut().filter(|part| part.end == number) {
            Some(part) => part.end += 1,
            None => parts.push(number..number + 1),
        }
    }
    Ok(parts)
}

fn has_extension(path: &FilePath, extensions: &[String]) -> bool {
    let name = path.name();
    extensions.iter().any(|extension| {
        name.len()
            .checked_sub(extension.len())
            .and_then(|from| name.get(from..))
            .is_some_and(|end| end.eq_ignore_ascii_case(extension.as_bytes()))
    })
}

#[pymethods]
impl Classes {
    /// Names of the classes, sorted.
    #[getter]
    fn classes(&self) -> Vec<OsString> {
        self.classes.iter().map(|name| python_name(name)).collect()
    }

    /// Number of samples of each class.
    #[getter]
    fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.classes.len()];
        for run in &self.runs {
            if let Some(count) = counts.get_mut(run.class as usize) {
                *count += run.files;
            }
        }
        counts
    }

    fn __len__(&self) -> usize {
        self.samples() as usize
    }

    /// The numbers of the samples' files, and their classes.
    fn locate(&self, indexes: Vec<i64>) -> PyResult<(Vec<u32>, Vec<u32>)> {
        let samples = i64::from(self.samples());
        let mut numbers = Vec::with_capacity(indexes.len());
        let mut classes = Vec::with_capacity(indexes.len());
        for index in indexes {
            let from_start = if index < 0 { index + samples } else { index };
            let run = u32::try_from(from_start).ok().and_then(|index| self.run_of(index));
            let run = run.ok_or_else(|| {
                PyIndexError::new_err(format!("there is no sample {index} among {samples}"))
            })?;
            numbers.push(run.first.saturating_add(from_start as u32 - run.start));
            classes.push(run.class);
        }
        Ok((numbers, classes))
    }

    /// The given samples alone, once each and in their order, with all classes.
    fn only(&self, mut indexes: Vec<u32>) -> PyResult<Self> {
        indexes.sort_unstable();
        indexes.dedup();
        let mut runs: Vec<Run> = Vec::new();
        for (start, index) in (0..).zip(indexes) {
            let run = self.run_of(index).ok_or_else(|| {
                let samples = self.samples();
                PyIndexError::new_err(format!("there is no sample {index} among {samples}"))
            })?;
            let (first, class) = (run.first + (index - run.start), run.class);
            let next = |last: &&mut Run| last.class == class && last.first + last.files == first;
            match runs.last_mut().filter(next) {
                Some(last) => last.files += 1,
                None => runs.push(Run { start, first, files: 1, class }),
            }
        }
        Ok(Self::new(self.classes.clone(), runs))
    }

    /// The indexes of the samples with the given file numbers, without files of no class.
    fn indexes(&self, numbers: Vec<u32>) -> Vec<u32> {
        let index = |number| {
            let run = self.run_of_number(number)?;
            Some(run.start.saturating_add(number - run.first))
        };
        numbers.into_iter().filter_map(index).collect()
    }

    /// The classes of files, by their numbers; none for a file of no class.
    fn classes_of(&self, numbers: Vec<u32>) -> Vec<Option<u32>> {
        let class = |number| self.run_of_number(number).map(|run| run.class);
        numbers.into_iter().map(class).collect()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Parts<'py>)> {
        let (py, this) = (slf.py(), slf.get());
        let words = |run: &Run| [run.start, run.first, run.files, run.class].map(u32::to_le_bytes);
        let runs: Vec<u8> = this.runs.iter().flat_map(words).flatten().collect();
        let classes = this.classes.iter().map(|name| PyBytes::new(py, name)).collect();
        let again = slf.get_type().getattr("_again")?;
        Ok((again, (classes, PyBytes::new(py, &runs))))
    }

    /// Restores a pickle.
    #[staticmethod]
    fn _again(classes: Vec<Vec<u8>>, runs: &[u8]) -> Self {
        let words = |bytes: &[u8]| {
            let mut words = bytes
                .chunks_exact(4)
                .map(|word| word.try_into().map(u32::from_le_bytes).unwrap_or_default());
            let mut word = || words.next().unwrap_or_default();
            Run { start: word(), first: word(), files: word(), class: word() }
        };
        Self::new(classes, runs.chunks_exact(RUN).map(words).collect())
    }

    fn __repr__(&self) -> String {
        let (samples, classes) = (self.samples(), self.classes.len());
        format!("<libdiesel.Classes of {samples} files in {classes} classes>")
    }
}

//! The handle of a dataset: reads, listings and descriptions.
//!
//! Must hold: a closed handle raises an error; when one thread closes the handle, calls of other
//! threads end normally.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use dl_runtime::locked;
use libdiesel::{
    Counts, DirPath, Error, FilePath, Listing, OrderSettings, Partition, ResumeToken,
    ShuffleOptions, StatItem, Tail, Worker,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice};

use crate::classes::Classes;
use crate::entry::Entry;
use crate::epoch::Epoch;
use crate::errors::{Raise, invalid, named, not_found};
use crate::files::{Files, bytes_of, file_path, folder_path, plain_number, python_name};
use crate::output::{OutputBuffer, bytes_object};
use crate::target::{Open, Target};
use crate::view::{Batch, View};
use crate::wait::{wait, wait_or};
use crate::walk::{Walk, all_of, path_of};

/// Files requested together from the agent.
const BATCH_SIZE: usize = 64;

/// A dataset on servers, opened by :func:`libdiesel.connect`. Usable from any thread and in any
/// process: a fork has its own connections, and a pickled handle connects again to the same
/// version.
#[pyclass(frozen, mapping, module = "libdiesel", subclass, weakref)]
pub(crate) struct Dataset {
    open: ArcSwapOption<Open>,
    target: Target,
    /// The error of a flush abandoned by a signal.
    lost: Arc<Mutex<Option<Error>>>,
    /// Files put since the last flush.
    unflushed: AtomicU64,
}

impl Dataset {
    pub(crate) fn new(open: Open, target: Target) -> Self {
        let open = ArcSwapOption::from_pointee(open);
        Self { open, target, lost: Arc::default(), unflushed: AtomicU64::new(0) }
    }

    /// Stores the error of a call without a waiting caller.
    pub(crate) fn lost_error(&self) -> impl FnOnce(Option<Error>) + Send + 'static {
        let lost = Arc::clone(&self.lost);
        move |error| {
            if let Some(error) = error {
                *locked(&lost) = Some(error);
            }
        }
    }

    /// Counts files that wait for a flush.
    pub(crate) fn count_puts(&self, files: u64) {
        self.unflushed.fetch_add(files, Ordering::Relaxed);
    }

    pub(crate) fn count_flush(&self) {
        self.unflushed.store(0, Ordering::Relaxed);
    }

    /// Raises a stored error, once.
    pub(crate) fn raise_lost(&self, py: Python<'_>) -> PyResult<()> {
        match locked(&self.lost).take() {
            Some(error) => Err(error).or_raise(py),
            None => Ok(()),
        }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    pub(crate) fn address(&self) -> String {
        self.target.address()
    }

    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<Arc<Open>> {
        self.open.load_full().ok_or_else(|| self.is_closed(py))
    }

    fn is_closed(&self, py: Python<'_>) -> PyErr {
        let text = format!("{} is closed: connect again", self.target.address());
        named(py, "ClosedError", text)
    }

    /// Views of files; waits for files not in memory.
    fn views(&self, py: Python<'_>, files: Files) -> PyResult<Vec<libdiesel::View>> {
        let open = self.open(py)?;
        match files {
            Files::Numbers(numbers) => {
                let mut views = Vec::with_capacity(numbers.len());
                open.dataset.view_present(&numbers, &mut views);
                if views.len() < numbers.len() {
                    let there = views.len();
                    let rest = numbers.get(there..).unwrap_or_default().to_vec();
                    views.extend(wait(py, move || open.dataset.view_many(&rest))?.or_raise(py)?);
                }
                Ok(views)
            }
            Files::Paths(paths) => wait(py, move || open.dataset.view_many(&paths))?.or_raise(py),
        }
    }

    /// Bytes of files; waits for files not in memory.
    fn bytes<'py>(&self, py: Python<'py>, files: Files) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let mut read = Vec::new();
        self.read_files(py, files, &mut |bytes| read.push(bytes_object(py, bytes)))?;
        Ok(read)
    }

    /// Passes files in their order to `take`; waits for files not in memory. Only few chunks are
    /// pinned at a time, for any number of files.
    fn read_files(
        &self,
        py: Python<'_>,
        files: Files,
        take: &mut dyn FnMut(&[u8]),
    ) -> PyResult<()> {
        let mut numbers = match files {
            Files::Numbers(numbers) => numbers,
            paths @ Files::Paths(_) => {
                self.views(py, paths)?.iter().for_each(|view| take(view));
                return Ok(());
            }
        };
        loop {
            {
                let open = self.open.load();
                let open = open.as_ref().ok_or_else(|| self.is_closed(py))?;
                let there = open.dataset.lend_present(&numbers, &mut *take);
                if there == numbers.len() {
                    return Ok(());
                }
                numbers.drain(..there);
            }
            let open = self.open(py)?;
            // Without an agent, few large requests are fastest.
            let most = if self.target.has_task() { BATCH_SIZE } else { numbers.len() };
            let some: Vec<u32> = numbers.drain(..numbers.len().min(most)).collect();
            let views = wait(py, move || open.dataset.view_many(&some))?.or_raise(py)?;
            views.iter().for_each(|view| take(view));
        }
    }

    fn range<'py>(
        &self,
        py: Python<'py>,
        file: &Bound<'py, PyAny>,
        offset: u64,
        length: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let open = self.open(py)?;
        let bytes = match Files::one(&open.dataset, file)? {
            Files::Numbers(numbers) => {
                let number = numbers.first().copied().unwrap_or(u32::MAX);
                wait(py, move || open.dataset.get_range(number, offset, length))?
            }
            Files::Paths(paths) => {
                let none = || named(py, "InternalError", "no file was read".to_owned());
                let path = paths.into_iter().next().ok_or_else(none)?;
                wait(py, move || open.dataset.get_range(path, offset, length))?
            }
        };
        Ok(bytes_object(py, &bytes.or_raise(py)?))
    }

    /// The bytes of a file, after a wait for it.
    fn get_within<'py>(
        &self,
        py: Python<'py>,
        file: &Bound<'py, PyAny>,
        is_part: bool,
        seconds: f64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let patience = Duration::try_from_secs_f64(seconds)
            .map_err(|_| invalid(py, "wait is a number of seconds, 0 or more"))?;
        if is_part {
            return Err(invalid(py, "wait reads whole files: leave out offset and length"));
        }
        let path = bytes_of(file)
            .map_err(|_| invalid(py, "a file that is still to be put has a path and no number"))?;
        let path = file_path(py, path)?;
        let open = self.open(py)?;
        let bytes = wait(py, move || open.dataset.get_within(path, patience))?;
        Ok(bytes_object(py, &bytes.or_raise(py)?))
    }

    fn stats(&self, py: Python<'_>, path: FilePath) -> PyResult<StatItem> {
        let open = self.open(py)?;
        wait(py, move || open.dataset.stat(path))?.or_raise(py)
    }
}

#[pymethods]
impl Dataset {
    /// Reads a file, by its path or its number, into memory: with ``offset`` and ``length`` only the
    /// bytes from the offset on, at most as many. Of a large file, only the parts with these bytes are
    /// read. With ``wait``, a path may name a file that another program is still to put: the call waits
    /// up to so many seconds for it, and reads it from the servers.
    ///
    /// :raises NotFoundError: if the file does not exist, after the wait
    /// :raises CorruptError: if its stored bytes are damaged everywhere
    #[pyo3(signature = (file, *, offset=0, length=None, wait=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        file: &Bound<'py, PyAny>,
        offset: u64,
        length: Option<u64>,
        wait: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if let Some(seconds) = wait {
            return self.get_within(py, file, offset > 0 || length.is_some(), seconds);
        }
        if offset > 0 || length.is_some() {
            return self.range(py, file, offset, length.unwrap_or(u64::MAX));
        }
        let open = self.open.load();
        let open = open.as_ref().ok_or_else(|| self.is_closed(py))?;
        let mut here = None;
        if let Some(number) = plain_number(file) {
            open.dataset.lend_present(&[number], |bytes| here = Some(bytes_object(py, bytes)));
        }
        if let Some(bytes) = here {
            return Ok(bytes);
        }
        let files = Files::one(&open.dataset, file)?;
        let mut read = self.bytes(py, files)?;
        read.pop().ok_or_else(|| named(py, "InternalError", "no file was read".to_owned()))
    }

    /// Reads many files, by paths or by numbers, in their order, and returns a list of bytes. With
    /// ``into``, the files are written into this buffer one after another, and the list has the
    /// slice of each file. A buffer is a writable ``bytearray``, NumPy array, or tensor in host
    /// memory, pinned or not.
    ///
    /// :raises InvalidError: if the buffer is too short
    #[pyo3(signature = (files, into=None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        files: &Bound<'py, PyAny>,
        into: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let files = Files::many(&self.open(py)?.dataset, files)?;
        match into {
            None => PyList::new(py, self.bytes(py, files)?),
            Some(into) => self.read_into(py, files, into),
        }
    }

    /// The bytes of a file in the shared memory of this node, without a copy.
    fn view(&self, py: Python<'_>, file: &Bound<'_, PyAny>) -> PyResult<View> {
        let files = Files::one(&self.open(py)?.dataset, file)?;
        let view = self.views(py, files)?.pop();
        view.map(View).ok_or_else(|| named(py, "InternalError", "no file was read".to_owned()))
    }

    /// Views of many files, in their order: a :class:`Batch`, a sequence of views.
    fn view_many(&self, py: Python<'_>, files: &Bound<'_, PyAny>) -> PyResult<Batch> {
        let files = Files::many(&self.open(py)?.dataset, files)?;
        self.views(py, files).map(Batch)
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        file: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let negative = file.extract::<i64>().ok().filter(|number| *number < 0);
        match negative {
            None => self.get(py, file, 0, None, None),
            Some(number) => {
                let files = self.__len__(py)?;
                let from_start = i64::try_from(files)? + number;
                self.get(py, from_start.into_pyobject(py)?.as_any(), 0, None, None)
            }
        }
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let open = self.open(py)?;
        if let Some(snapshot) = open.dataset.snapshot() {
            return Ok(snapshot.files() as usize);
        }
        let info = wait(py, move || open.dataset.count())?.or_raise(py)?;
        match info.counts {
            Counts::Known { files, .. } => Ok(usize::try_from(files)?),
            Counts::Unknown(why) => Err(named(py, "NeedsRecoveryError", why)),
            Counts::Unasked => Err(named(py, "InternalError", "nobody counted".to_owned())),
        }
    }

    /// Whether there is a file at a path.
    fn __contains__(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<bool> {
        let path = file_path(py, bytes_of(path)?)?;
        Ok(matches!(self.stats(py, path)?, StatItem::File(_)))
    }

    /// The entry at a path: an :class:`Entry`. That of a file has a ``number`` on a handle with a
    /// snapshot.
    ///
    /// :raises NotFoundError: if the path does not exist
    fn stat(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Entry> {
        let path = file_path(py, bytes_of(path)?)?;
        let bytes = path.as_bytes().to_vec();
        match self.stats(py, path.clone())? {
            StatItem::File(record) => {
                let open = self.open(py)?;
                let number = match open.dataset.snapshot() {
                    Some(snapshot) => snapshot.number(&path).or_raise(py)?,
                    None => None,
                };
                Ok(Entry::file(bytes, record, number))
            }
            StatItem::Folder => Ok(Entry::folder(bytes)),
            StatItem::Missing => {
                let file = format!("{}/{path}", self.address());
                Err(not_found(py, &file, format!("stat {file}: there is nothing")))
            }
        }
    }

    /// The names of the files and folders in a folder; names of folders end in a slash. With
    /// ``details`` a list of :class:`Entry`.
    #[pyo3(signature = (folder=None, *, details=false))]
    fn ls<'py>(
        &self,
        py: Python<'py>,
        folder: Option<&Bound<'py, PyAny>>,
        details: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let page = all_of(py, self.listing(py, folder, false, !details)?)?;
        if details {
            return PyList::new(py, page.into_iter().map(Entry::of));
        }
        let folder = folder.map(bytes_of).transpose()?.unwrap_or_default();
        let folder = folder.strip_suffix(b"/").unwrap_or(&folder);
        let above = if folder.is_empty() { 0 } else { folder.len() + 1 };
        let paths = page.into_iter().map(path_of);
        let names = paths.map(|path| python_name(path.get(above..).unwrap_or(&path)));
        PyList::new(py, names.collect::<Vec<_>>())
    }

    /// The paths of all files below a folder, in the order of their bytes. With ``details`` an
    /// :class:`Entry` of each.
    #[pyo3(signature = (folder=None, *, details=false))]
    fn walk(
        &self,
        py: Python<'_>,
        folder: Option<&Bound<'_, PyAny>>,
        details: bool,
    ) -> PyResult<Walk> {
        Ok(Walk::new(self.listing(py, folder, true, !details)?, details))
    }

    /// The path of a file, by its number.
    fn path(&self, py: Python<'_>, number: u32) -> PyResult<OsString> {
        let open = self.open(py)?;
        let Some(snapshot) = open.dataset.snapshot() else {
            return Err(invalid(py, "files have numbers in a snapshot, and this handle has none"));
        };
        if number >= snapshot.files() {
            return Err(crate::files::no_file(number, snapshot.files()));
        }
        Ok(python_name(snapshot.path(number).or_raise(py)?.as_bytes()))
    }

    /// Writes the metadata of all files, at the version of the handle, into a snapshot file for
    /// ``connect(..., snapshot=FILE)``. Without a snapshot, the handle asks the servers for the current
    /// version.
    fn save_meta(&self, py: Python<'_>, file: PathBuf) -> PyResult<()> {
        let open = self.open(py)?;
        wait(py, move || open.dataset.save_meta(&file))?.or_raise(py).map(|_| ())
    }

    /// Returns a handle with metadata from a snapshot file. With a task, the cache of the node gives
    /// the files.
    fn load_meta(&self, py: Python<'_>, file: PathBuf) -> PyResult<Self> {
        let open = self.open(py)?;
        let target = self.target.with_snapshot(file.clone());
        let loaded = wait(py, move || {
            let cache = libdiesel::SnapshotCache::of_user();
            let dataset = open.dataset.load_meta(&file, cache.as_ref())?;
            Ok::<_, Error>(Open { client: open.client.clone(), dataset })
        })?;
        Ok(Self::new(loaded.or_raise(py)?, target))
    }

    /// Starts or resumes an epoch: its files in chunk-wise shuffled order, the same for every
    /// number of workers. ``nodes`` is the number of machines that share the epoch, 1 for a single
    /// order over all ranks. ``worker`` is ``(number, workers, batch)``. ``paths`` are the files
    /// and folders to read, by default all; ``classes`` selects the files of :meth:`classes`.
    /// ``resume`` is a token of :meth:`Epoch.token`, whose seed, epoch and group are used. ``read``
    /// is the number of files of the rank, or of its worker, read since the token.
    #[pyo3(signature = (*, seed=0, epoch=0, group=libdiesel::DEFAULT_GROUP, rank=0, world=1, nodes=1,
                        worker=None, paths=None, classes=None, resume=None, read=0, pad=false))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword of Python's, with a default")]
    fn shuffle(
        &self,
        py: Python<'_>,
        seed: u64,
        epoch: u64,
        group: u32,
        rank: u32,
        world: u32,
        nodes: u32,
        worker: Option<(u32, u32, u32)>,
        paths: Option<Vec<Bound<'_, PyAny>>>,
        classes: Option<&Bound<'_, Classes>>,
        resume: Option<&str>,
        read: u64,
        pad: bool,
    ) -> PyResult<Epoch> {
        let open = self.open(py)?;
        let partition = if nodes > 1 { Partition::Local { nodes } } else { Partition::Global };
        let tail = if pad { Tail::Pad } else { Tail::Drop };
        let order =
            OrderSettings { world, partition, tail, ..OrderSettings::new(seed, epoch, group) };
        let mut options = ShuffleOptions { order, rank, ..ShuffleOptions::new(seed, epoch, group) };
        options.worker = worker.map(|(number, workers, batch)| Worker { number, workers, batch });
        options.resume = resume
            .map(|token| token.parse::<ResumeToken>().map_err(|why| invalid(py, why.to_string())))
            .transpose()?;
        options.read = read;
        if let (Some(classes), Some(snapshot)) = (classes, open.dataset.snapshot()) {
            let selection = classes.get().selection(snapshot.files());
            options.selection = Some(selection.map_err(|why| invalid(py, why.to_string()))?);
        } else if let Some(paths) = paths {
            let folders = paths.iter().map(folder_path).collect::<PyResult<Vec<_>>>()?;
            if let Some(snapshot) = open.dataset.snapshot().filter(|_| !is_all(&folders)) {
                options.selection = Some(snapshot.select(&folders).or_raise(py)?);
            }
        }
        let begun = wait(py, move || {
            let epoch = open.dataset.shuffle(options)?;
            Ok::<_, Error>(Epoch::new(epoch, open.dataset.clone()))
        })?;
        begun.or_raise(py)
    }

    /// The classes below a folder, for ``libdiesel.torch.Folder``.
    #[pyo3(signature = (folder, extensions=None))]
    fn classes(
        &self,
        py: Python<'_>,
        folder: &Bound<'_, PyAny>,
        extensions: Option<Vec<String>>,
    ) -> PyResult<Classes> {
        let (open, folder) = (self.open(py)?, folder_path(folder)?);
        if open.dataset.snapshot().is_none() {
            let text = "classes are found in a snapshot, and this handle has none: open the dataset again \
                        after its last write";
            return Err(invalid(py, text));
        }
        wait(py, move || Classes::find(&open.dataset, &folder, extensions.as_deref()))?.or_raise(py)
    }

    /// The version of the dataset used by the handle.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.open(py)?.dataset.info().version.to_string())
    }

    /// The name of the dataset.
    #[getter]
    fn name(&self) -> &str {
        self.target.name()
    }

    /// The task whose cache serves the files; none means the servers.
    #[getter]
    fn task(&self) -> Option<&str> {
        self.target.task()
    }

    /// The number of files put since the last flush. A program that ends now may lose these files.
    #[getter]
    fn unflushed(&self) -> u64 {
        self.unflushed.load(Ordering::Relaxed)
    }

    /// Whether the handle is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.load().is_none()
    }

    /// Flushes all writes, and closes the handle. Views stay valid.
    ///
    /// :raises DieselError: the error of the first failed write since the last flush
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.raise_lost(py)?;
        let Some(open) = self.open.swap(None) else { return Ok(()) };
        self.count_flush();
        let (dataset, keep) = (open.dataset.clone(), self.lost_error());
        // An error of an abandoned call is raised by the next close.
        wait_or(py, move || dataset.close(), move |closed| keep(closed.err()))?.or_raise(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyDict>,))> {
        let open = self.open(py)?;
        let version = open.dataset.snapshot().map(|snapshot| snapshot.version().to_string());
        let again = py.import("libdiesel")?.getattr("_connect_again")?;
        Ok((again, (self.target.arguments(py, version)?,)))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let address = self.target.address();
        let Ok(open) = self.open(py) else {
            return format!("<libdiesel.Dataset {address}, closed>");
        };
        let files = match open.dataset.snapshot() {
            Some(snapshot) => format!("{} files", snapshot.files()),
            None => "asks the servers".to_owned(),
        };
        let task = match self.target.task() {
            Some(task) => format!("task {task}"),
            None => "no task".to_owned(),
        };
        format!("<libdiesel.Dataset {address}, {files}, {task}>")
    }
}

impl Dataset {
    fn listing(
        &self,
        py: Python<'_>,
        folder: Option<&Bound<'_, PyAny>>,
        recursive: bool,
        names_only: bool,
    ) -> PyResult<Listing> {
        let open = self.open(py)?;
        let folder = folder.map_or(Ok(DirPath::ROOT), folder_path)?;
        wait(py, move || open.dataset.list(folder, recursive, names_only))?.or_raise(py)
    }

    fn read_into<'py>(
        &self,
        py: Python<'py>,
        files: Files,
        into: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let buffer = OutputBuffer::of(into)?;
        let mut slices = Vec::new();
        let (mut end, mut needed) = (0, 0);
        let mut take = |bytes: &[u8]| {
            needed += bytes.len();
            if let Some(to) = buffer.copy(end, bytes) {
                slices.push(end..to);
                end = to;
            }
        };
        self.read_files(py, files, &mut take)?;
        if needed > end {
            let text = format!("the buffer is too short: {needed} bytes are needed");
            return Err(invalid(py, text));
        }
        let slice = |range: std::ops::Range<usize>| {
            Ok(PySlice::new(py, range.start.cast_signed(), range.end.cast_signed(), 1))
        };
        PyList::new(py, slices.into_iter().map(slice).collect::<PyResult<Vec<_>>>()?)
    }
}

pub(crate) fn is_all(folders: &[DirPath]) -> bool {
    folders.iter().any(DirPath::is_root)
}

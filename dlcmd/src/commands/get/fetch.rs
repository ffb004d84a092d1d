//! A thread of `get`: fetches a batch of files in one request and writes each file.
//!
//! Must hold: bytes are verified before a file gets its name. The failure of one file affects no
//! other file; a full disk or an unreachable server ends the command.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dl_format::{DirPath, FilePath, FileRecord};
use dl_runtime::locked;
use libdiesel::{Dataset, Kind, ListEntry, ReadItem};
use serde::Serialize;

use crate::causes::Causes;
use crate::context::Context;
use crate::exit::{Exit, Failure, cause};
use crate::local::{NewFile, Target};
use crate::progress::Progress;
use crate::text::shown;

/// A file to get.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// Relative to the target.
    pub(super) at: FilePath,
    /// The path in the dataset.
    pub(super) path: FilePath,
    pub(super) record: FileRecord,
}

/// Files fetched together; a file larger than a batch is alone.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) files: Vec<Wanted>,
    pub(super) bytes: u64,
}

/// State shared by the threads.
#[derive(Debug)]
pub(super) struct GetState<'a> {
    pub(super) dataset: &'a Dataset,
    target: &'a Target,
    context: &'a Context,
    pub(super) progress: &'a Progress,
    summary: Mutex<Summary>,
    failures: Causes,
    first: Mutex<Option<Exit>>,
    is_stopped: AtomicBool,
}

/// The summary for `--json`.
#[derive(Debug, Default, Serialize)]
pub(super) struct Summary {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) unchanged: u64,
    pub(super) failed: u64,
}

impl<'a> GetState<'a> {
    pub(super) fn new(
        dataset: &'a Dataset,
        target: &'a Target,
        context: &'a Context,
        progress: &'a Progress,
    ) -> Self {
        Self {
            dataset,
            target,
            context,
            progress,
            summary: Mutex::default(),
            failures: Causes::default(),
            first: Mutex::new(None),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Starts no more batches.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed) || self.context.shutdown.is_requested()
    }

    /// The summary, and the exit code of the first failed file.
    pub(super) fn into_summary(self) -> (Summary, Option<Exit>) {
        let summary = self.summary.into_inner().unwrap_or_else(PoisonError::into_inner);
        (summary, self.first.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn summary(&self) -> MutexGuard<'_, Summary> {
        locked(&self.summary)
    }

    /// Whether the file is missing or differs on this machine.
    pub(super) fn is_wanted(&self, file: &Wanted) -> bool {
        // Problems of the folder are reported when the file is written.
        let folder = self.target.folder_of(&file.at);
        let holds = folder.is_ok_and(|folder| folder.holds(file.at.name(), &file.record));
        if holds {
            self.summary().unchanged += 1;
            self.progress.add(1, file.record.length);
        }
        !holds
    }

    /// Bytes of all files below a folder; `None` after a stop or an error.
    pub(super) fn bytes_below(&self, folder: &DirPath) -> Option<u64> {
        let mut bytes = 0u64;
        for entry in self.dataset.list(folder, true, false).ok()? {
            if let ListEntry::File(_, Some(record)) = entry.ok()? {
                bytes = bytes.saturating_add(record.length);
            }
            if self.is_stopped() {
                return None;
            }
        }
        Some(bytes)
    }

    fn fail(&self, file: &Wanted, why: &str, exit: Exit) {
        self.summary().failed += 1;
        locked(&self.first).get_or_insert(exit);
        let at = self.target.shown(file.at.as_bytes());
        self.failures.add("get", format_args!("{} as {}", file.path, shown(&at)), why);
    }

    /// Reports all failed files.
    pub(super) fn print_failures(&self) {
        self.failures.drain(|text| self.context.notes.error(text));
    }
}

/// The destination of a streamed file, with the first local error.
struct Sink<'a, 'b> {
    file: NewFile<'a>,
    shared: &'b GetState<'b>,
    failed: Option<io::Error>,
}

impl<'a> GetState<'a> {
    /// Fetches and writes the files of a batch.
    pub(super) fn fetch(&self, batch: &Batch) -> Result<(), Failure> {
        match batch.files.as_slice() {
            [file] if batch.is_streamed() => self.record(file, self.stream(file), true),
            files => self.fetch_small(files),
        }
    }

    fn fetch_small(&self, files: &[Wanted]) -> Result<(), Failure> {
        let (empty, filled): (Vec<_>, Vec<_>) =
            files.iter().partition(|file| file.record.length == 0);
        for file in empty {
            self.record(file, self.write(file, &[]), false)?;
        }
        let items: Vec<ReadItem> =
            filled.iter().map(|file| (file.path.clone(), file.record).into()).collect();
        let mut ended = Ok(());
        self.dataset.read_files(items, &mut |item, read| {
            let Some(file) = filled.get(item).filter(|_| ended.is_ok()) else { return };
            if self.is_stopped() {
                return;
            }
            let written = read.map_err(FetchError::from).and_then(|bytes| self.write(file, bytes));
            ended = self.record(file, written, false);
        });
        ended
    }

    fn write(&self, file: &Wanted, bytes: &[u8]) -> Result<(), FetchError> {
        let mut new = self.begin(file)?;
        new.file().write_all(bytes)?;
        Ok(new.finish(file.at.name(), file.record.attributes)?)
    }

    fn stream(&self, file: &Wanted) -> Result<(), FetchError> {
        let mut sink = Sink { file: self.begin(file)?, shared: self, failed: None };
        let item = ReadItem::from((file.path.clone(), file.record));
        match self.dataset.read_to(item, &mut sink) {
            Ok(_) => Ok(sink.file.finish(file.at.name(), file.record.attributes)?),
            Err(error) => Err(sink.failed.map_or_else(|| error.into(), FetchError::from)),
        }
    }

    fn begin(&self, file: &Wanted) -> io::Result<NewFile<'a>> {
        let folder = self.target.folder_of(&file.at)?;
        self.target.begin(&folder, file.record.attributes.mode)
    }

    /// Whether the dataset was deleted.
    fn is_gone(&self) -> bool {
        let answer = self.dataset.refresh();
        answer.is_err_and(|error| error.kind() == Kind::NotFound)
    }

    /// Counts a file; an error means that the next files would fail too.
    fn record(
        &self,
        file: &Wanted,
        written: Result<(), FetchError>,
        is_streamed: bool,
    ) -> Result<(), Failure> {
        let length = file.record.length;
        let error = match written {
            Ok(()) => {
                let mut summary = self.summary();
                summary.files += 1;
                summary.bytes += length;
                drop(summary);
                self.progress.add(1, if is_streamed { 0 } else { length });
                return Ok(());
            }
            Err(_) if self.is_stopped() => return Ok(()),
            Err(error) => error,
        };
        match error {
            FetchError::Local(why) => match advice(why.kind()) {
                Some(advice) => {
                    let failure = Failure::failed(format_args!("write it: {why}; {advice}"));
                    return Err(failure.while_doing(format_args!("get {}", file.path)));
                }
                None => self.fail(file, &format!("write it: {why}"), Exit::Failed),
            },
            FetchError::Remote(error) => {
                let kind = error.kind();
                if ends_all(kind) || kind == Kind::NotFound && self.is_gone() {
                    let action = format_args!("get {}", file.path);
                    return Err(Failure::from(error).while_doing(action));
                }
                self.fail(file, &cause(&error), Exit::of(kind));
            }
        }
        Ok(())
    }
}

impl Write for Sink<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.shared.is_stopped() {
            return Err(io::Error::other("stopped"));
        }
        let written = self.file.file().write(bytes);
        match &written {
            Ok(length) => self.shared.progress.add(0, *length as u64),
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => self.failed = Some(copy_of(why)),
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A copy of the error, for the caller above the library.
fn copy_of(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// The reason why a file was not written.
#[derive(Debug)]
enum FetchError {
    /// A local error.
    Local(io::Error),
    /// An error of the servers.
    Remote(libdiesel::Error),
}

impl From<io::Error> for FetchError {
    fn from(error: io::Error) -> Self {
        Self::Local(error)
    }
}

impl From<libdiesel::Error> for FetchError {
    fn from(error: libdiesel::Error) -> Self {
        Self::Remote(error)
    }
}

/// The remedy for an error that would also stop the next file.
fn advice(kind: io::ErrorKind) -> Option<&'static str> {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Some("free space there; the same command then goes on")
        }
        io::ErrorKind::ReadOnlyFilesystem => Some("name a folder that can be written to"),
        _ => None,
    }
}

/// Whether the servers would answer the next file with the same error. Exhaustive on purpose.
fn ends_all(kind: Kind) -> bool {
    match kind {
        Kind::Unreachable
        | Kind::Denied
        | Kind::NeedsRecovery
        | Kind::Cancelled
        | Kind::TimedOut
        | Kind::Full => true,
        Kind::NotFound
        | Kind::Invalid
        | Kind::Conflict
        | Kind::Corrupt
        | Kind::Unavailable
        | Kind::Internal
        | Kind::Local => false,
    }
}

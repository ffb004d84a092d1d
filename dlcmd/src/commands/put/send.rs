//! A thread of `put`: takes files from the walk, skips unchanged files, sends the others.
//!
//! Must hold: an unreadable file affects no other file. A failing server ends the command. The
//! number of files waiting for a comparison or a second check is bounded.

use std::collections::HashMap;
use std::error::Error as _;
use std::ffi::CStr;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dl_format::{Attributes, FilePath, FileRecord};
use dl_runtime::{Shutdown, locked};
use libdiesel::format::PackError;
use libdiesel::{Dataset, Flushed, StatItem};

use super::contents::{SameAttributes, Stored, has_checksum, read_back};
use super::reports::Reports;
use crate::context::Context;
use crate::exit::{Failure, cause};
use crate::local::{
    Entry, Event, Folder, OpenFile, Problem, ReadFailure, Root, SERVER_DATA, is_temporary,
};
use crate::progress::Progress;
use crate::text::shown;

/// Paths compared with the dataset in one request.
pub(super) const COMPARED: usize = 1024;
/// A file modified less than this before being read may change further unnoticed: file systems
/// record times in steps, and late for mapped files.
const SETTLED: Duration = Duration::from_secs(2);
/// Maximum of listed folders cached by a thread.
pub(super) const FOLDERS: usize = 1 << 16;
/// Maximum of recently modified files waiting for a second check.
const FRESH_MAX: usize = 1 << 16;

/// State shared by the threads.
#[derive(Debug)]
pub(super) struct PutState<'a> {
    pub(super) dataset: &'a Dataset,
    pub(super) context: &'a Context,
    pub(super) progress: &'a Progress,
    /// Whether the dataset is empty, so that nothing is compared.
    is_empty: bool,
    checksum: bool,
    /// Files modified less than [`SETTLED`] before being read.
    fresh: Mutex<Vec<Candidate>>,
    /// The sum of all flushes.
    pub(super) flushed: Mutex<Flushed>,
    pub(super) reports: Reports,
    pub(super) unchanged: AtomicU64,
    pub(super) empty_folders: AtomicU64,
    /// Whether all sending threads have ended.
    pub(super) has_ended: AtomicBool,
    has_noted_time: AtomicBool,
}

impl<'a> PutState<'a> {
    pub(super) fn new(
        dataset: &'a Dataset,
        context: &'a Context,
        progress: &'a Progress,
        is_empty: bool,
        checksum: bool,
    ) -> Self {
        Self {
            dataset,
            context,
            progress,
            is_empty,
            checksum,
            fresh: Mutex::default(),
            flushed: Mutex::default(),
            reports: Reports::default(),
            unchanged: AtomicU64::new(0),
            empty_folders: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            has_noted_time: AtomicBool::new(false),
        }
    }

    /// Waits until all sent files are acknowledged or have failed.
    pub(super) fn flush(&self) -> Result<(), Failure> {
        let Flushed { files, bytes, failed } = self.dataset.flush()?;
        let mut sum = locked(&self.flushed);
        sum.files += files;
        sum.bytes += bytes;
        sum.failed.extend(failed);
        Ok(())
    }

    /// Flushes, and checks recently modified files again until none has changed.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        loop {
            self.flush()?;
            let fresh = std::mem::take(&mut *self.fresh());
            if fresh.is_empty() || !Sender::new(self).recheck(&fresh)? {
                return Ok(());
            }
        }
    }

    fn fresh(&self) -> std::sync::MutexGuard<'_, Vec<Candidate>> {
        locked(&self.fresh)
    }

    /// Notes a recently modified file; returns whether the list is full.
    fn remember(&self, file: Candidate) -> bool {
        let mut fresh = self.fresh();
        fresh.push(file);
        fresh.len() >= FRESH_MAX
    }

    /// Counts an unchanged file.
    fn is_there(&self, record: &FileRecord) {
        self.unchanged.fetch_add(1, Ordering::Relaxed);
        self.progress.add(1, record.length);
    }

    /// Notes once that a modification time is out of range.
    fn note_time(&self, path: &FilePath) {
        if !self.has_noted_time.swap(true, Ordering::Relaxed) {
            self.context.notes.note(format_args!(
                "{path}: a dataset has times from 1677 to 2262; this one, and any other beyond \
                 them, is stored as the nearest"
            ));
        }
    }
}

/// A file to be compared with the dataset, with its observed size and attributes.
#[derive(Debug)]
struct Candidate {
    root: Arc<Root>,
    path: FilePath,
    entry: Entry,
    size: u64,
    attributes: Attributes,
}

impl Candidate {
    fn is_like(&self, record: &FileRecord) -> bool {
        self.size == record.length && self.attributes == record.attributes
    }
}

/// Whether a file was modified [`SETTLED`] or more before `time`.
fn is_settled(attributes: Attributes, time: SystemTime) -> bool {
    Attributes::at(time).mtime.saturating_sub(attributes.mtime) >= SETTLED.as_nanos() as i64
}

/// Whether a record proves that the file was read long enough after its modification. The id of its
/// chunk was drawn later, on the machine that read the file. [`Sender::recheck`] handles ids drawn
/// much later.
fn is_trusted(record: &FileRecord) -> bool {
    is_settled(record.attributes, record.version.chunk.sealed_at())
}

/// A sending thread.
#[derive(Debug)]
pub(super) struct Sender<'a> {
    shared: &'a PutState<'a>,
    waiting: Vec<Candidate>,
    /// Whether folders above listed files hold the data of a server, by the hash of their path.
    folders: HashMap<u64, bool>,
    hasher: RandomState,
}

impl<'a> Sender<'a> {
    pub(super) fn new(shared: &'a PutState<'a>) -> Self {
        let (folders, hasher) = (HashMap::new(), RandomState::new());
        Self { shared, waiting: Vec::new(), folders, hasher }
    }

    /// Processes an event of the walk.
    pub(super) fn take(&mut self, event: Event<'_>) -> Result<(), Failure> {
        self.go_on()?;
        match event {
            Event::Problem { root, path, problem } => {
                self.shared.reports.add_problem(root, path, Entry::Found, &problem);
            }
            Event::Folder(_) => {}
            Event::Empty => _ = self.shared.empty_folders.fetch_add(1, Ordering::Relaxed),
            Event::File { folder, name, entry } => self.take_file(folder, name, entry)?,
        }
        Ok(())
    }

    /// Sends all waiting files.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        self.compare()
    }

    fn go_on(&self) -> Result<(), Failure> {
        match self.shared.context.shutdown.is_requested() {
            true => Err(Failure::failed("stopped")),
            false => Ok(()),
        }
    }

    fn take_file(&mut self, folder: &Folder, name: &CStr, entry: Entry) -> Result<(), Failure> {
        let root = folder.root();
        let problem = |problem| {
            self.shared.reports.add_problem(root, &folder.path_of(name), entry, &problem);
            Ok(())
        };
        let path = match folder.dataset_path(name) {
            Ok(path) => path,
            Err(why) => return problem(Problem::Failed(std::io::Error::other(why))),
        };
        if entry == Entry::Found && is_temporary(path.name()) {
            return problem(Problem::Skipped(
                "it is half of a file, of a get that lasts or was killed",
            ));
        }
        let is_listed = name.to_bytes().contains(&b'/');
        if is_listed && self.is_in_server_data(root, name.to_bytes()) {
            return problem(Problem::Skipped(SERVER_DATA));
        }
        if self.shared.is_empty {
            return match folder.open(name, entry) {
                Ok(file) => self.send(root, &path, entry, file),
                Err(why) => problem(why),
            };
        }
        let (size, attributes) = match folder.stat(name, entry) {
            Ok(stat) => stat,
            Err(why) => return problem(why),
        };
        self.waiting.push(Candidate { root: Arc::clone(root), path, entry, size, attributes });
        if self.waiting.len() >= COMPARED { self.compare() } else { Ok(()) }
    }

    /// Whether a listed file lies in a folder with the data of a server. Walks skip such folders.
    fn is_in_server_data(&mut self, root: &Root, path: &[u8]) -> bool {
        let above = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let folder = path.get(..above).unwrap_or_default();
        let hash = self.hasher.hash_one(folder);
        if let Some(known) = self.folders.get(&hash) {
            return *known;
        }
        let is_above = !folder.is_empty() && self.is_in_server_data(root, folder);
        let is_data = is_above || root.holds_server_data(folder);
        if self.folders.len() >= FOLDERS {
            self.folders.clear();
        }
        self.folders.insert(hash, is_data);
        is_data
    }

    fn compare(&mut self) -> Result<(), Failure> {
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return Ok(());
        }
        let mut same = Vec::new();
        for (file, found) in waiting.iter().zip(self.stat(&waiting)?) {
            let record = match found {
                StatItem::File(record) if file.is_like(&record) => record,
                StatItem::File(_) | StatItem::Missing => {
                    self.send_anew(&file.root, &file.path, file.entry)?;
                    continue;
                }
                StatItem::Folder => {
                    self.has_no_place(file);
                    continue;
                }
            };
            if is_trusted(&record) && !self.shared.checksum {
                self.shared.is_there(&record);
            } else {
                let (root, path) = (Arc::clone(&file.root), file.path.clone());
                same.push(SameAttributes { root, path, entry: file.entry, record });
            }
        }
        self.compare_contents(same)
    }

    fn stat(&self, files: &[Candidate]) -> Result<Vec<StatItem>, Failure> {
        let paths: Vec<_> = files.iter().map(|file| file.path.clone()).collect();
        Ok(self.shared.dataset.stat_many(&paths)?)
    }

    /// Reports a file hidden by a folder of the dataset.
    fn has_no_place(&self, file: &Candidate) {
        let from = file.root.shown(file.root.relative(&file.path));
        let (name, path) = (&self.shared.dataset.info().name, &file.path);
        self.shared.reports.fail(
            "store",
            format_args!("{} as dl://{name}/{path}", shown(&from)),
            "a folder stands there and would hide it; put it into another folder, or remove that \
             one (dlcmd rm -r)",
        );
    }

    /// Sends files with changed bytes; with `--checksum` also files with damaged stored bytes.
    fn compare_contents(&self, mut same: Vec<SameAttributes>) -> Result<(), Failure> {
        let mut changed = Vec::new();
        for file in std::mem::take(&mut same) {
            self.go_on()?;
            let below = file.root.relative(&file.path);
            match has_checksum(&file.root, below, file.entry, &file.record) {
                Ok(true) => same.push(file),
                Ok(false) => changed.push(file),
                Err(problem) => {
                    self.shared.reports.add_problem(&file.root, below, file.entry, &problem);
                }
            }
        }
        if !self.shared.checksum {
            same.drain(..).for_each(|file| self.shared.is_there(&file.record));
        }
        let dataset = self.shared.dataset;
        let stored = read_back(dataset, &same, &self.shared.context.shutdown)?;
        for (file, stored) in same.into_iter().zip(stored) {
            match stored {
                Stored::Whole => self.shared.is_there(&file.record),
                Stored::Damaged => changed.push(file),
                Stored::Unknown(error) => {
                    self.go_on()?;
                    self.shared.reports.fail("compare", &file.path, cause(&error));
                }
            }
        }
        changed.iter().try_for_each(|file| self.send_anew(&file.root, &file.path, file.entry))
    }

    /// Checks files again that were modified just before being read. The next put detects them by
    /// the id of their chunk, unless the id was drawn long after reading. In this case the file is
    /// read again, and sent again if changed. Returns whether any file was sent.
    fn recheck(&self, files: &[Candidate]) -> Result<bool, Failure> {
        let mut is_any_sent = false;
        for files in files.chunks(COMPARED) {
            for (file, found) in files.iter().zip(self.stat(files)?) {
                self.go_on()?;
                let StatItem::File(record) = found else { continue };
                if !file.is_like(&record) || !is_trusted(&record) {
                    continue;
                }
                let below = file.root.relative(&file.path);
                // A deleted or unreadable file keeps its stored state.
                if matches!(has_checksum(&file.root, below, file.entry, &record), Ok(false)) {
                    self.send_anew(&file.root, &file.path, file.entry)?;
                    is_any_sent = true;
                }
            }
        }
        Ok(is_any_sent)
    }

    fn send_anew(&self, root: &Arc<Root>, path: &FilePath, entry: Entry) -> Result<(), Failure> {
        let below = root.relative(path);
        match root.open_file(below, entry) {
            Ok(file) => self.send(root, path, entry, file),
            Err(problem) => {
                self.shared.reports.add_problem(root, below, entry, &problem);
                Ok(())
            }
        }
    }

    fn send(
        &self,
        root: &Arc<Root>,
        path: &FilePath,
        entry: Entry,
        mut file: OpenFile,
    ) -> Result<(), Failure> {
        let below = || root.relative(path);
        let mut read_at = self.shared.context.clock.now();
        let mut sent = self.send_once(path, &mut file);
        if sent.is_err()
            && let Some(failure @ (ReadFailure::Changed | ReadFailure::Size)) = file.failure()
        {
            let again = root.open_file(below(), entry).and_then(|mut file| match failure {
                ReadFailure::Size => file.measure().map(|()| file).map_err(Problem::Failed),
                ReadFailure::Changed | ReadFailure::Io(_) => Ok(file),
            });
            file = match again {
                Ok(file) => file,
                Err(problem) => {
                    self.shared.reports.add_problem(root, below(), entry, &problem);
                    return Ok(());
                }
            };
            read_at = self.shared.context.clock.now();
            sent = self.send_once(path, &mut file);
        }
        let Err(error) = sent else {
            return self.has_sent(root, path, entry, &file, read_at);
        };
        let why = match file.failure() {
            None => match error.source().and_then(|why| why.downcast_ref::<PackError>()) {
                // Datasets of this shape can't store the file.
                Some(why) => std::io::Error::other(*why),
                None => return Err(error.into()),
            },
            Some(failure) => std::io::Error::other(failure),
        };
        self.shared.reports.add_problem(root, below(), entry, &Problem::Failed(why));
        Ok(())
    }

    fn has_sent(
        &self,
        root: &Arc<Root>,
        path: &FilePath,
        entry: Entry,
        file: &OpenFile,
        read_at: SystemTime,
    ) -> Result<(), Failure> {
        let (size, attributes) = (file.size(), file.attributes());
        self.shared.progress.add(1, size);
        if is_settled(attributes, read_at) {
            return Ok(());
        }
        let (root, path) = (Arc::clone(root), path.clone());
        let is_many = self.shared.remember(Candidate { root, path, entry, size, attributes });
        if is_many { self.shared.finish() } else { Ok(()) }
    }

    fn send_once(&self, path: &FilePath, file: &mut OpenFile) -> Result<(), libdiesel::Error> {
        let (attributes, size) = (file.attributes(), file.size());
        if matches!(attributes.mtime, i64::MIN | i64::MAX) {
            self.shared.note_time(path);
        }
        let mut file = Stoppable { file, shutdown: &self.shared.context.shutdown };
        self.shared.dataset.put_reader(path, attributes, size, &mut file)
    }
}

/// A file that stops reading after Ctrl-C, because the file may be huge.
struct Stoppable<'a> {
    file: &'a mut OpenFile,
    shutdown: &'a Shutdown,
}

impl Read for Stoppable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.shutdown.is_requested() {
            return Err(std::io::Error::other("stopped"));
        }
        self.file.read(buffer)
    }
}

//! One thread of `put`: takes files from the walk, leaves out what is unchanged, sends the rest.
//!
//! Must hold: a file that can't be read costs that file and no other; a failing server ends the
//! command; what waits for a comparison is bounded.

use std::collections::HashSet;
use std::error::Error as _;
use std::ffi::CStr;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dl_format::{FilePath, FileRecord};
use dl_runtime::Shutdown;
use libdiesel::{Dataset, PackError, StatItem};

use super::contents::{Alike, Stored, has_checksum, read_back};
use crate::context::Context;
use crate::exit::Failure;
use crate::local::{
    Entry, Event, Folder, OpenFile, Problem, Root, Trouble, is_temporary, is_unchanged,
};
use crate::progress::Progress;
use crate::text::shown;

/// Paths that are compared with the dataset in one request.
const COMPARED: usize = 1024;
/// Folders of a list that a thread remembers.
const FOLDERS: usize = 1 << 16;

/// What the threads share.
#[derive(Debug)]
pub(super) struct Shared<'a> {
    dataset: &'a Dataset,
    context: &'a Context,
    progress: &'a Progress,
    /// Nothing is there to compare with.
    is_empty: bool,
    checksum: bool,
    /// Paths that are a file of one source and maybe a folder of another.
    both: HashSet<FilePath>,
    /// The files at these paths: their turn comes when all others are there.
    late: Mutex<Vec<Waiting>>,
    /// Files of the dataset at whose paths the sources have folders.
    covered: Mutex<Vec<FilePath>>,
    unchanged: AtomicU64,
    skipped: AtomicU64,
    failed: AtomicU64,
    has_ended: AtomicBool,
    has_told_time: AtomicBool,
}

/// How it went, beside what was stored.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) unchanged: u64,
    pub(super) skipped: u64,
    pub(super) failed: u64,
}

impl<'a> Shared<'a> {
    pub(super) fn new(
        dataset: &'a Dataset,
        context: &'a Context,
        progress: &'a Progress,
        is_empty: bool,
        checksum: bool,
        both: HashSet<FilePath>,
    ) -> Self {
        Self {
            dataset,
            context,
            progress,
            is_empty,
            checksum,
            both,
            late: Mutex::default(),
            covered: Mutex::default(),
            unchanged: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            has_told_time: AtomicBool::new(false),
        }
    }

    pub(super) fn progress(&self) -> &Progress {
        self.progress
    }

    /// No thread sends any more.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// The counts.
    pub(super) fn into_tally(self) -> Tally {
        Tally {
            unchanged: self.unchanged.into_inner(),
            skipped: self.skipped.into_inner(),
            failed: self.failed.into_inner(),
        }
    }

    /// Whether some files were left for last.
    pub(super) fn has_late(&self) -> bool {
        !self.late().is_empty()
    }

    fn late(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A folder will stand where the dataset has a file, if anything is put into it.
    pub(super) fn covers(&self, path: FilePath) {
        self.covered.lock().unwrap_or_else(PoisonError::into_inner).push(path);
    }

    /// Names the files of the dataset that what was put hides; gives how many. Call it when all is
    /// acknowledged; when that `is_uncertain`, nobody is asked.
    pub(super) fn tell_hidden(&self, is_uncertain: bool) -> u64 {
        let mut covered = self.covered.lock().unwrap_or_else(PoisonError::into_inner);
        covered.sort();
        covered.dedup();
        let name = &self.dataset.info().name;
        let found = if is_uncertain { None } else { self.dataset.stat_many(&covered).ok() };
        let Some(found) = found else {
            for path in &*covered {
                self.context.notes.error(format_args!(
                    "dl://{name}/{path}: a folder of that name was being put, which hides this file"
                ));
            }
            return 0;
        };
        let mut hidden = 0;
        for (path, found) in covered.iter().zip(found) {
            if found == StatItem::Folder {
                hidden += 1;
                self.context.notes.error(format_args!(
                    "dl://{name}/{path}: this file is hidden now by the folder that was put there"
                ));
            }
        }
        hidden
    }

    /// A file that need not be sent.
    fn is_there(&self, record: &FileRecord) {
        self.unchanged.fetch_add(1, Ordering::Relaxed);
        self.progress.add(1, record.length);
    }

    /// A file that would be hidden, and sent anew each time.
    fn has_no_place(&self, root: &Root, path: &FilePath) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let (from, name) = (root.shown(root.relative(path)), &self.dataset.info().name);
        self.context.notes.error(format_args!(
            "{} is not stored: dl://{name}/{path} is a folder; put it into another folder, or \
             remove that one (dlcmd rm -r)",
            shown(&from)
        ));
    }

    /// Says once that times are stored as others than they are.
    fn tell_time(&self, path: &FilePath) {
        if !self.has_told_time.swap(true, Ordering::Relaxed) {
            self.context.notes.note(format_args!(
                "{path}: a dataset has times from 1677 to 2262; this one, and any other beyond \
                 them, is stored as the nearest"
            ));
        }
    }

    fn passed_over(&self, root: &Root, path: &[u8], problem: &Problem) {
        let path = root.shown(path);
        let shown = shown(&path);
        match problem {
            Problem::Skipped(why) => {
                self.skipped.fetch_add(1, Ordering::Relaxed);
                self.context.notes.note(format_args!("skipped {shown}: {why}"));
            }
            Problem::Failed(why) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                self.context.notes.error(format_args!("read {shown}: {why}"));
            }
        }
    }
}

/// One thread.
#[derive(Debug)]
pub(super) struct Sender<'a> {
    shared: &'a Shared<'a>,
    waiting: Vec<Waiting>,
    /// Hashes of folders that lie on the way to listed files and were looked at, with all above them.
    folders: HashSet<u64>,
    hasher: RandomState,
}

/// A path that is to be compared with the dataset.
#[derive(Debug)]
enum Waiting {
    Folder(FilePath),
    File { root: Arc<Root>, path: FilePath, entry: Entry, size: u64, mtime: i64 },
}

impl Waiting {
    fn path(&self) -> &FilePath {
        match self {
            Self::Folder(path) | Self::File { path, .. } => path,
        }
    }
}

impl<'a> Sender<'a> {
    pub(super) fn new(shared: &'a Shared<'a>) -> Self {
        let (folders, hasher) = (HashSet::new(), RandomState::new());
        Self { shared, waiting: Vec::new(), folders, hasher }
    }

    /// Takes what the walk came upon.
    ///
    /// # Errors
    /// Those that end the command.
    pub(super) fn take(&mut self, event: Event<'_>) -> Result<(), Failure> {
        if self.shared.context.shutdown.is_requested() {
            return Err(Failure::failed("stopped"));
        }
        match event {
            Event::Problem { root, path, problem } => {
                self.shared.passed_over(root, path, &problem);
                Ok(())
            }
            Event::Folder(folder) => self.take_folder(folder),
            Event::File { folder, name, entry } => self.take_file(folder, name, entry),
        }
    }

    /// Sends what still waits.
    ///
    /// # Errors
    /// Those that end the command.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        self.compare()
    }

    /// Sends what was left for last.
    ///
    /// # Errors
    /// Those that end the command.
    pub(super) fn finish_late(mut self) -> Result<(), Failure> {
        let late = std::mem::take(&mut *self.shared.late());
        late.into_iter().try_for_each(|file| self.wait(file))?;
        self.compare()
    }

    fn take_folder(&mut self, folder: &Folder) -> Result<(), Failure> {
        if self.shared.is_empty {
            return Ok(());
        }
        // A folder without a legal path has no files with one: they are reported.
        match folder.own_dataset_path() {
            Ok(path) => self.wait(Waiting::Folder(path)),
            Err(_) => Ok(()),
        }
    }

    /// The folders on the way to a file that a list names; a walk comes upon them before their files.
    fn take_way(&mut self, path: &FilePath) -> Result<(), Failure> {
        let mut folder = path.parent();
        while !folder.is_root() {
            if self.folders.len() >= FOLDERS {
                self.folders.clear();
            }
            if !self.folders.insert(self.hasher.hash_one(folder.as_bytes())) {
                return Ok(());
            }
            let Ok(path) = FilePath::new(folder.as_bytes().to_vec()) else { return Ok(()) };
            folder = path.parent();
            self.wait(Waiting::Folder(path))?;
        }
        Ok(())
    }

    fn take_file(&mut self, folder: &Folder, name: &CStr, entry: Entry) -> Result<(), Failure> {
        let root = folder.root();
        let problem = |problem| {
            self.shared.passed_over(root, &folder.path_of(name), &problem);
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
        let is_late = self.shared.both.contains(&path);
        if self.shared.is_empty && !is_late {
            return match folder.open(name, entry) {
                Ok(file) => self.send(root, &path, entry, file),
                Err(why) => problem(why),
            };
        }
        let (size, mtime) = match folder.stat(name) {
            Some(stat) => stat,
            None => match folder.open(name, entry) {
                Ok(file) => (file.size(), file.attributes().mtime),
                Err(why) => return problem(why),
            },
        };
        if name.to_bytes().contains(&b'/') {
            self.take_way(&path)?;
        }
        let file = Waiting::File { root: Arc::clone(root), path, entry, size, mtime };
        if is_late {
            self.shared.late().push(file);
            return Ok(());
        }
        self.wait(file)
    }

    fn wait(&mut self, waiting: Waiting) -> Result<(), Failure> {
        self.waiting.push(waiting);
        if self.waiting.len() >= COMPARED { self.compare() } else { Ok(()) }
    }

    fn compare(&mut self) -> Result<(), Failure> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        let paths: Vec<_> = waiting.iter().map(|waiting| waiting.path().clone()).collect();
        let found = self.shared.dataset.stat_many(&paths)?;
        let mut alike = Vec::new();
        for (waiting, found) in waiting.into_iter().zip(found) {
            match (waiting, found) {
                (Waiting::Folder(path), StatItem::File(_)) => self.shared.covers(path),
                (Waiting::Folder(_), StatItem::Folder | StatItem::Missing) => {}
                (Waiting::File { root, path, entry, size, mtime }, found) => {
                    let record = match found {
                        StatItem::File(record) => Some(record),
                        StatItem::Missing => None,
                        StatItem::Folder => {
                            self.shared.has_no_place(&root, &path);
                            continue;
                        }
                    };
                    match record.filter(|record| is_unchanged(size, mtime, record)) {
                        None => self.send_anew(&root, &path, entry)?,
                        Some(record) if self.shared.checksum => {
                            alike.push(Alike { root, path, entry, record });
                        }
                        Some(record) => self.shared.is_there(&record),
                    }
                }
            }
        }
        self.compare_contents(alike)
    }

    /// Sends the files whose bytes, here or in the dataset, are not those that were put.
    fn compare_contents(&self, mut alike: Vec<Alike>) -> Result<(), Failure> {
        let mut changed = Vec::new();
        for file in std::mem::take(&mut alike) {
            if self.shared.context.shutdown.is_requested() {
                return Err(Failure::failed("stopped"));
            }
            let below = file.root.relative(&file.path);
            match has_checksum(&file.root, below, file.entry, &file.record) {
                Ok(true) => alike.push(file),
                Ok(false) => changed.push(file),
                Err(problem) => self.shared.passed_over(&file.root, below, &problem),
            }
        }
        let dataset = self.shared.dataset;
        let stored = read_back(dataset, &alike, &self.shared.context.shutdown)?;
        for (file, stored) in alike.into_iter().zip(stored) {
            match stored {
                Stored::Whole => self.shared.is_there(&file.record),
                Stored::Broken => changed.push(file),
                Stored::Unknown(_) if self.shared.context.shutdown.is_requested() => {
                    return Err(Failure::failed("stopped"));
                }
                Stored::Unknown(error) => {
                    self.shared.failed.fetch_add(1, Ordering::Relaxed);
                    let error = Failure::from(error);
                    self.shared.context.notes.error(format_args!("compare {}: {error}", file.path));
                }
            }
        }
        changed.iter().try_for_each(|file| self.send_anew(&file.root, &file.path, file.entry))
    }

    fn send_anew(&self, root: &Arc<Root>, path: &FilePath, entry: Entry) -> Result<(), Failure> {
        let below = root.relative(path);
        match root.open_file(below, entry) {
            Ok(file) => self.send(root, path, entry, file),
            Err(problem) => {
                self.shared.passed_over(root, below, &problem);
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
        let mut sent = self.send_once(path, &mut file);
        if sent.is_err()
            && let Some(trouble @ (Trouble::Changed | Trouble::Size)) = file.trouble()
        {
            let again = root.open_file(below(), entry).and_then(|mut file| match trouble {
                Trouble::Size => file.measure().map(|()| file).map_err(Problem::Failed),
                Trouble::Changed | Trouble::Io(_) => Ok(file),
            });
            file = match again {
                Ok(file) => file,
                Err(problem) => {
                    self.shared.passed_over(root, below(), &problem);
                    return Ok(());
                }
            };
            sent = self.send_once(path, &mut file);
        }
        let Err(error) = sent else {
            self.shared.progress.add(1, file.size());
            return Ok(());
        };
        let why = match file.trouble() {
            None => match error.source().and_then(|why| why.downcast_ref::<PackError>()) {
                // No dataset of this shape can hold it.
                Some(why) => std::io::Error::other(*why),
                None => return Err(error.into()),
            },
            Some(trouble) => std::io::Error::other(trouble),
        };
        self.shared.passed_over(root, below(), &Problem::Failed(why));
        Ok(())
    }

    fn send_once(&self, path: &FilePath, file: &mut OpenFile) -> Result<(), libdiesel::Error> {
        let (attributes, size) = (file.attributes(), file.size());
        if matches!(attributes.mtime, i64::MIN | i64::MAX) {
            self.shared.tell_time(path);
        }
        let mut file = Stoppable { file, shutdown: &self.shared.context.shutdown };
        self.shared.dataset.put_reader(path, attributes, size, &mut file)
    }
}

/// A file that nobody reads on when the command is to stop: it may be a huge one.
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

//! One thread of `put`: takes files from the walk, leaves out what is unchanged, sends the rest.
//!
//! Must hold: a file that can't be read costs that file and no other; a failing server ends the
//! command; what waits for a comparison is bounded.

use std::ffi::CStr;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dl_format::{Crc32c, FilePath, FileRecord};
use libdiesel::{Dataset, StatItem};

use crate::context::Context;
use crate::exit::Failure;
use crate::local::{Entry, Event, Folder, OpenFile, Problem, Root, Trouble, is_unchanged};
use crate::progress::Progress;

/// Paths that are compared with the dataset in one request.
const COMPARED: usize = 1024;
/// Bytes that are read at once to checksum a file.
const CHECKSUM_BUFFER: usize = 1 << 20;

/// What the threads share.
#[derive(Debug)]
pub(super) struct Shared<'a> {
    dataset: &'a Dataset,
    context: &'a Context,
    progress: &'a Progress,
    /// Nothing is there to compare with.
    is_empty: bool,
    checksum: bool,
    unchanged: AtomicU64,
    skipped: AtomicU64,
    failed: AtomicU64,
    both: Mutex<Vec<FilePath>>,
    has_ended: AtomicBool,
}

/// How it went, beside what was stored.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) unchanged: u64,
    pub(super) skipped: u64,
    pub(super) failed: u64,
    /// Paths that are a file and a folder.
    pub(super) both: Vec<FilePath>,
}

impl<'a> Shared<'a> {
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
            unchanged: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            both: Mutex::default(),
            has_ended: AtomicBool::new(false),
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

    /// The counts, with paths already known to be a file and a folder.
    pub(super) fn into_tally(self, mut both: Vec<FilePath>) -> Tally {
        both.extend(self.both.into_inner().unwrap_or_else(PoisonError::into_inner));
        both.sort();
        both.dedup();
        Tally {
            unchanged: self.unchanged.into_inner(),
            skipped: self.skipped.into_inner(),
            failed: self.failed.into_inner(),
            both,
        }
    }

    fn is_both(&self, path: FilePath) {
        self.both.lock().unwrap_or_else(PoisonError::into_inner).push(path);
    }

    fn is_hidden(&self, path: FilePath) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
        self.is_both(path);
    }

    fn passed_over(&self, root: &Root, path: &[u8], problem: &Problem) {
        let shown = root.shown(path);
        let shown = crate::text::escaped(shown.as_os_str().as_encoded_bytes());
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
        Self { shared, waiting: Vec::new() }
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
        if self.shared.is_empty {
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
        self.wait(Waiting::File { root: Arc::clone(root), path, entry, size, mtime })
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
        for (waiting, found) in waiting.into_iter().zip(found) {
            match (waiting, found) {
                (Waiting::Folder(path), StatItem::File(_)) => self.shared.is_both(path),
                (Waiting::Folder(_), StatItem::Folder | StatItem::Missing) => {}
                (Waiting::File { root, path, entry, size, mtime }, found) => {
                    let record = match found {
                        StatItem::File(record) => Some(record),
                        StatItem::Missing => None,
                        // It would be hidden, and sent anew each time.
                        StatItem::Folder => {
                            self.shared.is_hidden(path);
                            continue;
                        }
                    };
                    let record = record.filter(|record| is_unchanged(size, mtime, record));
                    self.send_changed(&root, &path, entry, record)?;
                }
            }
        }
        Ok(())
    }

    /// Sends a file unless it is what `record`, of the same size and time, describes.
    fn send_changed(
        &self,
        root: &Arc<Root>,
        path: &FilePath,
        entry: Entry,
        record: Option<FileRecord>,
    ) -> Result<(), Failure> {
        let below = root.relative(path);
        let is_same = match record {
            None => false,
            Some(record) if self.shared.checksum => match has_checksum(root, below, entry, &record)
            {
                Ok(is_same) => is_same,
                Err(problem) => {
                    self.shared.passed_over(root, below, &problem);
                    return Ok(());
                }
            },
            Some(_) => true,
        };
        if is_same {
            self.shared.unchanged.fetch_add(1, Ordering::Relaxed);
            self.shared.progress.add(1, record.map_or(0, |record| record.length));
            return Ok(());
        }
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
        if sent.is_err() && file.trouble() == Some(Trouble::Changed) {
            file = match root.open_file(below(), entry) {
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
            None => return Err(error.into()),
            Some(Trouble::Changed) => std::io::Error::other("it changed each time it was read"),
            Some(Trouble::Io(kind)) => kind.into(),
        };
        self.shared.passed_over(root, below(), &Problem::Failed(why));
        Ok(())
    }

    fn send_once(&self, path: &FilePath, file: &mut OpenFile) -> Result<(), libdiesel::Error> {
        let (attributes, size) = (file.attributes(), file.size());
        self.shared.dataset.put_reader(path, attributes, size, file)
    }
}

/// Whether the file's bytes are those of `record`.
fn has_checksum(
    root: &Root,
    path: &[u8],
    entry: Entry,
    record: &FileRecord,
) -> Result<bool, Problem> {
    let mut file = root.open_file(path, entry)?;
    let most = usize::try_from(file.size()).unwrap_or(usize::MAX).min(CHECKSUM_BUFFER);
    let mut buffer = vec![0; most];
    let mut crc = Crc32c::default();
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(crc == record.crc),
            Ok(read) => {
                let read = buffer.get(..read).unwrap_or_default();
                crc = crc.then(Crc32c::of(read), read.len() as u64);
            }
            Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
            // It will be sent as it is then.
            Err(_) if file.trouble() == Some(Trouble::Changed) => return Ok(false),
            Err(why) => return Err(Problem::Failed(why)),
        }
    }
}

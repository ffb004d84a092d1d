//! Walks trees with several threads.
//!
//! Must hold: each file is given to exactly one thread, once. Memory grows with the names of
//! waiting folders, not with the files. A single folder with a million files keeps all threads
//! busy. When links are followed, no folder is entered below itself.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use dl_runtime::locked;
use rustix::fs::{AtFlags, FileType, RawDir, fstat, statat};
use rustix::io::Errno;

use super::folder::{Entry, Folder, Problem, Root};
use super::server_data;

/// Buffer size for directory entries.
const DIRECTORY_BUFFER: usize = 32 << 10;
/// Files handed to a waiting thread at once.
const HANDED_OVER: usize = 256;

/// An event of the walk.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// A folder, before its entries; not for the roots.
    Folder(&'a Folder),
    /// A folder without entries, also a root; comes after [`Event::Folder`].
    Empty,
    /// A file, or a link that may lead to a file.
    File {
        folder: &'a Folder,
        /// Its name in the folder; a path for entries named by the user.
        name: &'a CStr,
        /// How to open the entry.
        entry: Entry,
    },
    /// A skipped or unreadable entry.
    Problem {
        root: &'a Root,
        /// The path below the root.
        path: &'a [u8],
        /// The reason.
        problem: Problem,
    },
}

/// A walk shared by threads; each calls [`Walk::join`].
#[derive(Debug, Default)]
pub(crate) struct Walk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Waiting>,
    /// Threads that may still add tasks.
    busy: usize,
    /// Threads without work.
    idle: usize,
    is_stopped: bool,
}

#[derive(Debug)]
enum Task {
    /// A folder and its parent; for the root, the path is empty and there is no parent.
    Folder(Arc<Root>, Vec<u8>, Option<Arc<Parent>>),
    /// The paths in the given byte range.
    Files(Arc<Folder>, Arc<Paths>, Range<usize>, Entry),
}

/// Paths below a root in one buffer, without an allocation for each.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// Each path ends with NUL.
    bytes: Vec<u8>,
}

impl Paths {
    /// Adds a path without NUL.
    pub(crate) fn push(&mut self, path: &[u8]) {
        self.bytes.extend_from_slice(path);
        self.bytes.push(0);
    }

    /// All paths, in the order of addition.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &CStr> {
        named(&self.bytes)
    }

    /// The byte ranges handed to threads.
    fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        let ends = self.bytes.iter().enumerate().filter(|(_, byte)| **byte == 0);
        let ends = ends.map(|(at, _)| at + 1).skip(HANDED_OVER - 1).step_by(HANDED_OVER);
        let mut start = 0;
        ends.chain([self.bytes.len()]).map(move |end| {
            let part = start..end;
            start = end;
            part
        })
    }
}

#[derive(Debug)]
enum Waiting {
    Task(Task),
    Folders(Folders),
}

/// Sibling folders, by their names: there may be a million.
#[derive(Debug)]
struct Folders {
    root: Arc<Root>,
    parent: Arc<Parent>,
    names: Paths,
}

/// An entered folder with folders below.
#[derive(Debug)]
struct Parent {
    /// Its path, with a trailing slash except for the root.
    path: Vec<u8>,
    /// Device and inode, when links are followed.
    id: Option<(u64, u64)>,
    /// The folder above, when links are followed.
    above: Option<Arc<Parent>>,
}

impl Parent {
    /// The folder; an error if a link led back to an ancestor.
    fn enter(folder: &Folder, path: &[u8], above: Option<Arc<Self>>) -> Result<Self, Problem> {
        let path = if path.is_empty() { Vec::new() } else { [path, b"/"].concat() };
        if !folder.root().follows() {
            return Ok(Self { path, id: None, above: None });
        }
        let stat = fstat(folder.descriptor()).map_err(|why| Problem::Failed(why.into()))?;
        let id = Some((stat.st_dev, stat.st_ino));
        let mut parents = std::iter::successors(above.as_deref(), |parent| parent.above.as_deref());
        if parents.any(|parent| parent.id == id) {
            return Err(Problem::Skipped("it leads back to a folder that it lies in, in a loop"));
        }
        Ok(Self { path, id, above })
    }
}

impl Folders {
    fn are_in(&self, root: &Arc<Root>, parent: &Arc<Parent>) -> bool {
        Arc::ptr_eq(&self.root, root) && Arc::ptr_eq(&self.parent, parent)
    }

    /// Removes the last path; also returns whether there are more.
    fn pop(&mut self) -> (Vec<u8>, bool) {
        let names = &mut self.names.bytes;
        names.pop();
        let start = names.iter().rposition(|byte| *byte == 0).map_or(0, |end| end + 1);
        let path = [&self.parent.path, names.get(start..).unwrap_or_default()].concat();
        names.truncate(start);
        (path, start > 0)
    }
}

impl Walk {
    /// Adds everything in the folder at `path` below `root`; the whole root for an empty path.
    pub(crate) fn add_tree(&self, root: &Arc<Root>, path: &[u8]) {
        self.give(Task::Folder(Arc::clone(root), path.to_vec(), None));
    }

    /// Adds the files at the given paths below `root`.
    pub(crate) fn add_files(
        &self,
        root: &Arc<Root>,
        paths: &Arc<Paths>,
        entry: Entry,
    ) -> std::io::Result<()> {
        let folder = Arc::new(root.folder(&[])?);
        for part in paths.parts() {
            self.give(Task::Files(Arc::clone(&folder), Arc::clone(paths), part, entry));
        }
        Ok(())
    }

    /// Works until nothing is left, or until `visit` fails in any thread.
    pub(crate) fn join<E>(
        &self,
        mut visit: impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(task) = self.take() {
            let done = match task {
                Task::Folder(root, path, above) => self.read(&root, &path, above, &mut visit),
                Task::Files(folder, paths, part, entry) => {
                    let names = paths.bytes.get(part).unwrap_or_default();
                    visit_files(&folder, names, entry, &mut visit)
                }
            };
            let mut state = self.state();
            state.busy -= 1;
            state.is_stopped |= done.is_err();
            if state.is_stopped || (state.busy == 0 && state.waiting.is_empty()) {
                self.changed.notify_all();
            }
            drop(state);
            done?;
        }
        Ok(())
    }

    fn read<E>(
        &self,
        root: &Arc<Root>,
        path: &[u8],
        above: Option<Arc<Parent>>,
        visit: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let entered = enter(root, path, above);
        let (folder, parent) = match entered {
            Ok((folder, parent)) => (Arc::new(folder), Arc::new(parent)),
            Err(problem) => return visit(Event::Problem { root, path, problem }),
        };
        if !path.is_empty() {
            visit(Event::Folder(&folder))?;
        }
        let mut buffer = [MaybeUninit::uninit(); DIRECTORY_BUFFER];
        let mut entries = RawDir::new(folder.descriptor(), &mut buffer);
        let (mut names, mut count) = (Paths::default(), 0);
        let mut is_empty = true;
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                Err(why) => {
                    is_empty = false;
                    let problem = Problem::Failed(why.into());
                    visit(Event::Problem { root, path, problem })?;
                    break;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            is_empty = false;
            match file_type(&folder, name, entry.file_type()) {
                FileType::Directory => self.give_folder(root, &parent, name),
                _ => {
                    names.push(name.to_bytes());
                    count += 1;
                    if count == HANDED_OVER {
                        count = 0;
                        let names = std::mem::take(&mut names);
                        if let Some(names) = self.hand_over(&folder, names) {
                            visit_files(&folder, &names.bytes, Entry::Found, visit)?;
                        }
                    }
                }
            }
        }
        if is_empty {
            visit(Event::Empty)?;
        }
        visit_files(&folder, &names.bytes, Entry::Found, visit)
    }

    fn give(&self, task: Task) {
        self.state().waiting.push(Waiting::Task(task));
        self.changed.notify_one();
    }

    /// Queues a folder, together with its siblings if they were queued last.
    fn give_folder(&self, root: &Arc<Root>, parent: &Arc<Parent>, name: &CStr) {
        let mut state = self.state();
        match state.waiting.last_mut() {
            Some(Waiting::Folders(folders)) if folders.are_in(root, parent) => {
                folders.names.push(name.to_bytes());
            }
            _ => {
                let (root, parent) = (Arc::clone(root), Arc::clone(parent));
                let mut folders = Folders { root, parent, names: Paths::default() };
                folders.names.push(name.to_bytes());
                state.waiting.push(Waiting::Folders(folders));
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Hands files to an idle thread; returns them if no thread is idle.
    fn hand_over(&self, folder: &Arc<Folder>, names: Paths) -> Option<Paths> {
        let mut state = self.state();
        if state.idle <= state.waiting.len() {
            return Some(names);
        }
        let all = 0..names.bytes.len();
        let files = Task::Files(Arc::clone(folder), Arc::new(names), all, Entry::Found);
        state.waiting.push(Waiting::Task(files));
        drop(state);
        self.changed.notify_one();
        None
    }

    fn take(&self) -> Option<Task> {
        let mut state = self.state();
        loop {
            if state.is_stopped {
                return None;
            }
            // The newest task first, so a deep tree is walked before a wide tree is queued.
            if let Some(task) = state.next() {
                state.busy += 1;
                return Some(task);
            }
            if state.busy == 0 {
                return None;
            }
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl State {
    /// The last task, or the last folder of the last siblings.
    fn next(&mut self) -> Option<Task> {
        match self.waiting.pop()? {
            Waiting::Task(task) => Some(task),
            Waiting::Folders(mut folders) => {
                let (root, (path, more)) = (Arc::clone(&folders.root), folders.pop());
                let parent = Arc::clone(&folders.parent);
                if more {
                    self.waiting.push(Waiting::Folders(folders));
                }
                Some(Task::Folder(root, path, Some(parent)))
            }
        }
    }
}

fn visit_files<E>(
    folder: &Folder,
    names: &[u8],
    entry: Entry,
    visit: &mut impl FnMut(Event<'_>) -> Result<(), E>,
) -> Result<(), E> {
    named(names).try_for_each(|name| visit(Event::File { folder, name, entry }))
}

/// Consecutive names, each ending with NUL.
fn named(bytes: &[u8]) -> impl Iterator<Item = &CStr> {
    let names = bytes.split_inclusive(|byte| *byte == 0);
    names.filter_map(|name| CStr::from_bytes_with_nul(name).ok())
}

/// Opens a folder, unless the folder holds a server's data or is its own ancestor.
fn enter(
    root: &Arc<Root>,
    path: &[u8],
    above: Option<Arc<Parent>>,
) -> Result<(Folder, Parent), Problem> {
    let folder = root.folder(path).map_err(Problem::Failed)?;
    if server_data::is_in(folder.descriptor()) {
        return Err(Problem::Skipped(server_data::SKIPPED));
    }
    let parent = Parent::enter(&folder, path, above)?;
    Ok((folder, parent))
}

/// The type of an entry, or of a link's target when links are followed.
fn file_type(folder: &Folder, name: &CStr, given: FileType) -> FileType {
    let flags = match folder.root().follows() {
        true if matches!(given, FileType::Unknown | FileType::Symlink) => AtFlags::empty(),
        // Some file systems store no type in directories.
        false if given == FileType::Unknown => AtFlags::SYMLINK_NOFOLLOW,
        _ => return given,
    };
    statat(folder.descriptor(), name, flags)
        .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
}

#[cfg(test)]
mod tests;

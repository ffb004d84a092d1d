//! Conflicting paths: the same path from two sources, or a path as both file and folder.
//!
//! Must hold: conflicts are found before anything is written. Memory is a few bytes per file, for
//! names of any length.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;

use dl_format::FilePath;
use dl_runtime::{Shutdown, locked};
use libdiesel::{Dataset, StatItem};

use super::send::{COMPARED, FOLDERS};
use super::{Input, walk};
use crate::exit::Failure;
use crate::local::{Entry, Event, Folder, Problem, Walk, is_temporary};
use crate::text::shown;

/// Maximum of paths named in a refusal.
const NAMED: usize = 10;

/// Refuses sources that give the same path twice, or the same path as file and folder.
pub(super) fn among_sources(inputs: &[Input], shutdown: &Shutdown) -> Result<(), Failure> {
    let hasher = RandomState::new();
    let (mut files, mut folders) = (HashSet::new(), HashSet::new());
    walk(inputs)?.join(|event| -> Result<(), Failure> {
        if shutdown.is_requested() {
            return Err(Failure::failed("stopped"));
        }
        let Event::File { folder, name, .. } = event else { return Ok(()) };
        // Invalid dataset paths are reported later, when the file is sent.
        let Ok(path) = folder.dataset_path(name) else { return Ok(()) };
        for above in folders_of(&path) {
            let hash = hasher.hash_one(above);
            if !folders.insert(hash) {
                // Folders above a known folder are known too.
                break;
            }
            if files.contains(&hash)
                && let Ok(above) = FilePath::new(above.to_vec())
            {
                refuse_file_and_folder(inputs, &above)?;
            }
        }
        let hash = hasher.hash_one(path.as_bytes());
        // Equal hashes are only a hint.
        if !files.insert(hash) {
            refuse_twice(inputs, &path)?;
        }
        if folders.contains(&hash) {
            refuse_file_and_folder(inputs, &path)?;
        }
        Ok(())
    })
}

/// The ancestor folders of a path, the nearest first.
fn folders_of(path: &FilePath) -> impl Iterator<Item = &[u8]> {
    let path = path.as_bytes();
    let slashes = (0..path.len()).rev().filter(|at| path.get(*at) == Some(&b'/'));
    slashes.filter_map(|slash| path.get(..slash))
}

fn refuse_twice(inputs: &[Input], path: &FilePath) -> Result<(), Failure> {
    let mut givers = inputs.iter().filter_map(|input| input.gives(path));
    match (givers.next(), givers.next()) {
        (Some(one), Some(other)) => Err(Failure::usage(format!(
            "{} and {} would both become {path}; put them into two folders of the dataset",
            shown(&one),
            shown(&other)
        ))),
        _ => Ok(()),
    }
}

fn refuse_file_and_folder(inputs: &[Input], path: &FilePath) -> Result<(), Failure> {
    let file = inputs.iter().find_map(|input| input.gives(path));
    let folder = inputs.iter().find_map(|input| input.gives_below(path));
    match (file, folder) {
        (Some(file), Some(folder)) => Err(Failure::usage(format!(
            "{} would become the file {path}, and {} a folder of that name; put them into two \
             folders of the dataset",
            shown(&file),
            shown(&folder)
        ))),
        _ => Ok(()),
    }
}

impl Input {
    /// The local file stored as `path`, if this source has any.
    fn gives(&self, path: &FilePath) -> Option<PathBuf> {
        let (root, entry) = match self {
            Self::Tree(root) => (root, Entry::Found),
            Self::Files(root, paths, entry) => {
                let below = root.relative(path);
                paths.iter().any(|path| path.to_bytes() == below).then_some((root, *entry))?
            }
        };
        let below = root.relative(path);
        let is_there = match root.open_file(below, entry) {
            Ok(_) => true,
            Err(Problem::Skipped(_) | Problem::NotFollowed(_)) => false,
            Err(Problem::Failed(why)) => why.kind() == io::ErrorKind::PermissionDenied,
        };
        is_there.then(|| root.shown(below))
    }

    /// A local file or folder of this source with files stored below `folder`, if any.
    fn gives_below(&self, folder: &FilePath) -> Option<PathBuf> {
        match self {
            Self::Tree(root) => {
                let part = root.part_in(folder)?;
                let walk = Walk::default();
                walk.add_tree(root, part);
                let found = walk.join(|event| match event {
                    Event::File { folder, name, entry }
                        if !is_temporary(name.to_bytes()) && folder.open(name, entry).is_ok() =>
                    {
                        Err(())
                    }
                    _ => Ok(()),
                });
                found.is_err().then(|| root.shown(part))
            }
            Self::Files(root, paths, entry) => {
                let part = root.part_in(folder)?;
                let is_inside = |path: &[u8]| match path.strip_prefix(part) {
                    Some(rest) => part.is_empty() || rest.starts_with(b"/"),
                    None => false,
                };
                let mut inside = paths.iter().map(|path| path.to_bytes());
                let found =
                    inside.find(|path| is_inside(path) && root.open_file(path, *entry).is_ok())?;
                Some(root.shown(found))
            }
        }
    }
}

/// The kind of an entry in the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathKind {
    File,
    Folder,
}

/// Refuses sources with a folder in the place of a dataset's file, or with a file in the place of a
/// dataset's folder.
pub(super) fn with_dataset(
    inputs: &[Input],
    dataset: &Dataset,
    threads: usize,
    shutdown: &Shutdown,
) -> Result<(), Failure> {
    let found = Mutex::default();
    let checker = || PathChecker::new(inputs, dataset, shutdown, &found);
    let mut above = checker();
    let mut paths: Vec<_> = inputs.iter().flat_map(|input| input.root().folders_above()).collect();
    paths.dedup();
    paths.into_iter().try_for_each(|path| above.take(path, PathKind::Folder))?;
    above.ask()?;
    let walk = walk(inputs)?;
    let look = || {
        let mut checker = checker();
        walk.join(|event| checker.visit(event)).and_then(|()| checker.ask())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(look)).collect();
        let mut ended = Ok(());
        for thread in threads {
            ended = ended.and(thread.join().expect("a checker gives its failures back"));
        }
        ended
    })?;
    refuse(dataset, found.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// A thread that looks up paths.
#[derive(Debug)]
struct PathChecker<'a> {
    inputs: &'a [Input],
    dataset: &'a Dataset,
    shutdown: &'a Shutdown,
    waiting: Vec<(FilePath, PathKind)>,
    found: &'a Mutex<Vec<(FilePath, PathKind)>>,
    /// Hashes of the checked folders above listed files, including all their ancestors.
    folders: HashSet<u64>,
    hasher: RandomState,
}

impl<'a> PathChecker<'a> {
    fn new(
        inputs: &'a [Input],
        dataset: &'a Dataset,
        shutdown: &'a Shutdown,
        found: &'a Mutex<Vec<(FilePath, PathKind)>>,
    ) -> Self {
        let (folders, hasher) = (HashSet::new(), RandomState::new());
        Self { inputs, dataset, shutdown, waiting: Vec::new(), found, folders, hasher }
    }

    fn visit(&mut self, event: Event<'_>) -> Result<(), Failure> {
        if self.shutdown.is_requested() {
            return Err(Failure::failed("stopped"));
        }
        // Invalid dataset paths are reported later, when the file is sent.
        match event {
            Event::Folder(folder) => match folder.own_dataset_path() {
                Ok(path) => self.take(path, PathKind::Folder),
                Err(_) => Ok(()),
            },
            Event::File { folder, name, .. } => self.take_file(folder, name),
            Event::Empty | Event::Problem { .. } => Ok(()),
        }
    }

    /// Checks a file, and the folders above a listed file; walks report folders by themselves.
    fn take_file(&mut self, folder: &Folder, name: &std::ffi::CStr) -> Result<(), Failure> {
        let Ok(path) = folder.dataset_path(name) else { return Ok(()) };
        if name.to_bytes().contains(&b'/') {
            for above in folders_of(&path) {
                if self.folders.len() >= FOLDERS {
                    self.folders.clear();
                }
                if !self.folders.insert(self.hasher.hash_one(above)) {
                    break;
                }
                if let Ok(above) = FilePath::new(above.to_vec()) {
                    self.take(above, PathKind::Folder)?;
                }
            }
        }
        self.take(path, PathKind::File)
    }

    fn take(&mut self, path: FilePath, kind: PathKind) -> Result<(), Failure> {
        self.waiting.push((path, kind));
        if self.waiting.len() >= COMPARED { self.ask() } else { Ok(()) }
    }

    fn ask(&mut self) -> Result<(), Failure> {
        let waiting = std::mem::take(&mut self.waiting);
        let paths: Vec<_> = waiting.iter().map(|(path, _)| path.clone()).collect();
        if paths.is_empty() {
            return Ok(());
        }
        for ((path, kind), item) in waiting.into_iter().zip(self.dataset.stat_many(&paths)?) {
            // Sources without a file to store hide nothing.
            let giver = |gives: fn(&Input, &FilePath) -> Option<PathBuf>| {
                self.inputs.iter().any(|input| gives(input, &path).is_some())
            };
            let is_hidden = match (kind, item) {
                _ if self.found().len() > NAMED => false,
                (PathKind::Folder, StatItem::File(_)) => giver(Input::gives_below),
                (PathKind::File, StatItem::Folder) => giver(Input::gives),
                _ => false,
            };
            if is_hidden {
                self.found().push((path, kind));
            }
        }
        Ok(())
    }

    fn found(&self) -> std::sync::MutexGuard<'_, Vec<(FilePath, PathKind)>> {
        locked(self.found)
    }
}

fn refuse(dataset: &Dataset, mut found: Vec<(FilePath, PathKind)>) -> Result<(), Failure> {
    if found.is_empty() {
        return Ok(());
    }
    found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    found.dedup();
    let name = &dataset.info().name;
    let is_more = found.len() > NAMED;
    let clauses = found.iter().take(NAMED).map(|(path, kind)| match kind {
        PathKind::Folder => {
            format!("dl://{name}/{path} is a file, and a folder of that name would hide it")
        }
        PathKind::File => {
            format!(
                "dl://{name}/{path} is a folder, and would hide the file that is to be put there"
            )
        }
    });
    let clauses = clauses.collect::<Vec<_>>().join("; ");
    let more = if is_more { "; and more" } else { "" };
    let rm = match found.first() {
        Some((path, PathKind::File)) if found.len() == 1 => {
            format!("dlcmd rm -r dl://{name}/{path}")
        }
        Some((path, PathKind::Folder)) if found.len() == 1 => {
            format!("dlcmd rm dl://{name}/{path}")
        }
        _ => "dlcmd rm, with -r for folders".to_owned(),
    };
    Err(Failure::partly(format!(
        "put: {clauses}{more}; nothing was stored: remove what is there first ({rm}), or name \
         another target"
    )))
}

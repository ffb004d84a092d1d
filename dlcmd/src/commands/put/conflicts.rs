//! Whether several sources give one path twice.
//!
//! Must hold: found before anything is written; memory is a few bytes a file, whatever the names.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;

use dl_format::FilePath;
use dl_runtime::Shutdown;

use super::{Input, walk};
use crate::exit::Failure;
use crate::local::{Entry, Event, Problem};
use crate::text::shown;

/// The paths that are a file of one source and may be a folder of another: whether they are shows
/// when that folder's files are there.
///
/// # Errors
/// Wrong usage, naming both sources, when two give one path; and when it is asked to stop.
pub(super) fn check(inputs: &[Input], shutdown: &Shutdown) -> Result<HashSet<FilePath>, Failure> {
    let hasher = RandomState::new();
    let (mut files, mut folders) = (HashSet::new(), HashSet::new());
    let mut both = HashSet::new();
    walk(inputs)?.join(|event| -> Result<(), Failure> {
        if shutdown.is_requested() {
            return Err(Failure::failed("stopped"));
        }
        let Event::File { folder, name, .. } = event else { return Ok(()) };
        // A path that no dataset can hold is reported when it is its turn.
        let Ok(path) = folder.dataset_path(name) else { return Ok(()) };
        for above in folders_of(&path) {
            let hash = hasher.hash_one(above);
            if !folders.insert(hash) {
                // So are those above it.
                break;
            }
            if files.contains(&hash)
                && let Ok(above) = FilePath::new(above.to_vec())
            {
                both.insert(above);
            }
        }
        let hash = hasher.hash_one(path.as_bytes());
        if !files.insert(hash) {
            // Equal hashes are only a hint.
            refuse_twice(inputs, &path)?;
        }
        if folders.contains(&hash) {
            both.insert(path);
        }
        Ok(())
    })?;
    Ok(both)
}

/// The folders that a path lies in, the nearest first.
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

impl Input {
    /// The file that becomes `path`, if this source has one.
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
            Err(Problem::Skipped(_)) => false,
            Err(Problem::Failed(why)) => why.kind() == io::ErrorKind::PermissionDenied,
        };
        is_there.then(|| root.shown(below))
    }
}

//! Whether several sources give one path twice.
//!
//! Must hold: found before anything is written; memory is a few bytes a file, whatever the names.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;

use dl_format::FilePath;

use super::{Input, walk};
use crate::exit::Failure;
use crate::local::{Entry, Event, Problem};

/// The paths that are a file of one source and a folder of another.
///
/// # Errors
/// Wrong usage, naming both sources, when two give one path.
pub(super) fn check(inputs: &[Input]) -> Result<Vec<FilePath>, Failure> {
    let hasher = RandomState::new();
    let (mut files, mut folders) = (HashSet::new(), HashSet::new());
    let mut both = Vec::new();
    walk(inputs)?.join(|event| -> Result<(), Failure> {
        let (path, is_folder) = match event {
            Event::File { folder, name, .. } => (folder.dataset_path(name), false),
            Event::Folder(folder) => (folder.own_dataset_path(), true),
            Event::Problem { .. } => return Ok(()),
        };
        // A path that no dataset can hold is reported when it is its turn.
        let Ok(path) = path else { return Ok(()) };
        let hash = hasher.hash_one(path.as_bytes());
        let (mine, other) = if is_folder { (&mut folders, &files) } else { (&mut files, &folders) };
        let is_new = mine.insert(hash);
        if is_new && other.contains(&hash) {
            both.push(path);
        } else if !is_new && !is_folder {
            // Equal hashes are only a hint.
            refuse_twice(inputs, &path)?;
        }
        Ok(())
    })?;
    Ok(both)
}

fn refuse_twice(inputs: &[Input], path: &FilePath) -> Result<(), Failure> {
    let mut givers = inputs.iter().filter_map(|input| input.gives(path));
    match (givers.next(), givers.next()) {
        (Some(one), Some(other)) => Err(Failure::usage(format!(
            "{} and {} would both become {path}; put them into two folders of the dataset",
            one.display(),
            other.display()
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

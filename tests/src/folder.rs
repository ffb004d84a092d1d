//! Folders of random files, compared by bytes, times and permissions.
//!
//! Must hold: two folders are equal when they have the same regular files; empty folders don't
//! count.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::dice::Dice;

/// Writes a file below `root` and creates its parent folders.
///
/// # Errors
/// As the file system fails.
pub fn write(root: &Path, path: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Result<()> {
    let file = root.join(OsStr::from_bytes(path.as_ref()));
    let parent = file.parent().context("a file has a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    fs::write(&file, data).with_context(|| format!("write {}", file.display()))
}

/// Fills `root` with `count` files of up to `longest` bytes, a hundred in each folder.
///
/// # Errors
/// As the file system fails.
pub fn fill(root: &Path, count: usize, longest: usize, dice: &Dice) -> Result<()> {
    for number in 0..count {
        let length = if dice.once_in(20) { 0 } else { dice.below(longest) };
        let path = format!("{:03}/{number:06}.bin", number / 100);
        write(root, path, dice.bytes(length))?;
        if dice.once_in(10) {
            let path = root.join(format!("{:03}/{number:06}.bin", number / 100));
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        }
    }
    Ok(())
}

/// Fills `root` with `count` files of the given bytes, a thousand in each folder.
///
/// # Errors
/// As the file system fails.
pub fn fill_with(root: &Path, count: usize, bytes: impl Fn(usize) -> Vec<u8>) -> Result<()> {
    (0..count).try_for_each(|number| {
        write(root, format!("{:04}/{number:07}", number / 1_000), bytes(number))
    })
}

/// The compared properties of a file: bytes, modification time in nanoseconds, permission bits.
type File = (Vec<u8>, i64, u32);

/// The sorted paths of all files below a folder; none if the folder does not exist.
///
/// # Errors
/// As the file system fails.
pub fn paths(root: &Path) -> Result<Vec<PathBuf>> {
    let (mut paths, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries.with_context(|| format!("read {}", folder.display()))?,
        };
        for entry in entries {
            let entry = entry?;
            let is_folder = entry.file_type()?.is_dir();
            if is_folder { &mut folders } else { &mut paths }.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// All files below `root`.
///
/// # Errors
/// As the file system fails.
pub fn read(root: &Path) -> Result<BTreeMap<Vec<u8>, File>> {
    let mut files = BTreeMap::new();
    for path in paths(root)? {
        let metadata = fs::symlink_metadata(&path)?;
        let mtime = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
        let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let name = path.strip_prefix(root)?.as_os_str().as_bytes().to_vec();
        files.insert(name, (bytes, mtime, metadata.mode() & 0o777));
    }
    Ok(files)
}

/// The bytes of all files below a folder; zero if the folder does not exist.
///
/// # Errors
/// When the folder can't be read.
pub fn bytes_under(root: &Path) -> Result<u64> {
    // A file may be renamed or removed during the listing.
    let length = |path: &PathBuf| fs::symlink_metadata(path).map_or(0, |found| found.len());
    Ok(paths(root)?.iter().map(length).sum())
}

/// Compares two folders and reports the first difference.
///
/// # Errors
/// When a file differs or is missing.
pub fn compare(one: &Path, other: &Path) -> Result<()> {
    let (left, right) = (read(one)?, read(other)?);
    for path in left.keys().chain(right.keys()) {
        let name = String::from_utf8_lossy(path);
        match (left.get(path), right.get(path)) {
            (Some(a), Some(b)) if a == b => {}
            (Some((a, ..)), Some((b, ..))) if a != b => {
                bail!("{name} has other bytes: {} and {} of them", a.len(), b.len())
            }
            (Some((_, a, x)), Some((_, b, y))) => {
                bail!("{name} has times {a} and {b}, permissions {x:o} and {y:o}")
            }
            (Some(_), None) => bail!("{name} is only in {}", one.display()),
            (None, _) => bail!("{name} is only in {}", other.display()),
        }
    }
    Ok(())
}

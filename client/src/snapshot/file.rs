//! Opening and removing files that other processes may create or remove.
//!
//! Must hold: no call here blocks, for any kind of file at a path. Only regular files are opened.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a file for reading; a link is followed.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // The mere opening of a device may have effects.
    check_regular(&fs::metadata(path)?)?;
    let file = without_waiting(OFlags::empty()).read(true).open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// Opens a file for reading and writing, or makes the file; a link is not followed.
pub(crate) fn open_or_make(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(there) => check_regular(&there)?,
        Err(why) if why.kind() == io::ErrorKind::NotFound => {}
        Err(why) => return Err(why),
    }
    let mut options = without_waiting(OFlags::NOFOLLOW);
    let file = options.create(true).truncate(false).read(true).write(true).open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

fn without_waiting(flags: OFlags) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(flags.union(OFlags::NONBLOCK).bits() as i32);
    options
}

/// Fails unless a file is a regular file.
pub(crate) fn check_regular(there: &Metadata) -> io::Result<()> {
    let why = match there.file_type() {
        is if is.is_file() => return Ok(()),
        is if is.is_dir() => "the path is a folder",
        is if is.is_symlink() => "the path is a symbolic link; name the file behind the link",
        _ => "the path is no regular file",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// Checks that a file may be replaced: the path is free, or has a regular file.
pub(crate) fn check_replaceable(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        there => check_regular(&there?),
    }
}

/// Whether an open file is the file at a path.
pub(crate) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let there = match fs::symlink_metadata(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(false),
        there => there?,
    };
    let file = file.metadata()?;
    Ok((there.dev(), there.ino()) == (file.dev(), file.ino()))
}

/// Removes an open file, unless another file stands at its path by now. A failure is ignored.
pub(crate) fn remove(file: &File, path: &Path) {
    if is_at(file, path).unwrap_or(false) {
        let _ = fs::remove_file(path);
    }
}

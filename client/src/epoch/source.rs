//! Where the files of an epoch come from, as one process sees it.
//!
//! Must hold: an unreadable file is told apart from an interrupted way to all files.

use std::fmt::Debug;

use bytes::Bytes;

use crate::error::Error;
use crate::order::Cursor;

/// The bytes of a file, or the reason why the file is unreadable. The outer error means: no server could
/// be asked.
pub(crate) type FileRead = Result<Result<Bytes, Error>, Error>;

/// Reads the files of an order, and may fetch them before they are asked for.
pub(crate) trait FileSource: Debug + Send + Sync {
    /// The file with a number, at a position of the order. None while memory is full of files at earlier
    /// positions that other threads still read: the caller comes back after the end of such a read.
    fn read(&self, position: u64, number: u32) -> Option<FileRead>;

    /// The caller reads the files before a position by himself.
    fn pass(&self, position: u64);

    /// The file with a number, out of turn, for a caller who may keep the bytes. None for a file neither
    /// here nor on its way: the caller reads the file as if there were no epoch.
    fn read_ahead(&self, number: u32) -> Option<FileRead>;
}

/// Makes the source of the current process, for the files left in a cursor.
pub(crate) type OpenSource =
    Box<dyn Fn(Cursor) -> Result<Box<dyn FileSource>, Error> + Send + Sync>;

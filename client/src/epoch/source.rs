//! Where the files of an epoch come from, as one process sees it.
//!
//! Must hold: a file that can't be had is told apart from a way to the files that is interrupted.

use std::fmt::Debug;

use bytes::Bytes;

use crate::error::Error;
use crate::order::Cursor;

/// The bytes of a file, or why it can't be had. The outer error says that nobody could be asked.
pub(crate) type FileRead = Result<Result<Bytes, Error>, Error>;

/// Reads the files of an order, and may fetch them before they are asked for.
pub(crate) trait FileSource: Debug + Send + Sync {
    /// The file of this number, at a position of the order. None when memory is full of files at
    /// earlier positions, which others were given and still read: the caller comes back when a read of
    /// these has ended.
    fn read(&self, position: u64, number: u32) -> Option<FileRead>;

    /// The file of this number out of turn, for a caller who may keep it. None for a file that is
    /// neither here nor on its way: it is read as if there were no epoch.
    fn read_ahead(&self, number: u32) -> Option<FileRead>;
}

/// Makes the source of the process that runs now, for the files that a cursor still gives.
pub(crate) type OpenSource =
    Box<dyn Fn(Cursor) -> Result<Box<dyn FileSource>, Error> + Send + Sync>;

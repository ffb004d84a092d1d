//! The source of the files of an epoch, for a single process.
//!
//! Must hold: the failure of a file differs from a failure of the whole source.

use std::fmt::Debug;

use bytes::Bytes;

use crate::error::Error;
use crate::order::Cursor;

/// The bytes or the error of a file. The outer error means: no server answered.
pub(crate) type FileRead = Result<Result<Bytes, Error>, Error>;

/// Reads the files of an order, perhaps ahead of the requests.
pub(crate) trait FileSource: Debug + Send + Sync {
    /// The file with a number, at a position of the order. None while memory is full of files at earlier
    /// positions that other threads still read: the caller comes back after the end of such a read.
    fn read(&self, position: u64, number: u32) -> Option<FileRead>;

    /// Skips the files before a position, which the caller reads without the source.
    fn pass(&self, position: u64);

    /// Skips the files before a position without a result of [`FileSource::read`]. No thread reads the
    /// files in memory: the files were read without the source.
    fn skip(&self, position: u64);

    /// The file with a number, out of turn, for a caller who may keep the bytes. None for a file neither
    /// here nor on its way: the caller reads the file as if there were no epoch.
    fn read_out_of_order(&self, number: u32) -> Option<FileRead>;
}

/// Opens the source of the current process, for the files left in a cursor.
pub(crate) type OpenSource =
    Box<dyn Fn(Cursor) -> Result<Box<dyn FileSource>, Error> + Send + Sync>;
